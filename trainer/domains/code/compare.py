"""Whether what a program gave is what was expected. Pure, outside of the sandbox, and it never raises.

Values are compared as they came over the border, as tagged JSON (``trainer.domains.code.tagged``): no object of the
program's takes part, so none can call itself equal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable
from typing import Any

from trainer.domains.code.tagged import ANY, TAGS

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LONGEST_INT = 4000
"""Digits beyond which Python refuses to read an integer (4300, with a margin); compared as text."""


def same_value(expected: str, given: str, tolerance: float = 0.0, *, strict: bool = False) -> bool:
    """Whether two tagged JSON texts are the same value.

    A bool is no number and a text no list; 2 and 2.0 are one number, as in Python. If one of two numbers is a float,
    they may differ by ``tolerance``, relative or absolute. A tuple counts as the list that is expected, at the top
    alone: data kept as JSON has no tuples (LiveCodeBench ``grade_call_based``: "ground truth sequences are not
    tuples"); where a tuple is expected, only a tuple will do, and with ``strict`` a list must be a list too.
    """
    if expected == given:
        return True
    try:
        want, have = _read(expected), _read(given)
        if not strict and _split(have)[0] == "tuple" and _wants_list(want):
            have = _split(have)[1]
        return _same(want, have, tolerance)
    except (ValueError, TypeError, RecursionError):
        return False


def same_output(expected: str, given: str, tolerance: float = 0.0) -> bool:
    """Whether two outputs are the same: white space at the end of a line and empty lines at the end do not count, all
    else does (leading spaces too). With a tolerance, numbers of a line may differ by it, relative or absolute, if one
    of the two is written as a float; words and the number of words on a line must agree."""
    if expected == given:
        return True
    want, have = _lines(expected), _lines(given)
    if want == have:
        return True
    if not tolerance or len(want) != len(have):
        return False
    return all(a == b or _same_line(a, b, tolerance) for a, b in zip(want, have, strict=True))


def _wants_list(want: Any) -> bool:
    if isinstance(want, dict) and want.keys() == {ANY}:
        return all(_split(one)[0] != "tuple" for one in want[ANY])
    return isinstance(want, list)


def _read(text: str) -> Any:
    return json.loads(text, parse_int=_integer, parse_constant=_refuse)


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) < _LONGEST_INT else {"repr": digits}


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _split(node: Any) -> tuple[str, Any]:
    """Kind and content of a node; dictionaries of both forms become lists of pairs."""
    if isinstance(node, dict):
        if len(node) == 1:
            ((tag, held),) = node.items()
            if tag in TAGS and tag != ANY:
                return tag, held
        return "dict", list(node.items())
    return type(node).__name__, node


def _same(want: Any, have: Any, tolerance: float) -> bool:
    if isinstance(want, dict) and want.keys() == {ANY}:
        return any(_same(one, have, tolerance) for one in want[ANY])
    kind, wanted = _split(want)
    other, given = _split(have)
    if kind in ("int", "float") and other in ("int", "float"):
        return _same_number(_number(wanted), _number(given), tolerance)
    if kind != other:
        return False
    if kind in ("list", "tuple"):
        return len(wanted) == len(given) and all(_same(a, b, tolerance) for a, b in zip(wanted, given, strict=True))
    if kind == "dict":
        held = {_key(k): v for k, v in given}
        keys = [_key(k) for k, _ in wanted]
        return held.keys() == set(keys) and all(
            _same(v, held[k], tolerance) for k, (_, v) in zip(keys, wanted, strict=True)
        )
    if kind == "set":
        a, b = {_key(v) for v in wanted}, {_key(v) for v in given}
        return a == b or (bool(tolerance) and _same_numbers(wanted, given, tolerance))
    return bool(wanted == given)


def _number(held: Any) -> int | float:
    return held if isinstance(held, int) else float(held)


def _same_number(want: int | float, have: int | float, tolerance: float) -> bool:
    if want == have or (want != want and have != have):
        return True
    if not tolerance or (isinstance(want, int) and isinstance(have, int)):
        return False
    try:
        return math.isclose(want, have, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return False


def _same_numbers(want: list[Any], have: list[Any], tolerance: float) -> bool:
    """Sets of numbers: equal in order of size."""
    kinds = {_split(v)[0] for v in (*want, *have)}
    if not kinds <= {"int", "float"} or len(want) != len(have):
        return False
    pairs = zip(sorted(_number(_split(v)[1]) for v in want), sorted(_number(_split(v)[1]) for v in have), strict=True)
    return all(_same_number(a, b, tolerance) for a, b in pairs)


def _key(node: Any) -> Hashable:
    """A value to look up by: alike for equal values, whatever their form."""
    kind, held = _split(node)
    if kind in ("int", "float"):
        return ("number", _number(held))
    if kind in ("list", "tuple"):
        return (kind, *map(_key, held))
    if kind == "set":
        return (kind, frozenset(map(_key, held)))
    if kind == "dict":
        return (kind, frozenset((_key(k), _key(v)) for k, v in held))
    return (kind, held)


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_line(want: str, have: str, tolerance: float) -> bool:
    wanted, given = want.split(), have.split()
    return len(wanted) == len(given) and all(
        a == b or _same_word(a, b, tolerance) for a, b in zip(wanted, given, strict=True)
    )


def _same_word(want: str, have: str, tolerance: float) -> bool:
    if not (_NUMBER.fullmatch(want) and _NUMBER.fullmatch(have)):
        return False
    if want.lstrip("+-").isdigit() and have.lstrip("+-").isdigit():
        return False
    return math.isclose(float(want), float(have), rel_tol=tolerance, abs_tol=tolerance)
