"""Task files of programming problems: which format a row has, and its task.

Known are HumanEval, LiveCodeBench and TACO (see the module of each) and our own JSON lines::

    {"messages": [...], "domain": "code", "answer": "", "tag": "", "tests": {"entry": "f", "hidden": [...]}}

with ``tests`` as in ``trainer.types.Tests``. A format is recognised by its fields; one file has one format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from sandboxes.types import Executor
from trainer.domains.code import humaneval, lcb, taco
from trainer.domains.code.rows import BadRow, Row, read_rows, task_of
from trainer.types import InputError, Message, Record, Task, Tests

FIELDS: Mapping[str, frozenset[str]] = {
    "own": frozenset({"messages", "tests"}),
    "humaneval": humaneval.FIELDS,
    "livecodebench": lcb.FIELDS,
    "taco": taco.FIELDS,
}
"""Name of a format to the fields that only it has."""


@dataclass(frozen=True)
class Loaded:
    """The tasks of a file in its order, and one line for each row that is none."""

    format: str
    tasks: tuple[Task, ...]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        said = f"{len(self.tasks)} tasks ({self.format})"
        return f"{said}, {len(self.skipped)} rows skipped; first: {self.skipped[0]}" if self.skipped else said


class _OwnRow(Record):
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    domain: Literal["code"]
    answer: str = ""
    tag: str = ""
    tests: Tests


def read_programs(path: Path, executor: Executor) -> Loaded:
    """The tasks of a file. Rows that are no task, or ask what an earlier one asks, are skipped and named.

    Raises InputError for a file that cannot be read, is of no known format, or holds no task, and for any bad row of
    our own format, which is there to be corrected.
    """
    known = ""
    results: list[tuple[str, Task | BadRow]] = []
    waiting: list[tuple[str, Row]] = []
    for place, row in read_rows(path):
        if isinstance(row, BadRow) or not isinstance(row, dict):
            results.append((place, row if isinstance(row, BadRow) else BadRow("not an object")))
            continue
        known = known or recognised(path, place, row)
        if not FIELDS[known] <= row.keys():
            missing = ", ".join(sorted(FIELDS[known] - row.keys()))
            results.append((place, BadRow(f"field {missing}: missing (the file is read as {known})")))
        elif known == "humaneval":
            # Their tests are recorded in one batch.
            waiting.append((place, row))
        else:
            results.append((place, _attempt(_TASK_OF[known], row)))
    if waiting:
        found = humaneval.tasks([row for _, row in waiting], executor)
        results += zip((place for place, _ in waiting), found, strict=True)
    return _loaded(path, known, results)


def recognised(path: Path, place: str, row: Row) -> str:
    """The format of a row. Raises InputError for none."""
    for name, fields in FIELDS.items():
        if fields <= row.keys():
            return name
    forms = "; ".join(f"{name}: {', '.join(sorted(fields))}" for name, fields in FIELDS.items())
    raise InputError(f"{path}: {place}: the fields of no known format; use one of these: {forms}")


def _own(row: Row) -> Task:
    try:
        own = _OwnRow.model_validate(row)
    except ValidationError as error:
        fault = error.errors()[0]
        raise BadRow(f"field {'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}") from error
    if not own.tests.hidden:
        raise BadRow("field tests.hidden: empty; a task needs a case that decides")
    if (own.tests.mode == "call") != bool(own.tests.entry):
        raise BadRow("field tests.entry: needed in mode call, and only there")
    return task_of(own.messages, own.tests, own.tag or "file", 0, own.tag, own.answer)


_TASK_OF: Mapping[str, Callable[[Row], Task]] = {"own": _own, "livecodebench": lcb.task, "taco": taco.task}


def _attempt(task: Callable[[Row], Task], row: Row) -> Task | BadRow:
    try:
        return task(row)
    except BadRow as error:
        return error


def _loaded(path: Path, known: str, results: list[tuple[str, Task | BadRow]]) -> Loaded:
    tasks: dict[str, Task] = {}
    skipped = list(_sorted_out(results, tasks))
    if known == "own" and skipped:
        raise InputError(f"{path}: {skipped[0]}; correct it")
    if not tasks:
        raise InputError(f"{path}: holds no task{'; ' + skipped[0] if skipped else ''}")
    return Loaded(known, tuple(tasks.values()), tuple(skipped))


def _sorted_out(results: list[tuple[str, Any]], tasks: dict[str, Task]) -> Iterator[str]:
    first: dict[str, str] = {}
    for place, found in results:
        if isinstance(found, BadRow):
            yield f"{place}: {found}"
        elif found.id in tasks:
            yield f"{place}: repeats {first[found.id]}"
        else:
            tasks[found.id] = found
            first[found.id] = place
