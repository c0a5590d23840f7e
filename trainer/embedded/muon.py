"""Muon: momentum whose updates are made orthogonal, for the matrices of a small transformer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), without weight decay.

    Each matrix [m, n] is updated by ``lr`` times the orthogonalised Nesterov momentum of its gradient;
    fused projections (m a multiple of n) are orthogonalised block by block, as if they were separate.
    ``torch.optim.Muon`` computes in bfloat16, which costs ten times this on a CPU without support for it.
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; parameters without a gradient stay."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                if not self.state[matrix]:
                    self.state[matrix]["momentum"] = torch.zeros_like(matrix)
                momentum: Tensor = self.state[matrix]["momentum"]
                momentum.lerp_(matrix.grad, 1 - group["momentum"])
                update = matrix.grad.lerp(momentum, group["momentum"])
                matrix.add_(orthogonalised(update), alpha=-group["lr"])


def orthogonalised(matrix: Tensor) -> Tensor:
    """The nearest matrix with singular values near 1 (0.7 to 1.2), by a quintic Newton-Schulz iteration.

    A tall matrix [k * n, n] is taken as k square blocks, a wide one as their transpose.
    """
    if matrix.shape[1] > matrix.shape[0]:
        return orthogonalised(matrix.T).T
    columns = matrix.shape[1]
    if matrix.shape[0] % columns:
        return _iterated(matrix.T[None])[0].T
    return _iterated(matrix.view(-1, columns, columns)).view_as(matrix)


def _iterated(x: Tensor) -> Tensor:
    a, b, c = NEWTON_SCHULZ
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
