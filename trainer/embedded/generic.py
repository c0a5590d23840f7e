"""Any other causal LM, through transformers: the same interface as ``llama.py``, without its speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.embedded.checkpoint import require_finite, weight_files
from trainer.embedded.tokenizer import ChatTokenizer
from trainer.types import InputError


class GenericCache:
    """transformers' cache, the attention mask [B, T] so far, and the next position [B]."""

    def __init__(self, past: Any, mask: Tensor) -> None:
        self.past, self.mask, self.positions = past, mask, mask.sum(-1)

    def select(self, rows: Tensor) -> None:
        self.past.batch_select_indices(rows)
        self.mask, self.positions = self.mask[rows], self.positions[rows]


class GenericPolicy:
    """Policy over ``transformers.AutoModelForCausalLM``."""

    def __init__(self, module: Any, tokenizer: ChatTokenizer) -> None:
        self.module: torch.nn.Module = module
        self.tokenizer = tokenizer
        self.max_positions = int(getattr(module.config, "max_position_embeddings", 1 << 20))

    def logits(self, tokens: Tensor, mask: Tensor, select: Tensor | None = None) -> Tensor:
        output: Tensor = self._forward(tokens, mask, (mask.long().cumsum(-1) - 1).clamp_min(0)).logits
        return output if select is None else output[select]

    def prefill(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, GenericCache]:
        positions = (mask.long().cumsum(-1) - 1).clamp_min(0)
        output = self._forward(tokens, mask, positions, use_cache=True)
        return output.logits[:, -1], GenericCache(output.past_key_values, mask)

    def step(self, tokens: Tensor, cache: GenericCache) -> Tensor:
        cache.mask = torch.cat([cache.mask, cache.mask.new_ones(len(tokens), 1)], -1)
        output = self._forward(
            tokens[:, None], cache.mask, cache.positions[:, None], use_cache=True, past_key_values=cache.past
        )
        cache.past, cache.positions = output.past_key_values, cache.positions + 1
        last: Tensor = output.logits[:, -1]
        return last

    def save(self, directory: Path) -> None:
        model: Any = self.module
        model.save_pretrained(directory)

    def _forward(self, tokens: Tensor, mask: Tensor, positions: Tensor, use_cache: bool = False, **options: Any) -> Any:
        # Some architectures (GPT-2) would otherwise count padding as positions.
        return self.module(
            input_ids=tokens, attention_mask=mask.long(), position_ids=positions, use_cache=use_cache, **options
        )


def load_generic(directory: Path, tokenizer: ChatTokenizer, dtype: torch.dtype) -> GenericPolicy:
    """Load through transformers: local files, safetensors, no remote code. Raises InputError."""
    from transformers import AutoModelForCausalLM

    weight_files(directory)  # refuses pickles and gaps with a line of our own
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, trust_remote_code=False, use_safetensors=True,
            local_files_only=True, output_loading_info=True,
        )  # fmt: skip
    except Exception as error:  # transformers raises many kinds; all mean that the directory is not usable
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{directory}: transformers cannot load it ({text}); give a causal LM checkpoint") from error
    module, report = loaded
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report.get(fault):
            raise InputError(f"{directory}: {fault.replace('_', ' ')} {sorted(map(str, report[fault]))[0]}; "
                             "config.json does not fit the weights")  # fmt: skip
    for name, parameter in module.named_parameters():
        require_finite(directory, name, parameter.detach())
    module.eval()  # dropout would make the update's policy another one than the sampler's
    return GenericPolicy(module, tokenizer)
