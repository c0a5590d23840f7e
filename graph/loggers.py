"""Metrics and verdicts passed on to TensorBoard, Trackio and Weights & Biases.

The run's files are the truth: trainings write ``metrics-<attempt>.jsonl``, the ledger holds the verdicts. A process of its
own (``python -m graph.loggers``) follows these files and passes every line on once; what a logger prints, imports or hangs
on stays there. It ends with the run, also where the run is killed. A logger that fails is said once and dropped.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from graph.record import read_record, write_atomic
from trainer.types import InputError, Record
from trainer.validation import did_you_mean

PACKAGES: Mapping[str, str] = {"tensorboard": "tensorboard", "trackio": "trackio", "wandb": "wandb"}
"""Logger to the package it needs."""
BUILT_IN = ("console", "file")
PROJECT = "evotrainer"
VERDICTS = "verdicts"
POLL_S = 1.0
CLOSE_S = 30.0
Data = Mapping[str, float | str]


class Logger(Protocol):
    """Where lines go. ``series`` is ``v0001/seed-0`` for a training, and ``verdicts``, whose steps are version numbers."""

    def log(self, series: str, step: int, data: Data) -> None: ...

    def close(self) -> None: ...


def parse(text: str) -> tuple[str, ...]:
    """The names in a comma list; InputError for an unknown one and for one whose package is not installed."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in (*BUILT_IN, *PACKAGES):
            raise InputError(f"run.logger: unknown logger '{name}'; {did_you_mean(name, (*BUILT_IN, *PACKAGES))}")
        package = PACKAGES.get(name)
        if package and not installed(package):
            raise InputError(
                f"run.logger: '{name}' needs the package {package}: pip install {package}, or leave it out"
            )
    return names


def installed(package: str) -> bool:
    """Whether a package can be imported; a mere folder of that name, as these loggers leave them, is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


@contextlib.contextmanager
def following(root: Path, names: Sequence[str], say: Callable[[str, str], None]) -> Iterator[None]:
    """Pass the run's metrics and verdicts on while the block runs, and what is left at its end."""
    outside = [name for name in names if name in PACKAGES]
    if not outside:
        yield
        return
    child = subprocess.Popen(
        [sys.executable, "-m", "graph.loggers", str(root.absolute()), *outside],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
        start_new_session=True,  # Ctrl-C is for the run, which then ends this one
    )
    try:
        yield
    finally:
        assert child.stdin is not None
        child.stdin.close()
        try:
            child.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            say("run", f"loggers {', '.join(outside)} did not end within {CLOSE_S:g} s and were stopped")


# ------------------------------------------------------------------------------ following


class Place(Record):
    """How far the files were passed on: bytes by file, and the last step by series (a new attempt of a training
    repeats what earlier ones had)."""

    offsets: Mapping[str, int] = {}
    steps: Mapping[str, int] = {}


class Follower:
    """Reads what is new in a run's files and hands it to the loggers."""

    def __init__(self, root: Path, loggers: Mapping[str, Logger], complain: Callable[[str], None]) -> None:
        self._root = root
        self._loggers = dict(loggers)
        self._complain = complain
        self._file = root / "loggers.json"
        place = read_record(self._file, Place) if self._file.exists() else Place()
        self._offsets, self._steps = dict(place.offsets), dict(place.steps)

    def poll(self) -> None:
        """Pass on all whole lines that came since the last time."""
        before = dict(self._offsets)
        for folder in sorted(self._root.glob("versions/*/seed-*/train")):
            series = folder.parent.relative_to(self._root / "versions").as_posix()
            for file in sorted(folder.glob("metrics-*.jsonl"), key=lambda f: int(f.stem.partition("-")[2])):
                for line in self._new(file):
                    self._pass(series, line["step"], line["data"])
        for entry in self._new(self._root / "record" / "ledger.jsonl"):
            self._pass(VERDICTS, int(entry["version"].removeprefix("v")), verdict_data(entry))
        if self._offsets != before:
            write_atomic(self._file, Place(offsets=self._offsets, steps=self._steps).model_dump_json())

    def close(self) -> None:
        for name, logger in list(self._loggers.items()):
            self._guarded(name, logger.close)

    def _new(self, file: Path) -> Iterator[dict[str, Any]]:
        key = file.relative_to(self._root).as_posix()
        start = self._offsets.get(key, 0)
        if not file.exists() or file.stat().st_size <= start:
            return
        with file.open("rb") as stream:
            stream.seek(start)
            data = stream.read()
        whole = data.rfind(b"\n") + 1  # the rest is being written
        for line in data[:whole].splitlines():
            with contextlib.suppress(ValueError):  # damage is for those to say who judge by the file
                yield json.loads(line)
        self._offsets[key] = start + whole

    def _pass(self, series: str, step: int, data: Data) -> None:
        if step <= self._steps.get(series, -1):
            return
        for name, logger in list(self._loggers.items()):
            self._guarded(name, lambda logger=logger: logger.log(series, step, data))  # type: ignore[misc]
        self._steps[series] = step

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as err:
            del self._loggers[name]
            what = " ".join(f"{type(err).__name__}: {err}".split())[:300]
            self._complain(f"logger {name} failed ({what}); it is dropped and the run goes on")


