"""The rollouts of one training step: choose prompts, sample groups, score, filter, take advantages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trainer.embedded.collect import Draw, ShardSampler, concatenate, shards_of
from trainer.embedded.curriculum import TaskChooser
from trainer.embedded.rollouts import Scored, judge_rollouts, merge
from trainer.embedded.sampler import Samples
from trainer.groups import group_advantages, groups_with_spread, top_variance_groups
from trainer.python_parts import TrainingTerms
from trainer.types import Domain, InputError, Recipe, Task, TrainSpec

POOL_TASKS = 4096
"""Training tasks a job draws from: more than a budget of minutes visits."""

Floats = NDArray[np.float64]
Penalty = Callable[[Samples, float], Floats]


@dataclass(frozen=True)
class StepBatch:
    """All N rollouts of a step in order of sampling.

    ``group_index`` [N] counts groups from 0; ``kept`` [N] marks what is trained on; ``rewards`` [N] are the scores less the
    penalty for KL, ``advantages`` [N] those of every rollout, dropped or not, ``temperature`` what all were
    sampled at. ``gen_s`` and ``reward_s`` are seconds.
    """

    scored: Scored
    group_index: NDArray[np.int64]
    rewards: Floats
    advantages: Floats
    kept: NDArray[np.bool_]
    has_signal: bool
    temperature: float
    gen_s: float
    reward_s: float

    @property
    def hinted(self) -> NDArray[np.bool_]:
        """Rollouts [N] whose beginning was given."""
        return np.asarray(self.scored.samples.hint_lengths) > 0


def train_tasks(domain: Domain, levels: Sequence[int]) -> list[Task]:
    """The tasks a job trains on, all levels or the given ones; raises InputError if none is left."""
    tasks = domain.tasks("train", POOL_TASKS)
    chosen = [task for task in tasks if not levels or task.level in levels]
    if not chosen:
        known = ", ".join(str(level) for level in sorted({task.level for task in tasks}))
        raise InputError(f"recipe.toml: data.levels: no {domain.name} task has a level in {list(levels)}: use {known}")
    return chosen


class Gatherer:
    """Samples the groups of each step; the only thing it remembers between steps is where ``chooser`` stands."""

    def __init__(
        self,
        spec: TrainSpec,
        domain: Domain,
        tasks: Sequence[Task],
        sampler: ShardSampler,
        chooser: TaskChooser,
        terms: TrainingTerms | None = None,
        penalty: Penalty | None = None,
    ) -> None:
        """``terms`` runs Python terms; ``penalty`` says what KL costs each rollout, from samples and their temperature."""
        self._spec, self._domain, self._tasks, self._sampler = spec, domain, tasks, sampler
        self._chooser, self._terms, self._penalty = chooser, terms, penalty
        self._position = {task.id: position for position, task in enumerate(tasks)}
        self._hints = spec.recipe.data.hints

    def gather(self, step: int, fraction: float) -> StepBatch:
        """The rollouts of ``step``, when ``fraction`` (0 to 1) of the token budget is used.

        With ``filter_groups`` (DAPO, arXiv 2503.14476, section 3.2) groups without spread are dropped and further prompts
        sampled, at most ``max_num_gen_batches`` batches in all; groups beyond ``train_batch_size`` are dropped too. Where
        fewer are left, the step trains on those. ``variance_filter`` drops without sampling more. With hints, a group
        that failed as a whole is dropped, and its task sampled once more after a hint, the refill's place taken.
        Raises NonFinite for a diverged policy, InputError for a reward term that cannot be evaluated and SandboxFailure
        where nothing can be judged.
        """
        recipe = self._spec.recipe
        wanted, n, filtering = recipe.data.train_batch_size, recipe.rollout.n, recipe.algorithm.filter_groups
        temperature, ratio = recipe.rollout.temperature_at(fraction), 0.0
        if self._hints.enable:
            ratio = self._hints.ratio_at(fraction)
        parts: list[Scored] = []
        eligible = np.zeros(0, dtype=bool)
        started, judged_s = time.perf_counter(), 0.0

        def sample(positions: Sequence[int], draw: Draw, *seed: int | str) -> Scored:
            nonlocal judged_s
            rows = [position for position in positions for _ in range(n)]
            samples = concatenate(self._sampler.sample(shards_of(rows, draw, *seed)))
            sampled = time.perf_counter()
            python = partial(self._terms.values, step) if self._terms else None
            scored = judge_rollouts(self._domain, [self._tasks[row] for row in rows], samples, self._spec, python)
            judged_s += time.perf_counter() - sampled
            parts.append(scored)
            return scored

        for batch in range(filtering.max_num_gen_batches if filtering.enable else 1):
            scored = sample(self._chooser.draw(wanted), Draw(temperature), "train", self._spec.seed, step, batch)
            solved = scored.verified.reshape(-1, n).mean(axis=1)
            drawn = self._positions(scored, n)
            self._chooser.observe(drawn, solved, n)
            usable = _usable(scored, recipe)
            failed = (solved == 0) & (ratio > 0)
            eligible = np.append(eligible, usable & ~failed)
            if failed.any():
                again = [position for position, hopeless in zip(drawn, failed, strict=True) if hopeless]
                hinted = sample(again, Draw(temperature, ratio), "hint", self._spec.seed, step, batch)
                eligible = np.append(eligible, _usable(hinted, recipe))
            if eligible.sum() >= wanted:
                break
        gen_s = time.perf_counter() - started - judged_s
        scored = merge(parts)
        group_index = np.repeat(np.arange(len(eligible)), n)
        rewards = scored.score
        if self._penalty:
            kl = self._penalty(scored.samples, temperature)
            rewards = rewards - kl
            scored = scored.with_term("kl", -kl)
        kept_groups = eligible & (np.cumsum(eligible) <= wanted)
        if (variance := recipe.algorithm.variance_filter).enable:
            metric = scored.verified if variance.metric == "outcome" else scored.score
            chosen = np.flatnonzero(kept_groups[group_index])
            number = np.cumsum(kept_groups)[group_index[chosen]] - 1
            kept_groups[kept_groups] = top_variance_groups(metric[chosen], number, variance.top_p)
        alive = groups_with_spread(scored.score, group_index)
        algorithm = recipe.algorithm
        return StepBatch(
            scored=scored,
            group_index=group_index,
            rewards=rewards,
            advantages=group_advantages(
                rewards, group_index, algorithm.adv_estimator, algorithm.norm_adv_by_std_in_grpo
            ),
            kept=kept_groups[group_index],
            has_signal=bool((kept_groups & alive).any()),
            temperature=temperature,
            gen_s=gen_s,
            reward_s=judged_s,
        )

    def _positions(self, scored: Scored, n: int) -> list[int]:
        """The task of each group; a group that could not be judged is not among them."""
        return [self._position[task_id] for task_id in scored.columns["task_id"].to_pylist()[::n]]


def _usable(scored: Scored, recipe: Recipe) -> NDArray[np.bool_]:
    """Groups that dynamic sampling would keep, all without it: bool (G,)."""
    groups = len(scored.score) // recipe.rollout.n
    filtering = recipe.algorithm.filter_groups
    if not filtering.enable:
        return np.ones(groups, dtype=bool)
    metric = scored.verified if filtering.metric == "outcome" else scored.score
    return groups_with_spread(metric, np.repeat(np.arange(groups), recipe.rollout.n))
