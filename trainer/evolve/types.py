"""What a retrospective check has to say."""

from __future__ import annotations

from trainer.types import Record


class Reading(Record):
    """The metric on one seed of a version."""

    version: str
    seed: int
    bad: bool
    value: float


class Retrospect(Record):
    """What the check measured. ``reasons`` are empty if the diagnostic may be registered."""

    rule: str = ""
    searched: float = 0.0
    """Separation on the half that was searched."""
    held_out: float = 0.0
    low: float = 0.0
    high: float = 0.0
    readings: tuple[Reading, ...] = ()
    false_alarms: int = 0
    labels: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
