"""Files that are not what they were when they were finished, though they can be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from graph.integrity.folders import mend_of
from graph.integrity.types import Mend, Problem, Run
from graph.seals import digest, sealed


def hash_problems(run: Run, known: Collection[str]) -> Iterator[Problem]:
    """``known`` are files and folders that have a problem already."""
    for file, wanted in sealed(run.root).items():
        path = run.root / file
        named = any(str(part) in known for part in (Path(file), *Path(file).parents))
        gone = not run.pruned.isdisjoint([path, *path.parents])  # or on its way
        if path.is_file() and not named and not gone and digest(path) not in wanted:
            yield run.problem(path, "is not what was written: its content has changed", _mend(run, Path(file)))


def _mend(run: Run, file: Path) -> Mend:
    match file.parts:
        case ("versions", version, _):
            return mend_of(run, version, file.stem)
        case ("versions", _, _, *_) | ("base" | "bases", *_) | ("base.json",):
            return "remake"
    return ""
