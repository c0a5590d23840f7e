"""Problems drawn from reasoning_gym: distinct, unguessable, and reproducible in any process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

from trainer.domains.math.expressions import complex_text
from trainer.domains.math.gym import generator
from trainer.domains.math.tables import MAX_ANSWER_SHARE, Level
from trainer.domains.splits import Interval, content_hash


class Problem(NamedTuple):
    """An expression (its canonical content, without any wording) and its canonical answer."""

    family: str
    level: int
    text: str
    answer: str
    digest: str


def digest_of(family: str, text: str) -> str:
    """Content hash of a problem; the level does not count, since levels of a family may overlap."""
    return content_hash("math", family, text)


def problem_of(level: Level, entry: dict[str, Any]) -> Problem:
    """The problem in a generator's entry."""
    meta = entry["metadata"]
    answer = entry["answer"]
    match level.family:
        case "complex_arithmetic":
            left, right = (complex_text(*map(int, meta[key])) for key in ("num1", "num2"))
            text, answer = f"({left}){meta['operation']}({right})", complex_text(*meta["result"])
        case "leg_counting":
            text = "+".join(f"{count} {animal}" for animal, count in meta["animals"].items())
        case _:
            text = meta["expression"].replace(" ", "")
    return Problem(level.family, level.level, text, answer, digest_of(level.family, text))


def draw(levels: Sequence[Level], within: Interval, salt: str) -> Iterator[Problem]:
    """Distinct problems with hashes in ``within``, levels mixed by their shares.

    A level that runs out is left out from there on; the iterator ends when all have. The order
    depends on the arguments only, and a shorter draw is a prefix of a longer one.
    """
    seen: set[str] = set()
    streams = [_stream(level, within, salt, seen) for level in levels]
    # Smallest key first: the level that is furthest behind its share, were it to give one more.
    turns = [(1 / level.share, i, 1 / level.share) for i, level in enumerate(levels)]
    heapify(turns)
    while turns:
        behind, i, stride = turns[0]
        problem = next(streams[i], None)
        if problem is None:
            heappop(turns)
        else:
            heapreplace(turns, (behind + stride, i, stride))
            yield problem


def _stream(level: Level, within: Interval, salt: str, seen: set[str]) -> Iterator[Problem]:
    source = generator(level.family, level.options)
    index = int(content_hash("math", salt, level.family, str(level.level))[:12], 16)
    answers: Counter[str] = Counter()
    drawn = stale = 0
    # Coupon collector: after as many fruitless in-range draws as there are known problems, the unseen
    # share is about one known problem, and looking on costs more than it brings.
    while stale <= 100 + drawn:
        entry = source[index]
        index += 1
        if level.must_contain not in entry["question"]:
            continue
        problem = problem_of(level, entry)
        if not within.holds(problem.digest):
            continue
        stale += 1
        if problem.digest in seen or answers[problem.answer] >= max(1.0, MAX_ANSWER_SHARE * (drawn + 1)):
            continue
        seen.add(problem.digest)
        answers[problem.answer] += 1
        drawn, stale = drawn + 1, 0
        yield problem
