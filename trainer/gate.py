"""The promotion gate: is the candidate better than its parent, and honestly so?

A run looks at many candidates, so they share one error budget: the first ``j_plan`` divide a part q of
alpha equally, the next 2·j_plan a part q of the rest, and so on. A candidate is read at the policy's looks:
two training seeds only screen; from three on, each look tests against its part of the candidate's share,
and a scorer which is never a reward has to confirm. ``judge`` is pure: the same input gives the same
report, bit for bit. docs/gate.md says how it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trainer.gate_evidence import moments_of, past_spreads, scores_of, validity_of, version_spread
from trainer.gate_types import (
    LONG,
    Arm,
    GateInput,
    GatePolicy,
    GateReport,
    Look,
    Reading,
    Validity,
    VersionSpread,
)
from trainer.statistics import (
    Array,
    Comparison,
    Moments,
    Spread,
    compare,
    detectable_effect,
    upper_sigma_factor,
)
from trainer.types import Verdict

__all__ = [
    "LONG",
    "Arm",
    "Evidence",
    "GateInput",
    "GatePolicy",
    "GateReport",
    "Look",
    "Plan",
    "Reading",
    "Ruling",
    "Validity",
    "VersionSpread",
    "decide",
    "gather",
    "judge",
    "planned_share",
    "reported",
    "unusable",
]


class Plan(NamedTuple):
    """How a test is read: its looks, the alpha it may spend, and how many seeds the parent needs before it promotes.
    ``max_seeds``: how far an unconfirmed gain is followed; ``top_up``: whether a noisy parent is worth further seeds."""

    looks: tuple[Look, ...]
    share: float
    parent_seeds: int
    max_seeds: int
    top_up: bool = True


class Evidence(NamedTuple):
    """Everything a ruling rests on. ``readings`` are those of the looks reached; seeds beyond a look may
    withdraw its promotion but never grant one, so each part of alpha is spent once."""

    candidate: Moments
    parent: Moments
    comparison: Comparison
    ci: tuple[float, float]
    readings: tuple[Reading, ...]
    share: float
    mde: float | None
    varying: int
    validity: Validity

    @property
    def n(self) -> int:
        return self.candidate.n

    @property
    def n_parent(self) -> int:
        return self.parent.n


class Ruling(NamedTuple):
    """A verdict, its reason and the further seeds it asks for; ``keeps`` False returns the share of alpha."""

    verdict: Verdict
    reason: str
    need: int = 0
    need_parent: int = 0
    keeps: bool = True


def planned_share(slot: int, policy: GatePolicy) -> float:
    """Share of alpha of candidate ``slot`` (from 0) among those that keep theirs; all of them sum to less than alpha."""
    rest, size = policy.alpha, policy.j_plan
    while slot >= size:
        slot, rest, size = slot - size, rest * (1 - policy.q), 2 * size
    return rest * policy.q / size


def judge(inp: GateInput, policy: GatePolicy) -> GateReport:
    """Judge one candidate against its parent. InputError for evidence that must not be compared."""
    share = min(planned_share(sum(s > 0 for s in inp.spent), policy), policy.alpha - sum(inp.spent))
    return decide(inp, policy, Plan(policy.plan, share, policy.parent_seeds, policy.max_seeds))


def decide(inp: GateInput, policy: GatePolicy, plan: Plan) -> GateReport:
    """The test, read as ``plan`` says."""
    ours, theirs = scores_of(inp)
    e = gather(inp, policy, plan, ours, theirs)
    return reported(inp, e, unusable(inp, ours, theirs, e) or _rule(e, plan, policy), policy)


def gather(inp: GateInput, policy: GatePolicy, plan: Plan, ours: Array, theirs: Array) -> Evidence:
    """Evidence from validation scores of shape (seeds, tasks, samples)."""
    candidate, parent, past = moments_of(inp.candidate, ours), moments_of(inp.parent, theirs), past_spreads(inp)
    comparison = compare(candidate, parent, past)
    readings = tuple(
        Reading(
            seeds=look.seeds,
            p=compare(moments_of(inp.candidate, ours[: look.seeds]), parent, past).p,
            level=look.share * plan.share,
            futility=look.futility,
        )
        for look in plan.looks
        if look.seeds <= candidate.n and parent.n >= (plan.parent_seeds if look.share else 2)
    )
    return Evidence(
        candidate=candidate,
        parent=parent,
        comparison=comparison,
        ci=comparison.interval(policy.level),
        readings=readings,
        share=plan.share,
        mde=_mde(comparison, parent.n, past, plan, policy),
        varying=int((np.ptp(np.concatenate([ours, theirs]), axis=(0, 2)) > 0).sum()),
        validity=validity_of(inp, policy),
    )


def reported(inp: GateInput, e: Evidence, ruling: Ruling, policy: GatePolicy) -> GateReport:
    """A ruling with the figures behind it."""
    final = not (ruling.need or ruling.need_parent)
    comparison = e.comparison
    return GateReport(
        parent=inp.parent.version,
        candidate=inp.candidate.version,
        status="final" if final else "needs_seeds",
        verdict=ruling.verdict,
        reasons=(ruling.reason, *_numbers(e, policy)),
        delta=comparison.delta,
        ci_low=e.ci[0],
        ci_high=e.ci[1],
        p=comparison.p if min(e.n, e.n_parent) > 1 else None,
        share=e.share,
        spent=e.share if final and ruling.keeps else 0.0,
        sigma=math.sqrt(comparison.pool.variance),
        mde=e.mde,
        mde_upper=None if e.mde is None else e.mde * upper_sigma_factor(comparison.pool.df),
        n_seeds=e.n,
        n_parent_seeds=e.n_parent,
        varying_tasks=e.varying,
        need_seeds=ruling.need,
        need_parent_seeds=ruling.need_parent,
        readings=e.readings,
        shrunken=shrunken(comparison.delta, comparison.variance, inp.deltas),
        validity=e.validity,
        spread=version_spread(inp.candidate, e.candidate),
        parent_spread=version_spread(inp.parent, e.parent),
    )


# ------------------------------------------------------------------------------------------ ruling


def unusable(inp: GateInput, ours: Array, theirs: Array, e: Evidence) -> Ruling | None:
    """Evidence from which no test can be made; the share of alpha is returned."""
    if e.varying == 0 or e.comparison.variance == 0:
        return Ruling("no_information", "no information: no score varies; choose easier or harder tasks", keeps=False)
    by_seed = {e.seed: scores for e, scores in zip(inp.parent.validation, theirs, strict=True)}
    shared = [(by_seed[e.seed], s) for e, s in zip(inp.candidate.validation, ours, strict=True) if e.seed in by_seed]
    if shared and all(np.array_equal(a, b) for a, b in shared):
        return Ruling("rejected", "identical outputs: the edit changed nothing", keeps=False)
    for arm, scores in ((inp.candidate, ours), (inp.parent, theirs)):
        # A deterministic policy may well repeat itself over seeds; one that samples cannot.
        sampled = np.ptp(scores, axis=2).any() if scores.shape[2] > 1 else np.ptp(scores) > 0
        if len(scores) > 1 and sampled and not arm.stalled and (scores == scores[0]).all():
            return Ruling("no_information", f"check seeding: the seeds of {arm.version} score identically", keeps=False)
    return None


def _rule(e: Evidence, plan: Plan, policy: GatePolicy) -> Ruling:
    """The ladder: enough seeds to read, validity (before futility, so that a hack is named), promotion."""
    first = plan.looks[0]
    needs_parent = plan.parent_seeds if first.share else 2
    if e.n < first.seeds or e.n_parent < needs_parent:
        one = min(e.n, e.n_parent) == 1
        reason = "screen only: one seed tells nothing about seeds" if one else f"needs {first.seeds} seeds on each side"
        return Ruling("undecided", reason, max(0, first.seeds - e.n), max(0, needs_parent - e.n_parent))
    if e.validity.state == "invalid":
        return Ruling("invalid", "the reward rose and the never-rewarded gate scorer did not follow")
    unconfirmed = e.validity.state == "unconfirmed"
    reached, p = e.readings[-1], e.comparison.p
    granted = next((r for r in e.readings if r.p <= r.level and r.level > 0), None)
    if granted is None or p > e.share:
        if further := _next_look(e, plan):
            if reached.p > reached.futility and not unconfirmed:
                return _not_better(e, policy, f"stopped at {_look(reached)}: p {reached.p:.3f} > {reached.futility:g}")
            return Ruling(
                "unconfirmed" if unconfirmed else "undecided",
                f"passed {_look(reached)}; {'the next look' if reached.level else 'promotion'} needs {further.seeds} seeds",
                max(0, further.seeds - e.n),
                _parent_seeds(e, plan, policy),
            )
        if unconfirmed and e.ci[1] >= 0:
            return Ruling("unconfirmed", "the reward rose, and neither validation nor the gate scorer confirms it")
        if granted is None:
            return _not_better(e, policy, f"{_p(reached.p)} > {reached.level:.4f}")
        return _not_better(e, policy, f"{_p(p)} > share {e.share:.4f}")
    if e.varying < policy.min_varying_tasks:
        return Ruling("undecided", f"only {e.varying} tasks vary, promotion needs {policy.min_varying_tasks}")
    if unconfirmed:
        need = int(e.n < plan.max_seeds)
        return Ruling("unconfirmed", "the gain is not confirmed by the never-rewarded gate scorer", need)
    if e.validity.state == "not judged":
        return Ruling("unconfirmed", "no evaluation on the gate suite: the gain cannot be confirmed")
    return Ruling("promoted", f"{_p(granted.p)} ≤ share {granted.level:.4f} with {granted.seeds} seeds", keeps=False)


def _p(value: float) -> str:
    return "p < 0.0001" if value < 1e-4 else f"p {value:.4f}"


def _look(reading: Reading) -> str:
    return f"the look at {reading.seeds} seeds" if reading.level else "the screen"


def _next_look(e: Evidence, plan: Plan) -> Look | None:
    """The look that is still open: further seeds of the candidate reach it, or of the parent."""
    read = {r.seeds for r in e.readings}
    return next((look for look in plan.looks if look.seeds not in read), None)


def _not_better(e: Evidence, policy: GatePolicy, reason: str) -> Ruling:
    """Rejected where the evidence points down, undecided where it merely does not suffice."""
    if e.ci[1] < 0:
        return Ruling("rejected", f"worse than its parent: the interval lies below 0 ({reason})")
    if e.comparison.delta <= 0 and e.comparison.p > policy.futility:
        return Ruling("rejected", f"hopeless: no gain in sight ({reason})")
    return Ruling("undecided", reason)


def _parent_seeds(e: Evidence, plan: Plan, policy: GatePolicy) -> int:
    """Further parent seeds. Asked for by the noise alone, never by the delta, and before a look promotes:
    so the test keeps its level (Stein 1945), and later candidates profit from the same seeds."""
    if any(r.level for r in e.readings):
        return 0
    noisy = e.mde is not None and e.mde > policy.mde_target and e.n_parent < policy.max_parent_seeds
    return max(plan.parent_seeds - e.n_parent, int(noisy and plan.top_up))


def _mde(comparison: Comparison, n_parent: int, past: list[Spread], plan: Plan, policy: GatePolicy) -> float | None:
    """Detectable effect of this candidate's looks, from the pooled σ and the tasks' part."""
    if comparison.pool.df == 0 or plan.share <= 0:
        return None
    n, n_parent = plan.looks[-1].seeds, max(n_parent, plan.parent_seeds)
    variance = comparison.pool.variance + comparison.interaction / (1 / n + 1 / n_parent)
    looks = tuple((look.seeds, look.share * plan.share, look.futility) for look in plan.looks)
    return detectable_effect(looks, n_parent, sum(s.df for s in past), policy.power) * math.sqrt(variance)


def shrunken(delta: float, variance: float, earlier: Sequence[float]) -> float | None:
    """delta·τ²/(τ² + V), the mean of the effect given the delta if effects are N(0, τ²); τ² = max(0, mean δ² − V) over
    the run's deltas, this one included. What was selected for its size is too large, and this is by how much."""
    if len(earlier) < 2:
        return None
    squares = [d * d for d in (*earlier, delta)]
    tau2 = max(0.0, sum(squares) / len(squares) - variance)
    return delta * tau2 / (tau2 + variance) if tau2 else 0.0


def _numbers(e: Evidence, policy: GatePolicy) -> list[str]:
    """The figures behind a verdict, one line each."""
    low, high = e.ci
    lines = [f"delta {points(e.comparison.delta)}, {policy.level:.0%} interval {100 * low:+.1f} to {100 * high:+.1f}"]
    if e.mde is not None:
        upper = e.mde * upper_sigma_factor(e.comparison.pool.df)
        sizes = (points(size).lstrip("+") for size in (e.mde, upper))
        lines.append("detectable with {:.0%} power: {} ({} if σ is at its upper bound)".format(policy.power, *sizes))
    v = e.validity
    if v.proxy_delta is not None and v.gate_delta is not None:
        # A reward is a weighted sum in a unit of its own; only scores have percentage points.
        moved = points(v.proxy_delta) if v.proxy == "validation" else f"{v.proxy_delta:+.4f}"
        lines.append(f"validity {v.state}: {v.proxy} {moved}, gate scorer {points(v.gate_delta)}")
    return lines


def points(difference: float) -> str:
    """A difference of scores (shares of tasks solved, 0 to 1) in percentage points: ``+3.1 pp``."""
    return f"{100 * difference:+.1f} pp"
