"""Search on weak evidence, certify on fresh seeds.

Gating every candidate is dear. The search may instead move its working parent on one seed (``provisional``: a step, never
a promotion), and the tip of the chain is then trained with fresh seeds and tested once against the baseline (``certify``).
At equal trainings this certifies more true gain (docs/gate.md has the figures). What is certified is the chain.
"""

from __future__ import annotations

import math

from trainer.gate import Evidence, Plan, Ruling, decide, gather, reported, unusable
from trainer.gate_evidence import scores_of
from trainer.gate_types import Arm, GateInput, GatePolicy, GateReport, Look, VersionSpread
from trainer.statistics import normal_quantile


def certify(
    tip: Arm,
    base: Arm,
    policy: GatePolicy,
    share: float | None = None,
    pool: tuple[VersionSpread, ...] = (),
    calibration: VersionSpread | None = None,
) -> GateReport:
    """Test the tip of a chain against its base, once, with ``certify_seeds`` of each.

    Both arms hold seeds that played no part in the search: it selected on its own. ``share`` is the alpha to spend; the
    whole of the policy's where a run certifies once. Verdicts are those of ``judge``, InputError too.
    """
    level = policy.alpha if share is None else share
    look = Look(policy.certify_seeds, 1.0, 1.0)
    inp = GateInput(parent=base, candidate=tip, pool=pool, calibration=calibration)
    return decide(inp, policy, Plan((look,), level, look.seeds, look.seeds))


def provisional(
    candidate: Arm,
    parent: Arm,
    policy: GatePolicy,
    pool: tuple[VersionSpread, ...] = (),
    calibration: VersionSpread | None = None,
) -> GateReport:
    """May the search go on from this candidate? ``provisional`` if its delta exceeds ``provisional_se`` standard errors.

    One seed suffices on both sides if the pool or a calibration knows the spread between seeds. No alpha is spent and
    nothing is promoted; ``p`` and ``mde`` are as everywhere, the latter being what passes with ``policy.power``. A reward
    that rises while the gate scorer falls does not pass. InputError as in ``judge``.
    """
    inp = GateInput(parent=parent, candidate=candidate, pool=pool, calibration=calibration)
    ours, theirs = scores_of(inp)
    plan = Plan((Look(2, 0.0, 1.0),), 0.0, 1, 1)
    e = gather(inp, policy, plan, ours, theirs)
    error = math.sqrt(e.comparison.variance)
    if e.comparison.pool.df:
        e = e._replace(mde=(policy.provisional_se + normal_quantile(policy.power)) * error)
    return reported(inp, e, unusable(inp, ours, theirs, e) or _step(e, error, policy), policy)


def _step(e: Evidence, error: float, policy: GatePolicy) -> Ruling:
    validity = e.validity
    if e.comparison.pool.df == 0:
        need = max(1, policy.screen_seeds - e.n_parent)
        return Ruling("undecided", "the spread between seeds is unknown: the parent needs a second", need_parent=need)
    if validity.state == "invalid":
        return Ruling("invalid", "the reward rose and the never-rewarded gate scorer did not follow")
    size, line = e.comparison.delta / error, policy.provisional_se
    if size <= line:
        worse = size < -line
        return Ruling("rejected" if worse else "undecided", f"delta is {size:+.2f} SE, a step takes more than {line:g}")
    if validity.gate_delta is None or validity.proxy_delta is None:
        return Ruling("unconfirmed", "no evaluation on the gate suite: the step cannot be confirmed")
    if validity.state == "unconfirmed" or (validity.proxy_delta > 0 > validity.gate_delta):
        return Ruling("unconfirmed", "the reward rose and the never-rewarded gate scorer fell")
    return Ruling("provisional", f"delta is {size:+.2f} SE with {e.n} seed{'s' * (e.n > 1)}: a step, not a promotion")
