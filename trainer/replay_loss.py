"""What a change of the loss makes of stored rollouts, as far as it follows from them and their advantages.

The first update on a batch is on-policy: every ratio is 1 and a token's share of the gradient is its advantage times the
loss's weight for it. Later updates on the same batch need ratios, which no rollout holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from trainer.replay_rows import Flags, Floats, Ints, Rescored, Stored, share
from trainer.types import ActorRecipe, Harness, Recipe


def masked(stored: Stored, scored: Rescored, harness: Harness) -> dict[str, float]:
    """``actor.mask_truncated``: shares of the kept rollouts and of their tokens that the policy loss leaves out, and of
    their tokens that carry a gradient."""
    tokens, kept = _tokens(stored), scored.kept[stored.group]
    out = _left_out(stored, harness.recipe.actor)
    total = max(float(tokens[kept].sum()), 1.0)
    return {
        "masked_rollouts": share(out[kept]),
        "masked_tokens": float(tokens[kept & out].sum()) / total,
        "gradient_tokens": float(tokens[kept & ~out & (scored.advantage != 0)].sum()) / total,
    }


def weighed(stored: Stored, scored: Rescored, harness: Harness) -> dict[str, float]:
    """``actor.loss_agg_mode``: mean over steps of the loss of tokens that each cost their absolute advantage (the scale of
    the first update), and the part of it that falls on the replies longer than their step's mean.

    Aggregated by the loss's own function, with the divisors of one update per batch.
    """
    import torch

    from trainer.embedded.losses import agg_loss

    recipe = harness.recipe
    tokens = _tokens(stored).astype(np.int64)
    trained = scored.kept[stored.group] & ~_left_out(stored, recipe.actor) & (tokens > 0)
    scales, longer = [], []
    for rows in _steps(stored, trained):
        lengths = torch.from_numpy(tokens[rows])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).double()
        cost = torch.from_numpy(np.abs(scored.advantage[rows]))[:, None] * mask
        is_long = torch.from_numpy(tokens[rows] > tokens[rows].mean())[:, None]
        whole, part = (
            float(
                agg_loss(
                    losses,
                    mask,
                    recipe.actor.loss_agg_mode,
                    batch_num_tokens=float(mask.sum()),
                    global_batch_size=float(len(rows)),
                    loss_scale_factor=float(recipe.data.max_response_length),
                )
            )
            for losses in (cost, cost * is_long)
        )
        scales.append(whole)
        longer.append(part)
    total = sum(scales)
    return {
        "loss/abs_mean": total / len(scales) if scales else 0.0,
        "loss/long_share": sum(longer) / total if total else 0.0,
    }


def imitated(stored: Stored, scored: Rescored, harness: Harness) -> dict[str, float]:
    """``actor.imitation``: share of the kept rollouts that the supervised term imitates, and its weight."""
    imitation = harness.recipe.actor.imitation
    kept = scored.kept[stored.group]
    right = scored.verified == 1.0
    if imitation.on == "hinted":
        right &= stored.hinted[stored.group]
    return {
        "imitated_rollouts": share((right & bool(imitation.coef))[kept]),
        "imitation/coef": imitation.coef,
    }


def clipped(recipe: Recipe) -> dict[str, float] | None:
    """``actor.clip_ratio_*`` and ``actor.policy_loss``: nothing is clipped, and no ratio differs from 1, where a batch is
    used once; None where it is used more often, since the ratios of later updates are not stored."""
    actor, batch = recipe.actor, recipe.data.train_batch_size
    updates = actor.ppo_epochs * math.ceil(batch / (actor.ppo_mini_batch_size or batch))
    return {"clipped_tokens": 0.0} if updates == 1 else None


def _tokens(stored: Stored) -> Floats:
    return stored.column("response_length").astype(np.float64)


def _left_out(stored: Stored, actor: ActorRecipe) -> Flags:
    return np.asarray(stored.column("truncated") & actor.mask_truncated, dtype=np.bool_)


def _steps(stored: Stored, trained: Flags) -> Iterator[Ints]:
    """The trained rows of each step that has some."""
    for rows in np.split(np.arange(len(trained)), stored.breaks):
        if (chosen := rows[trained[rows]]).size:
            yield chosen
