"""LiveCodeBench rows (Jain et al. 2024; code generation, releases v1 to v6).

Fields, as read by ``lcb_runner/benchmarks/code_generation.py`` of github.com/LiveCodeBench/LiveCodeBench:
``question_title, question_content, platform, question_id, contest_id, contest_date, starter_code, difficulty`` are
texts; ``public_test_cases`` is JSON, a list of ``{"input", "output", "testtype"}``; ``private_test_cases`` is the same or
base64 of zlib of a pickle of that JSON text; ``metadata`` is JSON with ``func_name`` for functional problems. The input
of a functional case is one JSON value a line, an argument each (``testing_util.grade_call_based``).
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import re
import zlib
from typing import Any

from trainer.domains.code import prompts
from trainer.domains.code.preludes import CONTEST
from trainer.domains.code.rows import BadRow, Row, apart, json_of, task_of, text_of
from trainer.domains.code.tagged import dump
from trainer.types import Case, Task, Tests

FIELDS = frozenset({"question_content", "public_test_cases", "private_test_cases"})
LEVELS = {"easy": 0, "medium": 1, "hard": 2}
TIME_S = 6.0
MEMORY_MB = 1024
LARGEST = 512 << 20
"""Bytes that the private cases of one problem may have when unpacked."""
DECIMAL_TOLERANCE = 1e-15
"""LiveCodeBench compares lines of numbers as decimals: 0.5 is 0.50, and nothing more is forgiven."""

# All that the pickle of one text consists of; anything else is refused before it could do something.
_PLAIN = frozenset(
    {"PROTO", "FRAME", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}
)
_DECIMAL = re.compile(r"(?<!\S)[+-]?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?(?!\S)")


def task(row: Row) -> Task:
    """The task of a row, its public cases visible and its private ones hidden. Raises BadRow."""
    question, starter = text_of(row, "question_content"), text_of(row, "starter_code", "")
    public, private = _cases(json_of(row, "public_test_cases"), "public_test_cases"), _private(row)
    kinds = {kind for kind, _ in (*public, *private)}
    if len(kinds) != 1:
        raise BadRow("fields public_test_cases, private_test_cases: no case, or cases of both kinds")
    functional = kinds == {"functional"}
    entry = _entry(row, starter) if functional else ""
    visible, hidden = apart([case for _, case in public], [case for _, case in private])
    decimal = not functional and any(_DECIMAL.search(case.expected) for case in (*visible, *hidden))
    tests = Tests(
        mode="call" if functional else "stdin",
        entry=entry,
        visible=visible,
        hidden=hidden,
        prelude=CONTEST,
        tolerance=DECIMAL_TOLERANCE if decimal else 0.0,
        time_s=TIME_S,
        memory_mb=MEMORY_MB,
    )
    tag = " ".join(filter(None, (text_of(row, name, "") for name in ("platform", "difficulty", "question_id"))))
    level = LEVELS.get(text_of(row, "difficulty", ""), 0)
    return task_of(prompts.problem(question, starter, entry), tests, "livecodebench", level, tag)


def unpacked(text: str) -> str:
    """The JSON text in a packed ``private_test_cases``. Nothing is unpickled: the pickle's instructions are read, and
    only those that make up one text are accepted. Raises BadRow."""
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(text, validate=True), LARGEST)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise BadRow(f"field private_test_cases: neither JSON nor packed ({error})") from error
    if packed.unconsumed_tail:
        raise BadRow(f"field private_test_cases: more than {LARGEST} bytes unpacked")
    texts: list[str] = []
    try:
        for code, argument, _ in pickletools.genops(data):
            if code.name not in _PLAIN:
                raise BadRow(f"field private_test_cases: a pickle of more than a text ({code.name})")
            if "UNICODE" in code.name:
                texts.append(str(argument))
    except ValueError as error:
        raise BadRow(f"field private_test_cases: a broken pickle ({str(error)[:80]})") from error
    if len(texts) != 1:
        raise BadRow("field private_test_cases: not the pickle of one text")
    return texts[0]


def _private(row: Row) -> list[tuple[str, Case]]:
    name = "private_test_cases"
    text = text_of(row, name)
    if not text.lstrip().startswith("["):
        text = unpacked(text)
    return _cases(json_of({name: text}, name), name)


def _cases(found: Any, field: str) -> list[tuple[str, Case]]:
    """Cases with their kind."""
    if not isinstance(found, list):
        raise BadRow(f"field {field}: not a list")
    cases = []
    for test in found:
        if not isinstance(test, dict):
            raise BadRow(f"field {field}: a case that is no object")
        given, expected, kind = (text_of(test, name) for name in ("input", "output", "testtype"))
        if kind == "functional":
            try:
                arguments = [json.loads(line) for line in given.split("\n")]
                case = Case(given=dump(arguments), expected=dump(json.loads(expected)))
            except (ValueError, RecursionError) as error:
                raise BadRow(f"field {field}: a functional case that is not JSON ({str(error)[:80]})") from error
        elif kind == "stdin":
            case = Case(given=given, expected=expected)
        else:
            raise BadRow(f"field {field}: testtype {kind[:20]!r} is unknown; known are stdin and functional")
        cases.append((kind, case))
    return cases


def _entry(row: Row, starter: str) -> str:
    metadata = json_of(row, "metadata")
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name.isidentifier():
        raise BadRow("field metadata: no func_name, which functional cases need")
    return f"Solution.{name}" if "class Solution" in starter else name
