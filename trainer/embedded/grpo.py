"""GRPO (arXiv 2402.03300): sample groups, judge, take advantages within the group, update; repeat."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from sandboxes.types import Executor
from trainer.embedded.collect import LocalSampler, ShardSampler, shards_of
from trainer.embedded.files import CHECKPOINT, ROLLOUTS
from trainer.embedded.gather import StepBatch, gather, task_order, train_tasks
from trainer.embedded.metrics import MetricsLog, rollout_metrics
from trainer.embedded.policy import Policy, save_policy
from trainer.embedded.rollouts import rollout_table
from trainer.embedded.sampler import NonFinite
from trainer.embedded.update import TrainBatch, make_optimizer, set_learning_rate, update_actor
from trainer.embedded.workers import rollout_sampler
from trainer.evidence import write_step
from trainer.python_parts import TrainingTerms
from trainer.types import Cost, Domain, EarlyStop, StepProgress, Task, TrainResult, TrainSpec

MAX_STEPS_WITHOUT_SIGNAL = 8
"""Steps in a row in which no group had spread, after which a training ends as ``no_signal``."""


def train(
    spec: TrainSpec,
    policy: Policy,
    domain: Domain,
    report: Callable[[StepProgress], None],
    executor: Executor | None = None,
) -> TrainResult:
    """Train ``policy`` in place until ``spec.token_budget`` sampled tokens are used.

    Writes ``metrics-<attempt>.jsonl``, ``rollouts/step-*.parquet`` and ``checkpoint/`` into
    ``spec.out_dir``, and ``term_faults.jsonl`` where a Python term did not run. ``executor`` runs those terms.
    ``report`` is called after every step. A training ends early, with status
    ``completed`` and ``early_stop`` set, when

    - ``nan``: a logit, loss or gradient is NaN or infinite; the checkpoint holds the newest weights
      that sampled well,
    - ``no_signal``: no kept group of the last MAX_STEPS_WITHOUT_SIGNAL steps had spread,
    - ``deadline``: ``spec.deadline_s`` have passed.

    Raises InputError for a recipe that does not fit the domain or its reward terms, SandboxFailure where our own
    machinery cannot run them.
    """
    started = time.perf_counter()
    tasks = train_tasks(domain, spec.recipe.data.levels)
    local = LocalSampler(
        policy,
        domain,
        tasks,
        temperature=spec.recipe.rollout.temperature,
        max_response_length=spec.recipe.data.max_response_length,
    )
    with (
        rollout_sampler(policy, local, spec.rollout_workers) as sampler,
        MetricsLog(spec.out_dir) as log,
    ):
        loop = _Loop(spec, policy, domain, tasks, sampler, TrainingTerms(executor, spec.out_dir))
        early_stop = loop.run(log, report, deadline=started + spec.deadline_s)
    save_policy(policy, spec.out_dir / CHECKPOINT)
    return TrainResult(
        status="completed",
        early_stop=early_stop,
        checkpoint=spec.out_dir / CHECKPOINT,
        metrics_file=log.path,
        rollouts_dir=spec.out_dir / ROLLOUTS,
        cost=Cost(
            wall_s=time.perf_counter() - started,
            cpu_s=_cpu_s(),
            steps=loop.step,
            rollouts=loop.rollouts,
            tokens=loop.tokens,
            peak_rss_mb=_peak_rss_mb(),
        ),
    )


class _Loop:
    """A training between two steps: what is learned, and what is counted."""

    def __init__(
        self,
        spec: TrainSpec,
        policy: Policy,
        domain: Domain,
        tasks: list[Task],
        sampler: ShardSampler,
        terms: TrainingTerms,
    ) -> None:
        self.spec = spec
        self.policy = policy
        self.domain = domain
        self.tasks = tasks
        self.sampler = sampler
        self.terms = terms
        self.order = task_order(len(tasks), spec.seed)
        actor = spec.recipe.actor
        self.reference = deepcopy(policy) if actor.use_kl_loss and actor.kl_loss_coef > 0 else None
        self.optimizer = make_optimizer(policy, spec.recipe)
        self.finite = _weights(policy)
        self.step = self.rollouts = self.tokens = self.without_signal = 0

    def run(self, log: MetricsLog, report: Callable[[StepProgress], None], deadline: float) -> EarlyStop | None:
        """Steps until the budget is used or there is a reason to stop, which is returned."""
        try:
            reason = self._steps(log, report, deadline)
            # The last update has not been sampled from yet.
            self.sampler.sample(shards_of([0], "check", self.spec.seed))
        except NonFinite as error:
            print(f"step {self.step}: {error}", flush=True)
            _restore(self.policy, self.finite)
            return "nan"
        return reason

    def _steps(self, log: MetricsLog, report: Callable[[StepProgress], None], deadline: float) -> EarlyStop | None:
        while self.tokens < self.spec.token_budget:
            if time.perf_counter() > deadline:
                return "deadline"
            if self.without_signal >= MAX_STEPS_WITHOUT_SIGNAL:
                return "no_signal"
            report(self.advance(log))
        return None

    def advance(self, log: MetricsLog) -> StepProgress:
        """One step: gather, update, write. Raises NonFinite."""
        start = time.perf_counter()
        self.step += 1
        batch = gather(self.spec, self.domain, self.tasks, self.order, self.sampler, self.step, self.terms)
        self.finite = _weights(self.policy)
        tokens = sum(batch.scored.samples.response_lengths)
        self.rollouts += len(batch.kept)
        self.tokens += tokens
        self.without_signal = 0 if batch.has_signal else self.without_signal + 1
        self._write_rollouts(batch)
        lr = set_learning_rate(self.optimizer, self.spec.recipe, self.step)
        update_start = time.perf_counter()
        actor: dict[str, float] = {}
        if batch.kept.any():
            actor = update_actor(self.policy, self.reference, self.optimizer, _train_batch(batch), self.spec.recipe)
        now = time.perf_counter()
        data = rollout_metrics(
            batch.scored, batch.group_index, batch.advantages, batch.kept, self.spec.recipe.data.max_response_length
        )
        log.write(
            self.step,
            data
            | actor
            | {
                "actor/lr": lr,
                "timing_s/gen": batch.gen_s,
                "timing_s/reward": batch.reward_s,
                "timing_s/update_actor": now - update_start,
                "timing_s/step": now - start,
                "perf/throughput": tokens / (now - start),
                "perf/rollouts_per_s": len(batch.kept) / batch.gen_s,
                "tokens/total": float(self.tokens),
            },
        )
        return StepProgress(
            version=self.spec.version,
            seed=self.spec.seed,
            step=self.step,
            fraction=min(1.0, self.tokens / self.spec.token_budget),
            score=data["critic/score/mean"],
            outcome=data["outcome/mean"],
        )

    def _write_rollouts(self, batch: StepBatch) -> None:
        table = rollout_table(
            batch.scored,
            version=self.spec.version,
            seed=self.spec.seed,
            step=self.step,
            group_index=batch.group_index,
            advantages=batch.advantages,
            kept=batch.kept,
        )
        write_step(self.spec.out_dir / ROLLOUTS, self.step, table)


def _train_batch(batch: StepBatch) -> TrainBatch:
    kept = torch.from_numpy(np.flatnonzero(batch.kept))
    samples = batch.scored.samples
    return TrainBatch(
        tokens=samples.tokens[kept],
        attention=samples.attention[kept],
        response_mask=samples.response_mask[kept],
        old_logprobs=samples.logprobs[kept],
        advantages=torch.from_numpy(batch.advantages).float()[kept].to(samples.tokens.device),
    )


def _weights(policy: Policy) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.module.parameters()]


@torch.no_grad()
def _restore(policy: Policy, weights: list[Tensor]) -> None:
    for parameter, values in zip(policy.module.parameters(), weights, strict=True):
        parameter.copy_(values)


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
