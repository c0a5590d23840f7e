"""Expressions: reading, solving step by step, and changing their operands.

Three notations: integers with ``+ - *`` and brackets (``(3+-4)*5``), two complex numbers
(``(3+4i)-(1-2i)``), and animals whose legs are counted (``3 dog+2 sea slug``).
"""

from __future__ import annotations

import ast
import re
from random import Random
from typing import NamedTuple

from trainer.domains.math.gym import legs

_COMPLEX = re.compile(r"\((-?\d+)([+-]\d+)i\)([-+*])\((-?\d+)([+-]\d+)i\)")
_INTEGER = re.compile(r"[-+*()0-9]+")
_ANIMALS = re.compile(r"\d+ [a-z ]+(\+\d+ [a-z ]+)*")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult)


class Solution(NamedTuple):
    """What is written on the way to an answer: rewritten expressions, or equations for complex numbers."""

    steps: tuple[str, ...]
    answer: str


def solve(text: str) -> Solution:
    """Solve an expression. Raises ValueError for anything that is none."""
    if match := _COMPLEX.fullmatch(text):
        return _solve_complex(*match.groups())
    return _solve_legs(text) if _ANIMALS.fullmatch(text) else _solve_integer(text)


def complex_text(real: int, imaginary: int) -> str:
    """``a+bi`` with both parts written out, also when zero."""
    return f"{real}{imaginary:+d}i"


def complex_parts(text: str) -> tuple[int, int]:
    """Real and imaginary part of ``a+bi``. Raises ValueError for other text."""
    match = re.fullmatch(r"(-?\d+)([+-]\d+)i", text)
    if match is None:
        raise ValueError(f"not a complex number: {text[:80]}")
    return int(match[1]), int(match[2])


def perturb(text: str, random: Random, largest: int) -> str:
    """The same structure with other operands: every number becomes one of as many digits and the same
    sign, at most ``largest`` and never 0 (a factor 0 makes a problem trivial); animals are exchanged."""

    def other(match: re.Match[str]) -> str:
        low = 10 ** (len(match[0]) - 1)
        return str(random.randint(low, min(10 * low - 1, largest)))

    if _ANIMALS.fullmatch(text):
        animals = random.sample(list(legs()), text.count("+") + 1)
        text = "+".join(f"{part.split(' ')[0]} {animal}" for part, animal in zip(text.split("+"), animals, strict=True))
    return re.sub(r"\d+", other, text)


def _step(left: int, operator: str, right: int) -> tuple[str, int]:
    value = left + right if operator == "+" else left - right if operator == "-" else left * right
    return f"{left}{operator}{right}={value}", value


def _solve_integer(text: str) -> Solution:
    """Rewrite the expression until a number is left: each step repeats what it leaves alone, so that a
    small policy only has to copy and to know one operation at a time."""
    _check(text)
    steps: list[str] = []
    while not re.fullmatch(r"-?\d+", text):
        text = _reduce(text)
        steps.append(text)
    return Solution(tuple(steps[:-1]), text)


_NUMBER = r"(?:^|(?<=[-+*(]))-?\d+"
_PRODUCT = re.compile(rf"({_NUMBER})(\*)(-?\d+)")
_SUM = re.compile(rf"({_NUMBER})([-+])(-?\d+)")
_INNERMOST = re.compile(r"\(([^()]*)\)")


def _reduce(text: str) -> str:
    """One operation: in the first innermost bracket, products first, left to right."""
    bracket = _INNERMOST.search(text)
    inner = bracket[1] if bracket else text
    operation = _PRODUCT.search(inner) or _SUM.search(inner)
    if operation:
        _, value = _step(int(operation[1]), operation[2], int(operation[3]))
        inner = f"{inner[: operation.start()]}{value}{inner[operation.end() :]}"
    if bracket is None:
        return inner
    if not re.fullmatch(r"-?\d+", inner):
        inner = f"({inner})"
    return text[: bracket.start()] + inner + text[bracket.end() :]


def _check(text: str) -> None:
    """Raise ValueError unless ``text`` is integers joined by the known operators and brackets."""
    try:
        if _INTEGER.fullmatch(text) and _known(ast.parse(text, mode="eval").body):
            return
    except SyntaxError:
        pass
    raise ValueError(f"not an expression: {text[:80]}")


def _known(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int()) | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int())):
            return True
        case ast.BinOp(left=left, op=operator, right=right):
            return type(operator) in _OPERATORS and _known(left) and _known(right)
    return False


def _solve_complex(a: str, b: str, operator: str, c: str, d: str) -> Solution:
    parts = int(a), int(b), int(c), int(d)
    if operator == "*":
        (ac, x), (bd, y) = _step(parts[0], "*", parts[2]), _step(parts[1], "*", parts[3])
        (ad, z), (bc, w) = _step(parts[0], "*", parts[3]), _step(parts[1], "*", parts[2])
        (re_, real), (im, imaginary) = _step(x, "-", y), _step(z, "+", w)
        return Solution((ac, bd, re_, ad, bc, im), complex_text(real, imaginary))
    (first, real), (second, imaginary) = _step(parts[0], operator, parts[2]), _step(parts[1], operator, parts[3])
    return Solution((first, second), complex_text(real, imaginary))


def _solve_legs(text: str) -> Solution:
    factors: list[str] = []
    for part in text.split("+"):
        count, animal = part.split(" ", 1)
        if animal not in legs():
            raise ValueError(f"no animal with known legs: {animal[:80]}")
        factors.append(f"{count}*{legs()[animal]}")
    counted = "+".join(factors)
    rest = _solve_integer(counted)
    return Solution((counted, *rest.steps), rest.answer)
