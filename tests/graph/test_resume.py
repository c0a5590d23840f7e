"""What ``--resume`` finds out before any work, and what it writes again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from graph.integrity.check import check_run
from graph.record import RunRecord
from tests.graph.test_integrity import cut
from tests.runs import Runner


def certified(run: Path) -> str:
    """The version whose certificate the run holds."""
    return next(
        str(e["version"]) for e in RunRecord(run).entries("ledger") if e["kind"] == "certification" and e["gate"]
    )


@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_damaged_certificate_is_named_before_any_work(harm: str, broken: Callable[[], Path], runner: Runner) -> None:
    run = broken()
    path = run / "versions" / certified(run) / "certificate.json"
    if harm == "cut":
        cut(path)
    else:
        path.unlink()
    before = set(run.glob("versions/*/*"))
    done = runner.run("--resume", str(run), "--versions", "3")
    assert done.returncode == 2
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert line.startswith(f"error: {path}: ") and "; restore it from a copy" in line and "--repair" in line
    assert "Traceback" not in done.stderr
    assert set(run.glob("versions/*/*")) == before, "nothing was trained"
    assert runner.runs("check", str(run), "--repair").returncode == 0
    assert check_run(run).sound


@pytest.mark.parametrize("name", ["versions/v0001/intervention.json", "versions/v0001/gate.json", "earlier.json"])
def test_what_later_verdicts_rest_on_is_asked_for_before_any_work(
    name: str, broken: Callable[[], Path], runner: Runner
) -> None:
    run = broken()
    if name.startswith("versions"):
        (run / name).unlink()
    else:
        cut(run / name)
    before = set(run.glob("versions/*/*"))
    done = runner.run("--resume", str(run), "--versions", "3")
    assert done.returncode == 2
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    assert line.startswith(f"error: {run / name}: ") and "Traceback" not in done.stderr
    assert set(run.glob("versions/*/*")) == before, "nothing was trained"


def test_what_was_taken_from_earlier_runs_is_taken_again_where_a_repair_set_it_aside(
    broken: Callable[[], Path], runner: Runner
) -> None:
    run = broken()
    for name in ("earlier.json", "calibration.json"):
        cut(run / name)
    assert runner.runs("check", str(run), "--repair").returncode == 0
    assert not (run / "earlier.json").exists()
    assert runner.run("--resume", str(run)).returncode == 0
    assert (run / "earlier.json").exists() and (run / "calibration.json").exists()


@pytest.mark.parametrize("lost", [("report.html",), ("summary.json",), ("summary.json", "report.html")])
def test_a_lost_report_is_written_again_from_what_was_measured(
    lost: tuple[str, ...], broken: Callable[[], Path], runner: Runner
) -> None:
    run = broken()
    was = json.loads((run / "summary.json").read_text())
    for name in lost:
        (run / name).unlink()
    kept = {p: p.read_bytes() for p in (*run.glob("versions/**/*.json"), *run.glob("tasks/*"))}
    done = runner.run("--resume", str(run), "--json")
    assert done.returncode == 0, done.stderr
    assert f"{' and '.join(lost)} missing: written again" in done.stderr
    assert {p: p.read_bytes() for p in (*run.glob("versions/**/*.json"), *run.glob("tasks/*"))} == kept
    now = json.loads((run / "summary.json").read_text())
    assert json.loads(done.stdout) == now
    measured = (
        "warm_start",
        "baseline",
        "champion",
        "learned",
        "gain",
        "versions",
        "certifications",
        "stop",
        "train_s",
    )
    assert {key: now[key] for key in measured} == {key: was[key] for key in measured}
    assert (run / "report.html").stat().st_size > 10_000
    assert check_run(run).sound
    again = runner.run("--resume", str(run))
    assert again.returncode == 0 and "written again" not in again.stderr + again.stdout
