"""Rows of published task files, and what their loaders share."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.domains.splits import content_hash
from trainer.types import Case, InputError, Message, Task, Tests

Row = dict[str, Any]
LONGEST_LINE = 1 << 30
"""Bytes of one line: the largest LiveCodeBench rows have some hundred million."""


class BadRow(Exception):
    """A row that is no task; one line that names the field and what is wrong."""


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file, each with its place (``line 3``): JSON lines (``.jsonl``, ``.jsonl.gz``) or ``.parquet``.

    A row that is not JSON comes as a BadRow in place of the object. Raises InputError for a file that is missing,
    cannot be read or is of another kind.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such task file; give the path of a .jsonl, .jsonl.gz or .parquet file")
    name = path.name.lower()
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _json_rows(path, zipped=name.endswith(".gz"))
    if name.endswith(".parquet"):
        return _parquet_rows(path)
    raise InputError(f"{path}: no kind of task file; use .jsonl, .jsonl.gz or .parquet")


def _json_rows(path: Path, zipped: bool) -> Iterator[tuple[str, Any]]:
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise InputError(f"{path}: line {number}: longer than {LONGEST_LINE} bytes; divide the file")
                if line.strip():
                    yield f"line {number}", _parsed(line.removeprefix(b"\xef\xbb\xbf"))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); get it again") from error


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return BadRow(f"not JSON ({' '.join(str(error).split())[:80]})")


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        number = 0
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", row
    except (OSError, ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({error}); write it again") from error


def text_of(row: Row, name: str, default: str | None = None) -> str:
    """A field that must be text which UTF-8 can hold; ``default`` where it is absent or null."""
    value = row.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise BadRow(f"field {name}: {'missing' if value is None else 'not text'}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"field {name}: holds half a character (a lone surrogate)") from error
    return value


def json_of(row: Row, name: str) -> Any:
    """A field that holds JSON as text, parsed."""
    try:
        return json.loads(text_of(row, name))
    except (ValueError, RecursionError) as error:
        raise BadRow(f"field {name}: not JSON ({' '.join(str(error).split())[:80]})") from error


def apart(visible: Sequence[Case], hidden: Sequence[Case]) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Visible and hidden cases without repeats and with no case in both; where no hidden one is left, the later half
    of the visible ones is hidden. Raises BadRow without any case."""
    shown = list(dict.fromkeys(visible))
    rest = [case for case in dict.fromkeys(hidden) if case not in set(shown)]
    if not shown and not rest:
        raise BadRow("no test case")
    half = len(shown) if rest else len(shown) // 2
    return tuple(shown[:half]), tuple(shown[half:] + rest)


def task_of(messages: tuple[Message, ...], tests: Tests, family: str, level: int, tag: str, answer: str = "") -> Task:
    """A task of the code domain; ``id`` hashes what is asked. ``answer`` is a program known to be right, or empty."""
    digest = content_hash("code", *(part for m in messages for part in (m.role, m.content)))
    return Task(
        id=digest, domain="code", family=family, level=level, messages=messages, answer=answer, tag=tag, tests=tests
    )
