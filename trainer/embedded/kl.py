"""The KL to the base policy: measured, and as part of the reward (verl: ``use_kl_in_reward``)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.embedded.losses import kl_penalty
from trainer.embedded.policy import Policy
from trainer.embedded.sampler import Samples
from trainer.embedded.update import TrainBatch, reference_logprobs
from trainer.types import AlgorithmRecipe, KlKind

ERROR_LIMIT = 0.2
"""Bound of the relative error that one step corrects (arXiv 1909.08593, section 2.2)."""
ROW_STRIDE = 32
"""One rollout in so many is measured: 8 of a default step's 256."""
ALWAYS_UNTIL, EVERY = 40, 4
"""Steps up to the first are all measured, then one in EVERY. A pass has a fixed cost, about 3 % of a default step;
from forty steps on each tenth of a training has four, so that every one of them has a measurement (trainer.diagnose.trends)."""


class KlPenalty:
    """What the distance from ``reference`` costs each rollout; ``coef`` is all that changes between steps."""

    def __init__(self, reference: Policy, algorithm: AlgorithmRecipe) -> None:
        self._reference = reference
        self._kind = algorithm.kl_penalty
        self._ctrl = algorithm.kl_ctrl
        self.coef = algorithm.kl_ctrl.kl_coef
        self._mean = 0.0

    def __call__(self, samples: Samples, temperature: float) -> NDArray[np.float64]:
        """Coefficient times the summed estimate of KL over each rollout's sampled tokens: (N,)."""
        kl = _estimates(self._reference, samples, temperature, self._kind)
        # verl's current_kl: the mean over rollouts of each one's mean over tokens.
        self._mean = float((kl.sum(-1) / samples.response_mask.sum(-1).clamp(min=1)).mean())
        return self.coef * np.asarray(kl.sum(-1).double().cpu().numpy())

    def metrics(self) -> dict[str, float]:
        """verl's names."""
        return {"actor/reward_kl_penalty": self._mean, "actor/reward_kl_penalty_coeff": self.coef}

    def adapt(self, rollouts: int) -> None:
        """Move the coefficient towards the target, after a step of so many rollouts."""
        if self._ctrl.type == "adaptive":
            error = float(np.clip(self._mean / self._ctrl.target_kl - 1, -ERROR_LIMIT, ERROR_LIMIT))
            self.coef *= 1 + error * rollouts / self._ctrl.horizon


def is_measured(step: int) -> bool:
    """Whether the distance is taken at ``step``, from 1 on."""
    return step <= ALWAYS_UNTIL or step % EVERY == 0


def kl_to_base(base: Policy, samples: Samples, temperature: float) -> float:
    """KL(π‖π₀) in nats per sampled token, π the policy that sampled and π₀ ``base``, both at ``temperature``.

    The mean over tokens of the k3 estimator, π₀/π - 1 - log π₀/π (http://joschu.net/blog/kl-approx.html), over every
    ROW_STRIDE-th rollout: one pass without gradient, no random numbers.
    """
    kl = _estimates(base, samples, temperature, "k3", torch.arange(0, len(samples.tokens), ROW_STRIDE))
    return float(kl.sum() / samples.response_mask[::ROW_STRIDE].sum().clamp(min=1))


def _estimates(
    reference: Policy, samples: Samples, temperature: float, kind: KlKind, rows: Tensor | None = None
) -> Tensor:
    """The estimates [N, T] at the sampled tokens of ``rows`` (default: all), 0 elsewhere."""
    batch = TrainBatch(
        tokens=samples.tokens,
        attention=samples.attention,
        response_mask=samples.response_mask,
        old_logprobs=samples.logprobs,
        advantages=torch.zeros(len(samples.tokens)),
        imitation_mask=torch.zeros_like(samples.response_mask),
        temperature=temperature,
    )
    if rows is not None:
        batch = batch.rows(rows)
    return kl_penalty(batch.old_logprobs, reference_logprobs(reference, batch), kind) * batch.response_mask
