"""Rollout worker processes: the same shards, sampled side by side.

Workers are forked from the job and share one block of memory with it, which holds the policy's
weights; a shard travels as task positions and comes back as arrays. A shard's content does not
depend on who samples it, so the result equals that of sampling in one process bit for bit.
"""

from __future__ import annotations

import mmap
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trainer.embedded.collect import LocalSampler, Shard, ShardSampler
from trainer.embedded.policy import Policy
from trainer.embedded.sampler import NonFinite, Samples
from trainer.types import InputError


@contextmanager
def rollout_sampler(policy: Policy, local: LocalSampler, workers: int) -> Iterator[ShardSampler]:
    """``local`` itself for 0 workers, else a pool that samples from the policy's current weights.

    Raises InputError where the platform cannot fork.
    """
    if workers == 0:
        yield local
        return
    if "fork" not in multiprocessing.get_all_start_methods():
        raise InputError("trainer.rollout_workers: worker processes need a platform with fork: set it to 0")
    pool = _WorkerPool(policy, local, workers)
    try:
        yield pool
    finally:
        pool.close()


class _WorkerPool:
    def __init__(self, policy: Policy, local: LocalSampler, workers: int) -> None:
        self._parameters = list(policy.module.parameters())
        # Anonymous shared memory: no name to leak when the job is killed.
        size = sum(p.numel() * p.element_size() for p in self._parameters)
        self._weights = torch.frombuffer(mmap.mmap(-1, size), dtype=self._parameters[0].dtype)
        self._publish()
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, self._weights, self._parameters, local), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def sample(self, shards: Sequence[Shard]) -> list[Samples]:
        self._publish()
        results: dict[int, Samples] = {}
        waiting = list(enumerate(shards))[::-1]
        busy: dict[Connection, int] = {}
        diverged: NonFinite | None = None
        for pipe in self._pipes[: len(shards)]:
            _hand_out(pipe, waiting, busy)
        while busy:
            for pipe in cast("list[Connection]", wait(list(busy))):
                number = busy.pop(pipe)
                try:
                    answer = pipe.recv()
                except EOFError as error:
                    raise RuntimeError("a rollout worker died; its traceback is above") from error
                if isinstance(answer, NonFinite):
                    diverged = answer
                    waiting.clear()
                else:
                    results[number] = _unpack(answer)
                if waiting:
                    _hand_out(pipe, waiting, busy)
        if diverged is not None:
            raise diverged
        return [results[number] for number in range(len(shards))]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            pipe.close()

    def _publish(self) -> None:
        with torch.no_grad():
            torch.cat([p.detach().reshape(-1) for p in self._parameters], out=self._weights)


def _hand_out(pipe: Connection, waiting: list[tuple[int, Shard]], busy: dict[Connection, int]) -> None:
    number, shard = waiting.pop()
    pipe.send(shard)
    busy[pipe] = number


def _work(pipe: Connection, weights: Tensor, parameters: list[Tensor], local: LocalSampler) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    shared = torch.split(weights, [p.numel() for p in parameters])
    while pipe in wait([pipe, parent.sentinel]):
        shard = pipe.recv()
        with torch.no_grad():
            for parameter, values in zip(parameters, shared, strict=True):
                parameter.copy_(values.view_as(parameter))
        try:
            pipe.send(_pack(local.sample_shard(shard)))
        except NonFinite as error:
            pipe.send(error)


def _pack(samples: Samples) -> dict[str, Any]:
    # Arrays are pickled by value; tensors would each open a shared-memory file.
    values = {field.name: getattr(samples, field.name) for field in fields(Samples)}
    return {name: value.numpy() if isinstance(value, Tensor) else value for name, value in values.items()}


def _unpack(values: dict[str, Any]) -> Samples:
    arrays = {name: torch.from_numpy(value) for name, value in values.items() if isinstance(value, np.ndarray)}
    return Samples(**{**values, **arrays})
