"""One policy update: mini-batches and epochs of the clipped objective over a batch of rollouts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.embedded.losses import (
    agg_loss,
    entropy_from_logits,
    kl_penalty,
    logprobs_from_logits,
    policy_losses,
)
from trainer.embedded.policy import Policy
from trainer.embedded.sampler import NonFinite
from trainer.types import Recipe

MICRO_BATCH_ROWS = 64
"""Rows per forward pass, in the order of the batch: a policy computes the prompt of a group once
where its rows are neighbours. Smaller passes stay in the processor's cache; below this the fixed
cost of a pass wins on a small policy."""


@dataclass(frozen=True)
class TrainBatch:
    """Rollouts to learn from, grouped by prompt: row i belongs to prompt i // n.

    ``tokens`` LongTensor[B,T], ``attention``, ``response_mask`` (tokens of the policy loss) and ``imitation_mask`` (tokens
    of the supervised term) BoolTensor[B,T], ``old_logprobs`` FloatTensor[B,T] at the sampling ``temperature``,
    ``advantages`` FloatTensor[B]; right-padded.
    """

    tokens: Tensor
    attention: Tensor
    response_mask: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    imitation_mask: Tensor
    temperature: float

    @property
    def loss_mask(self) -> Tensor:
        """Tokens whose log-probability is wanted: BoolTensor[B,T]."""
        return self.response_mask | self.imitation_mask

    def rows(self, index: Tensor) -> TrainBatch:
        """The given rows, trimmed to the longest of them."""
        width = int(self.attention[index].sum(-1).max())
        return TrainBatch(
            self.tokens[index, :width],
            self.attention[index, :width],
            self.response_mask[index, :width],
            self.old_logprobs[index, :width],
            self.advantages[index],
            self.imitation_mask[index, :width],
            self.temperature,
        )


def make_optimizer(policy: Policy, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101) with verl's betas."""
    optim = recipe.optim
    parameters = list(policy.module.parameters())
    return torch.optim.AdamW(parameters, lr=optim.lr, betas=(0.9, 0.999), weight_decay=optim.weight_decay, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int) -> float:
    """Linear warm-up over ``lr_warmup_steps``, then constant; ``step`` counts from 1."""
    lr = recipe.optim.lr * min(1.0, step / max(1, recipe.optim.lr_warmup_steps))
    for group in optimizer.param_groups:
        group["lr"] = lr
    return lr


def update_actor(
    policy: Policy, reference: Policy | None, optimizer: torch.optim.Optimizer, batch: TrainBatch, recipe: Recipe
) -> dict[str, float]:
    """Run ``ppo_epochs`` × mini-batches of optimiser steps; returns verl's ``actor/…`` metrics.

    ``reference`` is the policy of the KL loss, or None without one. Rows whose advantage is zero and that are not
    imitated have no gradient unless there is a KL loss or an entropy bonus, and are then left out of the
    passes but counted in the divisors; a mini-batch without any other row makes no optimiser step.
    Raises NonFinite, before the weights change, for a loss or gradient that is NaN or infinite.
    """
    actor = recipe.actor
    everything = reference is not None or actor.entropy_coeff > 0
    ref_logprobs = reference_logprobs(reference, batch) if reference else None
    learned = (batch.advantages != 0) & batch.response_mask.any(-1) | batch.imitation_mask.any(-1)
    rows = len(batch.tokens)
    per_step = actor.ppo_mini_batch_size * recipe.rollout.n or rows
    totals: dict[str, list[float]] = {}
    for _ in range(actor.ppo_epochs):
        for start in range(0, rows, per_step):
            mini = torch.arange(start, min(start + per_step, rows))
            active = mini if everything else mini[learned[mini]]
            if len(active) == 0:
                continue
            for name, value in _optimise(policy, optimizer, batch, ref_logprobs, mini, active, recipe).items():
                totals.setdefault(name, []).append(value)
    return {f"actor/{name}": sum(values) / len(values) for name, values in totals.items()}


