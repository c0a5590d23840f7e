"""One token at a time through a decoder: what ``llama.Decoder`` computes, in as few operations as torch has for it.

At the size of the default policy an operation costs more to call than to compute, so a step is made of fused ones: the
residual is added by the matrix product (``addmm``), a norm is three operations, keys and values go straight to their
place, and weights are looked up once per batch, since a lookup in an ``nn.Module`` costs as much as an addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CACHE_CHUNK = 32
"""The cache grows by this many positions: small buffers stay in the processor's cache."""


class LayerWeights(NamedTuple):
    """Parameters of one layer: norms [d] times √d, ``out`` and ``down`` transposed (views)."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class DecoderWeights(NamedTuple):
    """All that a step reads: ``norm`` [d] times √d, ``cos`` and ``sin`` [positions, 1, head_dim] as in the decoder, and
    ``floor`` = √(d · eps), a tensor without dimensions."""

    embedding: Tensor
    layers: Sequence[LayerWeights]
    norm: Tensor
    head: Tensor
    cos: Tensor
    sin: Tensor
    floor: Tensor


class KvCache:
    """Keys and values, FloatTensor[layers, 2, B, kv_heads, capacity, head_dim], filled up to ``length``.

    ``bias`` [B, 1, capacity] is -inf on left padding, ``positions`` [B] the next token's position.
    """

    def __init__(self, kv: Tensor, bias: Tensor, positions: Tensor, length: int, weights: DecoderWeights) -> None:
        self.kv, self.bias, self.positions, self.length, self.weights = kv, bias, positions, length, weights

    def select(self, rows: Tensor) -> None:
        n = self.length
        kv = self.kv.new_empty(*self.kv.shape[:2], len(rows), *self.kv.shape[3:])
        kv[..., :n, :] = self.kv[:, :, :, :, :n].index_select(2, rows)
        self.kv, self.bias, self.positions = kv, self.bias[rows], self.positions[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token per row, LongTensor[B]; returns the next logits [B, V]."""
        self._grow()
        weights, rows, at, end = self.weights, len(tokens), self.length, self.length + 1
        kv_heads, dim = self.kv.shape[3], self.kv.shape[5]
        cos, sin = weights.cos.index_select(0, self.positions), weights.sin.index_select(0, self.positions)
        bias = self.bias[:, :, :end].repeat_interleave(kv_heads, 0)
        x = F.embedding(tokens, weights.embedding)
        for layer, kv in zip(weights.layers, self.kv.unbind(0), strict=True):
            qkv = F.linear(_rms_norm(x, layer.attention_norm, weights.floor), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(rows, -1, dim)
            qk, v = qkv.tensor_split((-kv_heads,), 1)
            qk = torch.addcmul(qk * cos, qk.roll(dim // 2, -1), sin)
            q, k = qk.tensor_split((-kv_heads,), 1)
            kv[0, :, :, at] = k
            kv[1, :, :, at] = v
            keys, values = kv[..., :end, :].flatten(1, 2).unbind(0)
            # The query heads of one key head form the rows of one small matrix product.
            scores = torch.baddbmm(bias, q.reshape(len(keys), -1, dim), keys.transpose(1, 2), alpha=dim**-0.5)
            x = torch.addmm(x, torch.bmm(scores.softmax(-1), values).view(rows, -1), layer.out)
            gate, up = F.linear(_rms_norm(x, layer.mlp_norm, weights.floor), layer.gate_up).chunk(2, -1)
            x = torch.addmm(x, F.silu(gate) * up, layer.down)
        self.length, self.positions = end, self.positions + 1
        return F.linear(_rms_norm(x, weights.norm, weights.floor), weights.head)

    def _grow(self) -> None:
        """Make room for one more position."""
        if self.length == self.kv.shape[4]:
            self.kv = F.pad(self.kv, (0, 0, 0, CACHE_CHUNK))
            self.bias = F.pad(self.bias, (0, CACHE_CHUNK))


def _rms_norm(x: Tensor, weight: Tensor, floor: Tensor) -> Tensor:
    """RMSNorm over d dimensions (arXiv 1910.07467, eq. 4): x / √(|x|² + d·eps), times ``weight`` · √d."""
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), floor) * weight
