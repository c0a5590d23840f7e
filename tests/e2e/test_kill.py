"""kill -9 at every node, then --resume: the same run as if nothing had happened."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from graph.build import NODES
from graph.record import RunRecord
from tests.e2e.sameness import trained, trees, without
from tests.runs import Runner


def attempts(run: Path) -> Mapping[str, int]:
    """How often each job was started."""
    return {job: len(list((run / job).glob("metrics-*.jsonl"))) for job in trained(run)}


def processes_of(run: Path) -> list[psutil.Process]:
    """Processes that work in a run: its path is in their command line or among their open files."""
    found = []
    for process in psutil.process_iter():
        try:
            files = [f.path for f in process.open_files()]
            if any(str(run) in text for text in [*process.cmdline(), *files]):
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_nothing_left(run: Path) -> None:
    deadline = time.monotonic() + 20
    while left := processes_of(run):
        assert time.monotonic() < deadline, f"still running after a kill: {left}"
        time.sleep(0.2)


PLAN = [(node, "after") for node in NODES]  # all its effects made, nothing checkpointed: the worst moment
PLAN += [
    ("baseline", "during"),
    ("train", "during"),
    ("evaluate", "during"),
    ("certify", "during"),
    ("report", "during"),
]


@pytest.mark.timeout(900)
def test_killed_at_every_node_the_run_ends_as_the_undisturbed_one(
    runner: Runner, undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    calm, calm_summary = undisturbed
    run = tmp_path / "stormy"
    arguments = runner.tiny(tmp_path, "stormy")
    for node, when in sorted(PLAN, key=lambda p: list(NODES).index(p[0])):
        killed = runner.run(node, when, "--", *arguments, module="tests.e2e.killing_run")
        assert killed.returncode == -9, killed.stderr
        assert_nothing_left(run)
        arguments = ["--resume", str(run)]
    done = runner.run("--resume", str(run), "--json")
    assert done.returncode == 0, done.stderr

    for store in ("ledger", "cases", "search", "decisions"):
        got, wanted = (list(RunRecord(r).entries(store)) for r in (run, calm))
        assert without(got) == without(wanted), store
    assert trees(run) == trees(calm)
    assert trained(run) == trained(calm)
    again = {job: n for job, n in attempts(run).items() if n > 1}
    # Only what was running when the kill came was started again: one batch of the baseline, of a candidate, of the tip.
    assert len(again) <= 7, again
    summary = json.loads(done.stdout)
    for key in ("warm_start", "baseline", "champion", "gain", "learned"):
        assert without_paths(summary[key]) == without_paths(calm_summary[key]), key


def without_paths(value: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != "checkpoint"}
