"""The update against one plain pass over the whole padded batch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import get_args

import pytest
import torch

from tests.trainer.embedded.toy import CopyDomain, copy_policy, copy_recipe
from trainer.embedded.losses import agg_loss, entropy_from_logits, kl_penalty, logprobs_from_logits, policy_losses
from trainer.embedded.policy import Policy
from trainer.embedded.sampler import NonFinite, sample
from trainer.embedded.update import TrainBatch, make_optimizer, set_learning_rate, update_actor
from trainer.types import LossAggMode, Recipe

TEMPERATURE = 0.7


def sampled_batch(policy: Policy, rows: int = 80) -> TrainBatch:
    """Rollouts of the policy with made-up advantages, a third of them zero; more than one micro-batch."""
    prompts = [policy.tokenizer.encode_prompt(task.messages) for task in CopyDomain().tasks("train", 20)]
    prompts = [prompt + prompt[:1] * (i % 3) for i, prompt in enumerate(prompts) for _ in range(rows // 20)]
    drawn = sample(policy, prompts, temperature=TEMPERATURE, max_response_length=8, seed=3)
    advantages = torch.arange(rows, dtype=torch.float32) % 3 - 1
    return TrainBatch(
        drawn.tokens,
        drawn.attention,
        drawn.response_mask,
        drawn.logprobs,
        advantages,
        imitation_mask=torch.zeros_like(drawn.response_mask),
        temperature=TEMPERATURE,
    )


def plain_gradient(policy: Policy, reference: Policy | None, batch: TrainBatch, recipe: Recipe) -> list[torch.Tensor]:
    """Gradients of the objective written down directly, without trimming, selection or micro-batches."""
    actor = recipe.actor
    logits = policy.logits(batch.tokens, batch.attention)[:, :-1] / TEMPERATURE
    labels, mask = batch.tokens[:, 1:], batch.response_mask[:, 1:].float()
    log_prob = logprobs_from_logits(logits, labels)
    matrix, *_ = policy_losses(
        batch.old_logprobs[:, 1:], log_prob, batch.advantages[:, None].expand_as(mask), mask, actor
    )
    losses = agg_loss(matrix, mask, actor.loss_agg_mode)
    if actor.loss_agg_mode == "seq-mean-token-sum-norm":  # the divisor is the longest allowed response
        losses = losses * mask.shape[1] / recipe.data.max_response_length
    if reference is not None:
        ref = logprobs_from_logits(
            reference.logits(batch.tokens, batch.attention)[:, :-1].detach() / TEMPERATURE, labels
        )
        losses = losses + actor.kl_loss_coef * agg_loss(kl_penalty(log_prob, ref, "low_var_kl"), mask, "token-mean")
    if actor.entropy_coeff:
        losses = losses - actor.entropy_coeff * agg_loss(entropy_from_logits(logits), mask, "token-mean")
    if batch.imitation_mask.any():
        imitated = batch.imitation_mask[:, 1:].float()
        losses = losses - actor.imitation.coef * (log_prob * imitated).sum() / imitated.sum()
    return list(torch.autograd.grad(losses, list(policy.module.parameters())))


def recipe_of(**actor: object) -> Recipe:
    return copy_recipe(
        rollout={"n": 4, "temperature": TEMPERATURE},
        data={"max_response_length": 8},
        actor={"grad_clip": 1e9, "use_kl_loss": False} | actor,
    )


@pytest.mark.parametrize("mode", get_args(LossAggMode))
def test_gradient_equals_the_plain_one_in_every_mode(mode: LossAggMode) -> None:
    check_gradient(recipe_of(loss_agg_mode=mode), with_reference=False)


def test_gradient_with_kl_loss_and_entropy_bonus() -> None:
    check_gradient(recipe_of(use_kl_loss=True, kl_loss_coef=0.5, entropy_coeff=0.1), with_reference=True)


@pytest.mark.parametrize("mode", get_args(LossAggMode))
def test_gradient_with_gspo_in_every_mode(mode: LossAggMode) -> None:
    check_gradient(recipe_of(policy_loss={"loss_mode": "gspo"}, loss_agg_mode=mode), with_reference=False)


def test_gradient_with_imitation_of_rows_that_have_no_advantage_too() -> None:
    policy = copy_policy(0)
    batch = sampled_batch(policy)
    # A third of the rows, whatever their advantage, prompts included as a hint would be.
    chosen = (torch.arange(len(batch.tokens)) % 3 == 1)[:, None] & batch.attention
    chosen[:, 0] = False  # nothing predicts the first token
    check_gradient(
        recipe_of(imitation={"coef": 0.3}), with_reference=False, batch=replace(batch, imitation_mask=chosen)
    )


def test_masked_rows_have_no_gradient_and_count_in_no_divisor() -> None:
    policy = copy_policy(0)
    batch = sampled_batch(policy)
    mask = batch.response_mask.clone()
    mask[::4] = False
    check_gradient(recipe_of(), with_reference=False, batch=replace(batch, response_mask=mask))


def check_gradient(recipe: Recipe, *, with_reference: bool, batch: TrainBatch | None = None) -> None:
    policy, reference = copy_policy(0), copy_policy(1) if with_reference else None
    batch = batch or sampled_batch(policy)
    expected = plain_gradient(policy, reference, batch, recipe)
    optimizer = torch.optim.SGD(policy.module.parameters(), lr=0.0)  # keeps the gradient, moves nothing
    update_actor(policy, reference, optimizer, batch, recipe)
    scale = max(float(gradient.abs().max()) for gradient in expected)
    for parameter, gradient in zip(policy.module.parameters(), expected, strict=True):
        assert parameter.grad is not None
        # Sums of up to 80 · 8 float32 terms in another order: 640 · 2^-24 of the largest, with room for the depth.
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=4e-5 * scale)


def test_sampler_and_update_agree_on_logprobs() -> None:
    """The first pass over a fresh batch has ratio 1: no drift, nothing clipped."""
    policy = copy_policy()
    metrics = update_actor(
        policy, None, torch.optim.SGD(policy.module.parameters(), lr=0.0), sampled_batch(policy), recipe_of()
    )
    assert abs(metrics["actor/ppo_kl"]) < 1e-5  # float32 log-probabilities of the same distribution
    assert metrics["actor/pg_clipfrac"] == 0
    assert "actor/kl_loss" not in metrics


def test_mini_batches_and_epochs_each_make_a_step() -> None:
    policy = copy_policy()
    batch = sampled_batch(policy)
    optimizer = make_optimizer(policy, recipe_of())
    update_actor(policy, None, optimizer, batch, recipe_of(ppo_epochs=2, ppo_mini_batch_size=5))
    steps = {int(state["step"]) for state in optimizer.state.values()}
    assert steps == {2 * 4}  # 80 rows are 20 prompts


def test_a_batch_without_advantage_changes_nothing() -> None:
    policy = copy_policy()
    batch = sampled_batch(policy)
    dead = replace(batch, advantages=0 * batch.advantages)
    before = deepcopy(policy.module.state_dict())
    assert update_actor(policy, None, make_optimizer(policy, recipe_of()), dead, recipe_of()) == {}
    assert all(torch.equal(before[name], value) for name, value in policy.module.state_dict().items())


def test_an_infinite_advantage_is_refused_before_the_weights_change() -> None:
    policy = copy_policy()
    batch = sampled_batch(policy)
    batch.advantages[0] = float("inf")
    before = deepcopy(policy.module.state_dict())
    with pytest.raises(NonFinite):
        update_actor(policy, None, make_optimizer(policy, recipe_of()), batch, recipe_of())
    assert all(torch.equal(before[name], value) for name, value in policy.module.state_dict().items())


def test_learning_rate_warms_up_linearly() -> None:
    recipe = copy_recipe(optim={"lr": 0.01, "lr_warmup_steps": 4})
    optimizer = make_optimizer(copy_policy(), recipe)
    rates = [set_learning_rate(optimizer, recipe, step) for step in range(1, 7)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_the_gradient_is_clipped_to_its_norm() -> None:
    policy = copy_policy()
    recipe = recipe_of(grad_clip=1e-3)
    metrics = update_actor(
        policy, None, torch.optim.SGD(policy.module.parameters(), lr=0.0), sampled_batch(policy), recipe
    )
    squares = sum(float(p.grad.square().sum()) for p in policy.module.parameters() if p.grad is not None)
    assert metrics["actor/grad_norm"] > 1e-3
    assert squares**0.5 == pytest.approx(1e-3, rel=1e-2)


def test_rows_that_share_a_prefix_are_computed_as_if_alone() -> None:
    """Logits and gradients of a batch equal those of its rows one by one, shared prompts or not."""
    policy = copy_policy()
    batch = sampled_batch(policy, rows=40)
    weights = torch.randn(*batch.tokens.shape, policy.tokenizer.vocab_size, generator=torch.Generator().manual_seed(0))
    together = policy.logits(batch.tokens, batch.attention)
    parameters = list(policy.module.parameters())
    gradients = torch.autograd.grad((together * weights)[batch.attention].sum(), parameters)
    alone = [policy.logits(batch.tokens[i : i + 1], batch.attention[i : i + 1]) for i in range(40)]
    torch.testing.assert_close(together[batch.attention], torch.cat(alone)[batch.attention], rtol=1e-4, atol=1e-5)
    expected = torch.autograd.grad((torch.cat(alone) * weights)[batch.attention].sum(), parameters)
    for got, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=4e-5 * float(wanted.abs().max()))
    chosen = policy.logits(batch.tokens, batch.attention, batch.response_mask)
    torch.testing.assert_close(chosen, together[batch.response_mask], rtol=1e-5, atol=1e-6)
