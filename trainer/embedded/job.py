"""What a training or evaluation job does in its own process."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from trainer.domains import opened_domain
from trainer.embedded.evaluate import evaluate_spec
from trainer.embedded.files import EvalSpec, evaluation_progress_file, progress_file, result_file, write_record
from trainer.embedded.grpo import train
from trainer.embedded.policy import load_policy
from trainer.execution import IsolatedPrograms
from trainer.types import StepProgress, TrainSpec

PROGRESS_INTERVAL_S = 0.1
"""Progress is for people: no need to write a file for every step."""


def run_training(spec: TrainSpec) -> None:
    """Train as ``spec`` says and leave ``result.json``; a leftover of an earlier attempt is replaced."""
    report = progress_writer(progress_file(spec.out_dir))
    with (
        opened_domain(spec.domain, spec.tasks_file, sandbox=spec.sandbox, run=spec.run_id) as domain,
        closing(IsolatedPrograms(spec.sandbox, spec.run_id)) as programs,
    ):
        # Without a sandbox the first Python term is refused with the remedy, not run and not switched off.
        executor = None if spec.sandbox == "none" else programs
        result = train(spec, load_policy(spec.base_policy), domain, report, executor)
    write_record(result_file(spec.out_dir), result)


def run_evaluation(spec: EvalSpec) -> None:
    """Evaluate as ``spec`` says and leave ``spec.out_file``."""
    with opened_domain(spec.domain, spec.user_tasks, sandbox=spec.sandbox, run=spec.run_id) as domain:
        evaluate_spec(spec, domain, progress_writer(evaluation_progress_file(spec)))
    evaluation_progress_file(spec).unlink(missing_ok=True)


def progress_writer(path: Path) -> Callable[[StepProgress], None]:
    """A report function that keeps the newest progress in ``path``."""
    written = 0.0

    def report(progress: StepProgress) -> None:
        nonlocal written
        now = time.monotonic()
        if now - written >= PROGRESS_INTERVAL_S:
            written = now
            write_record(path, progress, durable=False)

    return report
