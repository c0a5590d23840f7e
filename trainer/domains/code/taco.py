"""TACO rows (Li et al. 2023, github.com/FlagOpen/TACO; APPS rows are alike).

Fields: ``question``, ``starter_code`` and ``difficulty`` (EASY to VERY_HARD) are texts; ``input_output`` is JSON with lists
``inputs`` and ``outputs`` of equal length and, for functions to be called, ``fn_name``; ``solutions`` is a JSON list of
programs; ``time_limit`` and ``memory_limit`` read like "2.0 seconds" and "256.0 megabytes". As ``metrics/testing_util.py``
takes them: standard input and output are a text or a list of lines; a called function's input is a list of
arguments; its output may be wrapped in a list of one; JSON's text keys stand for integers where they can.

There, any non-empty list also accepts its first element alone, and outputs that are the same words in another order
pass: both are left out, because they pay wrong programs.
"""

from __future__ import annotations

import json
import re
from typing import Any

from trainer.domains.code import prompts
from trainer.domains.code.preludes import CONTEST
from trainer.domains.code.rows import BadRow, Row, apart, json_of, task_of, text_of
from trainer.domains.code.tagged import ANY, dump, encode
from trainer.types import Case, Task, Tests

FIELDS = frozenset({"question", "input_output"})
LEVELS = {"EASY": 0, "MEDIUM": 1, "MEDIUM_HARD": 2, "HARD": 3, "VERY_HARD": 4}
FLOAT_TOLERANCE = 1e-6
"""For outputs with decimals; TACO's own is numpy's allclose, 1e-5 relative."""
SAMPLES = 10
"""Cases looked up in the question."""
LONGEST_SAMPLE = 2000

_DECIMAL = re.compile(r"(?<!\S)[+-]?[0-9]*\.[0-9]+(?:[eE][+-]?[0-9]+)?(?!\S)")
_PUNCTUATION = re.compile(r"[-:*#`=\s]+")
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)")


def task(row: Row) -> Task:
    """The task of a row. Visible are the cases that the question shows with their output, hidden all others. Raises
    BadRow."""
    question, starter = text_of(row, "question"), text_of(row, "starter_code", "")
    found = json_of(row, "input_output")
    inputs, outputs = (found.get(k) for k in ("inputs", "outputs")) if isinstance(found, dict) else (None, None)
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise BadRow("field input_output: inputs and outputs must be lists of equal length")
    name = found.get("fn_name") or ""
    if not isinstance(name, str) or (name and not name.isidentifier()):
        raise BadRow("field input_output: fn_name is no name")
    make = _called if name else _piped
    cases = [make(given, expected) for given, expected in zip(inputs, outputs, strict=True)]
    samples = set() if name else shown(question, cases)
    visible, hidden = apart([c for c in cases if c in samples], cases)
    entry = f"Solution.{name}" if name and "class Solution" in starter else name
    tests = Tests(
        mode="call" if name else "stdin",
        entry=entry,
        visible=visible,
        hidden=hidden,
        prelude=CONTEST,
        tolerance=FLOAT_TOLERANCE if any(_DECIMAL.search(case.expected) for case in cases) else 0.0,
        time_s=_between(row, "time_limit", 2.0, 10.0),
        memory_mb=int(_between(row, "memory_limit", 256.0, 1024.0)),
    )
    difficulty = text_of(row, "difficulty", "")
    tag = " ".join(filter(None, (text_of(row, "source", ""), difficulty)))
    level = LEVELS.get(difficulty, 0)
    return task_of(prompts.problem(question, starter, entry), tests, "taco", level, tag, _solution(row))


def shown(question: str, cases: list[Case]) -> set[Case]:
    """The cases whose input and output stand in the question, one after the other with "Output" between them."""
    text = f" {_PUNCTUATION.sub(' ', question).lower()} "
    samples = set()
    for case in cases[:SAMPLES]:
        given, expected = (_PUNCTUATION.sub(" ", t).lower().strip() for t in (case.given, case.expected))
        if not given or not expected or len(given) + len(expected) > LONGEST_SAMPLE:
            continue
        pattern = rf" {re.escape(given)} (?:(?:sample|example|expected) )?outputs?(?: [0-9])? {re.escape(expected)} "
        if re.search(pattern, text):
            samples.add(case)
    return samples


def _piped(given: Any, expected: Any) -> Case:
    return Case(given=_lines(given, "inputs"), expected=_lines(expected, "outputs"))


def _lines(value: Any, name: str) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    if not isinstance(value, str):
        raise BadRow(f"field input_output: {name} hold neither text nor lists of lines, and there is no fn_name")
    return text_of({name: value}, name)


def _called(given: Any, expected: Any) -> Case:
    if not isinstance(given, list):
        raise BadRow("field input_output: inputs of a function must be lists of arguments")
    if given and isinstance(given[0], dict):
        given = [_integer_keys(given[0]), *given[1:]]
    accepted = [encode(expected)]
    if isinstance(expected, dict) and _integer_keys(expected) != expected:
        accepted.append(encode(_integer_keys(expected)))
    if isinstance(expected, list) and len(expected) == 1:
        accepted.append(encode(expected[0]))
    node = accepted[0] if len(accepted) == 1 else {ANY: accepted}
    return Case(given=dump(given), expected=json.dumps(node, separators=(",", ":")))


def _integer_keys(found: dict[str, Any]) -> dict[Any, Any]:
    try:
        return {int(k): v for k, v in found.items()}
    except ValueError:
        return found


def _between(row: Row, name: str, low: float, high: float) -> float:
    """A limit of the row, within what can be granted; the low end where it says nothing that can be read."""
    match = _AMOUNT.match(text_of(row, name, ""))
    return min(high, max(low, float(match[1]))) if match else low


def _solution(row: Row) -> str:
    """The shortest of the row's programs; data without any, or with a broken list, has none."""
    try:
        found = json_of(row, "solutions")
    except BadRow:
        return ""
    programs = [p for p in found if isinstance(p, str) and p.strip()] if isinstance(found, list) else []
    return min(programs, key=len, default="")
