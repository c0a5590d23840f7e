"""The KL to the base policy as part of the reward (verl: ``use_kl_in_reward``)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.embedded.losses import kl_penalty
from trainer.embedded.policy import Policy
from trainer.embedded.sampler import Samples
from trainer.embedded.update import TrainBatch, reference_logprobs
from trainer.types import AlgorithmRecipe

ERROR_LIMIT = 0.2
"""Bound of the relative error that one step corrects (arXiv 1909.08593, section 2.2)."""


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
        batch = TrainBatch(
            tokens=samples.tokens,
            attention=samples.attention,
            response_mask=samples.response_mask,
            old_logprobs=samples.logprobs,
            advantages=torch.zeros(len(samples.tokens)),
            imitation_mask=torch.zeros_like(samples.response_mask),
            temperature=temperature,
        )
        kl = (
            kl_penalty(samples.logprobs, reference_logprobs(self._reference, batch), self._kind) * samples.response_mask
        )
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
