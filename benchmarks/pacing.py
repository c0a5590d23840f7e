"""Repetitions of several programs that take turns: each runs in a process of its own and waits for its next turn.

Only ratios within one run mean something on a shared machine, and they mean more, the closer the repetitions stand
together. A process also has its own environment and its own peak of memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType


class Paced:
    """A program that makes one repetition whenever it is told to; a context manager that ends it."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        """``command`` makes a Pacer and follows it; what it prints goes to ``log``."""
        self.log = log
        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, env=env, text=True
            )

    def repeat(self, threads: int) -> dict[str, float]:
        """One repetition with ``threads`` torch threads: seconds and megabytes by name, as the program said them.

        Raises RuntimeError with the end of its log where the program has ended.
        """
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in and pipe_out
        try:
            pipe_in.write(f"{threads}\n")
            pipe_in.flush()
            answer = pipe_out.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"{self.log}: ended with {self._process.wait()}:\n{self.log.read_text('utf-8')[-2000:]}")
        figures: dict[str, float] = json.loads(answer)
        return figures

    def __enter__(self) -> Paced:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.terminate()
        self._process.communicate()


class Pacer:
    """The other end, within the program. The standard output is the answers' own; prints go to the log."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._began = 0.0

    def wait(self) -> None:
        """Until the next repetition; ends the program where there is none."""
        import torch

        order = sys.stdin.readline()
        if not order:
            raise SystemExit(0)
        torch.set_num_threads(int(order))
        self._began = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds since the repetition began."""
        return time.perf_counter() - self._began

    def done(self, step_s: float, rollout_s: float) -> None:
        """Answer with the seconds of the repetition and of its sampling, and the process's peak memory so far."""
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        self._answers.write(json.dumps({"step_s": step_s, "rollout_s": rollout_s, "peak_rss_mb": peak_mb}) + "\n")
        self._answers.flush()
