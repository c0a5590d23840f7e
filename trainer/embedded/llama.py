"""A compact Llama / Qwen2 decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Computes what transformers' ``LlamaForCausalLM`` and ``Qwen2ForCausalLM`` compute (tested), with the
query, key and value projections in one matrix, gate and up projections in another, and a cache that
is written in place: at the size of the default policy a step is bound by the number of operations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.embedded.decode import CACHE_CHUNK, DecoderWeights, KvCache, LayerWeights, paired
from trainer.embedded.tokenizer import ChatTokenizer


@dataclass(frozen=True)
class Layout:
    """The shape of a decoder, in the words of Hugging Face's config."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    qkv_bias: bool
    initializer_range: float = 0.02


def layout_of(config: dict[str, Any]) -> Layout | None:
    """The layout of a Hugging Face config, or None where this implementation does not cover it.

    Raises KeyError for a missing field and ValueError for one of the wrong kind.
    """
    kind = config.get("model_type")
    # transformers 5 writes rope_parameters; before, rope_theta stood alone beside rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    covered = (
        kind in ("llama", "qwen2")
        and config.get("hidden_act", "silu") == "silu"
        and rope.get("rope_type", rope.get("type", "default")) == "default"
        and not config.get("attention_bias", False)
        and not config.get("mlp_bias", False)
        and not config.get("use_sliding_window", False)
        and not config.get("quantization_config")
    )
    if not covered:
        return None
    heads = int(config["num_attention_heads"])
    return Layout(
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_hidden_layers=int(config["num_hidden_layers"]),
        num_attention_heads=heads,
        num_key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
        qkv_bias=kind == "qwen2",
        initializer_range=float(config.get("initializer_range", 0.02)),
    )


