"""What a change of sampling would have made of the groups, by the solve rates of the groups that were stored.

Nothing new is sampled: groups are drawn again from what each stored group, family and level is known to give. A group is
dead when its score has no spread; ``all_fail_groups`` and ``all_pass_groups`` are dead ones whose outcomes are all 0 or 1.
The policy is the one that was stored, step by step: what it would have learned from other samples is not in here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from trainer.embedded.curriculum import TaskChooser
from trainer.groups import groups_with_spread
from trainer.replay_rows import Flags, Floats, Ints, Rescored, Stored, share
from trainer.types import Curriculum, DataRecipe, Harness, Task

PARTS = 4
"""Parts of a training within which a family and level has one solve rate: the policy moves."""
_FLAGS = ("signal_groups", "all_fail_groups", "all_pass_groups", "outcome/mean")


class Untold(Exception):
    """The stored rollouts say nothing about the factor; the message is why."""


# ------------------------------------------------------------------------------- rollout.n


class Beta(NamedTuple):
    """Solve rates of tasks as Beta(a, b)."""

    a: float
    b: float


def group_size(stored: Stored, scored: Rescored, before: int, after: int) -> tuple[dict[str, float], dict[str, float]]:
    """``rollout.n`` before and after: what groups without a hint would be at another size, and how many a rollout buys.

    A smaller group is a draw without replacement from a stored one: exact. A larger one draws on each stored group's
    posterior solve rate, whose prior is fitted to all of them by moments (J. C. Kleinman, JASA 68 (1973) 46): the rate
    itself, 1 - p^n - (1 - p)^n with p = k / n, would call every group that failed as a whole hopeless. Both sides are then
    computed so. Raises Untold for a larger group whose spread does not follow from its outcomes.
    """
    groups = np.flatnonzero(~stored.hinted)
    size = int(stored.sizes[groups].min()) if groups.size else 0
    if max(before, after) > size or not groups.size:
        # Not larger than what is stored on one side only would compare two estimators.
        sides = [_larger(stored, scored, groups, n) for n in (before, after)]
    else:
        sides = [_smaller(stored, scored, groups, n) for n in (before, after)]
    for n, side in zip((before, after), sides, strict=True):
        side["signal_groups_per_rollout"] = side["signal_groups"] / n
    return sides[0], sides[1]


def _smaller(stored: Stored, scored: Rescored, groups: Ints, n: int) -> dict[str, float]:
    """Expected shares when ``n`` of each group's rollouts are drawn without replacement."""
    dead = fail = right = 0.0
    order = np.argsort(stored.group, kind="stable")
    members = np.split(order, np.cumsum(stored.sizes)[:-1])
    for g in groups:
        rows = members[g]
        # A group without spread has float noise at most: one value.
        score = np.round(scored.score[rows], 6) if scored.spread[g] else np.zeros(len(rows))
        outcome = scored.verified[rows]
        for value in np.unique(score):
            alike = score == value
            dead += _all_of(int(alike.sum()), len(rows), n)
            fail += _all_of(int((alike & (outcome == 0)).sum()), len(rows), n)
            right += _all_of(int((alike & (outcome == 1)).sum()), len(rows), n)
    count = len(groups)
    return {
        "signal_groups": 1 - dead / count,
        "all_fail_groups": fail / count,
        "all_pass_groups": right / count,
    }


def _all_of(alike: int, size: int, n: int) -> float:
    """Probability that ``n`` draws without replacement from ``size`` all come from ``alike`` of them."""
    return math.comb(alike, n) / math.comb(size, n)


def _larger(stored: Stored, scored: Rescored, groups: Ints, n: int) -> dict[str, float]:
    mixed = groups_with_spread(scored.verified, stored.group)
    if (mixed != scored.spread)[groups].any():
        raise Untold("a shaped reward spreads groups of one outcome, and how it would a larger one is not stored")
    solved: Floats = np.bincount(stored.group, weights=scored.verified)[groups].astype(np.float64)
    sizes: Floats = stored.sizes[groups].astype(np.float64)
    prior = fitted(solved, sizes)
    a, b = prior.a + solved, prior.b + sizes - solved
    fail, right = (float(np.mean([_all(x, y, n) for x, y in zip(*pair, strict=True)])) for pair in ((b, a), (a, b)))
    return {"signal_groups": 1 - fail - right, "all_fail_groups": fail, "all_pass_groups": right}


def _all(a: float, b: float, n: int) -> float:
    """E[p^n] of p ~ Beta(a, b)."""
    return math.exp(math.lgamma(a + n) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(a + b + n))


