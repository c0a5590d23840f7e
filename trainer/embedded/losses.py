"""GRPO's objective as pure functions, under verl's names (``verl.trainer.ppo.core_algos``).

Notation: B sequences of T positions; ``mask`` is 1 where the policy chose the token and 0 on
prompts, observations and padding. All matrices are float tensors of shape [B, T].

Sources: PPO's clipped ratio, arXiv 1707.06347 eq. 7; dual clip, arXiv 1912.09729 eq. 5; clip-higher
and the token mean, DAPO, arXiv 2503.14476 eq. 8 to 12; division by a constant length, Dr. GRPO,
arXiv 2503.20783; estimators of KL, J. Schulman, "Approximating KL Divergence" (2020).
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.types import KlKind, LossAggMode

LOG_RATIO_LIMIT = 20.0
"""exp(20) is large but finite in float32; verl clamps log ratios to the same bound."""


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


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float = 3.0,
    loss_agg_mode: LossAggMode = "token-mean",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``(pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower)``, four scalars; only the first has a gradient.

    Raises ValueError unless ``clip_ratio_c`` > 1 (else the dual bound would cut unclipped losses).
    """
    if clip_ratio_c <= 1:
        raise ValueError(f"clip_ratio_c must exceed 1, got {clip_ratio_c}")
    losses, clipped, kl, lower = policy_loss_matrix(
        old_log_prob,
        log_prob,
        advantages,
        clip_ratio_low=clip_ratio_low,
        clip_ratio_high=clip_ratio_high,
        clip_ratio_c=clip_ratio_c,
    )
    pg_loss = agg_loss(losses, response_mask, loss_agg_mode)
    return (
        pg_loss,
        masked_mean(clipped, response_mask),
        masked_mean(kl.detach(), response_mask),
        masked_mean(lower, response_mask),
    )


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kl_penalty: KlKind) -> Tensor:
    """Per-token estimate [B, T] of KL(policy || reference) from samples of the policy.

    With d = logprob - ref_logprob: ``kl`` is d (k1, unbiased), ``abs`` |d|, ``mse`` d²/2 (k2) and
    ``low_var_kl`` exp(-d) + d - 1 (k3, unbiased and never negative), the last clamped to ±10 as in verl.
    Raises ValueError for another kind.
    """
    match kl_penalty:
        case "kl":
            return logprob - ref_logprob
        case "abs":
            return (logprob - ref_logprob).abs()
        case "mse":
            return 0.5 * (logprob - ref_logprob).square()
        case "low_var_kl":
            log_ratio = (ref_logprob - logprob).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
            return (log_ratio.exp() - log_ratio - 1).clamp(-10.0, 10.0)
    raise ValueError(f"unknown kl_penalty {kl_penalty!r}")


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Entropy in nats of the softmax over the last axis: [..., V] -> [...]; -inf logits have no share."""
    log_probs = torch.log_softmax(logits, dim=-1)
    probs = log_probs.exp()
    return -(probs * log_probs.masked_fill(probs == 0, 0.0)).sum(-1)


def logprobs_from_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of ``labels`` [...] under the softmax of ``logits`` [..., V]."""
    chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(logits, dim=-1)
