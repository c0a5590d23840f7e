"""What the design promises, over many simulated runs: the vectorised gate stands in, which is the gate's own arithmetic
(tests/benchmarks/test_gate_engine.py)."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import gate_engine as engine
from benchmarks.gate_plain import (
    CASES,
    FORMS,
    GAINS,
    Case,
    Form,
    effect_found,
    false_promotions,
    power,
    validity,
)
from tests.trainer.gate_arms import tolerance
from trainer.gate import LONG, GatePolicy, Look

RUNS = 1500
SHORT = GatePolicy()


def without_futility(policy: GatePolicy) -> GatePolicy:
    return policy.model_copy(update={"looks": tuple(Look(s, share, 1.0) for s, share, _ in policy.plan)})


BOUNDS = {"half of the candidates' sd × 4": 0.065}
"""The 5 % are exact for equal noise only. Where calm and noisy candidates alternate, 6.1 % of long runs were measured (10,000
runs, interval to 6.6; docs/gate.md): the cap on noisy past versions, which keeps one that collapsed from blinding the gate."""


@pytest.mark.parametrize("policy", [SHORT, LONG, without_futility(SHORT), without_futility(LONG)])
@pytest.mark.parametrize(
    "case", [case for case in CASES if "× 8" not in case.name and not case.floor], ids=lambda case: case.name
)
def test_a_null_run_of_any_length_rarely_promotes(case: Case, policy: GatePolicy) -> None:
    first = false_promotions(case, policy, RUNS, 20, seed=7)
    bound = BOUNDS.get(case.name, 0.05)
    for candidates in (1, 3, 8, 20):
        assert (first <= candidates).mean() <= tolerance(bound, RUNS)


@pytest.mark.parametrize("form", FORMS[:5], ids=lambda form: form.name)
def test_power_at_the_detectable_effect_and_at_twice_it(form: Form) -> None:
    found, deltas = power(form, (0.5, 1.0, 2.0), RUNS, seed=8)
    # The MDE is a quantile of 16384 draws, the power one of 1500: .06 covers both (4.5 standard errors of the latter: .046).
    assert found[1] / RUNS == pytest.approx(0.8, abs=0.06)
    assert found[2] / RUNS >= 0.99
    assert found[0] / RUNS < 0.5
    # Of what is promoted at the detectable effect, the claim is too high: the winner's curse.
    assert deltas[1].mean() > effect_found(form)


def test_honest_gains_are_not_branded_and_hacks_are_caught() -> None:
    """The design's figures over all looks: ≤ .1 % and ≤ .6 % (1.2 % here for a fourth seed), 85 % and more."""
    found = {gain.name: validity(gain, SHORT, 4000, seed=9) for gain in GAINS}
    for gain in GAINS[:2]:
        assert found[gain.name]["invalid, 4 seeds"] / 4000 <= tolerance(0.001, 4000)
    for gain in GAINS[2:4]:
        assert found[gain.name]["invalid, 3 seeds"] / 4000 <= tolerance(0.01, 4000)
        assert found[gain.name]["usual rule"] > 4 * found[gain.name]["invalid, 4 seeds"]
    for gain in GAINS[4:]:
        caught = found[gain.name]["invalid, 3 seeds"] / 4000
        assert caught >= 0.85
        assert found[gain.name]["unconfirmed"] + found[gain.name]["invalid, 4 seeds"] >= 0.95 * 4000


@pytest.mark.parametrize("policy", [SHORT, LONG])
def test_raising_a_candidates_scores_never_raises_p(policy: GatePolicy) -> None:
    rng = np.random.default_rng(10)
    base = engine.first(engine.plain(rng.standard_normal((200, policy.parent_seeds))), policy.parent_seeds)
    draws = rng.standard_normal((200, policy.plan[-1].seeds))
    past = engine.nothing(200)
    for look in policy.plan:
        before = np.ones(200)
        for gain in (0.0, 0.5, 3.0, 50.0):
            p = engine.compare(engine.first(engine.plain(draws + gain), look.seeds), base, past).p
            assert (p <= before + 1e-12).all()
            before = p


@pytest.mark.parametrize("policy", [SHORT, LONG])
def test_a_copy_of_the_champion_is_never_promoted_and_nothing_with_two_seeds(policy: GatePolicy) -> None:
    rng = np.random.default_rng(11)
    most = policy.plan[-1].seeds
    seeds = rng.standard_normal((2000, most))
    base = engine.first(engine.plain(seeds[:, : policy.parent_seeds]), policy.parent_seeds)
    past = engine.nothing(2000)
    copies = engine.judge(policy, engine.plain(seeds), base, past, engine.shares(policy, 1)[:1].repeat(2000))
    assert not copies.promoted.any()
    certain = engine.judge(policy, engine.plain(seeds + 1e6), base, past, np.full(2000, policy.alpha))
    assert certain.promoted.all()
    assert certain.seeds.min() >= 3
