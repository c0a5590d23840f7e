"""Sampling episodes from a policy: one KV-cached batched loop for single- and multi-turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from trainer.embedded.policy import Policy

Observe = Callable[[int, list[str]], str | None]


class NonFinite(Exception):
    """The policy returned a logit that is NaN or infinite."""


@dataclass(frozen=True)
class Samples:
    """A batch of episodes, right-padded (B rows in the order of the prompts, T tokens)."""

    tokens: Tensor
    """LongTensor[B,T]: prompt and all turns."""
    attention: Tensor
    """BoolTensor[B,T]: True on tokens, False on padding."""
    response_mask: Tensor
    """BoolTensor[B,T]: True where the policy sampled the token, its end tokens included."""
    logprobs: Tensor
    """FloatTensor[B,T]: log-probability of the sampled token under the sampling distribution (at the
    temperature), at the token's own position; 0 elsewhere."""
    entropy: Tensor
    """FloatTensor[B,T]: entropy (nats) of the distribution the token was sampled from; 0 elsewhere."""
    turns: list[list[str]]
    """Text of each assistant turn."""
    stop_reasons: list[str]
    """``stop`` (the episode ended by itself), ``length`` (no token left) or ``turns`` (no turn left)."""
    response_lengths: list[int]
    """Sampled tokens (observations not counted)."""
    prompt_lengths: list[int]


def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_response_length: int,
    seed: int,
    observe: Observe | None = None,
    max_turns: int = 1,
    greedy: bool = False,
) -> Samples:
    """Sample one episode per prompt."""
    raise NotImplementedError
