"""Certifying a chain on fresh seeds, and the provisional steps that lead to its tip."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.trainer.gate_arms import PARENT, POLICY, TASKS, arm, evaluated, first, judged
from trainer.gate import Arm, GateInput, GatePolicy, Look, judge
from trainer.gate_certify import certify, provisional
from trainer.statistics import detectable_effect, student_p
from trainer.types import InputError

RNG = np.random.default_rng(12)
BASE = arm(RNG, "v0001", (0.40, 0.42, 0.38, 0.41), first_seed=100)
TIP = arm(RNG, "v0007", (0.50, 0.53, 0.49, 0.52), first_seed=100)
KNOWN = judged(arm(RNG, "v0009", (0.40, 0.43, 0.38)))
POOL = (KNOWN.spread, KNOWN.parent_spread)
"""Seeds differ by .02; the interaction of tasks is negligible, so a step of one seed a side has an SE of about .03."""


def test_a_tip_is_certified_once_with_four_fresh_seeds_a_side_at_the_whole_alpha() -> None:
    report = certify(TIP, BASE, POLICY)
    assert (report.status, report.verdict, report.share, report.spent) == ("final", "promoted", 0.05, 0.0)
    assert [(r.seeds, r.level) for r in report.readings] == [(4, 0.05)]
    assert report.mde is not None
    # The looks, and what the tasks react differently by: under 1 % of the variance here.
    assert report.mde == pytest.approx(detectable_effect(((4, 0.05, 1.0),), 4, 0) * report.sigma, rel=0.01)
    assert any(f"{100 * report.mde:.1f} pp" in line for line in report.reasons)


def test_it_is_the_test_of_judge_at_the_share_given() -> None:
    share = certify(TIP, BASE, POLICY).p
    assert share is not None
    once = GatePolicy(looks=(Look(4, 1.0, 1.0),), parent_seeds=4)
    assert share == judge(GateInput(parent=BASE, candidate=TIP), once).p
    assert certify(TIP, BASE, POLICY, share=share).verdict == "promoted"
    below = certify(TIP, BASE, POLICY, share=share * 0.999)
    assert (below.verdict, below.spent) == ("undecided", share * 0.999)


@pytest.mark.parametrize(("tip", "base"), [(3, 4), (4, 3), (1, 4), (4, 1)])
def test_fewer_fresh_seeds_ask_for_the_rest(tip: int, base: int) -> None:
    report = certify(first(TIP, tip), first(BASE, base), POLICY)
    assert (report.status, report.verdict, report.spent) == ("needs_seeds", "undecided", 0.0)
    assert (report.need_seeds, report.need_parent_seeds) == (4 - tip, 4 - base)


def test_a_hacked_tip_and_a_tip_without_gate_evaluations_are_not_certified() -> None:
    hack = arm(RNG, "v0007", (0.9, 0.91, 0.92, 0.9), gate=(0.40, 0.41, 0.38, 0.42), first_seed=100)
    assert certify(hack, BASE, POLICY).verdict == "invalid"
    blind = TIP.model_copy(update={"gate": ()})
    assert certify(blind, BASE, POLICY).verdict == "unconfirmed"


# ------------------------------------------------------------------------------------------- steps


def step(mean: float, gate: float | None = None, proxy: tuple[float, ...] = (), seed: int = 0) -> Arm:
    return arm(RNG, "v0002", (mean,), None if gate is None else (gate,), proxy, first_seed=seed)


@pytest.mark.parametrize(
    ("mean", "verdict"), [(0.46, "provisional"), (0.42, "undecided"), (0.40, "undecided"), (0.30, "rejected")]
)
def test_a_step_takes_more_than_one_standard_error_of_one_seed(mean: float, verdict: str) -> None:
    report = provisional(step(mean), first(PARENT, 1), POLICY, pool=POOL)
    assert (report.status, report.verdict, report.p, report.spent) == ("final", verdict, None, 0.0)
    assert report.sigma * math.sqrt(2) == pytest.approx(0.03, abs=0.01)


def test_the_line_is_the_pools_standard_error_and_the_detectable_effect_is_printed() -> None:
    report = provisional(step(0.46), first(PARENT, 1), POLICY, pool=POOL)
    half = (report.ci_high - report.ci_low) / 2
    assert report.mde is not None
    error = report.mde / (1 + 0.8416212)
    # The two-sided 95 % interval is t wide for the pool's four df; the part of the tasks (under 1 % here) adds to them.
    assert half / error == pytest.approx(2.776, rel=0.01)
    assert student_p(half, error**2, 4) == pytest.approx(0.025, rel=0.01)
    candidate = step(0.46)
    size = provisional(candidate, first(PARENT, 1), POLICY, pool=POOL).delta / error
    for line, verdict in ((size * 0.99, "provisional"), (size * 1.01, "undecided")):
        exactly = GatePolicy(provisional_se=line)
        assert provisional(candidate, first(PARENT, 1), exactly, pool=POOL).verdict == verdict
    assert any(f"{100 * report.mde:.1f} pp" in line for line in report.reasons)


def test_a_calibration_alone_knows_the_spread_and_without_any_the_parent_needs_a_second_seed() -> None:
    parent, stored = first(PARENT, 1), KNOWN.parent_spread.model_copy(update={"version": "calibration", "df": 30})
    assert provisional(step(0.46), parent, POLICY, calibration=stored).verdict == "provisional"
    blind = provisional(step(0.46), parent, POLICY)
    assert (blind.status, blind.verdict, blind.need_parent_seeds, blind.mde) == ("needs_seeds", "undecided", 1, None)
    assert provisional(step(0.50), first(PARENT, 2), POLICY).verdict == "provisional"


def test_a_reward_that_rises_while_the_gate_scorer_falls_is_no_step() -> None:
    parent = arm(RNG, "v0001", (0.40,), proxy=(0.4,))
    assert provisional(step(0.5, gate=0.3), parent, POLICY, pool=POOL).verdict == "unconfirmed"
    assert provisional(step(0.5, gate=0.3, proxy=(0.9,)), parent, POLICY, pool=POOL).verdict == "unconfirmed"
    assert provisional(step(0.5, gate=0.3, proxy=(0.2,)), parent, POLICY, pool=POOL).verdict == "provisional"
    assert provisional(step(0.5, gate=0.5, proxy=(0.9,)), parent, POLICY, pool=POOL).verdict == "provisional"
    blind = step(0.5).model_copy(update={"gate": ()})
    assert provisional(blind, parent, POLICY, pool=POOL).verdict == "unconfirmed"


def test_a_copy_is_no_step_and_dead_tasks_tell_nothing() -> None:
    parent = first(PARENT, 1)
    copy = Arm(
        version="v0002",
        validation=tuple(e.model_copy(update={"version": "v0002"}) for e in parent.validation),
        gate=tuple(e.model_copy(update={"version": "v0002"}) for e in parent.gate),
    )
    assert provisional(copy, parent, POLICY, pool=POOL).verdict == "rejected"
    dead = [
        Arm(
            version=v,
            validation=(evaluated(v, 0, np.zeros((TASKS, 2))),),
            gate=(evaluated(v, 0, np.zeros((TASKS, 2)), "gate"),),
        )
        for v in ("v0001", "v0002")
    ]
    assert provisional(dead[1], dead[0], POLICY, pool=POOL).verdict == "no_information"
    with pytest.raises(InputError):
        provisional(parent, parent, POLICY, pool=POOL)
