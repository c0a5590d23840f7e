"""From tasks to sampled episodes, in shards of constant size.

What a rollout turns out to be depends on the rows it is batched with and on the shard's seed. Both
are fixed by its place in the step, so that results do not depend on how many processes sample.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainer.embedded.policy import Policy
from trainer.embedded.sampler import Samples, sample
from trainer.types import Domain, Task

SHARD_ROWS = 256
"""Rollouts per shard: the default batch in one piece, because a decoding step of a small policy costs
nearly the same for 64 rows as for 256. Part of what a seed means: another number gives other
(equally good) samples."""

MAX_TURNS = 10
"""Cap on turns of a multi-turn episode."""


@dataclass(frozen=True)
class Draw:
    """How to sample: at ``temperature``, after the first ``hint_ratio`` of the domain's worked reply (0: no hint)."""

    temperature: float
    hint_ratio: float = 0.0


@dataclass(frozen=True)
class Shard:
    """Episodes to sample together: task positions (one per episode), the seed of the draw, and how to draw."""

    tasks: tuple[int, ...]
    seed: int
    draw: Draw


class ShardSampler(Protocol):
    """Samples shards, here or in worker processes; raises NonFinite for a diverged policy."""

    def sample(self, shards: Sequence[Shard]) -> list[Samples]: ...


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from ``parts``, the same on every machine."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def shards_of(tasks: Sequence[int], draw: Draw, *seed_parts: int | str) -> list[Shard]:
    """Cut ``tasks`` (positions, one per episode) into shards, the last one smaller."""
    starts = range(0, len(tasks), SHARD_ROWS)
    return [
        Shard(tuple(tasks[start : start + SHARD_ROWS]), derive_seed(*seed_parts, number), draw)
        for number, start in enumerate(starts)
    ]


class LocalSampler:
    """Samples in the calling process, always from the policy's current weights."""

    def __init__(self, policy: Policy, domain: Domain, tasks: Sequence[Task], *, max_response_length: int) -> None:
        self._policy = policy
        self._domain = domain
        self._tasks = tasks
        self._max_response_length = max_response_length
        self._prompts: dict[int, list[int]] = {}

    def sample(self, shards: Sequence[Shard]) -> list[Samples]:
        return [self.sample_shard(shard) for shard in shards]

    def sample_shard(self, shard: Shard) -> Samples:
        return sample(
            self._policy,
            [self._prompt(position) for position in shard.tasks],
            temperature=shard.draw.temperature,
            max_response_length=self._max_response_length,
            seed=shard.seed,
            observe=lambda row, turns: self._domain.observe(self._tasks[shard.tasks[row]], turns),
            max_turns=MAX_TURNS,
            hints=[self._hint(position, shard.draw.hint_ratio) for position in shard.tasks],
        )

    def _prompt(self, position: int) -> list[int]:
        if position not in self._prompts:
            self._prompts[position] = self._policy.tokenizer.encode_prompt(self._tasks[position].messages)
        return self._prompts[position]

    def _hint(self, position: int, ratio: float) -> list[int]:
        """The first ``ratio`` of a worked reply, in tokens; never all of it."""
        if not ratio:
            return []
        tokens = self._policy.tokenizer.encode(self._domain.hint(self._tasks[position]))
        return tokens[: min(int(ratio * len(tokens)), len(tokens) - 1)]


def concatenate(parts: Sequence[Samples]) -> Samples:
    """The rows of ``parts`` in order, padded on the right to the longest."""
    width = max(part.tokens.shape[1] for part in parts)
    joined: dict[str, Any] = {}
    for name in (field.name for field in fields(Samples)):
        values = [getattr(part, name) for part in parts]
        if isinstance(values[0], Tensor):
            joined[name] = torch.cat([pad(value, (0, width - value.shape[1])) for value in values])
        else:
            joined[name] = [item for value in values for item in value]
    return Samples(**joined)


def select(samples: Samples, rows: list[int]) -> Samples:
    """Some rows, in the given order."""
    chosen: dict[str, Any] = {}
    for name in (field.name for field in fields(Samples)):
        values = getattr(samples, name)
        chosen[name] = values[rows] if isinstance(values, Tensor) else [values[i] for i in rows]
    return Samples(**chosen)


def token_means(values: Tensor, response_mask: Tensor) -> list[float]:
    """Mean of ``values`` [B, T] over each row's response tokens."""
    counts = response_mask.sum(-1).clamp(min=1)
    means: list[float] = ((values * response_mask).sum(-1) / counts).tolist()
    return means


def reply_of(turns: Iterable[str]) -> str:
    """The text the verifier sees: the assistant's turns, one per line."""
    return "\n".join(turns)
