"""What every way of ``benchmarks.trainer`` is given, in words that need neither our packages nor theirs."""

from __future__ import annotations

import math
from typing import NamedTuple


class Shape(NamedTuple):
    """A batch: sequences, and response tokens of each."""

    sequences: int
    tokens: int


SHAPES = (Shape(16, 32), Shape(256, 32))
GROUP = 8
LEARNING_RATE = 5e-4
CLIP, GRAD_CLIP = 0.2, 1.0

POLICY, PROMPTS = "policy", "prompts.json"
"""Names in the folder that all ways read."""

REWARD_SQL = "sqrt(length(response))"
"""Its values differ within every group and hardly ever meet the mean, so that no rollout is without gradient: ours would
leave it out of the update, and be the faster for it."""


def reward(reply: str) -> float:
    """REWARD_SQL, for those who call Python."""
    return math.sqrt(len(reply))
