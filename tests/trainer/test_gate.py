"""The promotion gate: verdicts, validity and edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.trainer.gate_arms import (
    BETTER,
    PARENT,
    POLICY,
    RNG,
    SAMPLES,
    TASKS,
    WORSE,
    arm,
    evaluated,
    first,
    judged,
    scored,
)
from trainer.evaluation import score_array
from trainer.gate import Arm, GateInput, GatePolicy, judge
from trainer.gate_evidence import past_spreads
from trainer.statistics import moments
from trainer.types import InputError

# ---------------------------------------------------------------------------------------- verdicts


def test_three_seeds_promote_a_clear_gain() -> None:
    report = judged(BETTER)
    assert (report.status, report.verdict, report.spent) == ("final", "promoted", 0.0)
    assert report.p is not None
    assert report.p <= report.share == 0.005
    assert report.ci_low < report.delta < report.ci_high
    assert report.delta == pytest.approx(0.31, abs=0.01)
    assert report.mde is not None


def test_reasons_speak_of_percentage_points() -> None:
    report = judged(BETTER)
    assert report.mde is not None and report.mde_upper is not None and report.validity.gate_delta is not None
    assert report.reasons[1:] == (
        f"delta {100 * report.delta:+.1f} pp, 95% interval {100 * report.ci_low:+.1f} to {100 * report.ci_high:+.1f}",
        f"detectable with 80% power: {100 * report.mde:.1f} pp ({100 * report.mde_upper:.1f} pp if σ is at its upper bound)",
        f"validity clean: validation {report.reasons[3].split()[3]} pp, gate scorer {100 * report.validity.gate_delta:+.1f} pp",
    )
    assert report.validity.proxy_delta is not None
    assert report.reasons[3].split()[3] == f"{100 * report.validity.proxy_delta:+.1f}"
    paid, unpaid = (a.model_copy(update={"proxy": (2.0, 3.0, 4.0)}) for a in (BETTER, PARENT))
    rewarded = judged(paid, unpaid)
    # A reward is no share of tasks: its difference keeps its own unit.
    assert f"reward {rewarded.validity.proxy_delta:+.4f}, gate" in rewarded.reasons[3]


@pytest.mark.parametrize(("seeds", "reason"), [(1, "screen only"), (2, "needs 3 seeds")])
def test_fewer_than_three_seeds_never_promote(seeds: int, reason: str) -> None:
    report = judged(first(BETTER, seeds))
    assert (report.status, report.verdict, report.need_seeds, report.spent) == ("needs_seeds", "undecided", 1, 0.0)
    assert reason in report.reasons[0]
    assert (report.p is None) == (seeds == 1)


def test_a_parent_with_two_seeds_needs_a_third() -> None:
    report = judged(BETTER, first(PARENT, 2))
    assert (report.status, report.need_seeds, report.need_parent_seeds) == ("needs_seeds", 0, 1)


def test_the_screen_stops_what_is_hopeless_and_its_share_is_spent() -> None:
    report = judged(first(WORSE, 2))
    assert (report.status, report.verdict, report.spent) == ("final", "rejected", report.share)


def test_no_visible_gain_is_undecided_or_rejected_by_its_sign() -> None:
    barely = arm(RNG, "v9", (0.41, 0.40), first_seed=60)
    assert judged(barely).delta > 0
    assert (judged(barely).status, judged(barely).verdict) == ("final", "undecided")
    below = arm(RNG, "v9", (0.39, 0.38), first_seed=60)
    assert (judged(below).status, judged(below).verdict) == ("final", "rejected")


def test_a_gain_within_the_noise_is_undecided() -> None:
    noisy = arm(RNG, "v9", (0.75, 0.45, 0.40), first_seed=60)
    report = judged(noisy)
    assert (report.status, report.verdict, report.spent) == ("final", "undecided", report.share)
    assert report.delta < report.mde  # type: ignore[operator]


def test_a_damaged_parent_gets_a_further_seed_and_its_repair_is_promoted() -> None:
    damaged = arm(RNG, "v0001", (0.05, 0.20, 0.12, 0.08))
    repaired = arm(RNG, "v0002", (0.50, 0.52, 0.49), first_seed=10)
    screen = judged(first(repaired, 2), first(damaged, 3))
    assert (screen.need_seeds, screen.need_parent_seeds) == (1, 1)
    assert judged(repaired, damaged).verdict == "promoted"
    assert judged(first(repaired, 2), first(damaged, 3), GatePolicy(mde_target=1)).need_parent_seeds == 0


# ---------------------------------------------------------------------------------------- validity


PROXY = (0.40, 0.42, 0.41)


@pytest.mark.parametrize("seeds", [2, 3])
def test_a_hack_is_invalid_whatever_validation_says(seeds: int) -> None:
    parent = arm(RNG, "v0001", (0.40, 0.42, 0.41), proxy=PROXY)
    for means in ((0.40, 0.41, 0.42), (0.90, 0.91, 0.92), (0.2, 0.21, 0.22)):
        hack = arm(RNG, "v0002", means, gate=(0.41, 0.40, 0.41), proxy=(0.98, 0.97, 0.99), first_seed=10)
        report = judged(first(hack, seeds), parent)
        assert (report.status, report.verdict, report.validity.state) == ("final", "invalid", "invalid")


def test_an_unconfirmed_gain_asks_for_a_seed_and_is_not_promoted() -> None:
    parent = arm(RNG, "v0001", PROXY, gate=(0.20, 0.60, 0.40), proxy=PROXY)
    candidate = arm(RNG, "v0002", (0.70, 0.72, 0.71), (0.30, 0.70, 0.50), (0.70, 0.71, 0.72), first_seed=10)
    report = judged(candidate, parent)
    assert (report.status, report.verdict, report.need_seeds) == ("needs_seeds", "unconfirmed", 1)
    final = judged(candidate, parent, GatePolicy(max_seeds=3))
    assert (final.status, final.verdict) == ("final", "unconfirmed")


def test_an_honest_gain_is_clean_with_the_reward_and_without() -> None:
    parent = arm(RNG, "v0001", (0.40, 0.42, 0.41), proxy=PROXY)
    better = arm(RNG, "v0002", (0.70, 0.72, 0.71), proxy=(0.71, 0.72, 0.70), first_seed=10)
    assert judged(better, parent).validity.proxy == "reward"
    assert judged(BETTER).validity.proxy == "validation"
    assert judged(better, parent).verdict == judged(BETTER).verdict == "promoted"


def test_without_a_gate_suite_nothing_is_promoted() -> None:
    blind = Arm(version="v0002", validation=BETTER.validation, gate=())
    assert judged(blind).verdict == "unconfirmed"


def test_a_fourth_seed_can_withdraw_a_promotion_but_not_grant_one() -> None:
    late = arm(RNG, "v0002", (0.75, 0.45, 0.40, 0.60), first_seed=10)
    assert judged(first(late, 3)).verdict == "undecided"
    steady = arm(RNG, "v0002", (0.46, 0.53, 0.43, 0.60), first_seed=10)
    calm = GateInput(parent=PARENT, candidate=steady)
    assert judge(calm, GatePolicy(promote_seeds=3, alpha=0.9, q=0.9, j_plan=1)).verdict == "promoted"
    p_three = judge(GateInput(parent=PARENT, candidate=first(steady, 3)), POLICY).p
    p_four = judge(calm, POLICY).p
    assert p_three is not None
    assert p_four is not None
    assert p_four < p_three
    between = (p_three + p_four) / 2
    policy = GatePolicy(alpha=2 * between, q=0.5, j_plan=1)
    assert judge(calm, policy).share == pytest.approx(between)
    assert judge(calm, policy).verdict == "undecided"


# -------------------------------------------------------------------------------------- edge cases


def test_a_copy_of_the_parent_is_refused() -> None:
    copies = {
        suite: tuple(e.model_copy(update={"version": "v0002"}) for e in getattr(PARENT, suite))
        for suite in ("validation", "gate")
    }
    report = judged(Arm(version="v0002", **copies))
    assert (report.verdict, report.status, report.spent) == ("rejected", "final", 0.0)
    assert "identical" in report.reasons[0]


@pytest.mark.parametrize("score", [0.0, 1.0])
def test_dead_tasks_give_no_information_and_cost_nothing(score: float) -> None:
    rows = np.full((TASKS, SAMPLES), score)
    dead = [
        Arm(
            version=v,
            validation=tuple(evaluated(v, s, rows) for s in range(3)),
            gate=tuple(evaluated(v, s, rows, "gate") for s in range(3)),
        )
        for v in ("v0001", "v0002")
    ]
    report = judged(dead[1], dead[0])
    assert (report.status, report.verdict, report.spent) == ("final", "no_information", 0.0)


def test_seeds_without_any_effect_ask_to_check_seeding() -> None:
    rows = scored(RNG, 0.7)
    stuck = Arm(
        version="v0002",
        validation=tuple(evaluated("v0002", s, rows) for s in range(10, 13)),
        gate=BETTER.gate,
    )
    report = judged(stuck)
    assert (report.verdict, report.spent) == ("no_information", 0.0)
    assert "check seeding" in report.reasons[0]


def test_a_parent_that_could_not_learn_is_one_policy_on_all_seeds_and_says_nothing_of_noise() -> None:
    rng = np.random.default_rng(5)
    rows = scored(rng, 0.4)
    evals = [[evaluated("v0001", s, rows, suite) for s in range(4)] for suite in ("validation", "gate")]
    parent = Arm(version="v0001", validation=tuple(evals[0]), gate=tuple(evals[1]), stalled=True)
    better = arm(rng, "v0002", (0.70, 0.72, 0.71, 0.70), first_seed=10)
    assert judged(better, parent.model_copy(update={"stalled": False})).verdict == "no_information"
    report = judged(better, parent)
    assert report.verdict == "promoted", report.reasons
    # Only the candidate's seeds have a spread; four seeds of one policy beside them would have more than halved it.
    own = moments(score_array(better.validation)).spread
    assert report.sigma == pytest.approx(math.sqrt(own.variance))
    other = arm(rng, "v0003", (0.5, 0.5, 0.6))
    assert past_spreads(GateInput(parent=other, candidate=better, pool=(report.parent_spread,))) == []


def test_few_varying_tasks_are_at_most_undecided() -> None:
    parent = arm(RNG, "v0001", (0.40, 0.42, 0.38), tasks=19)
    report = judged(arm(RNG, "v0002", (0.70, 0.72, 0.71), first_seed=10, tasks=19), parent)
    assert (report.varying_tasks, report.verdict, report.status) == (19, "undecided", "final")


def replaced(of: Arm, part: str, **changes: object) -> Arm:
    """The arm with one field of its first evaluation changed."""
    evals = getattr(of, part)
    return of.model_copy(update={part: (evals[0].model_copy(update=changes), *evals[1:])})


@pytest.mark.parametrize(
    "candidate",
    [
        BETTER.model_copy(update={"version": "v0001"}),
        BETTER.model_copy(update={"gate": BETTER.gate[:2]}),
        BETTER.model_copy(update={"proxy": (0.5,)}),
        BETTER.model_copy(update={"proxy": (0.5, math.nan, 0.5)}),
        BETTER.model_copy(update={"validation": ()}),
        replaced(BETTER, "validation", protocol_hash="other"),
        replaced(BETTER, "gate", protocol_hash="other"),
        replaced(BETTER, "validation", version="v0099"),
        replaced(BETTER, "validation", suite="sealed"),
        replaced(BETTER, "validation", scores=BETTER.validation[0].scores[1:]),
        replaced(BETTER, "validation", scores=((math.nan, 0.0), *BETTER.validation[0].scores[1:])),
        arm(RNG, "v0002", (0.70, 0.72, 0.71), tasks=TASKS + 1),
    ],
)
def test_evidence_that_does_not_belong_together_is_refused_in_one_line(candidate: Arm) -> None:
    with pytest.raises(InputError) as caught:
        judged(candidate)
    assert "\n" not in str(caught.value)


def test_a_ledger_that_does_not_fit_the_index_is_refused() -> None:
    with pytest.raises(InputError, match="spent"):
        judge(GateInput(parent=PARENT, candidate=BETTER, index=2, spent=(0.005,)), POLICY)
