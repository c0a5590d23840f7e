"""The stored noise floor: pooled, counted once, with at most four degrees of freedom; and its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.gate_arms import BETTER, PARENT, POLICY, SAME, judged
from trainer.gate import GateInput, VersionSpread, judge
from trainer.gate_calibration import (
    Calibration,
    Fingerprint,
    NoiseFloor,
    calibration_file,
    noise_floor,
    pooled_floor,
    read_calibration,
    store_floor,
)
from trainer.statistics import detectable_effect
from trainer.types import InputError

HERE = Fingerprint(domain="math", protocol_hash="h", token_budget=1000, base_policy="b")
FLOOR = NoiseFloor(variance=4e-4, df=10, r=0.01, n_tasks=24)


def stored(df: int, variance: float = 4e-4, protocol_hash: str = "h") -> VersionSpread:
    return VersionSpread(
        version="calibration", protocol_hash=protocol_hash, variance=variance, df=df, n_tasks=24, r=1e-4
    )


def with_calibration(calibration: VersionSpread | None) -> float:
    p = judge(GateInput(parent=PARENT, candidate=SAME, calibration=calibration), POLICY).p
    assert p is not None
    return p


def test_a_calibration_counts_with_four_degrees_of_freedom_and_only_for_its_protocol() -> None:
    assert with_calibration(stored(4)) == with_calibration(stored(400)) != with_calibration(stored(3))
    assert with_calibration(stored(9, protocol_hash="other")) == with_calibration(None)
    assert with_calibration(stored(0)) == with_calibration(None) != with_calibration(stored(4))


def test_a_calibration_lowers_the_detectable_effect_as_four_more_degrees_of_freedom_do() -> None:
    plain = judged(BETTER)
    report = judge(GateInput(parent=PARENT, candidate=BETTER, calibration=stored(40, plain.sigma**2)), POLICY)
    looks = ((2, 0.0, 0.3), (3, 0.005, 1.0))
    assert plain.mde is not None
    assert report.mde is not None
    # The pool's noise changes slightly with the calibration's own r; the interaction is far below 1 % of it.
    assert report.mde / plain.mde == pytest.approx(
        detectable_effect(looks, 3, 4) / detectable_effect(looks, 3, 0), rel=0.01
    )


def test_floors_are_pooled_by_df_over_the_other_runs() -> None:
    runs = {"a": FLOOR, "b": FLOOR.model_copy(update={"variance": 1e-4, "df": 5}), "c": FLOOR}
    calibration = Calibration(fingerprint=HERE, runs=runs)
    spread = pooled_floor(calibration, "c")
    assert spread is not None
    assert (spread.df, spread.protocol_hash) == (15, "h")
    assert spread.r == pytest.approx(0.01)
    assert spread.variance == pytest.approx((10 * 4e-4 + 5 * 1e-4) / 15)
    assert pooled_floor(Calibration(fingerprint=HERE, runs={"c": FLOOR}), "c") is None


def test_the_floor_of_a_run_is_the_gates_own_pool() -> None:
    report = judged(SAME)
    floor = noise_floor([report.parent_spread, report.spread, report.spread])
    assert floor is not None
    assert (floor.df, floor.n_tasks) == (4, 24)
    assert floor.variance**0.5 == pytest.approx(report.sigma, rel=1e-12)
    assert noise_floor([stored(0)]) is None


def test_a_file_holds_one_entry_per_run(tmp_path: Path) -> None:
    folder = tmp_path / "calibration"
    assert read_calibration(folder, HERE) == Calibration(fingerprint=HERE)
    store_floor(folder, HERE, "a", FLOOR)
    store_floor(folder, HERE, "b", FLOOR)
    once = calibration_file(folder, HERE).read_bytes()
    store_floor(folder, HERE, "b", FLOOR)
    assert calibration_file(folder, HERE).read_bytes() == once
    assert read_calibration(folder, HERE).runs == {"a": FLOOR, "b": FLOOR}
    other = HERE.model_copy(update={"token_budget": 2000})
    assert read_calibration(folder, other).runs == {}
    assert [path.name for path in folder.iterdir()] == [f"{HERE.key}.json"]


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
    path = calibration_file(tmp_path, HERE)
    path.write_bytes(content)
    uses: list[Callable[[], object]] = [
        lambda: read_calibration(tmp_path, HERE),
        lambda: store_floor(tmp_path, HERE, "a", FLOOR),
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
