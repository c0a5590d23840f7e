"""The embedded trainer: jobs as child processes of this one, a bounded number at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from trainer.embedded.files import (
    EvalSpec,
    evaluation_progress_file,
    prepare_directory,
    progress_file,
    stored_evaluation,
    stored_result,
)
from trainer.embedded.process import Child, start_server, wait_any
from trainer.storage import EXIT_STORAGE
from trainer.types import Evaluation, StepProgress, TrainResult, TrainSpec

POLL_S = 0.2
"""Longest time between two looks at the running jobs."""

OnProgress = Callable[[int, int, Sequence[StepProgress]], None]
"""Called with (jobs done, jobs in all, newest progress of each running job)."""


@dataclass(eq=False)
class ChildJob:
    """A job in the queue (no child yet), running, or ended."""

    start: Callable[[], Child]
    progress_path: Path
    time_limit_s: float | None = None
    child: Child | None = None
    ended: bool = False
    timed_out: bool = False
    cancelled: bool = False

    def progress(self) -> StepProgress | None:
        """The newest step, or None before the first."""
        try:
            return StepProgress.model_validate_json(self.progress_path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def log_tail(self) -> str:
        return self.child.log_tail() if self.child else ""


class StorageRefused(RuntimeError):
    """A job could not write its files: no result of it, and nothing that says anything about its policy."""


class EvaluationTimedOut(RuntimeError):
    """An evaluation of ``version`` ran past its deadline and was ended."""

    def __init__(self, version: str, message: str) -> None:
        super().__init__(message)
        self.version = version


class Queue:
    """Runs jobs in order of submission, at most ``max_parallel`` at a time.

    Nothing happens behind the caller's back: jobs start and end only inside ``poll``.
    """

    def __init__(self, max_parallel: int) -> None:
        self.max_parallel = max_parallel
        self._waiting: deque[ChildJob] = deque()
        self._running: list[ChildJob] = []

    def submit(self, job: ChildJob) -> None:
        self._waiting.append(job)
        self.poll(0)

    def poll(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for a running job to end; end what is over time; start what fits."""
        if timeout_s > 0 and self._running:
            wait_any([job.child for job in self._running if job.child], timeout_s)
        for job in list(self._running):
            assert job.child is not None
            if job.time_limit_s is not None and job.child.exit_code is None and job.child.elapsed_s > job.time_limit_s:
                job.child.kill()
                job.timed_out = True
            if job.child.exit_code is not None:
                self._end(job)
        while self._waiting and len(self._running) < self.max_parallel:
            job = self._waiting.popleft()
            job.child = job.start()
            self._running.append(job)

    def cancel(self, job: ChildJob) -> None:
        """Take the job out of the queue, or kill it; returns when it is gone."""
        if job.ended:
            return
        job.cancelled = True
        if job.child is None:
            self._waiting.remove(job)
            job.ended = True
            return
        job.child.kill()
        self._end(job)

    def cancel_all(self) -> None:
        for job in [*self._waiting, *self._running]:
            self.cancel(job)

    def _end(self, job: ChildJob) -> None:
        assert job.child is not None
        # A job that ended without its workers (killed for memory, say) leaves none of them behind.
        job.child.kill()
        self._running.remove(job)
        job.ended = True


@dataclass(eq=False)
class EmbeddedJob:
    """A launched training; ``result`` is set when it was answered from disk or waited for."""

    spec: TrainSpec
    work: ChildJob
    result: TrainResult | None = field(default=None)

    def progress(self) -> StepProgress | None:
        return self.work.progress()


