"""Runs remember each other where they are told to, never their twin, and nothing damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.types import Case
from graph.memory import FILE, KeptCase, Memory, memory_file, read_memory, remembered
from graph.record import RunRecord, read_record
from skills_db.store import SkillStore
from tests.runs import LEAST, Runner, arguments
from trainer.types import InputError

CASE = Case(
    signature="math|headroom|", domain="math", bottleneck="headroom", factor="rollout.n", value="16", verdict="rejected"
)


@pytest.mark.timeout(240)
def test_a_run_takes_what_others_left_leaves_out_its_twin_and_says_what_it_took(tmp_path: Path) -> None:
    runner, library = Runner(tmp_path / "home"), tmp_path / "library"

    def run(name: str, seed: int) -> tuple[RunRecord, str]:
        values = {**LEAST, "warm_start.steps": 20, "run.memory": str(library)}
        done = runner.run(*arguments(tmp_path, name, values, versions=1), "--seed", str(seed))
        assert done.returncode == 0, done.stderr
        return RunRecord(tmp_path / name), done.stderr + done.stdout

    first, said = run("first", 0)
    assert f"memory {library}: 0 cases and 0 skills of 0 other runs" in said
    left = [e.case for e in read_memory(memory_file(str(library))) if isinstance(e, KeptCase)]
    assert left == [Case.model_validate({k: v for k, v in e.items() if k != "key"}) for e in first.entries("cases")]
    twin, _ = run("twin", 0)
    assert remembered(twin) == ()
    other, said = run("other", 1)
    taken = remembered(other)
    assert len(taken) == 2 * len(left) and {c.factor for c in taken} == {c.factor for c in left}
    assert f"{len(taken)} cases and" in said and "of 2 other runs" in said
    memory_file(str(library)).write_text("")
    assert runner.run("--resume", str(other.root), "--versions", "1").returncode == 0
    assert remembered(other) == taken, "what was taken is kept"


def test_a_damaged_memory_is_named_before_any_work(tmp_path: Path) -> None:
    path = memory_file(str(tmp_path / "library"))
    path.parent.mkdir()
    path.write_text(KeptCase(key="run/v0001", seed=0, case=CASE).model_dump_json() + '\n{"kind": "case"\n')
    with pytest.raises(InputError, match=r"memory.jsonl:2.*; delete the line"):
        read_memory(path)
    runner = Runner(tmp_path / "home")
    done = runner.run(*arguments(tmp_path, "run", {**LEAST, "run.memory": str(path.parent)}, versions=0))
    assert done.returncode == 2 and f"{path}:2" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_an_entry_counts_once_and_the_latest_word_wins(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    assert read_memory(path) == []
    entries = [KeptCase(key=f"{run}/v0001", seed=0, case=CASE) for run in ("a", "b")]
    later = KeptCase(key="a/v0001", seed=0, case=CASE.model_copy(update={"verdict": "promoted"}))
    path.write_text("".join(e.model_dump_json() + "\n" for e in (*entries, later)))
    found = {e.key: e.case.verdict for e in read_memory(path) if isinstance(e, KeptCase)}
    assert found == {"a/v0001": "promoted", "b/v0001": "rejected"}


def test_a_run_without_memory_takes_none(whole: Path) -> None:
    assert read_record(whole / FILE, Memory) == Memory()
    assert SkillStore([whole / "memory"]).list() == []
