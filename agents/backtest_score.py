"""The backtest's own score: how often predictions and replays were right about what training then did.

Only what was trained can be scored. What a replay refused never shows whether it would have worked, so that the score is
one of replays that agreed with the prediction, and of those whose objection was set aside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, quantiles

from agents.edits import family
from agents.types import BacktestRecord, PastPrediction, Score

Z = 1.959964
"""Two-sided 95 % of the normal distribution."""
STILL = 1e-6
"""Replayed changes below this are rounding, no forecast of a size."""


def record_of(past: Sequence[PastPrediction]) -> BacktestRecord:
    """The score of all that was trained so far."""
    replayed = [p for p in past if p.replayed is not None]
    families = sorted({family(p.factor) for p in replayed})
    return BacktestRecord(
        past=tuple(past),
        predictions=_predictions(past),
        replays=_replays(replayed),
        families={name: _replays([p for p in replayed if family(p.factor) == name]) for name in families},
    )


def distrusted(record: BacktestRecord | None, factor: str) -> Score | None:
    """The score of replays of the factor's family where it is worse than a coin's: they were wrong more often than right,
    with 97.5 % confidence (four of four, or seven of eight). None where they may be trusted."""
    score = record.families.get(family(factor)) if record else None
    return score if score and score.n and score.high < 0.5 else None


def wilson(hits: int, n: int, z: float = Z) -> tuple[float, float]:
    """Wilson's score interval of a share (E. B. Wilson, JASA 22 (1927) 209); (0, 1) of nothing."""
    if not n:
        return 0.0, 1.0
    rate, spread = hits / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(rate * (1 - rate) / n + spread / (4 * n))
    # At the ends the interval touches 0 or 1 exactly; rounding must not take it past them.
    return (0.0 if hits == 0 else centre - half), (1.0 if hits == n else centre + half)


def _predictions(past: Sequence[PastPrediction]) -> Score:
    """A prediction is right about the direction where the metric moved in it at all; a stated probability is that of the
    least effect."""
    hits = sum(_realised(p) > 0 for p in past)
    sizes = [_realised(p) / p.prediction.min_effect for p in past if p.prediction.min_effect > 0]
    stated = [
        (p.prediction.probability - (_realised(p) >= p.prediction.min_effect)) ** 2
        for p in past
        if p.prediction.probability is not None
    ]
    return _score(hits, len(past), sizes, mean(stated) if stated else None)


def _replays(past: Sequence[PastPrediction]) -> Score:
    """A replay is right where it agrees with training on whether the metric moves in the predicted direction."""
    pairs = [(p, p.prediction.signed(p.replayed)) for p in past if p.replayed is not None]
    hits = sum((change > STILL) == (_realised(p) > 0) for p, change in pairs)
    return _score(hits, len(pairs), [_realised(p) / change for p, change in pairs if abs(change) > STILL])


def _realised(past: PastPrediction) -> float:
    return past.prediction.signed(past.realised)


def _score(hits: int, n: int, sizes: Sequence[float], brier: float | None = None) -> Score:
    low, high = wilson(hits, n)
    return Score(n=n, hits=hits, low=low, high=high, sizes=_quartiles(sizes), brier=brier)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float] | None:
    if not values:
        return None
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high
