"""Splits by content hash: a problem's split follows from what it asks, in any process and any order.

Splitting by generator seed would leak: small families repeat, so two seeds draw the same problem.
"""

from __future__ import annotations

from hashlib import sha256
from random import Random
from typing import Literal, NamedTuple

from trainer.types import InputError

Split = Literal["train", "validation", "sealed"]


class Interval(NamedTuple):
    """Half-open range of hash positions, within 0 to 1."""

    low: float
    high: float

    def holds(self, digest: str) -> bool:
        """Whether a content hash lies in the range."""
        return self.low <= position(digest) < self.high


# Gate problems have a range of their own, so a perturbed validation problem is never a train task.
_RANGES: dict[str, tuple[Interval, int]] = {
    "train": (Interval(0.0, 0.6), 1),
    "validation": (Interval(0.6, 0.7), 1),
    "sealed": (Interval(0.7, 0.9), 5),
    "gate": (Interval(0.9, 1.0), 1),
}


def content_hash(*parts: str) -> str:
    """Hex sha256 of the parts, kept apart by a zero byte."""
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def position(digest: str) -> float:
    """Where a content hash lies between 0 and 1 (52 bits: exact in a float)."""
    return int(digest[:13], 16) / 16**13


def seeded(*parts: str) -> Random:
    """A random generator that depends on nothing but ``parts``."""
    return Random(int(content_hash(*parts)[:16], 16))


def interval(split: Split | Literal["gate"], shard: int = 0) -> Interval:
    """The hash positions of one shard of a split: 1 of train and validation, 5 of sealed.

    Raises InputError for a shard that does not exist.
    """
    whole, shards = _RANGES[split]
    if not 0 <= shard < shards:
        raise InputError(f"split {split!r} has no shard {shard}: choose 0 to {shards - 1}")
    width = (whole.high - whole.low) / shards
    # The last shard ends exactly where the split ends: rounding must not leave a gap.
    high = whole.high if shard == shards - 1 else whole.low + (shard + 1) * width
    return Interval(whole.low + shard * width, high)
