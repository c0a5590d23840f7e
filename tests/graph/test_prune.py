"""graph.runs prune: within the budget, in order, nothing that a verdict rests on; show --finding before and after."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from graph import runs
from graph.integrity.check import check_run
from graph.lineage import stand
from graph.prune import droppable, parse_size, size_of
from graph.record import STORES, RunRecord
from graph.session import locked
from tests.runs import Runner
from trainer.types import InputError


def called(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, Any]:
    code = runs.main([*args, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("300 mb", 300 * 10**6), ("1.5GiB", 3 * 2**29), ("10k", 10**4), ("7", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "5 XB", "-1GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="5GB"):
        parse_size(text)


def kinds(dropped: Sequence[dict[str, Any]]) -> list[str]:
    return [Path(d["path"]).name.split(".")[-1] for d in dropped]


def test_only_what_is_needed_goes_and_rollouts_go_first(
    broken: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = broken()
    total = size_of(run)
    before = {p: p.stat().st_size for p in run.rglob("*") if p.is_file()}
    dry = ["prune", str(run), "--budget", str(total - 1), "--dry-run"]
    code, plan = called(capsys, *dry)
    assert code == 0 and plan["dry_run"]
    assert {p: p.stat().st_size for p in run.rglob("*") if p.is_file()} == before
    assert kinds(plan["dropped"]) == ["rollouts"]
    code, done = called(capsys, *dry[:-1])
    assert code == 0 and done["dropped"] == plan["dropped"]
    assert size_of(run) <= total  # the note of what was dropped takes a line
    report = check_run(run)
    assert report.sound, report.problems
    assert any("dropped" in note for note in report.notes)


@pytest.mark.timeout(120)
def test_all_that_can_go_may_go_and_the_run_goes_on(
    broken: Callable[[], Path], whole: Path, runner: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    run = broken()
    code, done = called(capsys, "prune", str(run), "--budget", "0")
    assert code == 1  # what remains is never dropped
    # The baseline is the champion; the candidate may still be the tip that a longer search would go on from.
    lost = 0 if "v0001" in stand(RunRecord(run).entries("ledger")) else len(list(run.glob("versions/v0001/seed-*")))
    assert kinds(done["dropped"]) == ["rollouts"] * lost + ["checkpoint"] * lost + ["parquet"] * 2 * lost
    assert all(d["path"].startswith("versions/v0001/") for d in done["dropped"])
    assert list(droppable(run)) == []
    assert check_run(run).sound
    for store in STORES:
        assert list(RunRecord(run).entries(store)) == list(RunRecord(whole).entries(store))
    resumed = runner.run("--resume", str(run), "--versions", "2", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert check_run(run).sound


def test_a_prune_that_was_killed_leaves_no_damage(broken: Callable[[], Path]) -> None:
    run = broken()
    folder = next(item.path for item in droppable(run))
    (run / "record" / "pruned.jsonl").write_text(json.dumps({"key": str(folder.relative_to(run))}) + "\n")
    next(folder.glob("*.parquet")).unlink()
    assert check_run(run).sound
    shutil.rmtree(folder)
    assert check_run(run).sound


def test_a_run_in_use_is_left_alone(broken: Callable[[], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run = broken()
    with locked(run):
        held = size_of(run)
        assert runs.main(["prune", str(run), "--budget", "0"]) == 75
        assert size_of(run) == held
    assert "in use" in capsys.readouterr().err


def test_a_finding_comes_with_its_rollouts(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    health = json.loads((whole / "versions" / "v0000" / "health.json").read_text())
    finding = next(f for f in health["findings"] if f["evidence"])
    code, shown = called(capsys, "show", str(whole), "--finding", f"v0000/{finding['diagnostic']}")
    assert code == 0
    assert [row["rollout_id"] for row in shown["rollouts"]] == finding["evidence"]
    for row in shown["rollouts"]:
        assert {"prompt", "response", "outcome", "term_outcome"} <= set(row)
    assert called(capsys, "show", str(whole), "--finding", finding["diagnostic"])[1] == shown  # the champion's


def test_a_finding_whose_rollouts_were_dropped_says_so(
    broken: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = broken()
    health = json.loads((run / "versions" / "v0001" / "health.json").read_text())
    finding = next(f for f in health["findings"] if f["evidence"])
    assert runs.main(["prune", str(run), "--budget", "0"]) == 1
    capsys.readouterr()
    code, shown = called(capsys, "show", str(run), "--finding", f"v0001/{finding['diagnostic']}")
    assert code == 0 and shown["rollouts"] == []
    assert "graph.runs prune" in shown["note"]


@pytest.mark.parametrize(
    ("name", "words"), [("nothing", "known: dead_groups"), ("v0009/dead_groups", "no health report")]
)
def test_an_unknown_finding_names_the_known(
    name: str, words: str, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs.main(["show", str(whole), "--finding", name]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1
