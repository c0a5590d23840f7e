"""The promotion gate: is the candidate better than its parent, and honestly so?

A run looks at many candidates, so they share one error budget: the first ``j_plan`` divide a part q of
alpha equally, the next 2·j_plan a part q of the rest, and so on. Two training seeds only screen;
promotion takes three, one test against the candidate's share, and a gain that a scorer which is never a
reward confirms. ``judge`` is pure: the same input gives the same report, bit for bit.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from trainer.evaluation import require_same, score_array
from trainer.gate_types import Arm, GateInput, GatePolicy, GateReport, Validity, VersionSpread
from trainer.statistics import (
    Array,
    Comparison,
    Moments,
    Spread,
    compare,
    detectable_effect,
    moments,
    upper_sigma_factor,
)
from trainer.types import InputError, Verdict

__all__ = ["Arm", "GateInput", "GatePolicy", "GateReport", "Validity", "VersionSpread", "judge", "planned_share"]


class Evidence(NamedTuple):
    """Everything a ruling rests on. ``p_first`` is p at the promotion look: seeds beyond it may
    withdraw a promotion but never grant one, so alpha is spent once."""

    comparison: Comparison
    ci: tuple[float, float]
    p: float
    p_first: float
    share: float
    mde: float | None
    n: int
    n_parent: int
    varying: int
    validity: Validity


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
    ours, theirs = _scores(inp)
    candidate, parent = moments(ours), moments(theirs)
    past = _past(inp)
    comparison = compare(candidate, parent, past)
    share = min(planned_share(sum(s > 0 for s in inp.spent), policy), policy.alpha - sum(inp.spent))
    evidence = Evidence(
        comparison=comparison,
        ci=comparison.interval(policy.level),
        p=comparison.p,
        p_first=compare(moments(ours[: policy.promote_seeds]), parent, past).p,
        share=share,
        mde=_mde(comparison, candidate.n, parent.n, past, share, policy),
        n=candidate.n,
        n_parent=parent.n,
        varying=int((np.ptp(np.concatenate([ours, theirs]), axis=(0, 2)) > 0).sum()),
        validity=_validity(inp, policy),
    )
    ruling = _unusable(inp, ours, theirs, evidence) or _rule(evidence, policy)
    final = not (ruling.need or ruling.need_parent)
    return GateReport(
        parent=inp.parent.version,
        candidate=inp.candidate.version,
        status="final" if final else "needs_seeds",
        verdict=ruling.verdict,
        reasons=(ruling.reason, *_numbers(evidence, policy)),
        delta=comparison.delta,
        ci_low=evidence.ci[0],
        ci_high=evidence.ci[1],
        p=evidence.p if min(candidate.n, parent.n) > 1 else None,
        share=share,
        spent=share if final and ruling.keeps else 0.0,
        sigma=math.sqrt(comparison.pool.variance),
        mde=evidence.mde,
        mde_upper=None if evidence.mde is None else evidence.mde * upper_sigma_factor(comparison.pool.df),
        n_seeds=candidate.n,
        n_parent_seeds=parent.n,
        varying_tasks=evidence.varying,
        need_seeds=ruling.need,
        need_parent_seeds=ruling.need_parent,
        validity=evidence.validity,
        spread=_version_spread(inp.candidate, candidate),
        parent_spread=_version_spread(inp.parent, parent),
    )


# ------------------------------------------------------------------------------------------ ruling


def _unusable(inp: GateInput, ours: Array, theirs: Array, e: Evidence) -> Ruling | None:
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
        if len(scores) > 1 and sampled and (scores == scores[0]).all():
            return Ruling("no_information", f"check seeding: the seeds of {arm.version} score identically", keeps=False)
    return None


def _rule(e: Evidence, policy: GatePolicy) -> Ruling:
    """The ladder: screen, validity (before futility, so that a hack is named), promotion."""
    if min(e.n, e.n_parent) < policy.screen_seeds:
        need, need_parent = max(0, policy.screen_seeds - e.n), max(0, policy.screen_seeds - e.n_parent)
        return Ruling("undecided", "screen only: one seed tells nothing about seeds", need, need_parent)
    if e.validity.state == "invalid":
        return Ruling("invalid", "the reward rose and the never-rewarded gate scorer did not follow")
    unconfirmed = e.validity.state == "unconfirmed"
    if min(e.n, e.n_parent) < policy.promote_seeds:
        if e.p > policy.futility and not unconfirmed:
            return _not_better(e, policy, f"stopped at the screen: p {e.p:.3f} > {policy.futility:g}")
        return Ruling(
            "unconfirmed" if unconfirmed else "undecided",
            f"screen passed with {e.n} seeds; promotion needs {policy.promote_seeds} seeds on each side",
            max(0, policy.promote_seeds - e.n),
            _parent_seeds(e, policy),
        )
    if max(e.p, e.p_first) > e.share:
        if unconfirmed and e.ci[1] >= 0:
            return Ruling("unconfirmed", "the reward rose, and neither validation nor the gate scorer confirms it")
        return _not_better(e, policy, f"p {max(e.p, e.p_first):.4f} > share {e.share:.4f}")
    if e.varying < policy.min_varying_tasks:
        return Ruling("undecided", f"only {e.varying} tasks vary, promotion needs {policy.min_varying_tasks}")
    if unconfirmed:
        need = int(e.n < policy.max_seeds)
        return Ruling("unconfirmed", "the gain is not confirmed by the never-rewarded gate scorer", need)
    if e.validity.state == "not judged":
        return Ruling("unconfirmed", "no evaluation on the gate suite: the gain cannot be confirmed")
    return Ruling("promoted", f"p {e.p:.4f} ≤ share {e.share:.4f} with {e.n} seeds", keeps=False)


def _not_better(e: Evidence, policy: GatePolicy, reason: str) -> Ruling:
    """Rejected where the evidence points down, undecided where it merely does not suffice."""
    if e.ci[1] < 0:
        return Ruling("rejected", f"worse than its parent: the interval lies below 0 ({reason})")
    if e.comparison.delta <= 0 and e.p > policy.futility:
        return Ruling("rejected", f"hopeless: no gain in sight ({reason})")
    return Ruling("undecided", reason)


def _parent_seeds(e: Evidence, policy: GatePolicy) -> int:
    """Further parent seeds. Asked for by the noise alone, never by the delta, and before the promotion
    look: so the test keeps its level (Stein 1945), and later candidates profit from the same seeds."""
    noisy = e.mde is not None and e.mde > policy.mde_target and e.n_parent < policy.max_parent_seeds
    return max(policy.promote_seeds - e.n_parent, int(noisy))


def _mde(
    comparison: Comparison, n: int, n_parent: int, past: list[Spread], share: float, policy: GatePolicy
) -> float | None:
    """Detectable effect at the promotion look of this candidate, from the pooled σ and the tasks' part."""
    if comparison.pool.df == 0 or share <= 0:
        return None
    n, n_parent = max(n, policy.promote_seeds), max(n_parent, policy.promote_seeds)
    variance = comparison.pool.variance + comparison.interaction / (1 / n + 1 / n_parent)
    return detectable_effect(n, n_parent, sum(s.df for s in past), share, policy.power) * math.sqrt(variance)


