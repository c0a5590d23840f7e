"""The miniature's programs: small functions over a list of integers, and the words for them.

A program folds a list: each item is mapped, maybe filtered, and added to a total, a maximum or a list. Parts
combine freely, so there are tens of thousands that behave differently; two that behave alike are one problem,
whatever they are called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import count as counting
from random import Random
from typing import Any, NamedTuple

from trainer.domains.code.tables import FINISHES, FOLDS, GUARDS, MAPS, SOME, Level, Part
from trainer.domains.splits import Interval, content_hash, seeded
from trainer.types import Case

Numbers = list[int]

VISIBLE = 2
HIDDEN = 6
DISTINCT = 3
"""Different outputs among the hidden tests, at least."""
EXAMPLE_TRIES = 40


class Problem(NamedTuple):
    """One behaviour with one wording. ``text`` may leave one number open ("some"), which the examples settle; ``body``
    is the reference program below HEADER; ``digest`` hashes what it does, not how it is written."""

    level: Level
    text: str
    body: str
    digest: str
    visible: tuple[Case, ...]


class Draft(NamedTuple):
    """A program and its words, with the number that may be left open cut out of both (``{c}``)."""

    text: str
    body: str
    open_number: int | None


def draw(levels: Sequence[Level], within: Interval, salt: str) -> Iterator[Problem]:
    """Problems of different behaviour whose digest lies in ``within``, levels by their share, without end as long as
    each level has some left; a level that runs dry (LEVELS are far from it) ends the iterator."""
    random = seeded("code", salt)
    seen: set[str] = set()
    weights = [level.share for level in levels]
    stale = 0
    while stale < 5000:
        (level,) = random.choices(levels, weights)
        stale += 1
        draft = draft_of(level, random)
        body = closed(draft.body, draft.open_number)
        outputs = behaviour(body)
        if outputs is None:
            continue
        digest = content_hash("code", outputs)
        if digest in seen or not within.holds(digest):
            continue
        if (problem := _problem(level, draft, digest, random)) is None:
            continue
        seen.add(digest)
        stale = 0
        yield problem


def draft_of(level: Level, random: Random) -> Draft:
    """One program of the level, its parts chosen at random."""
    fold = random.choice([f for f in FOLDS if f.name in level.folds])
    number: int | None = None
    first, number = _fill(random.choice(MAPS), random, number, level.open_share)
    words, lines = [f"{fold.words} {first.text}"], []
    step = fold.step.format(e=first.code)
    if level.guard:
        guard, number = _fill(random.choice(GUARDS), random, number, 0.0)
        words.append(f"if {guard.text}")
        lines += [f"  if {guard.code}:", f"   {step}"]
    else:
        lines += [f"  {step}"]
    if level.otherwise:
        second, number = _fill(random.choice(MAPS), random, number, 0.0)
        words.append(f"else {second.text}")
        lines += ["  else:", f"   {fold.step.format(e=second.code)}"]
    result = "t"
    if level.finish and fold.numeric and random.random() < level.finish:
        finish, number = _fill(random.choice(FINISHES), random, number, level.open_share)
        words[-1] += f", {finish.text}"
        result = finish.code
    if level.stop:
        stop = random.randint(0, 9)
        words.insert(0, f"until {stop}:")
        lines = [f"  if a=={stop}:", "   break", *lines]
    body = "\n".join([f" t={fold.start}", " for a in x:", *lines, f" return {result}"])
    return Draft(" ".join(words), body, number)


def _fill(part: Part, random: Random, number: int | None, open_share: float) -> tuple[Part, int | None]:
    """Put a digit into a part, or leave it open where nothing else is open yet."""
    if "{c}" not in part.code:
        return part, number
    digit = random.randint(part.least, 9)
    if number is None and part.can_be_open and random.random() < open_share:
        return part, digit
    return part._replace(code=part.code.replace("{c}", str(digit)), text=part.text.replace("{c}", str(digit))), number


def closed(text: str, number: int | None) -> str:
    """The text with its open number put in."""
    return text if number is None else text.replace("{c}", str(number))


def _problem(level: Level, draft: Draft, digest: str, random: Random) -> Problem | None:
    visible = examples_of(draft, random)
    if visible is None:
        return None
    return Problem(level, draft.text.replace("{c}", SOME), closed(draft.body, draft.open_number), digest, visible)


def examples_of(draft: Draft, random: Random) -> tuple[Case, ...] | None:
    """VISIBLE examples with different outputs which, with the description, leave one program only; None if there are none."""
    number = draft.open_number
    function = compiled(draft.body.replace("{c}", "c"))
    for _ in range(EXAMPLE_TRIES):
        inputs = [_visible_input(random, short=number is not None and i == 0) for i in range(VISIBLE)]
        outputs = [function(x, number) for x in inputs]
        if inputs[0] == inputs[1] or outputs[0] == outputs[1]:
            continue
        rivals = () if number is None else (c for c in range(10) if c != number)
        if all([function(x, c) for x in inputs] != outputs for c in rivals):
            return tuple(case_of(x, y) for x, y in zip(inputs, outputs, strict=True))
    return None


def hidden_of(body: str, salt: str, exclude: Sequence[Case], count: int = HIDDEN) -> tuple[Case, ...]:
    """``count`` test cases of a program, none of which is among ``exclude``; they depend on ``salt`` and the program only."""
    random, function = seeded("code tests", salt, body), compiled(body)
    taken = {case.given for case in exclude}
    cases: list[Case] = []
    values: set[str] = set()
    for tries in counting():
        x = _hidden_input(random)
        case = case_of(x, function(x, None))
        # A constant must not pass, nor a lucky pair: the last places are kept for values not seen yet.
        dull = case.expected in values and count - len(cases) <= DISTINCT - len(values) and tries < 500
        if case.given not in taken and not dull:
            taken.add(case.given)
            values.add(case.expected)
            cases.append(case)
            if len(cases) == count:
                break
    return tuple(cases)


def case_of(x: Numbers, y: object) -> Case:
    """A call of f with its value, in the form of sandboxes.types.CaseResult."""
    return Case(given=_json([x]), expected=_json(y))


_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def _visible_input(random: Random, short: bool) -> Numbers:
    if short:
        return [random.choice((0, 1, random.randint(0, 9)))] if random.random() < 0.8 else []
    return [random.randint(0, 9) for _ in range(random.randint(2, 4))]


def _hidden_input(random: Random) -> Numbers:
    return [random.randint(-4, 12) for _ in range(random.randint(0, 7))]


@cache
def _battery() -> tuple[Numbers, ...]:
    """Fixed inputs that tell programs apart: every value the tests use, alone, and many lists."""
    random = seeded("code battery")
    return tuple([[v] for v in range(-4, 13)] + [[]] + [_hidden_input(random) for _ in range(46)])


def behaviour(body: str) -> str | None:
    """What a program gives on the battery, as text; None if it gives nearly the same everywhere."""
    function = compiled(body)
    outputs = [repr(function(x, None)) for x in _battery()]
    return None if len(set(outputs)) < 4 else "\n".join(outputs)


@lru_cache(maxsize=1024)
def compiled(body: str) -> Callable[[Numbers, int | None], object]:
    """The function of a reference program, with the open number ``c`` as second argument. Only ever our own text, which
    never changes its list: replies run in a sandbox."""
    names: dict[str, Any] = {}
    exec(f"def f(x, c):\n{body}", names)
    function: Callable[[Numbers, int | None], object] = names["f"]
    return function
