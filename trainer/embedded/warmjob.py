"""The warm start as a job: a child process, so that the orchestrator stays small and can be stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.embedded.files import MANIFEST, read_record, write_record
from trainer.embedded.process import Child, wait_any
from trainer.types import Record

if TYPE_CHECKING:
    from trainer.embedded.warmstart import SftSettings


class WarmProgress(Record):
    """Steps done of all steps, and the loss of the last one; ``checkpoint`` once it is there."""

    step: int = 0
    steps: int = 1
    loss: float = 0.0
    checkpoint: Path | None = None


def make_warm_start(
    domain: str, seed: int, settings: SftSettings, worked: float, folder: Path, show: Callable[[WarmProgress], None]
) -> Path:
    """Warm start in a child process; returns the checkpoint directory in the user's cache.

    Raises RuntimeError with the log's tail if the child failed. The child dies with its parent.
    """
    file = folder / "warm-start.json"
    file.unlink(missing_ok=True)
    child = Child("trainer.embedded.warmjob:run", (domain, seed, settings, worked, file), folder / "warm-start.log")
    try:
        while child.exit_code is None:
            wait_any([child], 0.5)
            show(read_record(file, WarmProgress, "resume the run to make it again") or WarmProgress())
    finally:
        child.kill()
    done = read_record(file, WarmProgress, "resume the run to make it again")
    if done is None or done.checkpoint is None:
        raise RuntimeError(f"the warm start failed; its log ends: {child.log_tail(600)}")
    return done.checkpoint


def wall_s(checkpoint: Path) -> float:
    """Seconds that a warm start took; 0 where its folder does not say."""
    try:
        return float(json.loads((checkpoint / MANIFEST).read_text("utf-8"))["wall_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def run(domain: str, seed: int, settings: SftSettings, worked: float, file: Path) -> None:
    """The child's part."""
    from trainer.domains import load_domain
    from trainer.embedded.warmstart import warm_start

    last = WarmProgress()

    def report(step: int, steps: int, loss: float) -> None:
        nonlocal last
        last = WarmProgress(step=step, steps=steps, loss=loss)
        write_record(file, last, durable=False)

    checkpoint = warm_start(load_domain(domain), seed, settings, progress=report, worked=worked)
    write_record(file, last.model_copy(update={"checkpoint": checkpoint}))
