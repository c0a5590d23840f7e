"""Comparison against Python's own equality, and against texts that no honest program gives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.guest.values import encode as written_inside
from trainer.domains.code.compare import same_output, same_value
from trainer.domains.code.tagged import TAGS, Opaque, decode, dump, encode, load

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
keys = st.sampled_from(TAGS) | st.text(max_size=3) | st.integers(-3, 3) | st.tuples(st.integers(0, 2))
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.frozensets(scalars, max_size=3)
    ),
    max_leaves=12,
)


def typed(value: object) -> object:
    """A value that is equal only to one of the same types, apart from 2 and 2.0: bools are marked."""
    match value:
        case bool():
            return ("bool", int(value))
        case list():
            return ["list", *map(typed, value)]
        case tuple():
            return ("tuple", *map(typed, value))
        case dict():
            return {typed(k): typed(v) for k, v in value.items()}
        case frozenset() | set():
            return frozenset(map(typed, value))
        case _:
            return value


@given(values, values)
def test_strict_comparison_is_equality_of_values_and_types(a: object, b: object) -> None:
    assert same_value(dump(a), dump(a), strict=True)
    assert same_value(dump(a), dump(b), strict=True) == (typed(a) == typed(b))


@given(values)
def test_both_sides_of_the_border_write_a_value_alike(value: object) -> None:
    inside = written_inside(value, 1 << 20)
    assert same_value(dump(value), inside, strict=True)
    assert typed(load(inside)) == typed(value)
    assert json.loads(dump(decode(encode(value)))) == json.loads(dump(value))


@given(st.floats(-1e9, 1e9), st.floats(-3, 3), st.sampled_from([1e-6, 1e-3]))
def test_floats_within_the_tolerance_are_equal_wherever_they_stand(x: float, share: float, tolerance: float) -> None:
    y = x + share * tolerance * max(1.0, abs(x))
    if 0.9 < abs(share) < 1.1:
        return  # at the border rounding decides
    near = abs(share) < 1
    for form in (
        lambda v: v,
        lambda v: [1, (v, "a")],
        lambda v: {"k": v},
        lambda v: {(2, 0): [v]},
        lambda v: {v, 1e12},
    ):
        assert same_value(dump(form(x)), dump(form(y)), tolerance) == near
        assert same_value(dump(form(x)), dump(form(y))) == (x == y)
    assert same_output(f"a {x!r}\nb", f"a {y!r}\nb\n", tolerance) == near


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ("1", "true", False),
        ("true", "1", False),
        ("2", "2.0", True),
        ("[1,2]", '{"tuple":[1,2]}', True),
        ("[[1,2]]", '[{"tuple":[1,2]}]', False),
        ('{"tuple":[1,2]}', "[1,2]", False),
        ('{"any":[[3],3]}', "3", True),
        ('{"any":[[3],3]}', '{"tuple":[3]}', True),
        ('{"any":[[3],3]}', "4", False),
        ("3", '{"any":[3]}', False),
        ('{"float":"nan"}', '{"float":"nan"}', True),
        ('{"float":"inf"}', '{"float":"-inf"}', False),
        ("9007199254740993", "9007199254740992.0", False),
        ('{"dict":[["tuple",1]]}', '{"tuple":1}', False),
        ('{"dict":[["a",1]]}', '{"a":1}', True),
        ("1" * 5000, "1" * 5000, True),
        ("[" + "1" * 5000 + "]", "[" + "1" * 4999 + "2]", False),
    ],
)
def test_values_side_by_side(expected: str, given: str, same: bool) -> None:
    assert same_value(expected, given) == same


def test_a_tuple_is_no_list_when_strict_and_integers_get_no_tolerance() -> None:
    assert not same_value("[1,2]", '{"tuple":[1,2]}', strict=True)
    assert not same_value("1000000", "1000001", 1e-3)
    assert not same_output("1000000", "1000001", 1e-3)
    assert same_output("2", "2.0001", 1e-3) and not same_output("2", "2.0001")


@given(st.text() | st.text(alphabet='{}[]":,tuple set dict 019.-e').map(str))
def test_any_text_has_an_answer(text: str) -> None:
    for expected in ('{"set":[1]}', '{"dict":[[1,2]]}', "[1.5]", '{"any":[1,[2]]}', text):
        for tolerance in (0.0, 1e-6):
            same_value(expected, text, tolerance)  # must not raise
            assert same_output(text, text + "\n", tolerance)


@pytest.mark.parametrize(
    "hostile",
    [
        "[" * 60_000, "[" * 900 + "]" * 900, '{"tuple":5}', '{"dict":[1]}', '{"dict":[[[],1]]}', '{"set":{"a":1}}',
        '{"float":[1]}', '{"float":"x"}', "NaN", "Infinity", "1e999", '{"set":[{"repr":[]}]}', "\ud800", "",
    ],
)  # fmt: skip
def test_hostile_texts_are_wrong_and_nothing_else(hostile: str) -> None:
    for expected in ("[[1]]", '{"tuple":[5]}', '{"dict":[[1,2]]}', '{"set":[1]}', '{"float":"nan"}', "1.5"):
        assert not same_value(expected, hostile, 1e-6)


@given(
    st.lists(st.text(alphabet="ab 1.0", max_size=6), max_size=4),
    st.lists(st.sampled_from(["", " ", "\t", "\r"]), min_size=4),
)
def test_white_space_at_ends_of_lines_and_empty_last_lines_do_not_count(lines: list[str], ends: list[str]) -> None:
    padded = "\n".join(line + end for line, end in zip(lines, ends, strict=False)) + "\n \n\n"
    assert same_output("\n".join(lines), padded)
    assert same_output("\n".join(lines), "x" + padded) is False


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        ("a b", "a  b"), (" a", "a"), ("1\n2", "1 2"), ("YES", "Yes"), ("1", "1\n1"), ("a\n\nb", "a\nb"),
        ("1_0.0", "10.0"), ("nan", "NaN"),
    ],
)  # fmt: skip
def test_outputs_that_differ(expected: str, given: str) -> None:
    assert not same_output(expected, given)
    # With a tolerance a line is a row of words, so the spaces between them do not count.
    assert same_output(expected, given, 1e-6) == (expected in ("a b", " a"))


def test_other_objects_come_back_as_nothing_that_is_equal() -> None:
    back = load('[{"repr":"<x>"}]')
    assert isinstance(back[0], Opaque) and back != ["<x>"] and back[0] != Opaque("<x>")
