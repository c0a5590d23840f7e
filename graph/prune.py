"""Keep runs within a disk budget: what no verdict, report or later version needs goes first, and it is written down.

Dropped, in this order and of the oldest versions first: training rollouts, checkpoints and evaluated episodes of settled
versions that are not the champion (the baseline keeps its checkpoints: every report measures it). Ledger, decisions,
metrics, scores, health reports and the harness always stay.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graph.lineage import stand
from graph.record import RunRecord, lines_of
from graph.session import Locked, locked
from graph.versions import BASELINE
from trainer.embedded.files import CHECKPOINT, ROLLOUTS
from trainer.types import InputError

FILE = Path("record", "pruned.jsonl")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class Droppable(NamedTuple):
    """Something a run can do without; ``rank`` orders kinds."""

    rank: int
    root: Path
    path: Path
    size: int


def prune(roots: Sequence[Path], budget: int, *, dry_run: bool, as_json: bool) -> int:
    """Drop until the runs together take no more than ``budget`` bytes. Exit code 1 where they still take more, 75 where
    a run is in use and was left alone."""
    total = sum(map(size_of, roots))
    dropped: list[Droppable] = []
    busy: list[str] = []
    found = sorted((d for root in roots for d in droppable(root)), key=lambda d: d.rank)
    for item in found:
        if total <= budget:
            break
        if str(item.root) in busy:
            continue
        try:
            if not dry_run:
                with locked(item.root):
                    drop(item)
        except Locked as error:
            busy.append(str(item.root))
            print(f"error: {error}", file=sys.stderr)
            continue
        dropped.append(item)
        total -= item.size
    lines = [{"run": d.root.name, "path": str(d.path.relative_to(d.root)), "bytes": d.size} for d in dropped]
    if as_json:
        print(json.dumps({"dry_run": dry_run, "dropped": lines, "bytes": total, "budget": budget}))
    else:
        for line in lines:
            print(f"{'would drop' if dry_run else 'dropped'}  {line['run']}/{line['path']} ({line['bytes']} bytes)")
        print(f"{total} bytes of a budget of {budget}" + ("" if total <= budget else ": the rest is never dropped"))
    return 75 if busy else int(total > budget)


def droppable(root: Path) -> Iterator[Droppable]:
    """What the run can do without, oldest versions first."""
    record = RunRecord(root)
    verdicts = record.verdicts()
    needed = stand(record.entries("ledger"))
    for version in [BASELINE, *(e["version"] for e in verdicts)]:
        for seed in sorted(record.version_dir(version).glob("seed-*/")):
            kinds = [[seed / "train" / ROLLOUTS], [seed / "train" / CHECKPOINT], sorted(seed.glob("*.parquet"))]
            for rank, paths in enumerate(kinds):
                kept = version in needed or (version == BASELINE and rank == 1)
                yield from (Droppable(rank, root, path, size_of(path)) for path in paths if path.exists() and not kept)


def drop(item: Droppable) -> None:
    """Write it down, then remove it: a kill in between leaves something that is known to be on its way out."""
    name = str(item.path.relative_to(item.root))
    with (item.root / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": name, "bytes": item.size}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    if item.path.is_dir():
        shutil.rmtree(item.path)
    else:
        item.path.unlink()


def pruned(root: Path) -> frozenset[Path]:
    """Files and folders of the run that were dropped."""
    return frozenset(root / line.entry["key"] for line in lines_of(root / FILE) if line.whole and line.entry)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(f.lstat().st_size for f in files if f.is_file())


def parse_size(text: str) -> int:
    """Bytes of ``5GB``, ``300 MB`` or ``2GiB``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    if match is None:
        raise InputError(f"--budget {text}: no size; write for instance 5GB or 300MB")
    number, unit, binary = match.groups()
    power = " kmgt".index(unit or " ")
    return int(float(number) * (1024**power if binary else _UNITS[unit]))
