"""The noise floor that earlier runs left: how much the seeds of a version differ, kept for runs of the same kind.

Three seeds of a baseline tell little about the spread between seeds. Runs of the same fingerprint share it, so a run may
count theirs with at most four degrees of freedom (``GateInput.calibration``), and never its own twice: each run has an
entry of its own in the file, and reading leaves out the one that reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from trainer.gate_types import VersionSpread
from trainer.statistics import Spread, pooled
from trainer.storage import replacing
from trainer.types import SCHEMA_VERSION, InputError, Record
from trainer.validation import one_line

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Fingerprint(Record):
    """What must be equal for the spread between seeds to be the same; ``protocol_hash`` covers tasks, sampling and scoring."""

    domain: str
    protocol_hash: str
    token_budget: Annotated[int, Field(gt=0)]
    base_policy: str
    """Content hash of the policy that every training starts from."""

    @property
    def key(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


class NoiseFloor(Record):
    """Variance of a seed's validation score, pooled over the versions of one run; ``r`` is one task's sampling noise."""

    variance: Amount
    df: Annotated[int, Field(ge=1)]
    r: Amount
    n_tasks: Annotated[int, Field(ge=1)]


class Calibration(Record):
    """The noise floors of all runs with one fingerprint, by run id."""

    schema_version: int = SCHEMA_VERSION
    fingerprint: Fingerprint
    runs: Mapping[str, NoiseFloor] = Field(default_factory=dict)


def noise_floor(spreads: Sequence[VersionSpread]) -> NoiseFloor | None:
    """Pool the spreads of a run's versions (``GateReport.spread`` and ``.parent_spread``) as the gate does; a version given
    twice counts as last given. None if no version has a second seed."""
    latest = [s for s in {s.version: s for s in spreads}.values() if s.df > 0]
    if not latest:
        return None
    tasks = latest[0].n_tasks
    floor = pooled([], [Spread(s.variance, s.df, s.r) for s in latest], tasks)
    return NoiseFloor(variance=floor.variance, df=int(floor.df), r=floor.noise, n_tasks=tasks)


def pooled_floor(calibration: Calibration, run: str) -> VersionSpread | None:
    """What ``run`` may use of a calibration: the floors of all other runs, weighted by df; None without any."""
    others = [floor for name, floor in calibration.runs.items() if name != run]
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


def calibration_file(folder: Path, fingerprint: Fingerprint) -> Path:
    return folder / f"{fingerprint.key}.json"


def read_calibration(folder: Path, fingerprint: Fingerprint) -> Calibration:
    """The stored calibration; an empty one where there is no file. InputError for a file that is damaged or another's."""
    path = calibration_file(folder, fingerprint)
    remedy = "delete the file, later runs write it again"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Calibration(fingerprint=fingerprint)
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror}); check its permissions or delete it") from err
    except UnicodeDecodeError as err:
        raise InputError(f"{path}: damaged (not UTF-8); {remedy}") from err
    try:
        found = Calibration.model_validate_json(text)
    except ValidationError as err:
        raise InputError(f"{one_line(err, str(path), Calibration)}; {remedy}") from err
    if found.schema_version != SCHEMA_VERSION or found.fingerprint != fingerprint:
        field = "fingerprint" if found.fingerprint != fingerprint else "schema_version"
        raise InputError(f"{path}: {field}: not that of this run; {remedy}")
    return found


def store_floor(folder: Path, fingerprint: Fingerprint, run: str, floor: NoiseFloor) -> Calibration:
    """Enter the floor of ``run`` (again: replaced, so that a repeated call changes nothing) and write the file whole."""
    stored = read_calibration(folder, fingerprint)
    changed = stored.model_copy(update={"runs": {**stored.runs, run: floor}})
    with replacing(calibration_file(folder, fingerprint)) as partial:
        partial.write_text(changed.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return changed
