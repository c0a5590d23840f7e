"""Cheap numbers about a program and how it did, as columns for reward terms and diagnostics."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from trainer.domains.answers import REPLY_FEATURES, reply_features
from trainer.domains.code.types import CaseVerdict, Grade

MAX_PARSED = 20_000
"""Characters; a longer program is not parsed, and counts as without structure."""


class Structure(NamedTuple):
    """What the text of a program shows. ``literal_only``: it never looks at its input. ``special_cases``: comparisons
    of its input with a literal. Without parse (``compiles`` 0) all are 0."""

    compiles: float = 0.0
    literal_only: float = 0.0
    special_cases: float = 0.0
    loops: float = 0.0
    branches: float = 0.0


PROGRAM_FEATURES = (
    "tests_passed", "visible_passed", "runtime_error", "timed_out", *Structure._fields, "program_lines",
)  # fmt: skip
FEATURES = (*REPLY_FEATURES, *PROGRAM_FEATURES)


def features(reply: str, program: str | None, grade: Grade) -> dict[str, float]:
    """Keys FEATURES. ``tests_passed`` and ``visible_passed`` are shares of the hidden and the visible tests (partial
    credit); ``runtime_error`` and ``timed_out`` are 1 if any test ended so."""
    verdicts = (*grade.visible, *grade.hidden)
    shape = structure(program) if program is not None else Structure()
    numbers: Mapping[str, float] = {
        "tests_passed": share(grade.hidden),
        "visible_passed": share(grade.visible) if grade.visible else share(grade.hidden),
        "runtime_error": float(shape.compiles and "error" in verdicts),
        "timed_out": float("timeout" in verdicts),
        **shape._asdict(),
        "program_lines": float(program.count("\n") + 1 if program else 0),
    }
    return {**reply_features(reply, program), **numbers}


def share(verdicts: Sequence[CaseVerdict]) -> float:
    """Passed of all; 0 for none."""
    return sum(v == "pass" for v in verdicts) / len(verdicts) if verdicts else 0.0


@lru_cache(maxsize=4096)
def structure(program: str) -> Structure:
    """The structure of a program's text; it is parsed, never run."""
    if len(program) > MAX_PARSED:
        return Structure()
    try:
        nodes = list(ast.walk(ast.parse(program)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Structure()
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    given = {arg.arg for f in functions for arg in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)} - {"self"}
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    # A program without a function reads its input by name: input(), sys.stdin, open(0).
    looks = bool(given & read) if given else bool(read & {"input", "sys", "open", "stdin"})
    special = sum(isinstance(n, ast.Compare) and _input_with_literal([n.left, *n.comparators], given) for n in nodes)
    loops = sum(isinstance(n, ast.For | ast.While | ast.comprehension) for n in nodes)
    branches = sum(isinstance(n, ast.If | ast.IfExp | ast.Match) for n in nodes)
    return Structure(1.0, float(not looks), float(special), float(loops), float(branches))


def _input_with_literal(sides: Sequence[ast.expr], given: set[str]) -> bool:
    names = any(isinstance(side, ast.Name) and side.id in given for side in sides)
    return names and any(isinstance(side, ast.List | ast.Tuple | ast.Dict | ast.Set | ast.Constant) for side in sides)