def verdict_data(entry: Mapping[str, Any]) -> Data:
    """What a ledger entry says, flat: the baseline's scores, or a candidate's verdict with its gate's numbers."""
    if entry["kind"] == "baseline":
        return {"verdict": "baseline", **entry["scores"]}
    gate = entry["gate"] or {}
    numbers = {name: gate[name] for name in ("delta", "ci_low", "ci_high", "p") if gate.get(name) is not None}
    return {"verdict": entry["verdict"], "factor": entry["factor"], "title": entry["title"], **numbers}


# -------------------------------------------------------------------------------- loggers


class Opened(dict[str, Any]):
    """Values by series, each made when it is first asked for."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, series: str) -> Any:
        self[series] = value = self._make(series)
        return value


class TensorBoard:
    """Event files below ``<run>/tensorboard``, one folder per series; texts go to the text plugin."""

    def __init__(self, root: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writers = Opened(lambda series: SummaryWriter(str(root / "tensorboard" / series)))

    def log(self, series: str, step: int, data: Data) -> None:
        writer = self._writers[series]
        for name, value in data.items():
            (writer.add_text if isinstance(value, str) else writer.add_scalar)(name, value, step)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


class Wandb:
    """One run per series, in a group named after our run, kept below ``<run>/wandb``; WANDB_MODE and the like hold."""

    def __init__(self, root: Path) -> None:
        import wandb

        def start(series: str) -> Any:
            key = f"{root.name}-{series}".replace("/", "-")
            kept: dict[str, Any] = {"id": key, "dir": str(root), "resume": "allow", "reinit": "create_new"}
            return wandb.init(project=PROJECT, group=root.name, name=series, **kept)

        self._runs = Opened(start)

    def log(self, series: str, step: int, data: Data) -> None:
        self._runs[series].log(dict(data), step=step)

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()


class Trackio:
    """One run per series in a project named after ours; Trackio has one open at a time, so a change reopens it."""

    def __init__(self, root: Path) -> None:
        import trackio

        self._init: Callable[[str], Any] = lambda series: trackio.init(
            project=root.name, name=series, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )
        self._series = ""
        self._run: Any = None

    def log(self, series: str, step: int, data: Data) -> None:
        if self._run is None or series != self._series:
            self._series, self._run = series, self._init(series)
        self._run.log(dict(data), step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


KINDS: Mapping[str, Callable[[Path], Logger]] = {"tensorboard": TensorBoard, "trackio": Trackio, "wandb": Wandb}


def main(argv: Sequence[str] | None = None) -> int:
    """Follow a run until standard input ends, which it does when the run's process is gone."""
    parser = argparse.ArgumentParser(prog="python -m graph.loggers", description="Pass a run's files on to loggers.")
    parser.add_argument("root", type=Path)
    parser.add_argument("names", nargs="+", choices=sorted(KINDS))
    args = parser.parse_args(argv)
    terminal = os.fdopen(os.dup(2), "w", encoding="utf-8")
    with (args.root / "loggers.log").open("a") as log:  # what the packages print is not for the terminal
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    def complain(line: str) -> None:
        print(f"       run       {line}", file=terminal, flush=True)

    made: dict[str, Logger] = {}
    for name in args.names:
        try:
            made[name] = KINDS[name](args.root)
        except Exception as err:  # a package may fail in any way
            complain(f"logger {name} cannot start ({type(err).__name__}: {err}); the run goes on without it")
    follower = Follower(args.root, made, complain)
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        follower.poll()
    follower.poll()
    follower.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
