"""graph.runs check: a whole run is sound, each kind of damage is one line, and a repair loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from graph import runs
from graph.integrity.check import check_run
from graph.integrity.repair import repair
from graph.record import STORES, RunRecord
from graph.session import locked
from tests.e2e.sameness import without
from tests.runs import Runner


def cut(path: Path, size: int = 100) -> None:
    os.truncate(path, size)


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def first_line_again(path: Path) -> None:
    append(path, path.read_text(encoding="utf-8").splitlines()[0] + "\n")


def without_line(path: Path, key: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if f'"key": "{key}"' not in line]
    assert len(kept) < len(lines)
    path.write_text("".join(kept), encoding="utf-8")


def not_a_number(path: Path) -> None:
    tensors = load_file(path)
    name = min(tensors)
    tensors[name] = np.full_like(tensors[name], np.nan)
    save_file(tensors, path)


def git(run: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", run / "harness", *args], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main_moves(run: Path) -> None:
    """Main at a commit that is not its own descendant."""
    stranger = git(run, "-c", "user.name=x", "-c", "user.email=x@x", "commit-tree", "main^{tree}", "-m", "strange")
    git(run, "update-ref", "refs/heads/main", stranger)


def lost_object(run: Path) -> None:
    tree = git(run, "rev-parse", "main^{tree}")
    (run / "harness" / ".git" / "objects" / tree[:2] / tree[2:]).unlink()


def another_machine(path: Path) -> None:
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"machine_hash": "0" * 16}))


def one_digit(path: Path) -> None:
    """The file still parses; only its hash tells."""
    text = path.read_text()
    assert '"tokens":' in text
    path.write_text(text.replace('"tokens":', '"tokens":1'))


class Damage(NamedTuple):
    do: Callable[[Path], object]
    file: str
    what: str
    mended: bool = True


TRAIN = "versions/v0000/seed-0/train"
DAMAGES = {
    "torn ledger": Damage(lambda r: append(r / "record/ledger.jsonl", '{"key": "v0'), "record/ledger.jsonl", "torn"),
    "garbage": Damage(lambda r: append(r / "record/cases.jsonl", "garbage\n"), "record/cases.jsonl", " is damaged"),
    "twice": Damage(lambda r: first_line_again(r / "record/search.jsonl"), "record/search.jsonl", "repeats the key"),
    "lost baseline": Damage(
        lambda r: without_line(r / "record/ledger.jsonl", "v0000.baseline"),
        "record/ledger.jsonl",
        "v0000.baseline is missing",
    ),
    "lost verdict": Damage(
        lambda r: without_line(r / "record/ledger.jsonl", "v0001.verdict"),
        "record/ledger.jsonl",
        "v0001.verdict is missing",
    ),
    "lost case": Damage(
        lambda r: without_line(r / "record/cases.jsonl", "v0001"), "record/cases.jsonl", "v0001 is missing"
    ),
    "lost search": Damage(
        lambda r: without_line(r / "record/search.jsonl", "v0001.dropped.0"), "record/search.jsonl", "v0001.dropped.0"
    ),
    "lost decision": Damage(
        lambda r: without_line(r / "record/decisions.jsonl", "v0001.designer"),
        "record/decisions.jsonl",
        "v0001.designer",
    ),
    "record": Damage(lambda r: cut(r / "versions/v0001/gate.json"), "versions/v0001/gate.json", "damaged at"),
    "decision": Damage(
        lambda r: cut(r / "versions/v0001/intervention.json"), "versions/v0001/intervention.json", "damaged at"
    ),
    "no version": Damage(
        lambda r: (r / "versions/v0001/version.json").unlink(), "versions/v0001/version.json", "missing"
    ),
    "no health": Damage(lambda r: (r / "versions/v0000/health.json").unlink(), "versions/v0000/health.json", "missing"),
    "rollouts": Damage(
        lambda r: cut(r / TRAIN / "rollouts/step-000002.parquet"), f"{TRAIN}/rollouts/step-000002.parquet", "Parquet"
    ),
    "rollouts gone": Damage(
        lambda r: (r / TRAIN / "rollouts/step-000001.parquet").unlink(), f"{TRAIN}/rollouts", "result.json counts"
    ),
    "metrics": Damage(lambda r: append(r / TRAIN / "metrics-1.jsonl", "x\n"), f"{TRAIN}/metrics-1.jsonl", "damaged"),
    "result": Damage(lambda r: cut(r / TRAIN / "result.json", 30), f"{TRAIN}/result.json", "damaged at"),
    "weights": Damage(lambda r: cut(r / TRAIN / "checkpoint/model.safetensors"), f"{TRAIN}/checkpoint", "safetensors"),
    "weights nan": Damage(
        lambda r: not_a_number(r / "versions/v0000/seed-1/train/checkpoint/model.safetensors"),
        "versions/v0000/seed-1/train/checkpoint",
        "NaN",
    ),
    "episodes": Damage(
        lambda r: cut(r / "versions/v0001/seed-1/gate.parquet"), "versions/v0001/seed-1/gate.parquet", "Parquet"
    ),
    "one digit": Damage(
        lambda r: one_digit(r / "versions/v0001/seed-0/validation.json"),
        "versions/v0001/seed-0/validation.json",
        "changed",
    ),
    "no history": Damage(lambda r: (r / "earlier.json").unlink(), "earlier.json", "missing"),
    "no noise floor": Damage(lambda r: (r / "calibration.json").unlink(), "calibration.json", "missing"),
    "base policy": Damage(lambda r: cut(r / "base/model.safetensors"), "base.json", "safetensors"),
    "sqlite cut": Damage(lambda r: cut(r / "checkpoints.sqlite", 6000), "checkpoints.sqlite", "damaged"),
    "no sqlite": Damage(
        lambda r: (r / "checkpoints.sqlite").write_bytes(b"not a database" * 99), "checkpoints.sqlite", "not a database"
    ),
    "summary": Damage(lambda r: cut(r / "summary.json"), "summary.json", "damaged at"),
    "machine": Damage(lambda r: another_machine(r / "manifest.json"), "manifest.json", "machine_hash"),
    "temporary": Damage(lambda r: (r / ".clock.json.4194305.partial").touch(), ".clock.json.4194305.partial", "killed"),
    "half a table": Damage(
        lambda r: (r / TRAIN / "rollouts/.step-000009.parquet.4194305.partial").touch(),
        f"{TRAIN}/rollouts/.step-000009.parquet.4194305.partial",
        "killed",
    ),
    "git lock": Damage(lambda r: (r / "harness/.git/index.lock").touch(), "harness/.git/index.lock", "killed"),
    "harness lock": Damage(lambda r: (r / "harness.lock").write_text("retire"), "harness.lock", "under way"),
    "worktree": Damage(lambda r: (r / "worktrees/0009-x").mkdir(parents=True), "worktrees/0009-x", "worktree"),
    "dirty": Damage(lambda r: append(r / "harness/recipe.toml", "# mine\n"), "harness", "recipe.toml"),
    "main": Damage(main_moves, "harness", "main is at"),
    "object": Damage(lost_object, "harness", "git fsck", mended=False),
    "config": Damage(lambda r: append(r / "config.toml", "x"), "config.toml", "TOML", mended=False),
    "tasks": Damage(lambda r: append(r / "tasks/gate.jsonl", "x\n"), "tasks/gate.jsonl", "no task", mended=False),
}


def files_of(run: Path) -> int:
    return sum(path.is_file() for path in run.rglob("*") if ".git" not in path.parts)


def test_a_whole_run_is_sound_and_the_check_changes_nothing(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*")}
    assert runs.main(["check", str(whole), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sound"] and report["problems"] == [] and report["notes"] == []
    assert report["checked"]["trainings"] == 8  # three seeds of the baseline, two of the candidate and three fresh ones
    assert {p: p.stat().st_mtime_ns for p in whole.rglob("*")} == before


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_line_and_what_can_be_mended_is(
    name: str, broken: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, damage = broken(), DAMAGES[name]
    damage.do(run)
    assert runs.main(["check", str(run)]) == 1
    out = capsys.readouterr().out.splitlines()
    (line,) = [text for text in out if text.startswith(f"problem   {damage.file}: ")]
    assert damage.what in line and "; " in line
    assert ("--repair" in line) == damage.mended
    before = files_of(run)
    assert runs.main(["check", str(run), "--repair"]) == (0 if damage.mended else 1)
    after = capsys.readouterr().out
    assert after.startswith("repaired") == damage.mended
    if "removed" not in after:
        assert files_of(run) >= before  # what is set aside is kept
    assert runs.main(["check", str(run), "--repair"]) == (0 if damage.mended else 1)  # there is nothing left to do
    assert "repaired" not in capsys.readouterr().out


def test_lost_entries_are_entered_again_as_they_were(broken: Callable[[], Path], whole: Path) -> None:
    """All but what only a decision's entry knew: what the call read, and what it took."""
    run = broken()
    for store in STORES:
        path = run / "record" / f"{store}.jsonl"
        path.write_text("")
    while problems := check_run(run).problems:
        with locked(run):
            assert list(repair(run, problems))
    for store in STORES:
        got, wanted = ({e["key"]: without(e) for e in RunRecord(r).entries(store)} for r in (run, whole))
        assert got == wanted, store


