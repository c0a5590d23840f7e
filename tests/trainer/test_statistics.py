"""The gate's arithmetic against independent evaluations, formulas by hand and simulation."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.statistics import (
    Moments,
    Spread,
    compare,
    detectable_effect,
    moments,
    pooled,
    satterthwaite,
    student_p,
    student_quantile,
    upper_sigma_factor,
)

CANCELLATION = 2e-8
"""Computed in doubles, 1 + t²/df loses t below √(2⁻⁵³·df): p is off by at most the density at zero (.4) times that, 1.7e-8
at df 16."""


def tolerance(p: float, n: int) -> float:
    """Monte Carlo bound on the share of n runs: beyond it by chance in fewer than 4 of a million."""
    return p + 4.5 * math.sqrt(p * (1 - p) / n)


def plain(values: np.ndarray) -> Moments:
    return moments(values[:, None, None])


def null_rate(n: int, level: float, sd: tuple[float, float], past: Spread | None = None, **options: object) -> float:
    rng = np.random.default_rng(3)
    before = [] if past is None else [past]
    hits = 0
    for _ in range(n):
        candidate, baseline = (plain(scale * rng.standard_normal(3)) for scale in sd)
        hits += compare(candidate, baseline, before, **options).p <= level  # type: ignore[arg-type]
    return hits / n


@given(st.floats(-30, 30), st.floats(1, 16))
def test_p_is_the_incomplete_beta_function(t: float, df: float) -> None:
    with mpmath.workdps(40):
        x = mpmath.mpf(df) / (mpmath.mpf(df) + mpmath.mpf(t) ** 2)
        tail = mpmath.betainc(mpmath.mpf(df) / 2, 0.5, 0, x, regularized=True) / 2
        expected = float(tail if t >= 0 else 1 - tail)
    assert student_p(t, 1.0, df) == pytest.approx(expected, abs=CANCELLATION)


@given(st.floats(0.001, 0.999), st.floats(1, 16))
def test_quantile_inverts_p(probability: float, df: float) -> None:
    assert 1 - student_p(student_quantile(probability, df), 1.0, df) == pytest.approx(probability, abs=CANCELLATION)


def test_without_variance_the_sign_decides() -> None:
    assert [student_p(d, 0.0, 4) for d in (-0.1, 0.0, 0.1)] == [1.0, 0.5, 0.0]


def test_moments_by_hand() -> None:
    scores = np.array([[[0.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, 0.0]]])
    m = moments(scores)
    assert (m.mean, m.n, list(m.task_means)) == (0.5, 2, [0.25, 0.75])
    assert m.spread.variance == pytest.approx(np.var([0.75, 0.25], ddof=1))
    # Half of the (seed, task) cells have sample variance .5, the others 0; divided by k = 2.
    assert m.spread.noise == pytest.approx(0.125)


def test_noise_is_the_sampling_noise_of_one_task() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(size=4000)
    noise = moments((rng.uniform(size=(2, 4000, 4)) < p[:, None]).astype(float)).spread.noise
    # E[p(1−p)] = 1/6 for uniform p; a cell's sample variance lies in [0, 1/3], so its sd is at most 1/6.
    assert noise == pytest.approx(1 / 6 / 4, abs=4.5 * (1 / 6 / 4) / math.sqrt(8000))


def test_variance_formula_by_hand() -> None:
    rng = np.random.default_rng(1)
    c, b = rng.uniform(size=(3, 40, 4)), rng.uniform(size=(4, 40, 4)) * 0.5
    past = [Spread(1e-5, 2, 0.01)]
    result = compare(moments(c), moments(b), past)
    s2_c, s2_b = c.mean((1, 2)).var(ddof=1), b.mean((1, 2)).var(ddof=1)
    r_c, r_b = (x.var(axis=2, ddof=1).mean() / 4 for x in (c, b))
    floor = (3 * r_c + 4 * r_b + 3 * 0.01) / 10 / 40
    pool = max((2 * s2_c + 3 * s2_b + 2 * 1e-5) / 7, floor)
    task = max(0.0, (c.mean((0, 2)) - b.mean((0, 2))).var(ddof=1) - r_c / 3 - r_b / 4) / 40
    seeds = max(pool, s2_c) / 3 + max(pool, s2_b) / 4
    assert result.variance == pytest.approx(seeds + task, rel=1e-12)
    assert result.df == pytest.approx(min(16, (seeds + task) ** 2 / (seeds**2 / 7 + task**2 / 39)), rel=1e-12)
    assert result.delta == pytest.approx(c.mean() - b.mean(), rel=1e-12)


spreads = st.builds(Spread, st.floats(0, 1), st.integers(1, 5), st.floats(0, 0.2))


@given(st.lists(spreads, min_size=1, max_size=3), st.lists(spreads, max_size=5))
def test_pool_lies_between_floor_and_uncapped(current: list[Spread], past: list[Spread]) -> None:
    pool, free = pooled(current, past, tasks=50), pooled(current, past, tasks=50, cap=math.inf)
    assert pool.noise / 50 - 1e-15 <= pool.variance <= free.variance + 1e-12
    assert pool.df == free.df == sum(s.df for s in [*current, *past])


def test_one_broken_past_version_is_capped() -> None:
    assert pooled([Spread(1, 2), Spread(1, 2)], [Spread(100, 2)], tasks=1).variance == pytest.approx((4 + 10) / 6)


def test_one_seed_each_leaves_the_tasks() -> None:
    rng = np.random.default_rng(2)
    result = compare(moments(rng.uniform(size=(1, 50, 4))), moments(rng.uniform(size=(1, 50, 4))))
    assert result.pool.df == 0
    assert result.variance > 0
    assert 1 <= result.df <= 16


def test_satterthwaite_of_equal_parts_adds_df() -> None:
    assert satterthwaite((2.0, 5), (2.0, 5)) == pytest.approx(10)
    assert satterthwaite((2.0, 5), (0.0, 3)) == pytest.approx(5)


def test_level_is_exact_for_equal_variances_without_the_precautions() -> None:
    n = 2000
    rate = null_rate(n, 0.05, (1.0, 1.0), max_rule=False, cap=math.inf)
    assert abs(rate - 0.05) <= tolerance(0.05, n) - 0.05


def test_the_max_rule_keeps_a_noisy_version_from_hiding_in_the_pool() -> None:
    calm = Spread(1.0, 12)
    n = 800
    # With the rule the noisy arm's variance is at least its own, so p cannot fall below that of a test against
    # a known mean with the pool's 16 df instead of 2: P(|T₂| > t₁₆,.₉₅ = 1.75)/2 = .111.
    assert null_rate(n, 0.05, (4.0, 1.0), calm) <= tolerance(0.111, n)
    assert null_rate(n, 0.05, (4.0, 1.0), calm, max_rule=False) > tolerance(0.111, n)


@pytest.mark.parametrize(("past_df", "sigmas"), [(0, 5.3), (4, 4.0)])
def test_detectable_effect_of_the_first_candidate(past_df: int, sigmas: float) -> None:
    # Figures of another simulation, to one decimal (.05); a quantile of 16384 draws whose density there is .13 at least
    # has an sd of √(.16/16384)/.13 = .024.
    assert detectable_effect(((3, 0.005, 1.0),), 3, past_df) == pytest.approx(sigmas, abs=0.12)


@pytest.mark.parametrize("seeds", [(3, 3), (3, 4), (6, 6)])
def test_power_at_the_detectable_effect(seeds: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    mde, n = detectable_effect(((seeds[0], 0.005, 1.0),), seeds[1], 0), 1200
    found = {1: 0, 2: 0}
    for _ in range(n):
        c, b = (rng.standard_normal(k) for k in seeds)
        for times in found:
            found[times] += compare(plain(c + times * mde), plain(b)).p <= 0.005
    # The simulated and the planned power each carry Monte Carlo error (1200 and 16384 draws): .06 covers both.
    assert found[1] / n == pytest.approx(0.8, abs=0.06)
    assert found[2] / n >= 0.99


def test_upper_sigma_factor() -> None:
    assert [round(upper_sigma_factor(df), 2) for df in (2, 5, 9)] == [2.12, 1.46, 1.29]
    assert upper_sigma_factor(0) == math.inf


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.floats(-5, 5))
def test_shift_and_order_do_not_matter(seed: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    c, b = rng.uniform(size=(3, 20, 2)), rng.uniform(size=(3, 20, 2))
    p = compare(moments(c), moments(b)).p
    tasks = rng.permutation(20)
    assert compare(moments(c + shift), moments(b + shift)).p == pytest.approx(p, abs=1e-9)
    assert compare(moments(c[::-1][:, tasks]), moments(b[::-1][:, tasks])).p == pytest.approx(p, abs=1e-9)
    assert compare(moments(c + abs(shift)), moments(b)).p <= p + 1e-12
