"""The distance from the base policy: the estimate is the one that is documented, and taking it changes nothing."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.embedded.test_sampler import POLICY, PROMPTS, distributions, draws
from trainer.diagnose import TREND_PARTS
from trainer.embedded.kl import ROW_STRIDE, is_measured, kl_to_base
from trainer.embedded.llama import LlamaPolicy


def moved(by: float) -> LlamaPolicy:
    base = deepcopy(POLICY)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in base.module.parameters():
            parameter.mul_(1 + by * torch.randn(parameter.shape, generator=generator))
    return base


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_estimate_is_the_mean_of_k3_over_the_measured_rollouts(temperature: float) -> None:
    samples = draws(prompts=PROMPTS * 12, temperature=temperature)
    base = moved(0.1)
    log_ratio = (distributions(samples, temperature, base)[0] - samples.logprobs).double()
    mask = samples.response_mask.clone()
    mask[[row for row in range(len(mask)) if row % ROW_STRIDE]] = False
    expected = (log_ratio.exp() - 1 - log_ratio)[mask].mean().item()
    # Log-probabilities of the two ways to compute them agree to 1e-4 (test_sampler), of order 1e-4 in the mean.
    assert kl_to_base(base, samples, temperature) == pytest.approx(expected, abs=1e-4, rel=1e-3)
    assert expected > 0.01


def test_a_policy_is_at_no_distance_from_itself_and_farther_from_a_base_that_moved_more() -> None:
    samples = draws(prompts=PROMPTS * 12)
    at, near, far = (kl_to_base(moved(by), samples, 1.0) for by in (0.0, 0.05, 0.2))
    assert at == pytest.approx(0, abs=1e-6)
    assert at < near < far


def test_measuring_draws_no_random_numbers_and_changes_no_weight() -> None:
    samples, base = draws(), moved(0.1)
    before = torch.get_rng_state(), [p.clone() for p in base.module.parameters()]
    kl_to_base(base, samples, 1.0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(torch.equal(a, b) for a, b in zip(base.module.parameters(), before[1], strict=True))
    assert all(p.grad is None for p in base.module.parameters())


@given(st.integers(1, 2000))
def test_every_part_of_a_training_of_any_length_has_a_measurement(steps: int) -> None:
    parts = min(TREND_PARTS, steps)
    measured = {step * parts // steps for step in range(steps) if is_measured(step + 1)}
    assert measured == set(range(parts))
