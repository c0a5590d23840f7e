"""Task files: own tasks as JSON lines, or data prepared for verl.

JSON lines (``.jsonl``), one task a line::

    {"messages": [{"role": "user", "content": "3+4="}], "domain": "math", "answer": "7", "tag": "sums"}

``tag`` is optional. verl's rows (``.parquet``, or the same as JSON lines) have ``prompt`` (chat
messages), ``data_source``, ``ability``, ``reward_model`` (``style``, ``ground_truth``) and
``extra_info``; they are read as domain ``ability`` and tag ``data_source``.
Source: https://verl.readthedocs.io/en/latest/preparation/prepare_data.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer.domains.splits import content_hash
from trainer.types import InputError, Message, Record, Task

Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
Prompt = Annotated[tuple[Message, ...], Field(min_length=1)]


class _Row(Record):
    messages: Prompt
    domain: Text
    answer: Text
    tag: str = ""


class _VerlReward(BaseModel):
    style: Literal["rule"]
    ground_truth: Text


class _VerlRow(BaseModel):
    """Other columns than these are verl's own business."""

    model_config = ConfigDict(extra="ignore")

    prompt: Prompt
    data_source: str = ""
    ability: Text
    reward_model: _VerlReward


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file in its order; ``id`` hashes domain, messages and answer.

    Raises InputError (file, line or row, field, remedy) for a missing or unreadable file, an unknown
    kind of file, a bad row, a repeated task, and a file without tasks.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such task file; give the path of a .jsonl or .parquet file")
    match path.suffix.lower():
        case ".jsonl":
            rows = _json_rows(path)
        case ".parquet":
            rows = _parquet_rows(path)
        case suffix:
            raise InputError(f"{path}: {suffix or 'no suffix'} is no kind of task file; use .jsonl or .parquet")
    first: dict[str, str] = {}
    tasks: list[Task] = []
    for place, row in rows:
        task = _task(place, row)
        if task.id in first:
            raise InputError(f"{place}: repeats {first[task.id]}, so splits would not be fair; remove one of them")
        first[task.id] = place.removeprefix(f"{path}: ")
        tasks.append(task)
    if not tasks:
        raise InputError(f"{path}: holds no task; write one task a line")
    return tasks


def _json_rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({_one_line(error)}); save it as UTF-8") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        try:
            yield place, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: not JSON ({_one_line(error)}); write one JSON object a line") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({_one_line(error)}); write it again") from error
    for number, row in enumerate(rows, start=1):
        yield f"{path}: row {number}", row


def _task(place: str, row: Any) -> Task:
    if not isinstance(row, dict):
        raise InputError(f"{place}: not an object; write fields messages, domain, answer and, if you like, tag")
    try:
        if "prompt" in row or "reward_model" in row:
            verl = _VerlRow.model_validate(row)
            messages, domain, tag = verl.prompt, verl.ability.lower(), verl.data_source
            answer = verl.reward_model.ground_truth
        else:
            own = _Row.model_validate(row)
            messages, domain, answer, tag = own.messages, own.domain, own.answer, own.tag
    except ValidationError as error:
        raise InputError(f"{place}: {_complaint(error)}") from error
    digest = content_hash(domain, *(part for m in messages for part in (m.role, m.content)), answer)
    return Task(id=digest, domain=domain, family=tag or "file", messages=messages, answer=answer, tag=tag)


def _complaint(error: ValidationError) -> str:
    """The first fault as ``field f: what is wrong; remedy``."""
    fault = error.errors()[0]
    field = ".".join(map(str, fault["loc"]))
    match fault["type"]:
        case "missing":
            return f"field {field}: missing; add it"
        case "extra_forbidden":
            return f"field {field}: unknown; remove it (known: messages, domain, answer, tag)"
        case "literal_error" if field == "reward_model.style":
            return f"field {field}: only answers checked by rule can be scored; set it to 'rule'"
        case "string_type":
            return f"field {field}: not text; write it in quotes"
        case _:
            given = "" if isinstance(fault["input"], dict | list) else f" (given: {str(fault['input'])[:40]!r})"
            return f"field {field}: {fault['msg'][0].lower()}{fault['msg'][1:]}{given}; correct it"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
