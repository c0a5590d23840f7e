import ast
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.domains.math.expressions import complex_parts, complex_text, perturb, solve

SMALL = st.integers(-20, 20)


@st.composite
def integer_texts(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.booleans()):
        return str(draw(SMALL))
    left, right = draw(integer_texts(depth - 1)), draw(integer_texts(depth - 1))
    inner = f"{left}{draw(st.sampled_from('+-*'))}{right}"
    return f"({inner})" if draw(st.booleans()) else inner


@given(integer_texts())
def test_integer_answers_are_pythons_and_every_step_keeps_the_value(text: str) -> None:
    steps, answer = solve(text)
    assert answer == str(eval(text))
    for before, after in pairwise([text, *steps]):
        assert eval(after) == eval(before)
        # Each step takes one operation away, or only a bracket around a number.
        assert operations(before) - operations(after) in (0, 1)
    assert not steps or operations(steps[-1]) <= 1


def operations(text: str) -> int:
    return sum(isinstance(node, ast.BinOp) for node in ast.walk(ast.parse(text, mode="eval")))


@given(SMALL, SMALL, SMALL, SMALL, st.sampled_from("+-*"))
def test_complex_answers_are_pythons(a: int, b: int, c: int, d: int, operator: str) -> None:
    steps, answer = solve(f"({complex_text(a, b)}){operator}({complex_text(c, d)})")
    left, right = complex(a, b), complex(c, d)
    expected = left + right if operator == "+" else left - right if operator == "-" else left * right
    assert complex(*complex_parts(answer)) == expected
    assert all(eval(step.split("=")[0]) == int(step.split("=")[1]) for step in steps)


@given(st.text())
def test_other_text_is_a_value_error_or_a_number(text: str) -> None:
    try:
        solve(text)
    except ValueError:
        return
    assert any(char.isdigit() for char in text)


@pytest.mark.parametrize(
    "text", ["", "1/2", "2**3", "x+1", "f(1)", "True", "1(2)", "((((", "(1+2", "1.5", "+1", "-(1+2)", "(1+2i)/(1+2i)"]
)
def test_what_is_not_an_expression(text: str) -> None:
    with pytest.raises(ValueError, match="not an expression"):
        solve(text)


@given(integer_texts(), st.integers(0, 2**32))
def test_perturbing_keeps_the_structure_and_no_zero(text: str, seed: int) -> None:
    changed = perturb(text, random.Random(seed), largest=20)
    blank = str.maketrans("0123456789", "9999999999")
    assert changed.translate(blank) == text.translate(blank)
    assert solve(changed)
    assert not any(number in ("0", "00") for number in changed.replace("(", " ").replace(")", " ").split())
