"""Comparing two versions of a policy from few training seeds: the arithmetic of the gate.

Scores of one version are an array of shape (seeds, tasks, samples). The score of a seed is its mean;
its standard deviation over seeds is σ, with σ² = σ_seed² + r/T for T tasks and r the sampling noise of
one task. Three seeds estimate σ badly, therefore versions share a pooled estimate; a pooled estimate
hides one noisy version, therefore each arm takes the larger of the pool and its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_DF = 16.0
"""Pools of many versions claim more certainty than unequal versions deserve; Student's df end here."""
POOL_CAP = 5.0
"""A past version counts with at most this multiple of the pool without it: one broken version must
not blunt the gate for good."""


class Spread(NamedTuple):
    """Variance of a seed's score with its degrees of freedom, and r, the sampling noise of one task."""

    variance: float
    df: float
    noise: float = 0.0


class Moments(NamedTuple):
    """What a comparison needs of one version; ``task_means`` has shape (tasks,)."""

    mean: float
    spread: Spread
    n: int
    task_means: Array


class Comparison(NamedTuple):
    """Candidate minus baseline with the variance of that difference.

    ``pool`` is the shared spread after cap and floor; with df 0 nobody had a second seed, and the
    variance covers the sampling of tasks only. ``interaction`` is the part of the variance that
    comes from tasks reacting differently.
    """

    delta: float
    variance: float
    df: float
    pool: Spread
    interaction: float

    @property
    def p(self) -> float:
        """One-sided p of "the candidate is not better"."""
        return student_p(self.delta, self.variance, self.df)

    def interval(self, level: float) -> tuple[float, float]:
        """Two-sided interval of the difference."""
        half = student_quantile(0.5 + level / 2, self.df) * math.sqrt(self.variance)
        return self.delta - half, self.delta + half


def student_p(delta: float, variance: float, df: float) -> float:
    """P(T ≥ delta/√variance) for Student's T; without any variance the sign decides."""
    from scipy.special import stdtr

    if variance <= 0.0:
        return 0.5 if delta == 0.0 else float(delta < 0.0)
    return float(stdtr(df, -delta / math.sqrt(variance)))


def student_quantile(probability: float, df: float) -> float:
    """Student's quantile."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def normal_quantile(probability: float) -> float:
    """Quantile of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(probability))


def moments(scores: Array) -> Moments:
    """Moments of one version's scores, shape (seeds, tasks, samples); a single task is a plain number per seed.

    With one sample per task the noise is taken over seeds instead, and with one seed over tasks: both
    err upwards.
    """
    n, tasks, samples = scores.shape
    by_seed = scores.mean(axis=(1, 2))
    if tasks == 1:
        noise = 0.0
    elif samples > 1:
        noise = float(scores.var(axis=2, ddof=1).mean()) / samples
    else:
        noise = float(scores[:, :, 0].var(axis=0 if n > 1 else 1, ddof=1).mean())
    variance = float(by_seed.var(ddof=1)) if n > 1 else 0.0
    return Moments(float(by_seed.mean()), Spread(variance, n - 1, noise), n, scores.mean(axis=(0, 2)))


def pooled(current: Sequence[Spread], past: Sequence[Spread], tasks: int, cap: float = POOL_CAP) -> Spread:
    """Spread shared by all versions: each past one capped at ``cap`` times the pool without it, the
    whole floored at sampling noise (r/T). ``cap`` = inf switches the cap off."""
    everyone = [*current, *past]
    noise = sum((s.df + 1) * s.noise for s in everyone) / sum(s.df + 1 for s in everyone)
    floor = noise / tasks
    total, weight = sum(s.df * s.variance for s in everyone), sum(s.df for s in everyone)
    if weight == 0:
        return Spread(floor, 0, noise)
    capped = sum(s.df * s.variance for s in current)
    for s in past:
        others = (total - s.df * s.variance) / (weight - s.df) if weight > s.df else math.inf
        capped += s.df * min(s.variance, cap * max(others, floor))
    return Spread(max(capped / weight, floor), weight, noise)


