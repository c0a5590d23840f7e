"""The rollouts of one training step: choose prompts, sample groups, score, filter, take advantages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trainer.embedded.collect import ShardSampler, concatenate, shards_of
from trainer.embedded.rollouts import Scored, judge_rollouts, merge
from trainer.groups import group_advantages, groups_with_spread
from trainer.python_parts import TrainingTerms
from trainer.types import Domain, InputError, Task, TrainSpec

POOL_TASKS = 4096
"""Training tasks a job draws from: more than a budget of minutes visits."""


@dataclass(frozen=True)
class StepBatch:
    """All N rollouts of a step in order of sampling.

    ``group_index`` [N] counts groups from 0; ``kept`` [N] marks what is trained on; ``advantages``
    [N] are those of every rollout, dropped or not. ``gen_s`` and ``reward_s`` are seconds.
    """

    scored: Scored
    group_index: NDArray[np.int64]
    advantages: NDArray[np.float64]
    kept: NDArray[np.bool_]
    has_signal: bool
    gen_s: float
    reward_s: float


def train_tasks(domain: Domain, levels: Sequence[int]) -> list[Task]:
    """The tasks a job trains on, all levels or the given ones; raises InputError if none is left."""
    tasks = domain.tasks("train", POOL_TASKS)
    chosen = [task for task in tasks if not levels or task.level in levels]
    if not chosen:
        known = ", ".join(str(level) for level in sorted({task.level for task in tasks}))
        raise InputError(f"recipe.toml: data.levels: no {domain.name} task has a level in {list(levels)}: use {known}")
    return chosen


def task_order(count: int, seed: int) -> Iterator[int]:
    """Task positions without end, each epoch a permutation of its own by (seed, epoch)."""
    epoch = 0
    while True:
        yield from np.random.default_rng([seed, epoch]).permutation(count).tolist()
        epoch += 1


def gather(
    spec: TrainSpec,
    domain: Domain,
    tasks: Sequence[Task],
    order: Iterator[int],
    sampler: ShardSampler,
    step: int,
    terms: TrainingTerms | None = None,
) -> StepBatch:
    """Sample the groups of ``step``.

    With ``filter_groups`` (DAPO, arXiv 2503.14476, section 3.2) groups without spread are dropped
    and further prompts sampled, at most ``max_num_gen_batches`` batches in all; groups beyond
    ``train_batch_size`` are dropped too. Where fewer are left, the step trains on those. ``terms`` runs Python terms.
    Raises NonFinite for a diverged policy, InputError for a reward term that cannot be evaluated and SandboxFailure
    where nothing can be judged.
    """
    recipe = spec.recipe
    wanted, n, filtering = recipe.data.train_batch_size, recipe.rollout.n, recipe.algorithm.filter_groups
    parts: list[Scored] = []
    eligible = np.zeros(0, dtype=bool)
    gen_s = reward_s = 0.0
    for batch in range(filtering.max_num_gen_batches if filtering.enable else 1):
        rows = [position for position in (next(order) for _ in range(wanted)) for _ in range(n)]
        start = time.perf_counter()
        samples = concatenate(sampler.sample(shards_of(rows, "train", spec.seed, step, batch)))
        sampled = time.perf_counter()
        python = partial(terms.values, step) if terms else None
        scored = judge_rollouts(domain, [tasks[position] for position in rows], samples, spec, python)
        groups = len(scored.score) // n
        parts.append(scored)
        gen_s += sampled - start
        reward_s += time.perf_counter() - sampled
        metric = scored.verified if filtering.metric == "outcome" else scored.score
        spread = groups_with_spread(metric, np.repeat(np.arange(groups), n))
        eligible = np.append(eligible, spread if filtering.enable else np.ones(groups, dtype=bool))
        if eligible.sum() >= wanted:
            break
    scored = merge(parts)
    group_index = np.repeat(np.arange(len(eligible)), n)
    kept_groups = eligible & (np.cumsum(eligible) <= wanted)
    alive = groups_with_spread(scored.score, group_index)
    algorithm = recipe.algorithm
    return StepBatch(
        scored,
        group_index,
        group_advantages(scored.score, group_index, algorithm.adv_estimator, algorithm.norm_adv_by_std_in_grpo),
        kept_groups[group_index],
        bool((kept_groups & alive).any()),
        gen_s,
        reward_s,
    )
