"""The JSONL stores: whole lines, one entry per key, and versions that exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graph.integrity.types import Problem, Run
from graph.record import STORES, Line, lines_of


def store_problems(run: Run) -> Iterator[Problem]:
    for store in STORES:
        path = run.record.path(store)
        for line, what in bad_lines(path):
            yield run.problem(path, f"line {line.number} {what}", "lines")
    for entry in run.ledger:
        version = str(entry.get("version", ""))
        if not version or not run.record.version_dir(version).is_dir():
            remedy = "restore the folder from a copy of the run"
            yield run.problem(
                run.record.path("ledger"), f"entry {entry['key']} has no folder versions/{version}", "", remedy
            )


def bad_lines(path: Path) -> Iterator[tuple[Line, str]]:
    """Lines that are no entry of their own, with what is wrong with them."""
    keys: set[str] = set()
    for line in lines_of(path):
        if not line.whole:
            yield line, "is torn"
        elif line.entry is None:
            yield line, "is damaged"
        elif line.entry["key"] in keys:
            yield line, f"repeats the key {line.entry['key']}"
        else:
            keys.add(line.entry["key"])
