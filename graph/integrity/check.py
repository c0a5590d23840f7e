"""Is the run whole? Every part is read; each problem is one line with what to do about it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graph.integrity.entries import entry_problems
from graph.integrity.folders import folder_problems
from graph.integrity.harness import harness_problems
from graph.integrity.hashes import hash_problems
from graph.integrity.jobs import job_problems
from graph.integrity.machine import machine_problems
from graph.integrity.stores import store_problems
from graph.integrity.types import MISSING, Report, Run
from graph.seals import sealed
from graph.session import Locked, holder_of

CHECKS = (machine_problems, store_problems, entry_problems, folder_problems, job_problems, harness_problems)


def check_run(root: Path) -> Report:
    """Read everything a run holds; changes nothing. Call it under ``quiet`` or the run's lock."""
    run = Run(root)
    found = [problem for check in CHECKS for problem in check(run)]
    found += hash_problems(run, {p.file for p in found})
    # A repair sets the machine's checkpoint aside: what is missing then is on its way.
    due = (
        [] if (root / "checkpoints.sqlite").exists() else [p for p in found if p.what == MISSING and p.mend == "remake"]
    )
    problems = tuple(p for p in found if p not in due)
    notes = (*_notes(run), *(f"{p.file}: --resume makes it again" for p in due))
    return Report(run=root.name, checked=_counts(run), problems=problems, notes=notes)


@contextmanager
def quiet(root: Path) -> Iterator[None]:
    """Nobody writes to the run while it is read. Raises Locked where somebody does; needs no right to write."""
    path = root / "lock"
    if not path.exists():
        yield
        return
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Locked(holder_of(root, file)) from error
        yield


def _counts(run: Run) -> dict[str, int]:
    root = run.root
    return {
        "ledger entries": len(run.ledger),
        "versions": len(list((root / "versions").glob("v*/"))),
        "trainings": len(list(root.glob("versions/v*/seed-*/train/result.json"))),
        "checkpoints": len(list(root.glob("versions/v*/seed-*/train/checkpoint/"))),
        "sealed files": len(sealed(root)),
        "parquet files": len(list(root.glob("versions/**/*.parquet"))),
    }


def _notes(run: Run) -> Iterator[str]:
    if not run.ledger:
        yield "the run has not finished its baseline; --resume goes on"
    elif not (run.root / "checkpoints.sqlite").exists():
        yield "no checkpoint of the machine; --resume goes on from the ledger"
    elif not (run.root / "summary.json").exists():
        yield "the run has not made its report; --resume goes on"
    if run.pruned:
        yield f"{len(run.pruned)} files and folders were dropped by graph.runs prune"
