from __future__ import annotations

import pytest
import torch

from trainer.embedded.muon import Muon, orthogonalised


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24), (12, 8), (8, 12)])
def test_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    matrix = random(*shape)
    result = orthogonalised(matrix)
    assert result.shape == shape
    side = min(shape)
    block = result.T if shape[1] > shape[0] else result
    block = block[:side] if block.shape[0] % side == 0 else block
    singular = torch.linalg.svdvals(block)
    # The quintic does not converge: it keeps singular values above 0.01 of the norm within 0.7 to 1.2.
    assert singular.max() < 1.25
    assert singular.median() > 0.65


def test_fused_projections_are_taken_block_by_block() -> None:
    blocks = random(3, 8, 8)
    separate = torch.cat([orthogonalised(block) for block in blocks])
    torch.testing.assert_close(orthogonalised(blocks.reshape(24, 8)), separate)
    torch.testing.assert_close(orthogonalised(blocks.reshape(24, 8).T), separate.T)


def test_the_scale_of_the_gradient_does_not_matter() -> None:
    torch.testing.assert_close(orthogonalised(random(8, 8)), orthogonalised(1e-3 * random(8, 8)), rtol=1e-3, atol=1e-3)
    assert torch.equal(orthogonalised(torch.zeros(8, 8)), torch.zeros(8, 8))


def test_steps_agree_with_those_of_torch() -> None:
    """torch's works in bfloat16 (3 significant digits) on the whole matrix, so: square ones, loosely."""
    target = random(16, 16)
    ours, theirs = (torch.nn.Parameter(torch.zeros(16, 16)) for _ in range(2))
    optimizers = (Muon([ours], lr=0.02), torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0, momentum=0.95))
    for _ in range(10):
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = parameter.detach() - target
            optimizer.step()
    difference = (ours - theirs).norm() / theirs.norm()
    assert difference < 0.05


def test_parameters_without_a_gradient_stay() -> None:
    parameter = torch.nn.Parameter(random(4, 4))
    before = parameter.detach().clone()
    Muon([parameter], lr=1.0).step()
    assert torch.equal(parameter, before)
