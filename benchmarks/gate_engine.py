"""The gate of trainer.gate over many simulated runs at once: the same arithmetic, run by run along the first axis.

tests/benchmarks/test_gate.py compares every number with the gate's own on random scores. The rungs of the ladder that
depend on a gate suite are left out (``judge`` then takes the suite for clean); ``validity`` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from trainer.gate import GatePolicy, planned_share
from trainer.statistics import MAX_DF, POOL_CAP

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Seeds(NamedTuple):
    """Versions, one per run: ``means`` (runs, seeds), each seed's sampling noise of one task (runs, seeds), and the sums
    over the first seeds of the scores by task (runs, seeds, tasks), None for plain numbers."""

    means: Array
    noise: Array
    sums: Array | None = None


class Arm(NamedTuple):
    """Moments of one version per run (trainer.statistics.Moments); everything has shape (runs,) but ``task_means``."""

    mean: Array
    variance: Array
    noise: Array
    n: int
    task_means: Array | None


class Past(NamedTuple):
    """Spreads of other versions, (runs, versions); df 0 marks one that is not there."""

    variance: Array
    df: Array
    noise: Array


class Result(NamedTuple):
    delta: Array
    variance: Array
    df: Array
    p: Array
    sigma: Array


def plain(means: Array) -> Seeds:
    """Versions of whose seeds only one number each is known."""
    return Seeds(means, np.zeros_like(means))


def from_scores(scores: Array) -> Seeds:
    """From scores of shape (runs, seeds, tasks, samples); at least two samples."""
    tasks = scores.mean(axis=3)
    noise = scores.var(axis=3, ddof=1).mean(axis=2) / scores.shape[3]
    return Seeds(tasks.mean(axis=2), noise, tasks.cumsum(axis=1))


def first(seeds: Seeds, n: int) -> Arm:
    """The version as its first n seeds show it."""
    means = seeds.means[:, :n]
    variance = means.var(axis=1, ddof=1) if n > 1 else np.zeros(len(means))
    tasks = None if seeds.sums is None else seeds.sums[:, n - 1] / n
    return Arm(means.mean(axis=1), variance, seeds.noise[:, :n].mean(axis=1), n, tasks)


def nothing(runs: int) -> Past:
    return Past(*(np.zeros((runs, 0)) for _ in range(3)))


def joined(*parts: Past) -> Past:
    return Past(*(np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True)))


def compare(c: Arm, b: Arm, past: Past, *, max_rule: bool = True, cap: float = POOL_CAP) -> Result:
    """trainer.statistics.compare; the pool has at least one degree of freedom."""
    tasks = 1 if c.task_means is None else c.task_means.shape[1]
    there = np.where(past.df > 0, past.df + 1, 0)
    weight = c.n - 1 + b.n - 1 + past.df.sum(axis=1)
    noise = c.n * c.noise + b.n * b.noise + (there * past.noise).sum(axis=1)
    floor = noise / (c.n + b.n + there.sum(axis=1)) / tasks
    own = (c.n - 1) * c.variance + (b.n - 1) * b.variance
    parts = past.df * past.variance
    total = own + parts.sum(axis=1)
    left = weight[:, None] - past.df
    others = np.where(left > 0, (total[:, None] - parts) / np.maximum(left, 1), np.inf)
    capped = own + (past.df * np.minimum(past.variance, cap * np.maximum(others, floor[:, None]))).sum(axis=1)
    pool = np.maximum(capped / weight, floor)
    seeds = sum((np.maximum(pool, a.variance) if max_rule else pool) / a.n for a in (c, b))
    interaction = np.zeros_like(floor)
    if c.task_means is not None and b.task_means is not None:
        between = (c.task_means - b.task_means).var(axis=1, ddof=1)
        interaction = np.maximum(0.0, between - c.noise / c.n - b.noise / b.n) / tasks
    variance = seeds + interaction
    with np.errstate(divide="ignore", invalid="ignore"):
        parts_df = seeds**2 / weight + interaction**2 / max(tasks - 1, 1)
        df = np.minimum(MAX_DF, variance**2 / parts_df)
        delta = c.mean - b.mean
        p = np.where(variance > 0, stdtr(df, -delta / np.sqrt(variance)), np.where(delta == 0, 0.5, delta < 0))
    return Result(delta, variance, df, p, np.sqrt(pool))


def shares(policy: GatePolicy, candidates: int) -> Array:
    return np.array([planned_share(slot, policy) for slot in range(candidates + 1)])


class Verdicts(NamedTuple):
    """``seeds`` are those the candidate was trained with, ``p`` of its last look."""

    promoted: Mask
    seeds: NDArray[np.int64]
    p: Array
    delta: Array


def judge(
    policy: GatePolicy, candidate: Seeds, parent: Arm, past: Past, share: Array, room: NDArray[np.int64] | None = None
) -> Verdicts:
    """The looks of one candidate per run. ``room``: trainings that may still be had; a look beyond it is not reached."""
    runs = len(candidate.means)
    promoted, open_ = np.zeros(runs, bool), np.ones(runs, bool)
    used, p, delta = np.zeros(runs, np.int64), np.ones(runs), np.zeros(runs)
    for look in policy.plan:
        if room is not None:
            open_ &= room >= look.seeds
        found = compare(first(candidate, look.seeds), parent, past)
        used[open_], p[open_], delta[open_] = look.seeds, found.p[open_], found.delta[open_]
        promoted |= open_ & (found.p <= look.share * share) & (look.share * share > 0)
        open_ &= ~promoted & (found.p <= look.futility)
    return Verdicts(promoted, used, p, delta)


def spread_at(candidate: Seeds, seeds: NDArray[np.int64]) -> Past:
    """What a candidate adds to the pool after that many seeds, which may differ by run."""
    out = Past(*(np.zeros((len(seeds), 1)) for _ in range(3)))
    for n in np.unique(seeds[seeds > 1]):
        arm, here = first(candidate, int(n)), seeds == n
        out.variance[here, 0], out.df[here, 0], out.noise[here, 0] = arm.variance[here], n - 1, arm.noise[here]
    return out


class Gate:
    """A run's gate against one fixed parent until its first promotion: what null runs need."""

    def __init__(self, policy: GatePolicy, parent: Arm, calibration: Past | None = None) -> None:
        runs = len(parent.mean)
        self.policy, self.parent = policy, parent
        self.past = calibration or nothing(runs)
        self.shares = shares(policy, 400)
        self.first = np.full(runs, np.iinfo(np.int64).max)
        self.judged = 0

    def add(self, candidate: Seeds) -> Verdicts:
        share = np.full(len(candidate.means), self.shares[self.judged])
        verdicts = judge(self.policy, candidate, self.parent, self.past, share)
        self.judged += 1
        self.first = np.where(verdicts.promoted, np.minimum(self.first, self.judged), self.first)
        self.past = joined(self.past, spread_at(candidate, verdicts.seeds))
        return verdicts


def validity(a: Sequence[Array], b: Sequence[Array], policy: GatePolicy) -> tuple[Mask, Mask]:
    """(invalid, unconfirmed) per run by the rule of trainer.gate_types.Validity, from proxy and gate scores of candidate
    and parent, each of shape (runs, seeds)."""

    def arm(values: Array) -> Arm:
        return first(plain(values), values.shape[1])

    def p(candidate: Array, parent: Array) -> Array:
        return compare(arm(candidate), arm(parent), nothing(len(parent)), max_rule=False).p

    rise, follow = p(a[0], a[1]), p(b[0], b[1])
    fall = p(a[0] / 2 - b[0], a[1] / 2 - b[1])
    suspect = (rise <= policy.proxy_level) & (follow > policy.gate_level)
    return suspect & (fall <= policy.gap_level), suspect & (fall > policy.gap_level)
