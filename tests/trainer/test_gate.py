"""The promotion gate's properties: error over a whole run, power, invariance, and its edge cases."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.gate import Arm, GateInput, GatePolicy, GateReport, VersionSpread, judge, planned_share
from trainer.types import Evaluation, InputError

TASKS, SAMPLES = 24, 2
POLICY = GatePolicy()
DIFFICULTY = np.random.default_rng(0).normal(0, 0.3, TASKS)


def tolerance(p: float, n: int) -> float:
    """Monte Carlo bound on the share of n runs: beyond it by chance in fewer than 4 of a million."""
    return p + 4.5 * math.sqrt(p * (1 - p) / n)


def evaluated(version: str, seed: int, rows: np.ndarray, suite: str = "validation") -> Evaluation:
    return Evaluation.model_validate(
        {
            "suite": suite,
            "version": version,
            "seed": seed,
            "protocol_hash": "h",
            "task_ids": tuple(f"t{i}" for i in range(len(rows))),
            "scores": tuple(map(tuple, rows.tolist())),
        }
    )


def scored(rng: np.random.Generator, mean: float, tasks: int = TASKS) -> np.ndarray:
    """Scores around ``mean``; the sampling noise of a seed's mean is .01/√48, small against all seed noise here."""
    difficulty = np.resize(DIFFICULTY - DIFFICULTY.mean(), tasks)
    return mean + difficulty[:, None] + 0.01 * rng.standard_normal((tasks, SAMPLES))


def arm(
    rng: np.random.Generator,
    version: str,
    means: Sequence[float] | np.ndarray,
    gate: Sequence[float] | None = None,
    proxy: Sequence[float] = (),
    first_seed: int = 0,
    tasks: int = TASKS,
) -> Arm:
    """A version whose seeds score ``means`` on validation and ``gate`` (the same if None) on the gate suite."""
    seeds = range(first_seed, first_seed + len(means))
    return Arm(
        version=version,
        validation=tuple(evaluated(version, s, scored(rng, m, tasks)) for s, m in zip(seeds, means, strict=True)),
        gate=tuple(
            evaluated(version, s, scored(rng, m, tasks), "gate")
            for s, m in zip(seeds, means if gate is None else gate, strict=True)
        ),
        proxy=tuple(proxy),
    )


def first(version: Arm, n: int) -> Arm:
    return Arm(
        version=version.version, validation=version.validation[:n], gate=version.gate[:n], proxy=version.proxy[:n]
    )


def run_of(
    parent: Arm, candidates: Sequence[Arm], policy: GatePolicy = POLICY, parent_seeds: int = 3
) -> list[GateReport]:
    """Judge candidates one after the other as a run does, seeds on request, until one is promoted."""
    reports: list[GateReport] = []
    spent: tuple[float, ...] = ()
    pool: tuple[VersionSpread, ...] = ()
    for index, candidate in enumerate(candidates):
        seeds = 2
        while True:
            inp = GateInput(
                parent=first(parent, parent_seeds),
                candidate=first(candidate, seeds),
                index=index,
                spent=spent,
                pool=pool,
            )
            report = judge(inp, policy)
            if report.status == "final" or not report.need_seeds:
                break
            seeds += report.need_seeds
            parent_seeds = min(len(parent.validation), parent_seeds + report.need_parent_seeds)
        reports.append(report)
        spent, pool = (*spent, report.spent), (*pool, report.parent_spread, report.spread)
        if report.verdict == "promoted":
            break
    return reports


RNG = np.random.default_rng(1)
PARENT = arm(RNG, "v0001", (0.40, 0.42, 0.38))
BETTER = arm(RNG, "v0002", (0.70, 0.72, 0.71), first_seed=10)
SAME = arm(RNG, "v0003", (0.41, 0.38, 0.42), first_seed=20)
WORSE = arm(RNG, "v0004", (0.10, 0.11, 0.12), first_seed=30)


def judged(candidate: Arm, parent: Arm = PARENT, policy: GatePolicy = POLICY) -> GateReport:
    return judge(GateInput(parent=parent, candidate=candidate), policy)


# ---------------------------------------------------------------------------------------- verdicts


def test_three_seeds_promote_a_clear_gain() -> None:
    report = judged(BETTER)
    assert (report.status, report.verdict, report.spent) == ("final", "promoted", 0.0)
    assert report.p is not None
    assert report.p <= report.share == 0.005
    assert report.ci_low < report.delta < report.ci_high
    assert report.delta == pytest.approx(0.31, abs=0.01)
    assert report.mde is not None
    assert any(f"{report.mde:.4f}" in line for line in report.reasons)


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


# ------------------------------------------------------------------------------------ error budget


@given(st.floats(0.001, 0.5), st.integers(1, 20), st.floats(0.1, 0.9), st.integers(1, 300))
def test_shares_never_sum_to_more_than_alpha(alpha: float, j_plan: int, q: float, candidates: int) -> None:
    policy = GatePolicy(alpha=alpha, j_plan=j_plan, q=q)
    shares = [planned_share(slot, policy) for slot in range(candidates)]
    assert sum(shares) <= alpha * (1 + 1e-12)
    assert shares[:j_plan] == pytest.approx([alpha * q / j_plan] * len(shares[:j_plan]))
    assert shares == sorted(shares, reverse=True)