def fitted(solved: Floats, sizes: Floats) -> Beta:
    """The Beta distribution of solve rates of G groups, ``solved`` (G,) of ``sizes`` (G,), by moments: mean, and the
    variance of rates beyond that of a binomial."""
    # One half of a success more on each side keeps a training that never or always succeeds off the border.
    mean = (float(solved.sum()) + 0.5) / (float(sizes.sum()) + 1)
    n = float(sizes.mean())
    variance = float(np.mean((solved / sizes - mean) ** 2))
    alike = (variance * n / (mean * (1 - mean)) - 1) / (n - 1)
    alike = min(max(alike, 1e-3), 0.99)
    return Beta(mean * (1 / alike - 1), (1 - mean) * (1 / alike - 1))


# -------------------------------------------------------------------- data.levels, data.curriculum


def task_mix(stored: Stored, scored: Rescored, before: DataRecipe, after: DataRecipe) -> dict[str, float]:
    """``data.levels`` and ``data.curriculum``, one side: expected groups and outcome when tasks are drawn as ``after`` says.

    The curriculum's own chooser runs through the stored steps and sees their solve rates; what a family and level gives is
    the mean of its stored groups in the same quarter of the training, else in all of it. Without a curriculum tasks are
    drawn evenly, as far as they were seen. Raises Untold for levels that were never sampled.
    """
    groups = np.flatnonzero(~stored.hinted)
    level = np.array(stored.of_groups("level"), dtype=np.int64)
    wanted = set(after.levels) if after.levels else set(level.tolist())
    if not after.levels and before.levels:
        raise Untold(f"only levels {_words(before.levels)} were sampled, and what the others give is not stored")
    if missing := wanted - set(level[groups].tolist()):
        raise Untold(f"no stored rollout is of level {_words(sorted(missing))}")
    chosen = [int(g) for g in groups if level[g] in wanted]
    keys = list(zip(stored.of_groups("family"), level.tolist(), strict=True))
    ids = stored.of_groups("task_id")
    tasks = {ids[g]: Task(id=str(ids[g]), domain="", family=str(keys[g][0]), level=keys[g][1], messages=(), answer="")
             for g in chosen}  # fmt: skip
    buckets = sorted({keys[g] for g in chosen}, key=lambda key: (str(key[0]), key[1]))
    gives = _gives(stored, scored, chosen, keys)
    totals = np.zeros(len(_FLAGS))
    seen = 0
    seeds = stored.column("seed")[stored.first]
    for seed in np.unique(seeds):
        own = [g for g in chosen if seeds[g] == seed]
        expected, steps = _drawn(stored, scored, own, list(tasks.values()), buckets, keys, gives, after.curriculum)
        totals += expected
        seen += steps
    return dict(zip(_FLAGS, (totals / seen).tolist(), strict=True))


def _drawn(
    stored: Stored,
    scored: Rescored,
    own: Sequence[int],
    tasks: Sequence[Task],
    buckets: Sequence[tuple[Hashable, int]],
    keys: Sequence[tuple[Hashable, int]],
    gives: dict[tuple[Hashable, int | None], Floats],
    curriculum: Curriculum,
) -> tuple[Floats, int]:
    """Summed expectations of one seed's steps under the curriculum, and the number of steps."""
    chooser = TaskChooser(tasks, 0, curriculum)
    position = {task.id: i for i, task in enumerate(tasks)}
    sizes = np.array([sum((t.family, t.level) == key for t in tasks) for key in buckets], dtype=np.float64)
    ids = stored.of_groups("task_id")
    solved = np.bincount(stored.group, weights=scored.verified) / stored.sizes
    by_step: dict[int, list[int]] = defaultdict(list)
    for g in own:
        by_step[int(stored.step[g])].append(g)
    total = np.zeros(len(_FLAGS))
    for number, groups in enumerate(by_step.values()):
        weights = sizes if curriculum.mode == "off" else chooser.weights()
        part = number * PARTS // len(by_step)
        for weight, key in zip(weights / weights.sum(), buckets, strict=True):
            total += weight * gives.get((key, part), gives[key, None])
        chooser.observe([position[str(ids[g])] for g in groups], solved[groups], int(stored.sizes[groups[0]]))
    return total, len(by_step)


