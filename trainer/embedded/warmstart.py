"""The default policy: a small Llama, warm-started by SFT on a domain's demonstrations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainer.types import Domain, Record

Progress = Callable[[int, int, float], None]
"""Called with (step, steps, loss)."""


class SftSettings(Record):
    """Layout and schedule of the warm start."""

    steps: int = 1500


def warm_start(
    domain: Domain,
    seed: int,
    settings: SftSettings | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Build (or find in the cache) the warm-started policy; returns its checkpoint directory."""
    raise NotImplementedError