def _numbers(e: Evidence, policy: GatePolicy) -> list[str]:
    """The figures behind a verdict, one line each."""
    low, high = e.ci
    lines = [f"delta {e.comparison.delta:+.4f}, {policy.level:.0%} interval {low:+.4f}..{high:+.4f}"]
    if e.mde is not None:
        upper = e.mde * upper_sigma_factor(e.comparison.pool.df)
        lines.append(f"detectable with {policy.power:.0%} power: {e.mde:.4f} ({upper:.4f} if σ is at its upper bound)")
    v = e.validity
    if v.proxy_delta is not None and v.gate_delta is not None:
        lines.append(f"validity {v.state}: {v.proxy} {v.proxy_delta:+.4f}, gate scorer {v.gate_delta:+.4f}")
    return lines


# ---------------------------------------------------------------------------------------- evidence


def _scores(inp: GateInput) -> tuple[Array, Array]:
    """Validation scores of candidate and parent, once all evidence is known to belong together."""
    if inp.parent.version == inp.candidate.version:
        raise InputError(f"gate: candidate {inp.candidate.version!r} is its own parent; give two versions")
    if len(inp.spent) != inp.index:
        raise InputError(
            f"gate: spent has {len(inp.spent)} entries at index {inp.index}; give one per judged candidate"
        )
    for arm in (inp.candidate, inp.parent):
        seeds = [e.seed for e in arm.validation]
        if any(e.version != arm.version or e.suite != "validation" for e in arm.validation):
            raise InputError(f"gate: validation of {arm.version}: holds another version or suite; give its own")
        if any(e.version != arm.version or e.suite != "gate" for e in arm.gate):
            raise InputError(f"gate: gate evaluations of {arm.version}: hold another version or suite; give its own")
        if arm.gate and [e.seed for e in arm.gate] != seeds:
            raise InputError(f"gate: gate evaluations of {arm.version}: seeds differ from validation; evaluate {seeds}")
        if arm.proxy and len(arm.proxy) != len(seeds):
            raise InputError(f"gate: proxy of {arm.version}: {len(arm.proxy)} values; give one for each of {seeds}")
        if not all(math.isfinite(value) for value in arm.proxy):
            raise InputError(f"gate: proxy of {arm.version}: NaN or inf; leave such rollouts out of the mean")
    ours, theirs = score_array(inp.candidate.validation), score_array(inp.parent.validation)
    require_same(inp.candidate.validation[0], inp.parent.validation[0])
    if ours.shape[2] != theirs.shape[2]:
        raise InputError(f"gate: {ours.shape[2]} and {theirs.shape[2]} samples per task; evaluate both with the same k")
    return ours, theirs


