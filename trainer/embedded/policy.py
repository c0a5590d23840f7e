"""What the trainer asks of a policy, and reading and writing policies as Hugging Face checkpoints.

Llama and Qwen2 checkpoints run on a compact implementation of our own (``llama.py``); any other
causal LM goes through transformers (``generic.py``), slower, behind the same interface.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from trainer.embedded.tokenizer import ChatTokenizer


class Cache(Protocol):
    """Keys and values of a batch of sequences during decoding."""

    def select(self, rows: Tensor) -> None:
        """Keep (and repeat, reorder) the given rows: LongTensor[B']."""
        ...


class Policy(Protocol):
    """A causal language model with its chat tokenizer."""

    tokenizer: ChatTokenizer
    module: torch.nn.Module
    """Holds the parameters, for the optimiser and ``state_dict``."""
    max_positions: int
    """Longest sequence (prompt and response together)."""

    def logits(self, tokens: Tensor, mask: Tensor, select: Tensor | None = None) -> Tensor:
        """Training forward, differentiable.

        ``tokens`` LongTensor[B,T] and ``mask`` BoolTensor[B,T], padded on the right or on the left;
        position ids follow from the mask. Returns FloatTensor[B,T,V]; the entry at t predicts
        token t+1, entries at padding are finite and meaningless. With ``select`` BoolTensor[B,T]
        only the N selected positions are projected to the vocabulary, row-major: [N,V].
        """
        ...

    def prefill(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Cache]:
        """Start decoding: left-padded prompts LongTensor[B,T] to the next token's logits [B,V]."""
        ...

    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Append one token per row, LongTensor[B]; returns the next token's logits [B,V]."""
        ...

    def save(self, directory: Path) -> None:
        """Write config, weights and generation config into an existing directory."""
        ...


def load_policy(directory: Path, dtype: torch.dtype = torch.float32) -> Policy:
    """The policy of a checkpoint directory. Raises InputError for whatever is wrong with it."""
    raise NotImplementedError


def save_policy(policy: Policy, directory: Path) -> None:
    """Write a checkpoint directory that transformers, vLLM and ``load_policy`` read."""
    raise NotImplementedError
