"""Group statistics of GRPO-style training: which groups carry signal, and the advantage of each rollout.

Numpy only, so that the training loop and the replay of a candidate harness run the very same code.
A group is the set of rollouts of one prompt; ``group_index`` holds one int per rollout, 0..G-1.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

SPREAD_TOLERANCE = 1e-6
_STD_EPSILON = 1e-6  # verl: compute_grpo_outcome_advantage(epsilon=1e-6)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def groups_with_spread(
    values: ArrayLike, group_index: ArrayLike, tolerance: float = SPREAD_TOLERANCE
) -> NDArray[np.bool_]:
    """Which groups have spread in ``values``: shape (N,), (N,) -> bool (G,).

    A group has spread when max − min > tolerance · max(1, max|value|). The scale is the group's own,
    so that one group's verdict never depends on another's; below 1 the tolerance is absolute,
    because rewards that are sums of weighted terms around 0 carry float noise of the terms' scale,
    not of their sum's. Groups without spread give no gradient ("dead groups"; DAPO, arXiv 2503.14476,
    eq. 11 drops them). Raises ValueError for NaN or mismatched shapes.
    """
    x, index, count = _checked(values, group_index)
    high = np.full(count, -np.inf)
    low = np.full(count, np.inf)
    np.maximum.at(high, index, x)
    np.minimum.at(low, index, x)
    scale = np.maximum(1.0, np.maximum(np.abs(high), np.abs(low)))
    filled = np.bincount(index, minlength=count) > 0
    spread: NDArray[np.bool_] = np.zeros(count, dtype=bool)
    spread[filled] = high[filled] - low[filled] > tolerance * scale[filled]
    return spread


def group_advantages(
    scores: ArrayLike,
    group_index: ArrayLike,
    estimator: Literal["grpo", "rloo"] = "grpo",
    norm_by_std: bool = True,
) -> Floats:
    """Outcome advantage of each rollout: shape (N,), (N,) -> float64 (N,).

    ``grpo``: (r − mean_g) / (std_g + 1e-6) with the unbiased std (DeepSeekMath, arXiv 2402.03300,
    section 4.1.2); without ``norm_by_std`` only r − mean_g (Dr. GRPO, arXiv 2503.20783, eq. 3).
    ``rloo``: r − mean of the others in the group (arXiv 2402.14740, eq. 8); ignores ``norm_by_std``.
    A group of one follows verl: mean 0 and std 1 for grpo, r itself for rloo. A larger group
    without spread gets exactly 0, so that float noise never becomes a gradient.
    """
    x, index, count = _checked(scores, group_index)
    size = np.bincount(index, minlength=count)
    mean = np.bincount(index, weights=x, minlength=count) / np.maximum(size, 1)
    mean[size == 1] = 0.0
    centred = x - mean[index]
    centred[~groups_with_spread(x, index)[index] & (size[index] > 1)] = 0.0
    others = np.maximum(size - 1, 1)
    if estimator == "rloo":
        return np.asarray(centred * np.where(size > 1, size / others, 1.0)[index], dtype=np.float64)
    if estimator != "grpo":
        raise ValueError(f"unknown advantage estimator {estimator!r}: use 'grpo' or 'rloo'")
    if not norm_by_std:
        return centred
    std = np.sqrt(np.bincount(index, weights=centred**2, minlength=count) / others)
    std[size == 1] = 1.0
    return np.asarray(centred / (std[index] + _STD_EPSILON), dtype=np.float64)


def top_variance_groups(values: ArrayLike, group_index: ArrayLike, top_p: float) -> NDArray[np.bool_]:
    """Which groups RAGEN-2's variance filter keeps (arXiv 2604.06268): shape (N,), (N,) -> bool (G,).

    The fewest groups, largest variance of ``values`` first, that hold at least ``top_p`` of the summed variance; a tie
    goes to the lower number. The line between kept and dropped thus moves with the batch. Groups without spread are
    never kept. Raises ValueError for NaN or mismatched shapes.
    """
    x, index, count = _checked(values, group_index)
    size = np.maximum(np.bincount(index, minlength=count), 1)
    mean = np.bincount(index, weights=x, minlength=count) / size
    variance = np.bincount(index, weights=(x - mean[index]) ** 2, minlength=count) / size
    variance[~groups_with_spread(x, index)] = 0.0
    order = np.argsort(-variance, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(variance[order])[:-1]])
    kept = np.zeros(count, dtype=bool)
    # The rounding of a sum must not let in one more group when the share is reached exactly.
    kept[order] = (before < top_p * variance.sum() * (1 - 1e-12)) & (variance[order] > 0)
    return kept


def _checked(values: ArrayLike, group_index: ArrayLike) -> tuple[Floats, Ints, int]:
    x = np.asarray(values, dtype=np.float64)
    index = np.asarray(group_index, dtype=np.int64)
    if x.ndim != 1 or x.shape != index.shape:
        raise ValueError(f"values {x.shape} and group_index {index.shape} must be vectors of one length")
    if not np.isfinite(x).all():
        raise ValueError("values hold NaN or infinity")
    return x, index, int(index.max()) + 1 if index.size else 0
