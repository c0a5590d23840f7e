"""What a gate's ruling rests on, from the evaluations of two versions: scores, validity, the spreads of other versions."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from trainer.evaluation import require_same, score_array
from trainer.gate_types import Arm, GateInput, GatePolicy, Validity, VersionSpread
from trainer.statistics import Array, Moments, Spread, compare, moments
from trainer.types import InputError

CALIBRATION_DF = 4
"""A noise floor of earlier runs counts with at most these degrees of freedom: other runs are not this one."""


def scores_of(inp: GateInput) -> tuple[Array, Array]:
    """Validation scores of candidate and parent, once all evidence is known to belong together; else InputError."""
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


def moments_of(arm: Arm, scores: Array) -> Moments:
    """The arm's moments; the spread of seeds that are one and the same policy has no degrees of freedom."""
    found = moments(scores)
    same = arm.stalled and found.spread.variance == 0
    return found._replace(spread=found.spread._replace(df=0)) if same else found


def validity_of(inp: GateInput, policy: GatePolicy) -> Validity:
    """The rule of ``Validity``; with one seed a side the two deltas alone, "not judged". Its variances come from the two
    arms alone, for the candidate's reward sets the unit; and plainly pooled, for here a missed hack is the dearer error."""
    ours, theirs = inp.candidate, inp.parent
    if not ours.gate or not theirs.gate:
        return Validity(state="not judged")
    rewarded = bool(ours.proxy and theirs.proxy)
    proxy: Literal["reward", "validation"] = "reward" if rewarded else "validation"
    a, b = [], []
    for arm in (ours, theirs):
        a.append(np.array(arm.proxy if rewarded else [e.mean for e in arm.validation], dtype=np.float64))
        b.append(score_array(arm.gate))
    require_same(ours.gate[0], theirs.gate[0])
    gap = [gate.mean(axis=(1, 2)) - paid / 2 for paid, gate in zip(a, b, strict=True)]
    rise = compare(_plain(a[0]), _plain(a[1]), max_rule=False)
    follow = compare(moments(b[0]), moments(b[1]), max_rule=False)
    if min(len(ours.gate), len(theirs.gate)) < 2:
        return Validity(state="not judged", proxy=proxy, proxy_delta=rise.delta, gate_delta=follow.delta)
    fall = compare(_plain(-gap[0]), _plain(-gap[1]), max_rule=False)
    state: Literal["clean", "invalid", "unconfirmed"] = "clean"
    if rise.p <= policy.proxy_level and follow.p > policy.gate_level:
        state = "invalid" if fall.p <= policy.gap_level else "unconfirmed"
    return Validity(
        state=state,
        proxy=proxy,
        proxy_delta=rise.delta,
        gate_delta=follow.delta,
        p_proxy=rise.p,
        p_gap=fall.p,
        p_gate=follow.p,
    )


def _plain(values: Array) -> Moments:
    """Moments of one plain number per seed."""
    return moments(values[:, None, None])


def past_spreads(inp: GateInput) -> list[Spread]:
    """Spreads of other versions under the same protocol, and the calibration's; a version given twice counts as last given."""
    here = inp.candidate.validation[0].protocol_hash
    latest = {s.version: s for s in inp.pool if s.protocol_hash == here}
    # An arm of one seed says nothing of its own spread: what the pool knows of that version then counts.
    own = [arm.version for arm in (inp.parent, inp.candidate) if len(arm.validation) > 1]
    past = [Spread(s.variance, s.df, s.r) for s in latest.values() if s.df > 0 and s.version not in own]
    stored = inp.calibration
    if stored and stored.df > 0 and stored.protocol_hash == here:
        past.append(Spread(stored.variance, min(stored.df, CALIBRATION_DF), stored.r))
    return past


def version_spread(arm: Arm, version: Moments) -> VersionSpread:
    spread = version.spread
    return VersionSpread(
        version=arm.version,
        protocol_hash=arm.validation[0].protocol_hash,
        variance=spread.variance,
        df=int(spread.df),
        n_tasks=len(version.task_means),
        r=spread.noise,
    )
