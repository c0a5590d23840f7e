"""One token at a time through a decoder: what ``llama.Decoder`` computes, in as few operations as torch has for it.

At the size of the default policy an operation costs more to call than to compute, so a step is made of fused ones, over
weights that are laid out once per batch: norms and the scale of attention are folded into the next matrix, a rotary pair
stands together and is turned as one complex number, the residual is added by the matrix product, and key and value go to
their place in one write.
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
    """Matrices of one layer: ``qkv`` and ``gate_up`` times the norm before them and √d, ``qkv`` with its query and key
    rows in rotary pairs and the queries times 1/√head_dim; ``out`` and ``down`` transposed (views)."""

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor


class DecoderWeights(NamedTuple):
    """All that a step reads: ``norm`` [d] times √d, ``turn`` complex [positions, 1, head_dim / 2] = exp(i · angle), and
    ``floor`` = √(d · eps), a tensor without dimensions."""

    embedding: Tensor
    layers: Sequence[LayerWeights]
    norm: Tensor
    head: Tensor
    turn: Tensor
    floor: Tensor


class KvCache:
    """Keys (in rotary pairs) and values, FloatTensor[layers, 2, B, kv_heads, capacity, head_dim], filled up to ``length``.

    ``bias`` [B, kv_heads, 1, capacity] is -inf on left padding, or None where no row has any; ``positions`` [B] is the
    next token's position. A step needs inference mode and float32 or float64: torch has no complex bfloat16.
    """

    def __init__(
        self, kv: Tensor, bias: Tensor | None, positions: Tensor, length: int, weights: DecoderWeights
    ) -> None:
        self.kv, self.bias, self.positions, self.length, self.weights = kv, bias, positions, length, weights

    def select(self, rows: Tensor) -> None:
        n = self.length
        kv = self.kv.new_empty(*self.kv.shape[:2], len(rows), *self.kv.shape[3:])
        kv[..., :n, :] = self.kv[:, :, :, :, :n].index_select(2, rows)
        self.kv, self.positions = kv, self.positions[rows]
        if self.bias is not None:
            self.bias = self.bias[rows]

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token per row, LongTensor[B]; returns the next logits [B, V]."""
        self._grow()
        weights, at, end = self.weights, self.length, self.length + 1
        rows, kv_heads, _, dim = self.kv.shape[2:]
        bias = None if self.bias is None else self.bias[..., :end].flatten(0, 1)
        turn = weights.turn[at] if bias is None else weights.turn.index_select(0, self.positions)
        slots = self.kv[..., at, :].unbind(0)
        filled = self.kv[..., :end, :].view(-1, rows * kv_heads, end, dim).unbind(0)
        x = weights.embedding.index_select(0, tokens)
        for layer, slot, keys, values in zip(weights.layers, slots, filled[::2], filled[1::2], strict=True):
            qkv = F.linear(_unit(x, weights.floor), layer.qkv, layer.qkv_bias).view(rows, -1, dim)
            heads = qkv.shape[1] - 2 * kv_heads
            pairs = torch.view_as_complex(qkv.view(rows, -1, dim // 2, 2))
            pairs.narrow(1, 0, heads + kv_heads).mul_(turn)
            q, kv = qkv.split_with_sizes((heads, 2 * kv_heads), 1)
            slot.copy_(kv.view(rows, 2, kv_heads, dim).transpose(0, 1))
            # The query heads of one key head form the rows of one small matrix product.
            q, transposed = q.reshape(rows * kv_heads, -1, dim), keys.transpose(1, 2)
            scores = torch.bmm(q, transposed) if bias is None else torch.baddbmm(bias, q, transposed)
            x = torch.addmm(x, torch.bmm(scores.softmax(-1), values).view(rows, -1), layer.out)
            gate, up = F.linear(_unit(x, weights.floor), layer.gate_up).chunk(2, -1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        self.length = end
        if bias is not None:
            self.positions = self.positions + 1
        return F.linear(_unit(x, weights.floor).mul_(weights.norm), weights.head)

    def _grow(self) -> None:
        """Make room for one more position."""
        if self.length == self.kv.shape[4]:
            self.kv = F.pad(self.kv, (0, 0, 0, CACHE_CHUNK))
            if self.bias is not None:
                self.bias = F.pad(self.bias, (0, CACHE_CHUNK))


def paired(heads: Tensor) -> Tensor:
    """[..., heads, head_dim, n] with the i-th entries of the two halves of head_dim side by side: at 2i and 2i + 1."""
    *front, dim, n = heads.shape
    return heads.reshape(*front, 2, dim // 2, n).transpose(-3, -2).reshape(*front, dim, n)


def _unit(x: Tensor, floor: Tensor) -> Tensor:
    """RMSNorm over d dimensions (arXiv 1910.07467, eq. 4) less its constants: x / √(|x|² + d·eps)."""
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), floor)
