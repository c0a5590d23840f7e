"""What a recipe adds to the sum of reward terms: a penalty for length, and a share for being different.

Numpy only, so that the training loop and the replay of a candidate harness run the very same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from trainer.types import OverlongBuffer, RewardRecipe

OVERLONG, DIVERSITY = "overlong_buffer", "diversity"
SHAPING_TERMS = (OVERLONG, DIVERSITY, "kl")
"""Names under which they stand among a rollout's terms; no reward file may take one."""
GRAM = 3
"""Characters of a piece of text whose sets are compared."""

Floats = NDArray[np.float64]


def shape_scores(
    rows: pa.Table, score: Floats, group_index: ArrayLike, reward: RewardRecipe
) -> tuple[dict[str, Floats], Floats]:
    """What each option adds to each of N rollouts, {name: (N,)}, and the score with all of it, (N,).

    ``rows`` holds ``response``, ``response_length`` and ``max_response_length``; ``score`` (N,) is the sum of the
    weighted terms, ``group_index`` (N,) numbers groups from 0.
    """
    added: dict[str, Floats] = {}
    if reward.overlong_buffer.enable:
        lengths, longest = (rows[name].to_numpy() for name in ("response_length", "max_response_length"))
        added[OVERLONG] = overlong_penalty(lengths, longest, reward.overlong_buffer)
        score = score + added[OVERLONG]
    if reward.diversity:
        adjusted = diversity_adjusted(score, rows["response"].to_pylist(), group_index)
        added[DIVERSITY] = adjusted - score
        score = adjusted
    return added, score


def overlong_penalty(lengths: ArrayLike, longest: ArrayLike, buffer: OverlongBuffer) -> Floats:
    """(N,) in [-penalty_factor, 0], DAPO's eq. 13 in verl's form: 0 up to ``longest - len`` tokens, then a straight line
    to -penalty_factor at ``longest``."""
    excess = np.asarray(lengths, dtype=np.float64) - (np.asarray(longest) - buffer.len)
    penalty: Floats = np.clip(-excess / buffer.len * buffer.penalty_factor, -buffer.penalty_factor, 0.0)
    return penalty


def diversity_adjusted(score: Floats, replies: Sequence[str], group_index: ArrayLike) -> Floats:
    """(N,): each rollout's score divided by 1 + its summed similarity to the others of its group (arXiv 2505.09655, eq. 6,
    with graph-cut mutual information).

    Where the paper compares sentence embeddings, the similarity here is that of the replies' sets of three
    characters (Jaccard, 0 to 1): no second model is needed. Negative scores are left alone, since a division would
    reward a failure for being common.
    """
    index = np.asarray(group_index)
    pieces = [_grams(reply) for reply in replies]
    weights = np.ones(len(score))
    for group in np.unique(index):
        members = np.flatnonzero(index == group)
        for i in members:
            if score[i] > 0:
                weights[i] = 1 / (1 + sum(_jaccard(pieces[i], pieces[j]) for j in members if j != i))
    return score * weights


def _grams(text: str) -> frozenset[str]:
    return frozenset(text[i : i + GRAM] for i in range(max(1, len(text) - GRAM + 1)))


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b)


def term_columns(added: Mapping[str, Floats]) -> dict[str, pa.Array]:
    """The columns ``term_<name>`` of a rollout table."""
    return {f"term_{name}": pa.array(values, pa.float64()) for name, values in added.items()}
