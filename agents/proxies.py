"""Which quantity of a replay stands for which predicted metric, and for which factors.

A replay covers a metric where the factor acts on what the metric is computed from: the group filter changes which groups
are kept and not how many of them fail, so that a replay of it is silent about failing groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trainer.types import ReplayReport

_GROUPS = ("reward.", "rollout.n", "data.")
_FILTERS = ("algorithm.filter_groups.", "algorithm.variance_filter.")
AT_BEST = "/at_best"
"""Ending of a replayed quantity that is a bound on the candidate's side."""


class Proxy(NamedTuple):
    """``name`` of a replay's metrics moves with the predicted metric (``sign`` 1) or against it (-1), for ``factors``
    (prefixes)."""

    name: str
    sign: int
    factors: tuple[str, ...]


PROXIES: Mapping[str, tuple[Proxy, ...]] = {
    "dead_groups": (Proxy("signal_groups", -1, _GROUPS),),
    "dead_groups_all_fail": (
        Proxy("all_fail_groups", 1, _GROUPS),
        Proxy("all_fail_groups/at_best", 1, ("data.hints.",)),
    ),
    "dead_groups_all_pass": (Proxy("all_pass_groups", 1, _GROUPS),),
    "dead_training": (Proxy("dead_steps", 1, ("data.train_batch_size",)),),
    "over_filtering": (Proxy("kept_groups", -1, _FILTERS),),
    "reward_offset": (Proxy("collected_alike", 1, ("reward.",)),),
    "single_reward_value": (Proxy("commonest_score", 1, ("reward.",)),),
    "length_reward_correlation": (Proxy("length_correlation", 1, ("reward.",)),),
    "truncation": (
        Proxy("truncated", 1, ("data.max_response_length",)),
        Proxy("truncated/at_best", 1, ("data.max_response_length",)),
    ),
}


class Foretold(NamedTuple):
    """What a replay says of a predicted metric: its change, from ``before`` and ``after`` of the replayed quantity."""

    name: str
    before: float
    after: float
    change: float


def foretold(metric: str, factor: str, replay: ReplayReport | None) -> Foretold | None:
    """The replayed change of a predicted metric (in that metric's direction), or None where the replay does not cover it."""
    for proxy in PROXIES.get(metric, ()):
        if replay and proxy.name in replay.metrics and factor.startswith(proxy.factors):
            before, after = replay.metrics[proxy.name]
            return Foretold(proxy.name, before, after, proxy.sign * (after - before))
    return None
