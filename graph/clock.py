"""Wall time of a run over all its processes, and how much of it was training and evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graph.record import read_record, write_atomic
from trainer.types import Record


class Times(Record):
    """Seconds: wall of the run, training (warm start included), evaluation."""

    wall_s: float = 0.0
    train_s: float = 0.0
    evaluate_s: float = 0.0


class Clock:
    """Adds this process's seconds to those of the processes before it; ``save`` at each node's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = read_record(path, Times) if path.exists() else Times()
        self._start = time.monotonic()
        self._busy = {"train_s": self._before.train_s, "evaluate_s": self._before.evaluate_s}

    def times(self) -> Times:
        return Times(wall_s=self._before.wall_s + time.monotonic() - self._start, **self._busy)

    def elapsed(self) -> float:
        return self.times().wall_s

    def save(self) -> None:
        write_atomic(self._path, self.times().model_dump_json() + "\n")

    @contextmanager
    def training(self) -> Iterator[None]:
        with self._spend("train_s"):
            yield

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with self._spend("evaluate_s"):
            yield

    @contextmanager
    def _spend(self, what: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self._busy[what] += time.monotonic() - start
            self.save()
