"""Looks: which seeds a reading takes, what each may spend, and when a candidate is given up."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.trainer.gate_arms import PARENT, POLICY, WORSE, arm, evaluated, first, judged, run_of
from trainer.gate import LONG, Arm, GateInput, GatePolicy, Look, judge, planned_share, shrunken
from trainer.types import flatten

RNG = np.random.default_rng(11)
SIX = arm(RNG, "v0001", (0.40, 0.42, 0.38, 0.41, 0.39, 0.40))
CLEAR = arm(RNG, "v0002", (0.55, 0.57, 0.53, 0.56, 0.54, 0.55), first_seed=10)
SLOW = arm(RNG, "v0003", (0.425, 0.455, 0.425, 0.45, 0.455, 0.455), first_seed=20)


def test_the_forms_are_those_of_the_design() -> None:
    assert POLICY.plan == (Look(2, 0.0, 0.3), Look(3, 1.0, 1.0))
    assert [(look.seeds, look.share) for look in LONG.plan] == [(2, 0.0), (3, 0.3), (4, 0.3), (6, 0.4)]
    assert [look.futility for look in LONG.plan] == [0.3, 0.2, 0.1, 1.0]
    assert (LONG.j_plan, LONG.q, LONG.parent_seeds) == (12, 0.7, 6)


def test_a_policy_is_plain_toml() -> None:
    import tomli_w

    text = tomli_w.dumps({"gate": LONG.model_dump(mode="json")})
    assert GatePolicy.model_validate(tomllib.loads(text)["gate"]) == LONG
    assert dict(flatten(tomllib.loads(text)))["gate.looks"] == [list(look) for look in LONG.looks]


def test_the_long_form_in_the_documentation_is_the_one_here() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "gate.md").read_text(encoding="utf-8")
    block = page.partition("```toml\n")[2].partition("```")[0]
    assert GatePolicy.model_validate(tomllib.loads(block)["gate"]) == LONG


@pytest.mark.parametrize(
    "looks",
    [
        [[2, 0.5, 0.3], [3, 0.5, 1.0]],
        [[3, 0.5, 0.3], [3, 0.5, 1.0]],
        [[2, 0.0, 0.3], [3, 0.6, 0.3], [4, 0.6, 1.0]],
        [[2, 0.0, 0.3]],
        [[1, 0.0, 0.3], [3, 1.0, 1.0]],
        [[2, 0.0, 0.0], [3, 1.0, 1.0]],
    ],
)
def test_looks_that_are_no_single_test_are_refused(looks: list[list[float]]) -> None:
    with pytest.raises(ValidationError, match="looks"):
        GatePolicy.model_validate({"looks": looks})


def test_a_promotion_at_any_look_promotes_and_stops() -> None:
    report = judged(first(CLEAR, 3), SIX, LONG)
    share = planned_share(0, LONG)
    assert (report.verdict, report.status) == ("promoted", "final")
    assert [(r.seeds, r.level) for r in report.readings] == [(2, 0.0), (3, pytest.approx(0.3 * share))]


def test_each_look_is_asked_for_in_turn_and_the_last_one_decides() -> None:
    seen = [judged(first(SLOW, n), SIX, LONG) for n in (2, 3, 4, 6)]
    assert [(r.status, r.need_seeds) for r in seen[:3]] == [("needs_seeds", 1), ("needs_seeds", 1), ("needs_seeds", 2)]
    assert seen[-1].verdict == "promoted"
    assert [r.seeds for r in seen[-1].readings] == [2, 3, 4, 6]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.3, 0.7), min_size=6, max_size=6), st.integers(2, 5))
def test_an_earlier_reading_does_not_change_with_later_seeds(means: list[float], n: int) -> None:
    candidate = arm(np.random.default_rng(3), "v0002", means, first_seed=10)
    early, late = judged(first(candidate, n), SIX, LONG).readings, judged(candidate, SIX, LONG).readings
    assert late[: len(early)] == early
    assert len(late) == 4


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_look_gives_up_what_is_hopeless_at_its_own_line(n: int) -> None:
    p = judged(first(SLOW, n), SIX, LONG).readings[-1].p
    index = [look.seeds for look in LONG.looks].index(n)

    def with_line(line: float) -> GatePolicy:
        looks = [look._replace(futility=0.99) for look in LONG.looks]
        looks[index] = looks[index]._replace(futility=line)
        return LONG.model_copy(update={"looks": tuple(looks)})

    assert judged(first(SLOW, n), SIX, with_line(p * 1.01)).status == "needs_seeds"
    stopped = judged(first(SLOW, n), SIX, with_line(p * 0.99))
    assert (stopped.status, stopped.verdict, stopped.spent) == ("final", "undecided", stopped.share)
    assert "stopped" in stopped.reasons[0]


def test_the_long_form_wants_six_parent_seeds_before_it_promotes() -> None:
    report = judged(first(CLEAR, 2), first(SIX, 3), LONG)
    assert (report.need_seeds, report.need_parent_seeds) == (1, 3)
    later = judged(first(CLEAR, 3), first(SIX, 3), LONG)
    assert (later.status, later.verdict, later.need_seeds, later.need_parent_seeds) == (
        "needs_seeds", "undecided", 0, 3,
    )  # fmt: skip


@pytest.mark.parametrize("policy", [POLICY, LONG])
def test_fewer_than_three_seeds_never_promote_in_either_form(policy: GatePolicy) -> None:
    for candidate, parent in ((first(CLEAR, 2), SIX), (CLEAR, first(SIX, 2))):
        assert judged(candidate, parent, policy).verdict == "undecided"


def test_a_run_of_the_long_form_replays_bit_for_bit() -> None:
    candidates = [WORSE, SLOW]
    reports = run_of(SIX, candidates, LONG, parent_seeds=6)
    assert run_of(SIX, candidates, LONG, parent_seeds=6) == reports
    assert run_of(SIX, candidates[:1], LONG, parent_seeds=6) == reports[:1]


# -------------------------------------------------------------------------------------- edge cases


def test_a_diverged_seed_counts_as_its_score() -> None:
    whole = arm(RNG, "v0002", (0.70, 0.71, 0.72), first_seed=10)
    broken = arm(RNG, "v0002", (0.70, 0.71, 0.0), first_seed=10)
    assert judged(whole).verdict == "promoted"
    report = judged(broken)
    assert report.delta == pytest.approx((0.70 + 0.71) / 3 - 0.40, abs=0.01)
    assert (report.verdict, report.n_seeds) == ("undecided", 3)


def test_seeds_that_tie_are_floored_at_the_sampling_noise() -> None:
    """Three equal seed means and tasks that vary: σ is r/T, not 0, so that no p becomes 0."""
    rng = np.random.default_rng(4)
    rows = [rng.permuted(np.repeat([[0.0, 1.0]], 24, axis=0), axis=1) for _ in range(6)]
    arms = [
        Arm(
            version=v,
            validation=tuple(evaluated(v, s + i, rows[s + i]) for i in range(3)),
            gate=tuple(evaluated(v, s + i, rows[s + i], "gate") for i in range(3)),
        )
        for v, s in (("v0001", 0), ("v0002", 3))
    ]
    report = judged(arms[1], arms[0])
    # Every cell holds one 0 and one 1: sample variance .5 over k = 2, over 24 tasks.
    assert report.sigma == pytest.approx((0.5 / 2 / 24) ** 0.5)
    assert report.delta == pytest.approx(0.0, abs=1e-12)
    assert report.p == pytest.approx(0.5)


def test_a_copy_of_the_champion_under_other_seeds_is_never_promoted() -> None:
    for policy, parent in ((POLICY, PARENT), (LONG, SIX)):
        copy = parent.model_copy(
            update={
                "version": "v0009",
                **{
                    suite: tuple(
                        e.model_copy(update={"version": "v0009", "seed": e.seed + 50}) for e in getattr(parent, suite)
                    )
                    for suite in ("validation", "gate")
                },
            }
        )
        assert judged(copy, parent, policy).verdict == "rejected"


# ---------------------------------------------------------------------------------- winner's curse


def test_a_claim_is_shrunken_by_what_the_run_has_seen() -> None:
    inp = GateInput(parent=PARENT, candidate=CLEAR, index=2, spent=(0.005, 0.005), deltas=(0.1, -0.05))
    report = judge(inp, POLICY)
    assert report.shrunken is not None
    assert 0 < report.shrunken < report.delta
    assert judged(CLEAR).shrunken is None
    assert shrunken(0.02, 0.01, (0.01, -0.03)) == 0.0
    # Effects as they are drawn: N(0, τ²) with noise V; the mean claim is right after shrinking, too high before.
    rng, tau2, variance = np.random.default_rng(5), 4.0, 1.0
    effects = rng.normal(0, tau2**0.5, 4000)
    deltas = effects + rng.normal(0, variance**0.5, 4000)
    picked = deltas > 2
    claims = [shrunken(float(d), variance, tuple(deltas[:400])) for d in deltas[picked]]
    error = np.array(claims, dtype=float) - effects[picked]
    # τ² comes from 401 deltas of variance 5: its sd is 5·√(2/401) = .35, the factor's .014, the mean claim's .05.
    assert abs(error.mean()) < 4.5 * (0.05 + error.std() / len(error) ** 0.5)
    assert (deltas[picked] - effects[picked]).mean() > 0.4
