"""GRPO (arXiv 2402.03300): sample groups, judge, take advantages within the group, update; repeat."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from sandboxes.types import Executor
from trainer.domains import misfit
from trainer.embedded.collect import Draw, LocalSampler, ShardSampler, shards_of
from trainer.embedded.curriculum import TaskChooser
from trainer.embedded.files import CHECKPOINT, ROLLOUTS
from trainer.embedded.gather import Gatherer, StepBatch, train_tasks
from trainer.embedded.kl import KlPenalty, is_measured, kl_to_base
from trainer.embedded.metrics import MetricsLog, rollout_metrics
from trainer.embedded.policy import Policy, save_policy
from trainer.embedded.resume import LoopState, drop_state, load_state, save_state
from trainer.embedded.rollouts import rollout_table
from trainer.embedded.sampler import NonFinite
from trainer.embedded.update import TrainBatch, make_optimizer, set_learning_rate, update_actor
from trainer.embedded.workers import rollout_sampler
from trainer.evidence import write_step
from trainer.python_parts import TrainingTerms
from trainer.types import Cost, Domain, EarlyStop, Imitation, InputError, StepProgress, Task, TrainResult, TrainSpec

MAX_STEPS_WITHOUT_SIGNAL = 8
"""Steps in a row in which no group had spread, after which a training ends as ``no_signal``."""
COLLAPSE_STEPS = 8
"""Steps over which the share of solved rollouts is averaged before it is compared with its own best."""
COLLAPSE_FROM, COLLAPSE_TO = 0.1, 0.25
"""A best mean of at least COLLAPSE_FROM that falls below COLLAPSE_TO of itself ends a training as ``collapse``."""


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
    - ``collapse``: the verified outcome fell to a quarter of its own best and stayed there (COLLAPSE_…),
    - ``deadline``: ``spec.deadline_s`` have passed.

    Goes on from ``spec.out_dir/state`` where an earlier attempt left one, with the losses it would have had; ``policy``
    is the base policy all the same.
    Raises InputError for a recipe that does not fit the domain or its reward terms, SandboxFailure where our own
    machinery cannot run them.
    """
    if found := misfit(spec.recipe, domain, "train"):
        raise InputError(f"recipe.toml: {': '.join(found)}")
    tasks = train_tasks(domain, spec.recipe.data.levels)
    local = LocalSampler(policy, domain, tasks, max_response_length=spec.recipe.data.max_response_length)
    with rollout_sampler(policy, local, spec.rollout_workers) as sampler:
        loop = _Loop(spec, policy, domain, tasks, sampler, executor)
        with MetricsLog(spec.out_dir, loop.step) as log:
            early_stop = loop.run(log, report)
    save_policy(policy, spec.out_dir / CHECKPOINT)
    drop_state(spec.out_dir)
    return TrainResult(
        status="completed",
        early_stop=early_stop,
        checkpoint=spec.out_dir / CHECKPOINT,
        metrics_file=log.path,
        rollouts_dir=spec.out_dir / ROLLOUTS,
        cost=Cost(
            wall_s=loop.wall_s(),
            cpu_s=loop.cpu_s(),
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
        executor: Executor | None,
    ) -> None:
        self.spec = spec
        self.policy = policy
        self.sampler = sampler
        actor, algorithm = spec.recipe.actor, spec.recipe.algorithm
        kl_loss = actor.use_kl_loss and actor.kl_loss_coef > 0
        self.base = deepcopy(policy)
        self.reference = self.base if kl_loss else None
        self.penalty = KlPenalty(self.base, algorithm) if algorithm.use_kl_in_reward else None
        self.optimizer = make_optimizer(policy, spec.recipe)
        self.chooser = TaskChooser(tasks, spec.seed, spec.recipe.data.curriculum)
        self.step = self.rollouts = self.tokens = self.without_signal = 0
        self.solved: list[float] = []
        self._started, self._wall_before, self._cpu_before = time.perf_counter(), 0.0, 0.0
        self.finite = _weights(policy)
        state = load_state(spec.out_dir, policy, self.finite, self.optimizer)
        if state:
            self._go_on_from(state)
        self._saved = time.perf_counter()
        self.terms = TrainingTerms(executor, spec.out_dir, state.faults if state else None, self.step)
        self.gatherer = Gatherer(spec, domain, tasks, sampler, self.chooser, self.terms, self.penalty)

    def wall_s(self) -> float:
        """Seconds of this and earlier attempts."""
        return self._wall_before + time.perf_counter() - self._started

    def cpu_s(self) -> float:
        return self._cpu_before + _cpu_s()

    def run(self, log: MetricsLog, report: Callable[[StepProgress], None]) -> EarlyStop | None:
        """Steps until the budget is used or there is a reason to stop, which is returned."""
        try:
            reason = self._steps(log, report)
            # The last update has not been sampled from yet.
            temperature = self.spec.recipe.rollout.temperature_at(1.0)
            self.sampler.sample(shards_of([0], Draw(temperature), "check", self.spec.seed))
        except NonFinite as error:
            print(f"step {self.step}: {error}", flush=True)
            _restore(self.policy, self.finite)
            return "nan"
        return reason

    def _steps(self, log: MetricsLog, report: Callable[[StepProgress], None]) -> EarlyStop | None:
        while self.tokens < self.spec.token_budget:
            if self.wall_s() > self.spec.deadline_s:
                return "deadline"
            if self.without_signal >= MAX_STEPS_WITHOUT_SIGNAL:
                return "no_signal"
            if has_collapsed(self.solved):
                return "collapse"
            report(self.advance(log))
            if time.perf_counter() - self._saved >= self.spec.save_interval_s:
                self._save()
        return None

    def advance(self, log: MetricsLog) -> StepProgress:
        """One step: gather, update and meanwhile write, log. Raises NonFinite."""
        start = time.perf_counter()
        self.step += 1
        batch = self.gatherer.gather(self.step, min(1.0, self.tokens / self.spec.token_budget))
        self.finite = _weights(self.policy)
        tokens = sum(batch.scored.samples.response_lengths)
        self.rollouts += len(batch.kept)
        self.tokens += tokens
        self.without_signal = 0 if batch.has_signal else self.without_signal + 1
        self.solved.append(float(batch.scored.verified[~batch.hinted].mean()))
        measured = is_measured(self.step)
        kl = {"actor/kl_to_base": kl_to_base(self.base, batch.scored.samples, batch.temperature)} if measured else {}
        lr = set_learning_rate(self.optimizer, self.spec.recipe, self.step)
        update_start = time.perf_counter()
        actor: dict[str, float] = {}
        with _meanwhile(lambda: self._write_rollouts(batch)):
            if batch.kept.any():
                actor = update_actor(
                    self.policy,
                    self.reference,
                    self.optimizer,
                    train_batch(batch, self.spec.recipe.actor.mask_truncated, self.spec.recipe.actor.imitation),
                    self.spec.recipe,
                )
        if self.penalty:
            actor |= self.penalty.metrics()
            self.penalty.adapt(len(batch.kept))
        now = time.perf_counter()
        data = rollout_metrics(batch, self.spec.recipe.data.max_response_length) | self.chooser.metrics()
        log.write(
            self.step,
            data
            | kl
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

    def _save(self) -> None:
        state = LoopState(
            step=self.step,
            rollouts=self.rollouts,
            tokens=self.tokens,
            without_signal=self.without_signal,
            kl_coef=self.penalty.coef if self.penalty else 0.0,
            solved=tuple(self.solved),
            faults=self.terms.in_a_row,
            curriculum=self.chooser.state(),
            wall_s=self.wall_s(),
            cpu_s=self.cpu_s(),
        )
        save_state(self.spec.out_dir, state, self.policy, self.finite, self.optimizer)
        self._saved = time.perf_counter()

    def _go_on_from(self, state: LoopState) -> None:
        self.step, self.rollouts, self.tokens = state.step, state.rollouts, state.tokens
        self.without_signal, self.solved = state.without_signal, list(state.solved)
        self._wall_before, self._cpu_before = state.wall_s, state.cpu_s
        self.chooser.restore(state.curriculum)
        if self.penalty:
            self.penalty.coef = state.kl_coef
        print(f"goes on after step {state.step}", flush=True)

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


@contextmanager
def _meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """``work`` in a thread beside the block, which does not end before it; an error of ``work`` is raised before one of the block."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        try:
            yield
        finally:
            done.result()


def has_collapsed(solved: list[float]) -> bool:
    """Whether the mean of the last COLLAPSE_STEPS entries is below COLLAPSE_TO of the best such mean, which was at least
    COLLAPSE_FROM."""
    if len(solved) < 2 * COLLAPSE_STEPS:
        return False
    means = np.convolve(solved, np.full(COLLAPSE_STEPS, 1 / COLLAPSE_STEPS), mode="valid")
    best = float(means.max())
    return best >= COLLAPSE_FROM and float(means[-1]) < COLLAPSE_TO * best


def train_batch(batch: StepBatch, mask_truncated: bool, imitation: Imitation) -> TrainBatch:
    """The kept rollouts as tensors, with the tokens that each loss term is over."""
    kept = torch.from_numpy(np.flatnonzero(batch.kept))
    samples = batch.scored.samples
    response, attention = samples.response_mask[kept], samples.attention[kept]
    imitated = torch.zeros_like(response)
    if imitation.coef:
        right = torch.from_numpy(batch.scored.verified == 1.0)[kept][:, None]
        imitated = response & right
        if imitation.on == "hinted":
            hinted = torch.from_numpy(batch.hinted)[kept][:, None]
            imitated = (response | _hint_mask(batch)[kept]) & right & hinted
    if mask_truncated:
        cut = torch.tensor([reason == "length" for reason in samples.stop_reasons])[kept][:, None]
        response = response & ~cut
    return TrainBatch(
        tokens=samples.tokens[kept],
        attention=attention,
        response_mask=response,
        old_logprobs=samples.logprobs[kept],
        advantages=torch.from_numpy(batch.advantages).float()[kept].to(samples.tokens.device),
        imitation_mask=imitated,
        temperature=batch.temperature,
    )


def _hint_mask(batch: StepBatch) -> Tensor:
    """BoolTensor[N, T]: tokens that were given."""
    samples = batch.scored.samples
    place = torch.arange(samples.tokens.shape[1])
    start, length = torch.tensor(samples.prompt_lengths)[:, None], torch.tensor(samples.hint_lengths)[:, None]
    return (place >= start) & (place < start + length)


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