def _validity(inp: GateInput, policy: GatePolicy) -> Validity:
    """The rule of ``Validity``. Its variances come from the two arms alone, for the candidate's reward
    sets the unit; and plainly pooled, for here a missed hack is the dearer error."""
    ours, theirs = inp.candidate, inp.parent
    if not ours.gate or not theirs.gate or min(len(ours.gate), len(theirs.gate)) < 2:
        return Validity(state="not judged")
    rewarded = bool(ours.proxy and theirs.proxy)
    a, b = [], []
    for arm in (ours, theirs):
        a.append(np.array(arm.proxy if rewarded else [e.mean for e in arm.validation], dtype=np.float64))
        b.append(score_array(arm.gate))
    require_same(ours.gate[0], theirs.gate[0])
    gap = [gate.mean(axis=(1, 2)) - proxy / 2 for proxy, gate in zip(a, b, strict=True)]
    rise = compare(_plain(a[0]), _plain(a[1]), max_rule=False)
    follow = compare(moments(b[0]), moments(b[1]), max_rule=False)
    fall = compare(_plain(-gap[0]), _plain(-gap[1]), max_rule=False)
    state: Literal["clean", "invalid", "unconfirmed"] = "clean"
    if rise.p <= policy.proxy_level and follow.p > policy.gate_level:
        state = "invalid" if fall.p <= policy.gap_level else "unconfirmed"
    return Validity(
        state=state,
        proxy="reward" if rewarded else "validation",
        proxy_delta=rise.delta,
        gate_delta=follow.delta,
        p_proxy=rise.p,
        p_gap=fall.p,
        p_gate=follow.p,
    )


def _plain(values: Array) -> Moments:
    """Moments of one plain number per seed."""
    return moments(values[:, None, None])


def _past(inp: GateInput) -> list[Spread]:
    """Spreads of other versions under the same protocol; a version given twice counts as last given."""
    here = inp.candidate.validation[0].protocol_hash
    latest = {s.version: s for s in inp.pool if s.protocol_hash == here}
    return [
        Spread(s.variance, s.df, s.r)
        for s in latest.values()
        if s.df > 0 and s.version not in (inp.parent.version, inp.candidate.version)
    ]


def _version_spread(arm: Arm, version: Moments) -> VersionSpread:
    spread = version.spread
    return VersionSpread(
        version=arm.version,
        protocol_hash=arm.validation[0].protocol_hash,
        variance=spread.variance,
        df=version.n - 1,
        n_tasks=len(version.task_means),
        r=spread.noise,
    )
