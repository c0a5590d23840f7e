"""What the trainer asks of a policy, and reading and writing policies as Hugging Face checkpoints.

Llama and Qwen2 checkpoints run on a compact implementation of our own (``llama.py``); any other
causal LM goes through transformers (``generic.py``), slower, behind the same interface.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.embedded.checkpoint import load_weights, read_config
from trainer.embedded.generic import load_generic
from trainer.embedded.llama import Decoder, LlamaPolicy, hugging_face_views, layout_of
from trainer.embedded.tokenizer import ChatTokenizer, load_tokenizer, save_tokenizer
from trainer.types import InputError


class Cache(Protocol):
    """Keys and values of a batch of sequences during decoding."""

    def select(self, rows: Tensor) -> None:
        """Keep (and repeat, reorder) the given rows: LongTensor[B']."""
        ...


class Policy(Protocol):
    """A causal language model with its chat tokenizer."""

    tokenizer: ChatTokenizer
    max_positions: int
    """Longest sequence (prompt and response together)."""

    @property
    def module(self) -> torch.nn.Module:
        """Holds the parameters, for the optimiser and ``state_dict``."""
        ...

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

    def step(self, tokens: Tensor, cache: Any) -> Tensor:
        """Append one token per row, LongTensor[B], to a cache of ``prefill``; returns the next logits [B,V]."""
        ...

    def save(self, directory: Path) -> None:
        """Write config, weights and generation config into an existing directory."""
        ...


def load_policy(directory: Path, dtype: torch.dtype = torch.float32) -> Policy:
    """The policy of a checkpoint directory, in evaluation mode on the CPU.

    Raises InputError, naming the file and the remedy, for a missing or damaged config, tokenizer or
    weight file, tensors that do not fit the config or are not finite, pickled weights, remote code.
    """
    config = read_config(directory)
    tokenizer = load_tokenizer(directory)
    try:
        layout = layout_of(config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{directory / 'config.json'}: field {error} is missing or of the wrong kind; "
                         "save the checkpoint again") from error  # fmt: skip
    policy: Policy
    if layout is None:
        policy = load_generic(directory, tokenizer, dtype)
        rows = policy.module.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    else:
        module = Decoder(layout).eval()
        ignored = frozenset({"lm_head.weight"}) if layout.tie_word_embeddings else frozenset()
        load_weights(directory, hugging_face_views(module), ignored)
        policy, rows = LlamaPolicy(module.to(dtype), tokenizer, config), layout.vocab_size
    if tokenizer.vocab_size > rows:
        raise InputError(f"{directory / 'tokenizer.json'}: {tokenizer.vocab_size} tokens but the model has {rows}; "
                         "use the tokenizer of these weights")  # fmt: skip
    return policy


def save_policy(policy: Policy, directory: Path) -> None:
    """Write a checkpoint directory that transformers, vLLM and ``load_policy`` read."""
    directory.mkdir(parents=True, exist_ok=True)
    policy.save(directory)
    save_tokenizer(policy.tokenizer, directory)
    generation = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
                  "eos_token_id": policy.tokenizer.eos_id, "pad_token_id": policy.tokenizer.pad_id}  # fmt: skip
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2, sort_keys=True) + "\n", "utf-8")
