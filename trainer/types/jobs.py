"""What goes into a training job and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field

from trainer.types.base import SCHEMA_VERSION, Record
from trainer.types.harness import RewardTerm
from trainer.types.recipe import Recipe


class TrainSpec(Record):
    """Everything one training job depends on; equal specs give equal results.

    ``token_budget`` counts sampled tokens. ``out_dir`` receives metrics, rollouts, checkpoint and
    ``result.json``; a job whose ``result.json`` exists is done and is not run again.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    version: str
    seed: int
    domain: str
    tasks_file: str | None = None
    harness_commit: str
    recipe: Recipe
    terms: Mapping[str, RewardTerm]
    base_policy: Path
    token_budget: Annotated[int, Field(gt=0)]
    deadline_s: Annotated[float, Field(gt=0)] = 3600.0
    sandbox: str = "none"
    """Backend that isolates what the job executes; ``none`` executes nothing."""
    rollout_workers: Annotated[int, Field(ge=0)] = 0
    """Rollout worker processes; 0 samples in the job's own process. Results do not depend on it."""
    save_interval_s: Annotated[float, Field(ge=0)] = 15.0
    """How often the state is saved: what a kill may cost. Results do not depend on it."""
    out_dir: Path


TrainStatus = Literal["completed", "crashed", "timed_out", "cancelled"]
EarlyStop = Literal["nan", "no_signal", "collapse", "deadline"]


class Cost(Record):
    """What a job used: wall and process seconds, steps, rollouts, sampled tokens, peak memory."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    steps: int = 0
    rollouts: int = 0
    tokens: int = 0
    peak_rss_mb: float = 0.0


class TrainResult(Record):
    """The outcome of a job. A failed job has a status and the tail of its log, never an exception."""

    schema_version: int = SCHEMA_VERSION
    status: TrainStatus
    early_stop: EarlyStop | None = None
    checkpoint: Path | None = None
    metrics_file: Path | None = None
    rollouts_dir: Path | None = None
    cost: Cost = Cost()
    error: str = ""


class TrainJob(Protocol):
    """A launched job."""

    spec: TrainSpec

    def progress(self) -> StepProgress | None:
        """The newest step, or None before the first."""
        ...


class StepProgress(Record):
    """One line of progress of a running job; ``fraction`` of the token budget used, 0 to 1."""

    version: str
    seed: int
    step: int
    fraction: float
    score: float
    outcome: float


class Trainer(Protocol):
    """Turns specs into results. ``wait`` returns status ``crashed`` for a failed job and raises only
    if the job never started; a spec whose result exists is answered from disk."""

    name: str

    def launch(self, spec: TrainSpec) -> TrainJob: ...

    def wait(self, job: TrainJob) -> TrainResult: ...

    def cancel(self, job: TrainJob) -> None: ...
