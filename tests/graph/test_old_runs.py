"""Runs of earlier versions open; a run of a later one says which version opens it.

``run-of-schema-1.tar.xz`` is a finished run as it was written before there were content hashes and ``written_by``. The weights
are left out of the archive: those of a run of the same shape stand in.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from graph import run, runs
from graph.integrity.check import check_run
from tests.runs import Runner

ARCHIVE = Path(__file__).with_name("run-of-schema-1.tar.xz")
WRITTEN_IN = "/runs/math-old"


@pytest.fixture
def old(whole: Path, tmp_path: Path) -> Path:
    shutil.unpack_archive(ARCHIVE, tmp_path)  # TarFile's own filter= is not in the first releases of 3.11
    run = tmp_path / "math-old"
    for path in run.rglob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace(WRITTEN_IN, str(run)), encoding="utf-8")
    for config in run.rglob("config.json"):
        shutil.copy(whole / "base" / "model.safetensors", config.parent)
    return run


def test_an_old_run_opens_whole_and_goes_on(old: Path, runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    assert "written_by" not in json.loads((old / "manifest.json").read_text())
    report = check_run(old)
    assert [p.mend for p in report.problems] == ["adopt"], report.problems  # its machine had no certification yet
    assert runs.main(["check", str(old), "--repair"]) == 0
    assert report.checked["sealed files"] == 0
    for arguments in (["show", str(old), "--version", "v0001"], ["show", str(old), "--finding", "dead_groups"]):
        assert runs.main(arguments) == 0
    assert "dead_groups" in capsys.readouterr().out
    done = runner.run("--resume", str(old), "--versions", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert [v["version"] for v in json.loads(done.stdout)["versions"]] == ["v0001", "v0002"]
    assert check_run(old).sound


def test_a_run_of_a_later_schema_names_the_version_that_opens_it(
    broken: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken() / "manifest.json"
    later = json.loads(path.read_text()) | {"schema_version": 99, "written_by": "EvoTrainer 9.0", "surprise": True}
    path.write_text(json.dumps(later))
    for command in (runs.main, run.main):
        words = ["check", str(path.parent)] if command is runs.main else ["--resume", str(path.parent)]
        assert command(words) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert f"{path}: schema_version 99: written by EvoTrainer 9.0" in err
        assert "open the run with that version" in err


def test_a_run_says_which_version_wrote_it(whole: Path) -> None:
    assert json.loads((whole / "manifest.json").read_text())["written_by"].startswith("EvoTrainer 0.")
