"""The rule that best tells bad rollouts from good ones: thresholds on one feature or on two, complexity paid for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.types import Record

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

CUTS = 24
"""Thresholds per feature, at quantiles of all rollouts."""
PAIRED = 6
"""Features that take part in rules of two conditions: the best on their own."""
COMPLEXITY = 0.05
"""What a second condition must add to the separation before it is worth having."""


class Condition(Record):
    """``feature`` lies at or above (below) ``threshold``."""

    feature: str
    side: Literal[">=", "<"]
    threshold: float

    def holds(self, values: Mapping[str, Floats]) -> Flags:
        x = values[self.feature]
        return x >= self.threshold if self.side == ">=" else x < self.threshold

    def __str__(self) -> str:
        return f"{self.feature} {self.side} {self.threshold:.4g}"


class Rule(Record):
    """All conditions hold; ``separation`` is the share of bad rollouts that it finds less the share of good ones, among those of
    ``cohort`` (a condition on their tasks in SQL, all tasks where empty)."""

    conditions: tuple[Condition, ...]
    separation: float
    cohort: str = ""

    def holds(self, values: Mapping[str, Floats]) -> Flags:
        first, *others = (c.holds(values) for c in self.conditions)
        for other in others:
            first = first & other
        return first

    def __str__(self) -> str:
        where = f" where {self.cohort.replace(' AND ', ' and ')}" if self.cohort else ""
        return " and ".join(str(c) for c in self.conditions) + where


class Labelled(NamedTuple):
    """Rollouts with labels: features (N,) each, ``bad`` (N,), and the task of each as a number (N,)."""

    values: Mapping[str, Floats]
    bad: Flags
    task: NDArray[np.int64]

    @property
    def both(self) -> bool:
        """Whether there are rollouts of both kinds."""
        return bool(self.bad.any() and not self.bad.all())

    def half(self, held_out: bool) -> Labelled:
        """Those of every second task: searched on one half, checked on the other."""
        mine = (self.task % 2 == 1) == held_out
        return Labelled({k: v[mine] for k, v in self.values.items()}, self.bad[mine], self.task[mine])


def search(data: Labelled) -> Rule | None:
    """The best rule on this data, or None without rollouts of both kinds or without a feature that tells them apart.

    ``separation`` is Youden's J (doi 10.1002/1097-0142(1950)3:1<32). Ties go to the feature that is named first, so that
    the result depends on nothing but the data.
    """
    if not data.both:
        return None
    single = sorted(_singles(data), key=lambda rule: -rule.separation)
    if not single:
        return None
    names = list(dict.fromkeys(r.conditions[0].feature for r in single))[:PAIRED]
    best = {name: [r for r in single if r.conditions[0].feature == name][:4] for name in names}
    pairs = [
        _rule(data, (a.conditions[0], b.conditions[0]))
        for i, one in enumerate(names)
        for other in names[i + 1 :]
        for a in best[one]
        for b in best[other]
    ]
    pair = max(pairs, key=lambda rule: rule.separation, default=None)
    return pair if pair and pair.separation > single[0].separation + COMPLEXITY else single[0]


def _singles(data: Labelled) -> Iterator[Rule]:
    for name, x in data.values.items():
        for cut in dict.fromkeys((*_best_cuts(x, data.bad), *_cuts(x))):
            for side in (">=", "<"):
                yield _rule(data, (Condition.model_validate({"feature": name, "side": side, "threshold": cut}),))


def _best_cuts(x: Floats, bad: Flags) -> Sequence[float]:
    """The thresholds of highest separation on either side, among all that there are."""
    known, place = np.unique(x, return_inverse=True)
    if known.size < 2:
        return ()
    below = [np.cumsum(np.bincount(place[m], minlength=known.size))[:-1] / m.sum() for m in (bad, ~bad)]
    gain = below[0] - below[1]
    return [_between(known[i], known[i + 1]) for i in (int(gain.argmax()), int(gain.argmin()))]


def _between(low: float, high: float) -> float:
    """Half-way, shortened where that keeps the two apart."""
    middle = float(low + (high - low) / 2)
    short = float(f"{middle:.6g}")
    return short if low < short <= high else max(middle, float(np.nextafter(low, high)))


def _cuts(x: Floats) -> Sequence[float]:
    """Thresholds that split the values, between neighbours so that rounding cannot move a rollout across."""
    levels = np.unique(np.quantile(x, np.linspace(0, 1, CUTS + 1), method="inverted_cdf"))
    known = np.unique(x)
    found = []
    for level in levels[1:]:
        place = int(np.searchsorted(known, level))
        if place:
            found.append(_between(known[place - 1], known[place]))
    return found


def _rule(data: Labelled, conditions: tuple[Condition, ...]) -> Rule:
    return Rule(conditions=conditions, separation=separation(Rule(conditions=conditions, separation=0.0), data))


def separation(rule: Rule, data: Labelled) -> float:
    """Share of the bad rollouts that the rule finds, less the share of the good ones."""
    hits = rule.holds(data.values)
    return float(hits[data.bad].mean() - hits[~data.bad].mean())


def interval(rule: Rule, data: Labelled, seed: int = 0, draws: int = 1000) -> tuple[float, float]:
    """95 % interval of the separation by a bootstrap over tasks (seeded): rollouts of one task are not independent."""
    hits = rule.holds(data.values)
    _, task = np.unique(data.task, return_inverse=True)
    tasks = int(task.max()) + 1
    counts = [np.bincount(task[m], minlength=tasks) for m in (data.bad & hits, data.bad, ~data.bad & hits, ~data.bad)]
    weights = np.random.default_rng(seed).multinomial(tasks, np.full(tasks, 1 / tasks), size=draws)
    bad_hits, bad, good_hits, good = (weights @ c for c in counts)
    usable = (bad > 0) & (good > 0)
    found = bad_hits[usable] / bad[usable] - good_hits[usable] / good[usable]
    low, high = np.quantile(found, [0.025, 0.975]) if found.size else (-1.0, 1.0)
    return float(low), float(high)
