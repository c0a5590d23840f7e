"""The files of a job: what was asked, how far it is, and what came out.

A training directory holds ``spec.json``, ``job.log``, ``progress.json``, one
``metrics-<attempt>.jsonl`` per attempt, ``rollouts/``, ``state/`` while it goes on, ``checkpoint/`` and, last and only after
success, ``result.json``. Whoever finds a result of the same spec need not train. Imports no torch:
the process that launches jobs does not need it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from trainer.storage import replacing
from trainer.types import SCHEMA_VERSION, EvalProtocol, Evaluation, InputError, Record, TrainResult, TrainSpec

RecordT = TypeVar("RecordT", bound=BaseModel)

CHECKPOINT = "checkpoint"
ROLLOUTS = "rollouts"
STATE = "state"
MANIFEST = "warm_start.json"
"""Beside the weights of a warm start: what it was made of, its files' hashes, and the seconds it took."""
Suite = Literal["validation", "gate", "sealed"]


class EvalSpec(Record):
    """One evaluation job.

    ``tasks_file`` holds the suite, one JSON Task per line; ``user_tasks`` is the task file the
    domain was made from, if any. The Evaluation is written to ``out_file``, its episodes beside it
    (see episodes_file).
    """

    schema_version: int = SCHEMA_VERSION
    checkpoint: Path
    suite: Suite
    tasks_file: Path
    protocol: EvalProtocol
    protocol_hash: str
    version: str
    seed: int
    domain: str
    user_tasks: str | None = None
    deadline_s: Annotated[float, Field(gt=0)] = 3600.0
    sandbox: str = "none"
    run_id: str = ""
    out_file: Path


def write_record(path: Path, record: BaseModel, *, durable: bool = True) -> None:
    """Write ``record`` as JSON under a temporary name and rename it into place.

    ``durable`` also survives a power cut; progress files do without.
    """
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(record.model_dump_json())
        if durable:
            file.flush()
            os.fsync(file.fileno())


def read_record(path: Path, kind: type[RecordT], remedy: str) -> RecordT | None:
    """The record in ``path``, or None if there is no such file.

    Raises InputError, naming the file and ``remedy``, if it is damaged or of another shape.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); {remedy}") from error
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise InputError(f"{path}: damaged at {field} ({first['msg']}); {remedy}") from error


def prepare_directory(spec: TrainSpec) -> None:
    """Make ``spec.out_dir`` ready for a new attempt: metrics and log stay, and so do rollouts and state where an earlier
    attempt at the same training got somewhere. Raises InputError for a damaged ``spec.json``."""
    directory = spec.out_dir
    directory.mkdir(parents=True, exist_ok=True)
    started = read_record(spec_file(directory), TrainSpec, "delete it to train again")
    goes_on = started is not None and _same_training(started, spec) and (directory / STATE).is_dir()
    for file in (result_file(directory), progress_file(directory)):
        file.unlink(missing_ok=True)
    for folder in (CHECKPOINT,) if goes_on else (CHECKPOINT, ROLLOUTS, STATE):
        shutil.rmtree(directory / folder, ignore_errors=True)
    write_record(spec_file(directory), spec)


def stored_result(spec: TrainSpec) -> TrainResult | None:
    """The result of a finished job with this spec, or None.

    Whether its checkpoint has been pruned since does not count. Raises InputError for a damaged file.
    """
    remedy = "delete it to train again"
    result = read_record(result_file(spec.out_dir), TrainResult, remedy)
    if result is None:
        return None
    trained = read_record(spec_file(spec.out_dir), TrainSpec, remedy)
    return result if trained is not None and _same_training(trained, spec) else None


def _same_training(one: TrainSpec, other: TrainSpec) -> bool:
    """Whether both come to the same result: how it is computed (worker processes, deadline, saves) does not count."""
    how = {"rollout_workers": 0, "deadline_s": 1.0, "save_interval_s": 0.0}
    return one.model_copy(update=how) == other.model_copy(update=how)


def spec_file(out_dir: Path) -> Path:
    return out_dir / "spec.json"


def result_file(out_dir: Path) -> Path:
    return out_dir / "result.json"


def progress_file(out_dir: Path) -> Path:
    return out_dir / "progress.json"


def evaluation_progress_file(spec: EvalSpec) -> Path:
    return spec.out_file.with_suffix(".progress.json")


def stored_evaluation(spec: EvalSpec) -> Evaluation | None:
    """The finished evaluation of this very spec, or None. Raises InputError for a damaged file."""
    found = read_record(spec.out_file, Evaluation, "delete it to evaluate again")
    if found is None:
        return None
    wanted = (spec.version, spec.seed, spec.suite, spec.protocol_hash)
    return found if (found.version, found.seed, found.suite, found.protocol_hash) == wanted else None


def episodes_file(spec: EvalSpec) -> Path:
    """Where the evaluated episodes lie."""
    return spec.out_file.with_suffix(".parquet")
