"""What a person sees while a run works: rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from trainer.types import StepProgress

QUIET_S = 5.0
"""Plain progress lines come at most this often."""


def bar(fraction: float, width: int = 20) -> str:
    """A text bar of ``width`` characters; fractions outside 0..1 are clamped."""
    full = round(min(1.0, max(0.0, fraction)) * width)
    return "━" * full + "╌" * (width - full)


def clock_text(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _job(p: StepProgress) -> str:
    """One job in a few words."""
    return f"{p.version}/seed {p.seed} step {p.step} reward {p.score:.3f} solved {p.outcome:.3f}"


class Progress:
    """One line per node and decision, and a line of training progress that is rewritten on a terminal.

    Everything goes to ``stream`` (stderr when ``--json`` wants stdout clean).
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._start = time.monotonic()
        self._shown = 0.0
        self._open = False

    def say(self, node: str, line: str) -> None:
        """One line: time since the start, node, what happened. Control characters of untrusted text are dropped."""
        self._close()
        clean = "".join(c if c.isprintable() else " " for c in line)
        stamp = clock_text(time.monotonic() - self._start)
        if self._live:
            self._stream.write(f"\x1b[2m{stamp:>6}\x1b[0m \x1b[1;36m{node:<9}\x1b[0m {clean}\n")
        else:
            self._stream.write(f"{stamp:>6} {node:<9} {clean}\n")
        self._stream.flush()

    def jobs(self, node: str, done: int, total: int, running: Sequence[StepProgress], started: float) -> None:
        """Progress of a batch of jobs with the time left, estimated from the share that is done."""
        share = (done + sum(p.fraction for p in running)) / max(1, total)
        self.share(node, share, "  ".join(_job(p) for p in running[:2]), started)

    def share(self, node: str, share: float, detail: str, started: float) -> None:
        """How far something is (0 to 1), with the time left."""
        now = time.monotonic()
        if not self._live and now - self._shown < QUIET_S:
            return
        self._shown = now
        share = min(1.0, share)
        left = clock_text((now - started) * (1 - share) / share) + " left" if share > 0.02 else "estimating"
        text = f"{node:<9} {bar(share)} {share:4.0%} {left}  {detail}"
        if self._live:
            self._stream.write("\r\x1b[2K" + text[:180])
            self._open = True
        else:
            self._stream.write(f"{clock_text(now - self._start):>6} {text}\n")
        self._stream.flush()

    def _close(self) -> None:
        if self._open:
            self._stream.write("\r\x1b[2K")
            self._open = False


def console(json_output: bool, heard: bool = True) -> Progress:
    """Progress on stdout, or on stderr where stdout is for JSON, or nowhere."""
    if not heard:
        return Progress(Path(os.devnull).open("w"))
    return Progress(sys.stderr if json_output else sys.stdout)
