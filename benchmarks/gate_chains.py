"""Gating each candidate against certifying the chain of provisional steps, at equal numbers of trainings.

A search draws candidates on top of its present best; a candidate's true gain over it comes from a fixed distribution. Units
are σ, the sd of one training seed's score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from benchmarks import gate_engine as engine
from benchmarks.gate_plain import floor_of
from trainer.gate import LONG, GatePolicy

BUDGETS = (15, 41)
Draw = Callable[[np.random.Generator, int], np.ndarray]


def nulls(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.zeros(n)


def even(rng: np.random.Generator, n: int) -> np.ndarray:
    """As many gains as losses, sd 1."""
    return rng.standard_normal(n)


def rare(rng: np.random.Generator, n: int) -> np.ndarray:
    """One in ten helps by 3 σ, one harms by 3 σ, the rest does nothing."""
    return rng.choice([-3.0, *[0.0] * 8, 3.0], n)


def some(rng: np.random.Generator, n: int) -> np.ndarray:
    """A third helps by 2 σ, a third harms by 2 σ, a third does nothing."""
    return rng.choice([-2.0, 0.0, 2.0], n)


def harmful(rng: np.random.Generator, n: int) -> np.ndarray:
    """Most edits harm: mean −1, sd 2."""
    return rng.normal(-1.0, 2.0, n)


EFFECTS: Mapping[str, Draw] = {
    "all null": nulls,
    "normal, sd 1": even,
    "a third each −2, 0, +2": some,
    "a tenth +3, a tenth −3, else 0": rare,
    "normal, mean −1, sd 2": harmful,
}


class Outcome(NamedTuple):
    """By run: the true gain of what was certified (or promoted) over the baseline, 0 if nothing was; whether anything was;
    and whether falsely: a chain without any true gain, or one promotion of a candidate that was no better. ``steps`` are
    those that the search took, ``idle`` those of them without a true gain."""

    gain: engine.Array
    certified: engine.Mask
    false: engine.Mask
    steps: engine.Array
    idle: engine.Array


def certified(policy: GatePolicy, budget: int, draw: Draw, runs: int, seed: int, floor: bool = False) -> Outcome:
    """Baseline with its seeds, one training per candidate, certify_seeds fresh seeds of tip and baseline."""
    rng = np.random.default_rng(seed)
    n_b, fresh = policy.parent_seeds, policy.certify_seeds
    seeds = rng.standard_normal((runs, n_b))
    base = engine.first(engine.plain(seeds), n_b)
    past = floor_of(runs) if floor else engine.nothing(runs)
    # The pool of one-seed arms: the baseline's spread and the stored floor.
    known = engine.joined(engine.spread_at(engine.plain(seeds), np.full(runs, n_b)), past)
    pool = (known.df * known.variance).sum(axis=1) / known.df.sum(axis=1)
    true, score, weight = np.zeros(runs), base.mean, np.full(runs, 1 / n_b)
    steps, idle = np.zeros(runs), np.zeros(runs)
    for _ in range(budget - n_b - 2 * fresh):
        candidate = true + draw(rng, runs)
        seen = candidate + rng.standard_normal(runs)
        step = seen - score > policy.provisional_se * np.sqrt(pool * (1 + weight))
        steps, idle = steps + step, idle + (step & (candidate <= true))
        true, score, weight = (
            np.where(step, new, old) for new, old in ((candidate, true), (seen, score), (1.0, weight))
        )
    arms = [
        engine.first(engine.plain(mean + rng.standard_normal((runs, fresh))), fresh) for mean in (true[:, None], 0.0)
    ]
    passed = (steps > 0) & (engine.compare(arms[0], arms[1], past).p <= policy.alpha)
    return Outcome(np.where(passed, true, 0.0), passed, passed & (true <= 0), steps, idle)


def each(policy: GatePolicy, budget: int, draw: Draw, runs: int, seed: int, floor: bool = False) -> Outcome:
    """The gate on every candidate; a promoted one is the next parent and is topped up to the parent's seeds."""
    rng = np.random.default_rng(seed)
    n_b, most = policy.parent_seeds, max(policy.plan[-1].seeds, policy.parent_seeds)
    parent, true = rng.standard_normal((runs, n_b)), np.zeros(runs)
    known = floor_of(runs) if floor else engine.nothing(runs)
    spreads = known
    champion = np.full(runs, -1)
    left = np.full(runs, budget - n_b)
    shares, slot, wrong = engine.shares(policy, budget), np.zeros(runs, int), np.zeros(runs, bool)
    original = engine.spread_at(engine.plain(parent), np.full(runs, n_b))
    promotions, idle = np.zeros(runs), np.zeros(runs)
    for number in range(budget // 2):
        truth = true + draw(rng, runs)
        candidate = engine.plain(truth[:, None] + rng.standard_normal((runs, most)))
        # The parent's own spread counts as an arm's, not as a past version's.
        others = engine.joined(original, spreads)
        mask = np.ones_like(others.df)
        index = np.where(champion < 0, 0, 1 + known.df.shape[1] + champion)
        np.put_along_axis(mask, index[:, None], 0.0, axis=1)
        past = others._replace(df=others.df * mask)
        verdict = engine.judge(policy, candidate, engine.first(engine.plain(parent), n_b), past, shares[slot], left)
        left = left - verdict.seeds - np.where(verdict.promoted, np.maximum(0, n_b - verdict.seeds), 0)
        ended = (verdict.seeds > 0) & ~verdict.promoted
        slot = slot + ended
        seeds = np.where(verdict.promoted, np.maximum(verdict.seeds, n_b), verdict.seeds)
        spreads = engine.joined(spreads, engine.spread_at(candidate, seeds))
        useless = verdict.promoted & (truth <= true)
        wrong, idle, promotions = wrong | useless, idle + useless, promotions + verdict.promoted
        champion = np.where(verdict.promoted, number, champion)
        parent = np.where(verdict.promoted[:, None], candidate.means[:, :n_b], parent)
        true = np.where(verdict.promoted, truth, true)
    return Outcome(true, promotions > 0, wrong, promotions, idle)


STRATEGIES: Mapping[str, Callable[[int, Draw, int, int], Outcome]] = {
    "certify": lambda budget, draw, runs, seed: certified(GatePolicy(), budget, draw, runs, seed),
    "certify, stored noise floor": lambda budget, draw, runs, seed: certified(
        GatePolicy(), budget, draw, runs, seed, floor=True
    ),
    "each, short form": lambda budget, draw, runs, seed: each(GatePolicy(), budget, draw, runs, seed),
    "each, short form, stored noise floor": lambda budget, draw, runs, seed: each(
        GatePolicy(), budget, draw, runs, seed, floor=True
    ),
    "each, long form": lambda budget, draw, runs, seed: each(LONG, budget, draw, runs, seed),
}