def _optimise(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: TrainBatch,
    ref_logprobs: Tensor | None,
    mini: Tensor,
    active: Tensor,
    recipe: Recipe,
) -> dict[str, float]:
    """One optimiser step on the mini-batch ``mini``, of which only the rows ``active`` have a gradient."""
    actor = recipe.actor
    divisors = {
        # At least one: a mini-batch may consist of masked rows alone, imitated ones among them.
        "batch_num_tokens": max(float(batch.response_mask[mini].sum()), 1.0),
        "global_batch_size": max(float(batch.response_mask[mini].any(-1).sum()), 1.0),
        "loss_scale_factor": float(recipe.data.max_response_length),
    }
    imitated_tokens = float(batch.imitation_mask[mini].sum())
    sums = dict.fromkeys(("pg_loss", "kl_loss", "imitation_loss", "pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"), 0.0)
    passed_tokens = 0.0
    optimizer.zero_grad(set_to_none=True)
    for index in torch.split(active, MICRO_BATCH_ROWS):
        part = batch.rows(index)
        mask = part.response_mask.float()
        logits = _logits_of(policy, part)
        log_prob = _spread(logprobs_from_logits(logits, part.tokens[part.loss_mask]), part.loss_mask)
        losses, clipped, approx_kl, clipped_lower = policy_losses(
            part.old_logprobs, log_prob, part.advantages[:, None], mask, actor
        )
        pg_loss = agg_loss(losses, mask, actor.loss_agg_mode, **divisors)
        loss = pg_loss
        if ref_logprobs is not None:
            kl = kl_penalty(log_prob, ref_logprobs[index, : mask.shape[1]], actor.kl_loss_type)
            kl_loss = agg_loss(kl, mask, actor.loss_agg_mode, **divisors)
            loss = loss + actor.kl_loss_coef * kl_loss
            sums["kl_loss"] += kl_loss.item()
        if actor.entropy_coeff > 0:
            entropy = _spread(entropy_from_logits(logits), part.loss_mask)
            loss = loss - actor.entropy_coeff * agg_loss(entropy, mask, actor.loss_agg_mode, **divisors)
        if imitated_tokens:
            imitation_loss = -(log_prob * part.imitation_mask).sum() / imitated_tokens
            loss = loss + actor.imitation.coef * imitation_loss
            sums["imitation_loss"] += imitation_loss.item()
        loss.backward()  # type: ignore[no-untyped-call]
        sums["pg_loss"] += pg_loss.item()
        sums["pg_clipfrac"] += (clipped * mask).sum().item()
        sums["pg_clipfrac_lower"] += (clipped_lower * mask).sum().item()
        sums["ppo_kl"] += (approx_kl.detach() * mask).sum().item()
        passed_tokens += mask.sum().item()
    grad_norm = float(torch.nn.utils.clip_grad_norm_(policy.module.parameters(), actor.grad_clip))
    if not math.isfinite(grad_norm) or not math.isfinite(sum(sums.values())):
        raise NonFinite(f"loss {sums['pg_loss']}, gradient norm {grad_norm}")
    optimizer.step()
    if ref_logprobs is None:
        del sums["kl_loss"]
    if not imitated_tokens:
        del sums["imitation_loss"]
    # Rows that were left out are never clipped; how far the policy moved on them is not known.
    sums["pg_clipfrac"] /= divisors["batch_num_tokens"]
    sums["pg_clipfrac_lower"] /= divisors["batch_num_tokens"]
    sums["ppo_kl"] /= max(passed_tokens, 1.0)
    return sums | {"grad_norm": grad_norm}


def _logits_of(policy: Policy, batch: TrainBatch) -> Tensor:
    """Logits [N, V] that predict the N tokens of the loss mask, row-major, at the sampling temperature."""
    predicts = torch.zeros_like(batch.response_mask)
    predicts[:, :-1] = batch.loss_mask[:, 1:]
    logits = policy.logits(batch.tokens, batch.attention, predicts)
    return logits if batch.temperature == 1.0 else logits / batch.temperature


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """[N] values back to their places in [B, T], 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=mask.device).masked_scatter(mask, values)


@torch.no_grad()
def reference_logprobs(reference: Policy, batch: TrainBatch) -> Tensor:
    """The reference policy's log-probabilities [B, T] of the tokens of the loss mask, 0 elsewhere."""
    result = torch.zeros_like(batch.old_logprobs)
    for index in torch.split(torch.arange(len(batch.tokens)), MICRO_BATCH_ROWS):
        part = batch.rows(index)
        logprobs = logprobs_from_logits(_logits_of(reference, part), part.tokens[part.loss_mask])
        result[index, : part.tokens.shape[1]] = _spread(logprobs, part.loss_mask)
    return result