class EmbeddedTrainer:
    """Implements ``trainer.types.Trainer``; also runs evaluations, through the same queue.

    Not thread-safe. ``close`` (or leaving the ``with`` block) ends every job that still runs.
    """

    name = "embedded"

    def __init__(self, max_parallel: int, grace_s: float = 30.0) -> None:
        """``grace_s`` is the time a job gets beyond its ``deadline_s`` to finish its step and save."""
        start_server()
        self._queue = Queue(max_parallel)
        self._grace_s = grace_s

    def launch(self, spec: TrainSpec) -> EmbeddedJob:
        """Queue a training, unless its result is there already.

        Raises InputError, with the remedy, for a damaged ``result.json``.
        """
        log = spec.out_dir / "job.log"

        def start() -> Child:
            prepare_directory(spec)
            return Child("trainer.embedded.job:run_training", (spec,), log)

        work = ChildJob(start, progress_file(spec.out_dir), spec.deadline_s + self._grace_s)
        result = stored_result(spec)
        if result is None:
            self._queue.submit(work)
        else:
            work.ended = True
        return EmbeddedJob(spec, work, result)

    def wait(self, job: EmbeddedJob) -> TrainResult:
        """Run the queue until ``job`` has ended. A failed job is a status: ``crashed`` with the tail of
        its log, ``timed_out`` beyond deadline and grace, ``cancelled``. Raises StorageRefused."""
        while not job.work.ended:
            self._queue.poll(POLL_S)
        if job.result is None:
            job.result = _result_of(job)
        return job.result

    def cancel(self, job: EmbeddedJob) -> None:
        """Kill the job with all its processes; returns when they are gone."""
        self._queue.cancel(job.work)

    def run_all(self, specs: Sequence[TrainSpec], on_progress: OnProgress | None = None) -> list[TrainResult]:
        """One result per spec, in order. Whatever interrupts this call ends its jobs."""
        jobs: list[EmbeddedJob] = []
        try:
            jobs += (self.launch(spec) for spec in specs)
            self._run([job.work for job in jobs], on_progress)
        finally:
            for job in jobs:
                self.cancel(job)
        return [self.wait(job) for job in jobs]

    def evaluate_all(self, specs: Sequence[EvalSpec], on_progress: OnProgress | None = None) -> list[Evaluation]:
        """One evaluation per spec, in order; finished ones come from disk.

        Raises RuntimeError with the tail of the log of a job that failed (an evaluation has no
        failed result: a policy that diverged scores 0), EvaluationTimedOut beyond deadline and grace,
        StorageRefused, InputError for a damaged file.
        """
        jobs: list[ChildJob] = []
        try:
            for spec in specs:
                done = stored_evaluation(spec) is not None
                jobs.append(self._evaluation_job(spec, ended=done))
                if not done:
                    self._queue.submit(jobs[-1])
            self._run(jobs, on_progress)
        finally:
            for job in jobs:
                self._queue.cancel(job)
        return [_evaluation_of(spec, job) for spec, job in zip(specs, jobs, strict=True)]

    def _evaluation_job(self, spec: EvalSpec, *, ended: bool) -> ChildJob:
        log = spec.out_file.with_suffix(".log")
        return ChildJob(
            lambda: Child("trainer.embedded.job:run_evaluation", (spec,), log),
            evaluation_progress_file(spec),
            spec.deadline_s + self._grace_s,
            ended=ended,
        )

    def close(self) -> None:
        """End every job."""
        self._queue.cancel_all()

    def __enter__(self) -> EmbeddedTrainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, jobs: Sequence[ChildJob], on_progress: OnProgress | None) -> None:
        while True:
            running = [job for job in jobs if not job.ended]
            if on_progress is not None:
                reports = [job.progress() for job in running if job.child is not None]
                on_progress(len(jobs) - len(running), len(jobs), [report for report in reports if report])
            if not running:
                return
            self._queue.poll(POLL_S)


def _result_of(job: EmbeddedJob) -> TrainResult:
    work = job.work
    if work.cancelled:
        return TrainResult(status="cancelled")
    if work.timed_out:
        return TrainResult(
            status="timed_out",
            error=f"killed {work.time_limit_s:.0f} s after its start; the log ends with\n{work.log_tail()}",
        )
    code = work.child.exit_code if work.child else None
    if code == EXIT_STORAGE:
        raise StorageRefused(_refused(job.spec.out_dir, work))
    result = stored_result(job.spec) if code == 0 else None
    return result or TrainResult(status="crashed", error=f"exit code {code}; the log ends with\n{work.log_tail()}")


def _evaluation_of(spec: EvalSpec, job: ChildJob) -> Evaluation:
    evaluation = stored_evaluation(spec)
    if evaluation is None:
        what = f"evaluation of {spec.version} seed {spec.seed} ({spec.suite})"
        if job.timed_out:
            raise EvaluationTimedOut(spec.version, f"{what} timed out: ended {job.time_limit_s:.0f} s after its start")
        if job.child and job.child.exit_code == EXIT_STORAGE:
            raise StorageRefused(_refused(spec.out_file, job))
        raise RuntimeError(f"{what} failed: {job.log_tail()}")
    return evaluation


def _refused(path: Path, job: ChildJob) -> str:
    """The job's own line, where the disk had room for that."""
    return job.log_tail() or f"{path}: could not be written; free disk space"
