"""GRPO's objective as pure functions, under verl's names (``verl.trainer.ppo.core_algos``).

Notation: B sequences of T positions; ``mask`` is 1 where the policy chose the token and 0 on
prompts, observations and padding. All matrices are float tensors of shape [B, T].

Sources: PPO's clipped ratio, arXiv 1707.06347 eq. 7; dual clip, arXiv 1912.09729 eq. 5; clip-higher
and the token mean, DAPO, arXiv 2503.14476 eq. 8 to 12; division by a constant length, Dr. GRPO,
arXiv 2503.20783; the ratio per sequence, GSPO, arXiv 2507.18071 eq. 7 and 14; estimators of KL,
J. Schulman, "Approximating KL Divergence" (2020).
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.types import ActorRecipe, KlKind, LossAggMode

LOG_RATIO_LIMIT = 20.0
"""exp(20) is large but finite in float32; verl clamps log ratios to the same bound."""
GSPO_LOG_RATIO_LIMIT = 10.0
"""verl's bound for the ratio of a sequence."""


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` [B, T] where ``mask`` is 1; 0 for an empty mask."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def agg_loss(
    loss_mat: Tensor,
    loss_mask: Tensor,
    loss_agg_mode: LossAggMode,
    *,
    batch_num_tokens: float | None = None,
    global_batch_size: float | None = None,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """Token losses [B, T] to one number.

    ========================  ============================================================
    token-mean                sum over tokens / number of tokens (DAPO eq. 12)
    token-sum                 sum over tokens
    seq-mean-token-mean       mean over sequences of the token mean (GRPO, arXiv 2402.03300)
    seq-mean-token-sum        mean over sequences of the token sum
    seq-mean-token-sum-norm   the same, divided by a constant length (Dr. GRPO)
    ========================  ============================================================

    The divisors default to those of the given matrix. A caller that passes only part of a batch
    (or leaves out rows whose loss is zero) states the whole batch's ``batch_num_tokens`` and
    ``global_batch_size``, so that the parts add up to the loss of the whole. Sequences without a
    token do not count. ``loss_scale_factor`` defaults to T. Raises ValueError for another mode.
    """
    token_counts = loss_mask.sum(-1)
    token_sums = (loss_mat * loss_mask).sum(-1)
    sequences = global_batch_size if global_batch_size is not None else (token_counts > 0).sum().clamp(min=1)
    match loss_agg_mode:
        case "token-mean":
            return token_sums.sum() / (
                batch_num_tokens if batch_num_tokens is not None else token_counts.sum().clamp(min=1)
            )
        case "token-sum":
            return token_sums.sum()
        case "seq-mean-token-mean":
            return (token_sums / token_counts.clamp(min=1)).sum() / sequences
        case "seq-mean-token-sum":
            return token_sums.sum() / sequences
        case "seq-mean-token-sum-norm":
            return token_sums.sum() / sequences / (loss_scale_factor or loss_mask.shape[-1])
    raise ValueError(f"unknown loss_agg_mode {loss_agg_mode!r}")


def policy_loss_matrix(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Per token [B, T]: clipped loss, clipped (0 or 1), approximate KL, clipped by the dual bound.

    With r = exp(log_prob - old_log_prob) and advantage A the loss is
    ``max(-A r, -A clip(r, 1 - low, 1 + high))``, and for A < 0 at most ``-A c``.
    """
    log_ratio = (log_prob - old_log_prob).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    pessimistic = torch.maximum(plain, clipped)
    bound = -advantages * clip_ratio_c
    negative = advantages < 0
    losses = torch.where(negative, torch.minimum(pessimistic, bound), pessimistic)
    return losses, (clipped > plain).float(), -log_ratio, ((pessimistic > bound) & negative).float()


def gspo_loss_matrix(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As ``policy_loss_matrix``, with one ratio per sequence in place of one per token, and no dual bound (GSPO-token).

    The ratio of a sequence of n tokens is s = exp(mean of log_prob - old_log_prob over its tokens): in value it stands at
    every token, its gradient at a token is s times that of the token's own log-probability.
    """
    log_ratio = log_prob - old_log_prob
    length = response_mask.sum(-1, keepdim=True).clamp(min=1)
    sequence = (log_ratio * response_mask).sum(-1, keepdim=True) / length
    ratio = (log_prob - log_prob.detach() + sequence.detach()).clamp(max=GSPO_LOG_RATIO_LIMIT).exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    return torch.maximum(plain, clipped), (clipped > plain).float(), -log_ratio, torch.zeros_like(plain)


def policy_losses(
    old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, response_mask: Tensor, actor: ActorRecipe
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The matrices of ``policy_loss_matrix`` or ``gspo_loss_matrix``, as the recipe's ``policy_loss.loss_mode`` says."""
    bounds = {"clip_ratio_low": actor.clip_ratio_low, "clip_ratio_high": actor.clip_ratio_high}
    if actor.policy_loss.loss_mode == "gspo":
        return gspo_loss_matrix(old_log_prob, log_prob, advantages, response_mask, **bounds)
    return policy_loss_matrix(old_log_prob, log_prob, advantages, **bounds, clip_ratio_c=actor.clip_ratio_c)


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: KlKind) -> Tensor:
    """Per-token estimate [B, T] of KL(policy || reference) from samples of the policy.

    With d = logprob - ref_logprob: ``kl`` or ``k1`` is d (unbiased), ``abs`` |d|, ``mse`` or ``k2`` d²/2, ``low_var_kl`` or
    ``k3`` exp(-d) + d - 1 (unbiased and never negative), clamped to ±10 as in verl. A ``+`` behind the name keeps the
    estimate's value and takes the gradient of k2, whose expectation is the gradient of the KL (that of k1 is 0, that of k3
    is of another divergence). Raises ValueError for another kind.
    """
    value = _kl_value(logprob, ref_logprob, kl_penalty.removesuffix("+"))
    if not kl_penalty.endswith("+"):
        return value
    square = 0.5 * (logprob - ref_logprob).square()
    return square - square.detach() + value.detach()


def _kl_value(logprob: Tensor, ref_logprob: Tensor, kind: str) -> Tensor:
    match kind:
        case "kl" | "k1":
            return logprob - ref_logprob
        case "abs":
            return (logprob - ref_logprob).abs()
        case "mse" | "k2":
            return 0.5 * (logprob - ref_logprob).square()
        case "low_var_kl" | "k3":
            log_ratio = (ref_logprob - logprob).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
            return (log_ratio.exp() - log_ratio - 1).clamp(-10.0, 10.0)
    raise ValueError(f"unknown kl_penalty {kind!r}")


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Entropy in nats of the softmax over the last axis: [..., V] -> [...]; -inf logits have no share."""
    log_probs = torch.log_softmax(logits, dim=-1)
    probs = log_probs.exp()
    return -(probs * log_probs.masked_fill(probs == 0, 0.0)).sum(-1)


def logprobs_from_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of ``labels`` [...] under the softmax of ``logits`` [..., V]."""
    return torch.log_softmax(logits, dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