@pytest.mark.timeout(240)
def test_a_run_damaged_everywhere_is_repaired_and_resumed_to_the_same_record(
    broken: Callable[[], Path], whole: Path, runner: Runner
) -> None:
    run = broken()
    for damage in DAMAGES.values():
        if damage.mended:
            damage.do(run)
    assert runner.runs("check", str(run)).returncode == 1
    mended = runner.runs("check", str(run), "--repair")
    assert mended.returncode == 0, mended.stdout
    done = runner.run("--resume", str(run), "--json")
    assert done.returncode == 0, done.stderr
    assert check_run(run).problems == ()
    for store in STORES:
        got, wanted = ({e["key"]: without(e) for e in RunRecord(r).entries(store)} for r in (run, whole))
        assert got == wanted, store
    was, now = (json.loads((r / "summary.json").read_text()) for r in (whole, run))
    for key in ("warm_start", "baseline", "champion", "learned", "gain"):
        for value in (was[key], now[key]):
            value.pop("checkpoint", None)
        assert now[key] == was[key], key


def test_a_run_in_use_is_neither_checked_nor_repaired(
    broken: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = broken()
    with locked(run):
        for flags in ([], ["--repair"]):
            assert runs.main(["check", str(run), *flags]) == 75
            assert f"in use by process {os.getpid()}" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.main(["check", "nothing", "--runs-dir", str(tmp_path)]) == 2
    assert "no such run" in capsys.readouterr().err
