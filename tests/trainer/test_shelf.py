"""What runs leave for one another: one entry each, and its file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs import ROOT
from trainer.gate_calibration import Calibration, NoiseFloor
from trainer.shelf import KEPT, Fingerprint, put, read_shelf, shelf_file
from trainer.types import InputError

HERE = Fingerprint(domain="math", protocol_hash="h", token_budget=1000, base_policy="b")
FLOOR = NoiseFloor(variance=4e-4, df=10, r=0.01, n_tasks=24)


def test_a_file_holds_one_entry_per_run(tmp_path: Path) -> None:
    folder = tmp_path / "calibration"
    assert read_shelf(folder, HERE, Calibration) == Calibration(fingerprint=HERE)
    put(folder, HERE, Calibration, "a", FLOOR)
    put(folder, HERE, Calibration, "b", FLOOR)
    once = shelf_file(folder, HERE).read_bytes()
    put(folder, HERE, Calibration, "b", FLOOR)
    assert shelf_file(folder, HERE).read_bytes() == once
    assert read_shelf(folder, HERE, Calibration).runs == {"a": FLOOR, "b": FLOOR}
    other = HERE.model_copy(update={"token_budget": 2000})
    assert read_shelf(folder, other, Calibration).runs == {}
    assert sorted(path.name for path in folder.iterdir()) == [f"{HERE.key}.json", f"{HERE.key}.lock"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "Invalid JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"{}", "fingerprint: missing"),
        (Calibration(fingerprint=HERE.model_copy(update={"domain": "code"})).model_dump_json().encode(), "fingerprint"),
        (Calibration(fingerprint=HERE, schema_version=99).model_dump_json().encode(), "schema_version"),
        (
            Calibration(fingerprint=HERE, runs={"a": FLOOR}).model_dump_json().replace("0.0004", "-1").encode(),
            "runs.a.variance",
        ),
    ],
)
def test_a_damaged_file_is_one_line_with_the_remedy(tmp_path: Path, content: bytes, words: str) -> None:
    path = shelf_file(tmp_path, HERE)
    path.write_bytes(content)
    uses: list[Callable[[], object]] = [
        lambda: read_shelf(tmp_path, HERE, Calibration),
        lambda: put(tmp_path, HERE, Calibration, "a", FLOOR),
    ]
    for use in uses:
        with pytest.raises(InputError) as caught:
            use()
        text = str(caught.value)
        assert text.startswith(f"{path}: ")
        assert words in text
        assert "delete the file" in text
        assert "\n" not in text
    assert path.read_bytes() == content


def test_runs_that_end_side_by_side_lose_no_entry(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.trainer.test_shelf import *\n"
        "for i in range(20): put(Path(sys.argv[1]), HERE, Calibration, f'{sys.argv[2]}{i}', FLOOR)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), who], cwd=ROOT) for who in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(read_shelf(tmp_path, HERE, Calibration).runs) == 40


def test_the_latest_runs_are_kept_in_the_order_in_which_they_last_wrote(tmp_path: Path) -> None:
    for run in [*range(KEPT), 0, KEPT]:
        put(tmp_path, HERE, Calibration, str(run), FLOOR)
    names = list(read_shelf(tmp_path, HERE, Calibration).runs)
    assert names == [*map(str, range(2, KEPT)), "0", str(KEPT)]
    assert "0" not in read_shelf(tmp_path, HERE, Calibration).others("0")