def _gives(
    stored: Stored, scored: Rescored, chosen: Sequence[int], keys: Sequence[tuple[Hashable, int]]
) -> dict[tuple[Hashable, int | None], Floats]:
    """What a group of each family and level is on average, per part of the training and (None) in all of it."""
    solved = np.bincount(stored.group, weights=stored.column("outcome")) / stored.sizes
    seeds = stored.column("seed")[stored.first]
    last = {seed: int(stored.step[seeds == seed].max()) for seed in np.unique(seeds)}
    start = {seed: int(stored.step[seeds == seed].min()) for seed in np.unique(seeds)}
    found: dict[tuple[Hashable, int | None], list[Floats]] = defaultdict(list)
    for g in chosen:
        dead = not scored.spread[g]
        values = np.array([not dead, dead and solved[g] == 0, dead and solved[g] == 1, solved[g]], dtype=np.float64)
        span = last[seeds[g]] - start[seeds[g]] + 1
        part = int(stored.step[g] - start[seeds[g]]) * PARTS // span
        found[keys[g], part].append(values)
        found[keys[g], None].append(values)
    return {key: np.mean(values, axis=0) for key, values in found.items()}


def _words(levels: Sequence[int]) -> str:
    return ", ".join(map(str, levels))


# ------------------------------------------------------------------------------ data.hints


def hints(stored: Stored, scored: Rescored, harness: Harness, parent: Harness) -> dict[str, float]:
    """``data.hints``, one side: share of the groups drawn without a hint that would be sampled once more after one, and the
    mean share of a worked reply given to them.

    ``all_fail_groups`` is the share among all sampled groups, where it is stored: without hints, or with the parent's own.
    Else ``all_fail_groups/at_best`` is what it would be if every hinted group came out with spread. A hint so short that
    it gives no token away is none.
    """
    own, plain = harness.recipe.data.hints, ~stored.hinted
    failed = plain & (np.bincount(stored.group, weights=scored.verified) == 0)
    dead = ~scored.spread & (np.bincount(stored.group, weights=stored.column("outcome")) == 0)
    asked = share(failed[plain]) if own.enable else 0.0
    ratios = np.array([own.ratio_at(float(done)) for done in _progress(stored)[failed]])
    side = {"hinted_groups": asked, "hint_ratio": share(ratios) if own.enable else 0.0}
    alone = share(dead[plain])
    side["all_fail_groups/at_best"] = alone / (1 + asked)
    if not own.enable:
        side["all_fail_groups"] = alone
    elif own == parent.recipe.data.hints:
        side["all_fail_groups"] = share(dead)
        # A bound on what is known would be no bound for the other side.
        del side["all_fail_groups/at_best"]
    return side


def _progress(stored: Stored) -> Floats:
    """How far each group's seed is (G,), 0 at its first stored step and 1 at its last."""
    seeds = stored.column("seed")[stored.first]
    progress = np.zeros(len(seeds))
    for seed in np.unique(seeds):
        own = seeds == seed
        steps = stored.step[own] - stored.step[own].min()
        progress[own] = steps / max(int(steps.max()), 1)
    return progress


# ------------------------------------------------------- refills and batches of prompts


def refills(stored: Stored, scored: Rescored, harness: Harness) -> dict[str, float]:
    """``filter_groups.max_num_gen_batches``, one side: expected batches that a step samples and the share of the wanted
    groups that it then has, when each group passes the filter with its step's share of passing groups."""
    from scipy.special import bdtr

    recipe = harness.recipe
    wanted, filtering = recipe.data.train_batch_size, recipe.algorithm.filter_groups
    most = filtering.max_num_gen_batches if filtering.enable else 1
    batches, filled = [], []
    for passing in _per_step(stored, scored.kept):
        # P(fewer than j of b · wanted groups pass) is the binomial distribution function at j - 1.
        batches.append(1 + sum(float(bdtr(wanted - 1, b * wanted, passing)) for b in range(1, most)))
        short = np.asarray(bdtr(np.arange(wanted), most * wanted, passing))
        filled.append(float((1 - short).mean()))
    rounds = float(np.mean(batches))
    return {
        "refills": rounds - 1,
        "filled_batch": float(np.mean(filled)),
        "kept_groups": float(np.mean(filled)) / rounds,
    }


def batch_size(stored: Stored, scored: Rescored, harness: Harness) -> dict[str, float]:
    """``data.train_batch_size``, one side: share of steps none of whose groups would have spread, and the batches that a
    thousand rollouts make."""
    recipe = harness.recipe
    wanted = recipe.data.train_batch_size
    return {
        "dead_steps": float(np.mean([(1 - alive) ** wanted for alive in _per_step(stored, scored.spread)])),
        "steps_per_1000_rollouts": 1000 / (wanted * recipe.rollout.n),
    }


def _per_step(stored: Stored, flags: Flags) -> list[float]:
    """Share of flagged groups of each step, groups with a hint left out."""
    plain = ~stored.hinted
    totals = np.bincount(stored.step[plain])
    return [float(x) for x in np.bincount(stored.step[plain], weights=flags[plain])[totals > 0] / totals[totals > 0]]