def compare(
    candidate: Moments, baseline: Moments, past: Sequence[Spread] = (), *, cap: float = POOL_CAP, max_rule: bool = True
) -> Comparison:
    """Candidate minus baseline on the same tasks:

    V = max(s²_pool, s²_c)/n_c + max(s²_pool, s²_b)/n_b + max(0, var_t(M_c − M_b) − r_c/n_c − r_b/n_b)/T

    with Student's df by Satterthwaite over the seed part (the pool's df) and the task part (T − 1), at
    most MAX_DF. Unpaired over training seeds, paired by task. ``max_rule`` False uses the pool alone,
    which is the textbook t-test and lets a noisy version through.
    """
    tasks = len(candidate.task_means)
    pool = pooled([candidate.spread, baseline.spread], past, tasks, cap)
    seeds = interaction = 0.0
    for arm in (candidate, baseline):
        seeds += (max(pool.variance, arm.spread.variance) if max_rule else pool.variance) / arm.n
    if tasks > 1:
        between = float((candidate.task_means - baseline.task_means).var(ddof=1))
        sampled = candidate.spread.noise / candidate.n + baseline.spread.noise / baseline.n
        interaction = max(0.0, between - sampled) / tasks
    df = satterthwaite((seeds, pool.df), (interaction, tasks - 1))
    return Comparison(candidate.mean - baseline.mean, seeds + interaction, min(MAX_DF, df), pool, interaction)


def satterthwaite(*parts: tuple[float, float]) -> float:
    """Degrees of freedom of a sum of (variance, df) parts; parts without df or variance do not count
    (Satterthwaite 1946)."""
    known = [(v, df) for v, df in parts if v > 0 and df > 0]
    if not known:
        return max(1.0, *(df for _, df in parts))
    return sum(v for v, _ in known) ** 2 / sum(v * v / df for v, df in known)


@lru_cache(maxsize=256)
def detectable_effect(
    looks: tuple[tuple[int, float, float], ...], n_b: int, past_df: float, power: float = 0.8
) -> float:
    """Effect, in units of σ, that a candidate's ``looks`` find with probability ``power`` against ``n_b`` baseline seeds.

    A look is (seeds, one-sided level or 0, p above which it ends the candidate). For each of many drawn candidates the
    least effect that is found follows from the scores without effect: max over the looks up to one of what their lines
    ask for, min over the looks that promote; the answer is its quantile. The draws are fixed, so equal plans give equal
    numbers. It asks more than the noncentral t would, because of the max rule.
    """
    draws = 1 << 14
    rng = np.random.default_rng(0)
    seeds = rng.standard_normal((looks[-1][0], draws))
    baseline, s2_b = rng.standard_normal(draws) / math.sqrt(n_b), rng.chisquare(n_b - 1, draws) / (n_b - 1)
    known = (n_b - 1) * s2_b + (rng.chisquare(past_df, draws) if past_df else 0.0)
    found, kept = np.full(draws, np.inf), np.full(draws, -np.inf)
    for n, level, futility in looks:
        s2_c, df = seeds[:n].var(axis=0, ddof=1), n - 1 + n_b - 1 + past_df
        pool = (known + (n - 1) * s2_c) / df
        error = np.sqrt(np.maximum(pool, s2_c) / n + np.maximum(pool, s2_b) / n_b)
        noise = seeds[:n].mean(axis=0) - baseline
        if level > 0:
            line = student_quantile(1 - level, min(MAX_DF, df)) * error - noise
            found = np.minimum(found, np.maximum(line, kept))
        if futility < 1:
            kept = np.maximum(kept, student_quantile(1 - futility, min(MAX_DF, df)) * error - noise)
    return float(np.quantile(found, power))


def upper_sigma_factor(df: float, level: float = 0.8) -> float:
    """√(ν/χ²_{ν,1−level}): the upper confidence bound of σ over its estimate; infinite without df."""
    from scipy.special import chdtri

    return math.sqrt(df / float(chdtri(df, level))) if df > 0 else math.inf
