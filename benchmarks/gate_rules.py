"""The usual ways to call a candidate better, for comparison: shares of resamples in their limit of very many."""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import factorial, prod, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def higher(candidate: Array, baseline: Array) -> Mask:
    """Single seed, best checkpoint, higher wins: scores of shape (runs, checkpoints)."""
    return np.asarray(candidate.max(axis=1) > baseline.max(axis=1))


def task_bootstrap(candidate: Array, baseline: Array) -> Array:
    """One-sided p of the paired bootstrap over tasks of one seed each, (runs, tasks): the share of resampled mean
    differences at or below zero, which for many tasks is that of a normal distribution."""
    difference = candidate - baseline
    error = difference.std(axis=1) / sqrt(difference.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(error > 0, ndtr(-difference.mean(axis=1) / error), difference.mean(axis=1) <= 0)
    return np.asarray(p)


def hierarchical_bootstrap(candidate: Array, baseline: Array, difference: Array) -> Array:
    """One-sided p of the bootstrap over seeds, then tasks. ``candidate``, ``baseline``: seed means (runs, seeds);
    ``difference``: by task, averaged over seeds (runs, tasks). All resamples of the seeds are enumerated with their
    weights; the tasks' part is normal."""
    tasks = difference.std(axis=1) / sqrt(difference.shape[1])
    ours, weights = _resampled(candidate)
    theirs, others = _resampled(baseline)
    shift = ours[:, :, None] - theirs[:, None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.where(tasks[:, None, None] > 0, ndtr(-shift / tasks[:, None, None]), shift <= 0)
    return np.asarray(np.einsum("rij,i,j->r", below, weights, others))


def _resampled(means: Array) -> tuple[Array, Array]:
    """Means of all resamples of n seeds (runs, resamples) and their probabilities (multinomial)."""
    n = means.shape[1]
    picks = list(combinations_with_replacement(range(n), n))
    weights = [factorial(n) / prod(factorial(pick.count(i)) for i in range(n)) / n**n for pick in picks]
    return np.stack([means[:, list(pick)].mean(axis=1) for pick in picks], axis=1), np.array(weights)
