"""The noise floor that earlier runs left: how much the seeds of a version differ, kept for runs of the same kind.

Three seeds of a baseline tell little about the spread between seeds. Runs of the same fingerprint share it, so a run may
count theirs with at most four degrees of freedom (``GateInput.calibration``), and never its own twice: each run has an
entry of its own in the file, and reading leaves out the one that reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from trainer.gate_types import VersionSpread
from trainer.shelf import Shelf
from trainer.statistics import Spread, pooled
from trainer.types import Record

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class NoiseFloor(Record):
    """Variance of a seed's validation score, pooled over the versions of one run; ``r`` is one task's sampling noise."""

    variance: Amount
    df: Annotated[int, Field(ge=1)]
    r: Amount
    n_tasks: Annotated[int, Field(ge=1)]


class Calibration(Shelf[NoiseFloor]):
    """The noise floors of all runs with one fingerprint."""


def noise_floor(spreads: Sequence[VersionSpread]) -> NoiseFloor | None:
    """Pool the spreads of a run's versions (``GateReport.spread`` and ``.parent_spread``) as the gate does; a version given
    twice counts as last given. None if no version has a second seed."""
    latest = [s for s in {s.version: s for s in spreads}.values() if s.df > 0]
    if not latest:
        return None
    tasks = latest[0].n_tasks
    floor = pooled([], [Spread(s.variance, s.df, s.r) for s in latest], tasks)
    return NoiseFloor(variance=floor.variance, df=int(floor.df), r=floor.noise, n_tasks=tasks)


def pooled_floor(calibration: Shelf[NoiseFloor], run: str) -> VersionSpread | None:
    """What ``run`` may use of a calibration: the floors of all other runs, weighted by df; None without any."""
    others = list(calibration.others(run).values())
    if not others:
        return None
    df = sum(f.df for f in others)
    return VersionSpread(
        version="calibration",
        protocol_hash=calibration.fingerprint.protocol_hash,
        variance=sum(f.df * f.variance for f in others) / df,
        df=df,
        n_tasks=others[0].n_tasks,
        r=sum(f.df * f.r for f in others) / df,
    )
