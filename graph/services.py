"""Jobs as the nodes see them: batches that show progress and whose time is counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graph.clock import Clock
from graph.progress import Progress
from trainer.types import Evaluation, InputError, StepProgress, TrainResult, TrainSpec

if TYPE_CHECKING:
    from trainer.embedded.files import EvalSpec
    from trainer.embedded.launcher import EmbeddedTrainer
    from trainer.embedded.warmstart import SftSettings

BACKENDS: dict[str, str] = {"embedded": "torch in this machine's processes, CPU"}


class JobRunner:
    """Runs batches of training and evaluation jobs on one backend."""

    def __init__(self, trainer: EmbeddedTrainer, clock: Clock, progress: Progress, parallel: int) -> None:
        self.parallel = parallel
        self._trainer = trainer
        self._clock = clock
        self._progress = progress

    @property
    def clock(self) -> Clock:
        return self._clock

    def train(self, specs: Sequence[TrainSpec]) -> list[TrainResult]:
        """One result per spec, in order; a failed job is a status. Finished jobs are answered from disk."""
        started = time.monotonic()

        def show(done: int, total: int, running: Sequence[StepProgress]) -> None:
            self._progress.jobs("train", done, total, running, started)

        with self._clock.training():
            return self._trainer.run_all(specs, show)

    def warm_start(self, domain: str, seed: int, settings: SftSettings, worked: float, folder: Path) -> Path:
        """The default policy's checkpoint directory (``worked``: see Recipe.warm_start), trained in a child process or found in the cache."""
        from trainer.embedded.warmjob import WarmProgress, make_warm_start

        started = time.monotonic()

        def show(at: WarmProgress) -> None:
            detail = f"step {at.step} of {at.steps}, loss {at.loss:.3f}"
            self._progress.share("warm start", at.step / at.steps, detail, started)

        with self._clock.training():
            return make_warm_start(domain, seed, settings, worked, folder, show)

    def evaluate(self, specs: Sequence[EvalSpec]) -> list[Evaluation]:
        """One evaluation per spec, in order. Raises RuntimeError with the log's tail if a job failed."""
        started = time.monotonic()

        def show(done: int, total: int, running: Sequence[StepProgress]) -> None:
            self._progress.jobs("evaluate", done, total, running, started)

        with self._clock.evaluating():
            return self._trainer.evaluate_all(specs, show)

    def close(self) -> None:
        """End every job that still runs."""
        self._trainer.close()


def make_trainer(backend: str, parallel: int) -> EmbeddedTrainer:
    """The backend by its short name."""
    if backend not in BACKENDS:
        raise InputError(f"run.backend: unknown backend '{backend}'; known: {', '.join(BACKENDS)}")
    from trainer.embedded.launcher import EmbeddedTrainer

    return EmbeddedTrainer(max_parallel=parallel)
