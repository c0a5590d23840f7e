"""Evaluation of one policy on one suite, under the run's frozen protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from sandboxes.types import SandboxFailure
from trainer.embedded.collect import Draw, LocalSampler, shards_of
from trainer.embedded.files import EvalSpec, Suite, episodes_file, write_record
from trainer.embedded.policy import Policy, load_policy
from trainer.embedded.rollouts import episode_columns, judge
from trainer.embedded.sampler import NonFinite, Samples
from trainer.storage import replacing
from trainer.types import Domain, EvalProtocol, Evaluation, InputError, StepProgress, Task


def evaluate(
    policy: Policy,
    tasks: Sequence[Task],
    protocol: EvalProtocol,
    suite: Suite,
    version: str,
    seed: int,
    protocol_hash: str,
    domain: Domain,
    *,
    sandbox: str = "none",
    episodes: Path | None = None,
    report: Callable[[StepProgress], None] = lambda progress: None,
) -> Evaluation:
    """``protocol.k`` samples of each task; ``scores[i][j]`` is the outcome of sample j on task i.

    Shards have a constant size and are seeded by (sampling seed, suite, shard) alone: all versions
    and seeds draw with the same random numbers, so that comparisons are paired. A policy whose
    logits are not finite counts as replying nothing to the whole shard: diverging is a result, not
    an accident. ``episodes`` (Parquet) receives the columns that reward terms may read, and
    ``sample``. Raises SandboxFailure where our own machinery could not run programs; ``report`` is called after each shard, with step and score those of the suite so far.
    """
    started = time.perf_counter()
    local = LocalSampler(policy, domain, tasks, max_response_length=protocol.max_response_length)
    rows = np.repeat(np.arange(len(tasks)), protocol.k)
    shards = shards_of(rows.tolist(), Draw(protocol.temperature), "evaluate", protocol.sampling_seed, suite)
    tables: list[pa.Table] = []
    scores: list[float] = []
    for number, shard in enumerate(shards, start=1):
        try:
            samples = local.sample_shard(shard)
        except NonFinite as error:
            print(f"{version} seed {seed} {suite}: shard {number} scores 0: {error}", flush=True)
            samples = _nothing(len(shard.tasks))
        chosen = [tasks[position] for position in shard.tasks]
        verdicts = judge(domain, chosen, samples)
        if failed := sum(not verdict.valid for verdict in verdicts):
            raise SandboxFailure(f"sandbox {sandbox}: {failed} programs could not be run, and no task may be dropped")
        tables.append(episode_columns(domain, chosen, samples, verdicts, protocol.max_response_length, sandbox))
        scores += tables[-1]["outcome"].to_pylist()
        mean = sum(scores) / len(scores)
        report(
            StepProgress(
                version=version, seed=seed, step=number, fraction=number / len(shards), score=mean, outcome=mean
            )
        )
    table = pa.concat_tables(tables).append_column("sample", pa.array(np.arange(len(rows)) % protocol.k))
    if episodes is not None:
        _write_table(episodes, table)
    return Evaluation(
        suite=suite,
        version=version,
        seed=seed,
        protocol_hash=protocol_hash,
        task_ids=tuple(task.id for task in tasks),
        scores=tuple(tuple(row) for row in np.reshape(scores, (len(tasks), protocol.k)).tolist()),
        wall_s=time.perf_counter() - started,
        tokens=int(table["response_length"].to_numpy().sum()),
    )


def evaluate_spec(spec: EvalSpec, domain: Domain, report: Callable[[StepProgress], None]) -> Evaluation:
    """Run one evaluation job and write its files, ``out_file`` last."""
    evaluation = evaluate(
        load_policy(spec.checkpoint),
        read_tasks(spec.tasks_file),
        spec.protocol,
        spec.suite,
        spec.version,
        spec.seed,
        spec.protocol_hash,
        domain,
        sandbox=spec.sandbox,
        episodes=episodes_file(spec),
        report=report,
    )
    write_record(spec.out_file, evaluation)
    return evaluation


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a suite; raises InputError naming the file and line of a damaged one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path}: suite cannot be read ({error}): resume the run to write it again") from error
    tasks = []
    for number, line in enumerate(lines, start=1):
        try:
            tasks.append(Task.model_validate_json(line))
        except ValueError as error:
            raise InputError(f"{path}: line {number} is not a task: delete the file and resume the run") from error
    if not tasks:
        raise InputError(f"{path}: the suite has no tasks: delete the file and resume the run")
    return tasks


def _nothing(rows: int) -> Samples:
    """Episodes without a token."""
    empty = torch.zeros(rows, 1)
    return Samples(
        tokens=empty.long(),
        attention=empty.bool(),
        response_mask=empty.bool(),
        logprobs=empty,
        entropy=empty,
        turns=[[""]] * rows,
        stop_reasons=["nan"] * rows,
        response_lengths=[0] * rows,
        prompt_lengths=[0] * rows,
        hint_lengths=[0] * rows,
    )


def _write_table(path: Path, table: pa.Table) -> None:
    with replacing(path) as partial:
        pq.write_table(table, partial, compression="zstd")
