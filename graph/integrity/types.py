"""What an integrity check finds, and the run it looks at."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from graph.prune import pruned
from graph.record import STORES, RunRecord, lines_of
from graph.versions import task_ids
from trainer.types import InputError, Record

Mend = Literal["", "sweep", "lines", "enter", "restore", "remake", "rewind", "harness", "adopt"]
"""How a repair can mend a problem: remove a leftover; take damaged lines out of a store; enter what it lacks; write a record again from the
ledger and the decisions; set the work of a job aside, so that it is done again; set the machine's checkpoint aside, so
that it is rebuilt from the ledger; put the harness back to its last promotion; let this version's machine take over."""

HOW: Mapping[Mend, str] = {
    "sweep": "--repair removes it",
    "lines": "--repair sets the damaged lines aside",
    "enter": "--repair enters it again from the version's records",
    "restore": "--repair writes it again from the record",
    "remake": "--repair sets it aside, --resume makes it again",
    "rewind": "--repair sets it aside, --resume goes on from the ledger",
    "harness": "--repair puts the harness back, changed files are set aside",
    "adopt": "--repair rebuilds its state from the ledger for this version",
}


MISSING = "missing"


class Problem(Record):
    """One thing that is wrong: ``file`` relative to the run's folder, what, what to do, and whether a repair can."""

    file: str
    what: str
    remedy: str
    mend: Mend = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.what}; {self.remedy}"


class Report(Record):
    """What a check looked at (counts by kind), what is wrong, and what is worth knowing without being wrong."""

    run: str
    checked: Mapping[str, int]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class Run:
    """A run under examination. Damaged lines of its stores are left out here; the stores' own check names them."""

    root: Path

    @cached_property
    def record(self) -> RunRecord:
        return RunRecord(self.root)

    @cached_property
    def stores(self) -> Mapping[str, tuple[dict[str, Any], ...]]:
        """Whole entries by store, the first of each key."""
        found: dict[str, tuple[dict[str, Any], ...]] = {}
        for store in STORES:
            first: dict[str, dict[str, Any]] = {}
            for line in lines_of(self.record.path(store)):
                if line.whole and line.entry:
                    first.setdefault(line.entry["key"], line.entry)
            found[store] = tuple(first.values())
        return found

    @cached_property
    def pruned(self) -> frozenset[Path]:
        return pruned(self.root)

    @cached_property
    def suites(self) -> Mapping[str, frozenset[str]]:
        """Task ids by suite; a damaged suite is left out, it has a problem of its own."""
        found = {}
        for path in (self.root / "tasks").glob("*.jsonl"):
            with contextlib.suppress(ValueError):
                found[path.stem] = task_ids(path)
        return found

    @property
    def ledger(self) -> tuple[dict[str, Any], ...]:
        return self.stores["ledger"]

    @cached_property
    def settled(self) -> Mapping[str, dict[str, Any]]:
        """Ledger entry by version: those the machine is done with. What became of a chain is no version's entry."""
        return {e["version"]: e for e in self.ledger if "version" in e and e["kind"] != "certification"}

    def relative(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def problem(
        self, path: Path, what: str, mend: Mend = "", remedy: str = "restore it from a copy of the run"
    ) -> Problem:
        """One line about a file of the run; a repair that exists is the remedy."""
        return Problem(file=self.relative(path), what=" ".join(what.split()), remedy=HOW.get(mend, remedy), mend=mend)


def fault(path: Path, kind: type[BaseModel]) -> str:
    """Why the file is no record of this kind, or an empty string."""
    try:
        kind.model_validate_json(path.read_bytes())
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except ValidationError as error:
        first = error.errors()[0]
        return f"damaged at {'.'.join(map(str, first['loc'])) or 'the whole file'} ({first['msg']})"
    return ""


def said(error: InputError, path: Path) -> str:
    """What the error says is wrong with the file, without its name and its remedy: a check has its own."""
    what, _, remedy = str(error).removeprefix(str(path)).lstrip(":/ ").rpartition("; ")
    return what or remedy