class Layer(nn.Module):
    def __init__(self, layout: Layout) -> None:
        super().__init__()
        d, q, kv = layout.hidden_size, layout.num_attention_heads, layout.num_key_value_heads
        self.attention_norm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Linear(d, (q + 2 * kv) * layout.head_dim, bias=layout.qkv_bias)
        self.out = nn.Linear(q * layout.head_dim, d, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Linear(d, 2 * layout.intermediate_size, bias=False)
        self.down = nn.Linear(layout.intermediate_size, d, bias=False)


class Decoder(nn.Module):
    """The network. Call with tokens and positions, [B, T] or [B]; returns the final hidden states [..., d]."""

    cos: Tensor
    sin: Tensor
    turn: Tensor

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.embedding = nn.Embedding(layout.vocab_size, layout.hidden_size)
        self.layers = nn.ModuleList(Layer(layout) for _ in range(layout.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(layout.hidden_size))
        if not layout.tie_word_embeddings:
            self.head = nn.Linear(layout.hidden_size, layout.vocab_size, bias=False)
        # Rotary tables [positions, 1, head_dim] (arXiv 2104.09864, eq. 34, in the half-split order
        # of transformers); the sign of rotate_half is folded into the sine. ``turn`` [positions, 1,
        # head_dim / 2, 2] holds the same as real and imaginary parts, for decoding.
        half = layout.head_dim // 2
        frequency = 1.0 / layout.rope_theta ** (torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(layout.max_position_embeddings, dtype=torch.float32), frequency)
        self.register_buffer("cos", torch.cat([angle.cos(), angle.cos()], -1)[:, None], persistent=False)
        self.register_buffer("sin", torch.cat([-angle.sin(), angle.sin()], -1)[:, None], persistent=False)
        self.register_buffer("turn", torch.stack([angle.cos(), angle.sin()], -1)[:, None], persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Callable[[int, Tensor, Tensor], Tensor]) -> Tensor:
        """``attend(layer, qk, v)`` with [..., heads, head_dim], the query heads before the key heads, returns
        [..., q_heads * head_dim]."""
        heads, kv_heads, eps = (
            self.layout.num_attention_heads,
            self.layout.num_key_value_heads,
            self.layout.rms_norm_eps,
        )
        cos, sin = self.cos[positions], self.sin[positions]
        x = self.embedding(tokens)
        for index, layer in enumerate(self._layers()):
            qkv = layer.qkv(rms_norm(x, layer.attention_norm, eps)).unflatten(-1, (-1, self.layout.head_dim))
            # Backward joins the parts of a split in one piece, where slices would each be filled up and added.
            qk, v = torch.split(qkv, [heads + kv_heads, kv_heads], -2)
            qk = torch.addcmul(qk * cos, qk.roll(self.layout.head_dim // 2, -1), sin)
            x = x + layer.out(attend(index, qk, v))
            gate, up = layer.gate_up(rms_norm(x, layer.mlp_norm, eps)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        return rms_norm(x, self.norm, eps)

    def project(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., d] to logits [..., V]."""
        return F.linear(hidden, self._head())

    @torch.no_grad()
    def weights(self) -> DecoderWeights:
        """What decoding reads, from the parameters as they are now."""
        root = self.layout.hidden_size**0.5
        return DecoderWeights(
            embedding=self.embedding.weight,
            layers=[
                LayerWeights(
                    qkv=self._turnable(layer.qkv.weight) * (layer.attention_norm * root),
                    qkv_bias=self._turnable(layer.qkv.bias) if self.layout.qkv_bias else None,
                    out=layer.out.weight.t(),
                    gate_up=layer.gate_up.weight * (layer.mlp_norm * root),
                    down=layer.down.weight.t(),
                )
                for layer in self._layers()
            ],
            norm=self.norm * root,
            head=self._head(),
            turn=torch.view_as_complex(self.turn),
            floor=self.norm.new_tensor(self.layout.rms_norm_eps**0.5 * root),
        )

    def _turnable(self, rows: Tensor) -> Tensor:
        """The output rows [(q + 2 kv) · head_dim, …] of ``qkv`` as LayerWeights has them: a copy."""
        q, kv, dim = self.layout.num_attention_heads, self.layout.num_key_value_heads, self.layout.head_dim
        query, key, value = torch.split(rows.view(-1, dim, rows[0].numel()), [q, kv, kv])
        return torch.cat([paired(query) * dim**-0.5, paired(key), value]).view_as(rows)

    def _head(self) -> Tensor:
        return self.embedding.weight if self.layout.tie_word_embeddings else self.head.weight

    def _layers(self) -> Iterator[Layer]:
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension (arXiv 1910.07467, eq. 4)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class LlamaPolicy:
    """Policy over ``Decoder``; ``config`` is the checkpoint's config.json."""

    def __init__(self, module: Decoder, tokenizer: ChatTokenizer, config: dict[str, Any]) -> None:
        self.module: Decoder = module
        self.tokenizer = tokenizer
        self.config = config
        self.max_positions = module.layout.max_position_embeddings

    def logits(self, tokens: Tensor, mask: Tensor, select: Tensor | None = None) -> Tensor:
        # Everything but attention runs on the distinct tokens alone: padding costs nothing, and
        # neither do prefixes that neighbouring rows share, such as the prompt of a group.
        rows, length = tokens.shape
        left_padded = not bool(mask[:, 0].all())
        compute, owner = _distinct(tokens, mask, shared=not left_padded)
        positions = (mask.long().cumsum(-1) - 1).flatten()[compute]
        # Right padding comes after everything that matters, so plain causal attention is exact there.
        full = self._full_attention(_causal(mask) if left_padded else None)

        def padded(x: Tensor) -> Tensor:
            return x.index_select(0, owner).view(rows, length, *x.shape[1:])

        def attend(_: int, qk: Tensor, v: Tensor) -> Tensor:
            return full(padded(qk), padded(v)).flatten(0, 1).index_select(0, compute)

        hidden = self.module(tokens.flatten()[compute], positions, attend)
        if select is None:
            return self.module.project(padded(hidden))
        return self.module.project(hidden.index_select(0, owner[select.flatten()]))

    def prefill(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, KvCache]:
        rows, length = tokens.shape
        layout = self.module.layout
        capacity = length + CACHE_CHUNK
        kv = self.module.cos.new_zeros(
            layout.num_hidden_layers, 2, rows, layout.num_key_value_heads, capacity, layout.head_dim
        )
        bias = None
        if not bool(mask.all()):
            bias = kv.new_zeros(rows, layout.num_key_value_heads, 1, capacity)
            bias[..., :length].masked_fill_(~mask[:, None, None], -math.inf)
        full = self._full_attention(None if bias is None else _causal(mask))

        def attend(layer: int, qk: Tensor, v: Tensor) -> Tensor:
            k = qk[:, :, layout.num_attention_heads :]
            kv[layer, 0, :, :, :length] = paired(k[..., None])[..., 0].transpose(1, 2)
            kv[layer, 1, :, :, :length] = v.transpose(1, 2)
            return full(qk, v)

        hidden = self.module(tokens, (mask.long().cumsum(-1) - 1).clamp_min(0), attend)
        return self.module.project(hidden[:, -1]), KvCache(kv, bias, mask.sum(-1), length, self.module.weights())

    def _full_attention(self, allowed: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
        """Attention over whole sequences, of what is ``allowed`` (as from ``_causal``) or of all earlier tokens."""
        heads, kv_heads = self.module.layout.num_attention_heads, self.module.layout.num_key_value_heads

        def attend(qk: Tensor, v: Tensor) -> Tensor:
            q, k = torch.split(qk, [heads, kv_heads], -2)
            mixed = F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                attn_mask=allowed, is_causal=allowed is None, enable_gqa=heads != kv_heads,
            )  # fmt: skip
            return mixed.transpose(1, 2).flatten(2)

        return attend

    def step(self, tokens: Tensor, cache: KvCache) -> Tensor:
        return cache.step(tokens)

    def save(self, directory: Path) -> None:
        weights = {name: view.detach().cpu().contiguous() for name, view in hugging_face_views(self.module).items()}
        dtype = str(self.module.embedding.weight.dtype).removeprefix("torch.")
        config = {k: v for k, v in self.config.items() if k != "torch_dtype"} | {"dtype": dtype}
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")


def hugging_face_views(module: Decoder) -> dict[str, Tensor]:
    """The parameters under transformers' names, as views: copy into them to load, out of them to save."""
    layout = module.layout
    q, kv = layout.num_attention_heads * layout.head_dim, layout.num_key_value_heads * layout.head_dim
    views: dict[str, Tensor] = {"model.embed_tokens.weight": module.embedding.weight, "model.norm.weight": module.norm}
    if not layout.tie_word_embeddings:
        views["lm_head.weight"] = module.head.weight
    for index, layer in enumerate(module.layers):
        assert isinstance(layer, Layer)
        parts = {"input_layernorm.weight": layer.attention_norm, "post_attention_layernorm.weight": layer.mlp_norm,
                 "self_attn.o_proj.weight": layer.out.weight, "mlp.down_proj.weight": layer.down.weight}  # fmt: skip
        parts |= zip(("mlp.gate_proj.weight", "mlp.up_proj.weight"), layer.gate_up.weight.chunk(2), strict=True)
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        parts |= zip((f"{name}.weight" for name in names), layer.qkv.weight.tensor_split((q, q + kv)), strict=True)
        if layout.qkv_bias:
            parts |= zip((f"{name}.bias" for name in names), layer.qkv.bias.tensor_split((q, q + kv)), strict=True)
        views |= {f"model.layers.{index}.{name}": view for name, view in parts.items()}
    return views


def _causal(mask: Tensor) -> Tensor:
    """Who may look at whom, BoolTensor[B,1,T,T]: earlier tokens that are no padding. Everyone may look
    at itself, so that padding stays finite."""
    length = mask.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=mask.device)
    return ((earlier & mask[:, None, :]) | itself)[:, None]


def _distinct(tokens: Tensor, mask: Tensor, shared: bool) -> tuple[Tensor, Tensor]:
    """Which of the B·T positions to compute, and for every position the index of its copy among those.

    With ``shared`` a position counts as a copy of the row above where both rows agree up to there.
    Padding takes the first position's copy: finite, and meaningless.
    """
    same = torch.zeros_like(mask)
    if shared:
        same[1:] = ((tokens[1:] == tokens[:-1]) & mask[1:] & mask[:-1]).cumprod(-1).bool()
    row = torch.arange(len(tokens), device=tokens.device)[:, None].expand_as(tokens)
    first = row.masked_fill(same, 0).cummax(0).values * tokens.shape[1] + torch.arange(
        tokens.shape[1], device=row.device
    )
    compute = (mask & ~same).flatten().nonzero()[:, 0]
    index = torch.zeros(tokens.numel(), dtype=torch.long, device=tokens.device)
    index[compute] = torch.arange(len(compute), device=tokens.device)
    return compute, index[first.flatten()]