def test_what_was_promoted_or_uninformative_returns_its_share() -> None:
    def share(spent: tuple[float, ...]) -> float:
        return judge(GateInput(parent=PARENT, candidate=SAME, index=len(spent), spent=spent), POLICY).share

    first_block, second_block = 0.05 * 0.5 / 5, 0.05 * 0.5 * 0.5 / 10
    assert share((first_block,) * 4) == pytest.approx(first_block)
    assert share((first_block,) * 5) == pytest.approx(second_block)
    assert share((first_block, 0.0, *(first_block,) * 3, 0.0)) == pytest.approx(first_block)


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n)


def student(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_t(3, n) / math.sqrt(3)


def lognormal(rng: np.random.Generator, n: int) -> np.ndarray:
    return (rng.lognormal(size=n) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


def left_skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    return -lognormal(rng, n)


@pytest.mark.parametrize(
    ("noise", "parent_sd", "candidate_sd", "futility"),
    [
        (normal, 0.05, 0.05, 0.3),
        (normal, 0.2, 0.05, 0.99),
        (normal, 0.05, 0.1, 0.3),
        (student, 0.05, 0.05, 0.3),
        (lognormal, 0.05, 0.05, 0.99),
        (left_skewed, 0.05, 0.05, 0.3),
    ],
)
def test_false_promotions_of_a_whole_run_of_null_candidates(
    noise: Callable[[np.random.Generator, int], np.ndarray], parent_sd: float, candidate_sd: float, futility: float
) -> None:
    rng, runs, policy = np.random.default_rng(7), 30, GatePolicy(futility=futility)
    promoted = 0
    for _ in range(runs):
        parent = arm(rng, "v0", 0.5 + parent_sd * noise(rng, 4))
        candidates = [arm(rng, f"v{j}", 0.5 + candidate_sd * noise(rng, 3), first_seed=10 * j) for j in range(1, 6)]
        promoted += run_of(parent, candidates, policy)[-1].verdict == "promoted"
    assert promoted / runs <= tolerance(0.05, runs)


def test_the_usual_practice_would_fail_this_test() -> None:
    rng, runs = np.random.default_rng(8), 200
    higher = sum(
        judged(
            arm(rng, "v2", 0.5 + 0.05 * rng.standard_normal(1)), arm(rng, "v1", 0.5 + 0.05 * rng.standard_normal(1))
        ).delta
        > 0
        for _ in range(runs)
    )
    assert higher / runs > 0.40


def test_power_of_a_large_repair() -> None:
    """Effect .3 with a parent's sd of .08 against .02: .85 with the requested fourth parent seed (simulated, 1,000 runs)."""
    rng, runs = np.random.default_rng(9), 60
    found = 0
    for _ in range(runs):
        parent = arm(rng, "v0", 0.15 + 0.08 * rng.standard_normal(4))
        repaired = arm(rng, "v1", 0.45 + 0.02 * rng.standard_normal(3), first_seed=10)
        found += run_of(parent, [repaired])[-1].verdict == "promoted"
    assert found / runs >= 0.85 - (tolerance(0.15, runs) - 0.15)


# -------------------------------------------------------------------------------------- invariance


def test_earlier_verdicts_do_not_depend_on_later_candidates_and_replay_is_exact() -> None:
    short, long = run_of(PARENT, [SAME, WORSE]), run_of(PARENT, [SAME, WORSE, BETTER])
    assert long[:2] == short
    assert run_of(PARENT, [SAME, WORSE, BETTER]) == long
    assert long[-1].verdict == "promoted"


def test_a_report_survives_json() -> None:
    report = judged(BETTER)
    assert GateReport.model_validate_json(report.model_dump_json()) == report


def test_spreads_count_once_and_only_within_the_protocol() -> None:
    own = judged(SAME)
    known = (own.spread, own.parent_spread, own.spread.model_copy(update={"version": "v9", "protocol_hash": "other"}))
    assert judge(GateInput(parent=PARENT, candidate=SAME, pool=known), POLICY).p == own.p
    other = own.spread.model_copy(update={"version": "v9"})
    assert judge(GateInput(parent=PARENT, candidate=SAME, pool=(*known, other)), POLICY).p != own.p


def rebuilt(version: Arm, name: str, change: Callable[[np.ndarray], np.ndarray], order: Sequence[int]) -> Arm:
    return Arm(
        version=name,
        **{
            suite: tuple(evaluated(name, evals[i].seed, change(np.array(evals[i].scores)), suite) for i in order)
            for suite, evals in (("validation", version.validation), ("gate", version.gate))
        },
    )


@settings(max_examples=25, deadline=None)
@given(st.floats(-1, 1), st.permutations(range(TASKS)), st.permutations(range(3)))
def test_shift_task_order_seed_order_and_names_do_not_matter(shift: float, tasks: list[int], seeds: list[int]) -> None:
    def change(rows: np.ndarray) -> np.ndarray:
        return rows[tasks] + shift

    report, plain = judged(rebuilt(SAME, "y", change, seeds), rebuilt(PARENT, "x", change, seeds)), judged(SAME)
    assert report.p == pytest.approx(plain.p, abs=1e-9)
    assert report.verdict == plain.verdict


@settings(max_examples=25, deadline=None)
@given(st.floats(0, 1))
def test_raising_all_scores_of_a_candidate_never_raises_p(gain: float) -> None:
    raised = judged(rebuilt(SAME, "v0003", lambda rows: rows + gain, range(3))).p
    plain = judged(SAME).p
    assert raised is not None
    assert plain is not None
    assert raised <= plain + 1e-12


def test_importing_the_gate_imports_no_scipy() -> None:
    code = "import sys, trainer.gate; sys.exit(any(name.split('.')[0] in ('scipy', 'torch') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
