"""Child processes for jobs: quick to start, one thread each, and never left behind.

A job must not outlive the process that launched it, ``kill -9`` included: two trainings would then
share the cores, and a resumed run would write into the same directories. Each child therefore
watches its launcher and takes its own process group down when the launcher is gone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import connection, forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from trainer.storage import EXIT_STORAGE, storage_error, storage_line
from trainer.types import InputError

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Two computing threads per process cost up to 30 times under load; processes are the parallelism."""

# torch.optim imports torch._dynamo at the first optimiser: two seconds that no job should pay.
PRELOAD = [
    "torch",
    "torch._dynamo",
    "pyarrow.parquet",
    "pyarrow.compute",
    "duckdb",
    "trainer.domains.math.domain",
    "trainer.embedded.job",
]
"""Imported once by the fork server, so that a job starts in milliseconds instead of seconds."""


def start_server() -> None:
    """Start the fork server now, in the background, so that it is ready when the first job comes."""
    if isinstance(_context(), multiprocessing.context.ForkServerContext):
        with _environment(ONE_THREAD):
            forkserver.ensure_running()


SERVER_GONE_S = (0.0, 0.1, 0.3, 1.0, 3.0)
"""Waits between the starts of a job whose fork server dies."""


class Child:
    """A function running in a process of its own, with its output in ``log``."""

    def __init__(self, target: Callable[..., None] | str, args: tuple[Any, ...], log: Path) -> None:
        """Start ``target(*args)``, both picklable; ``log`` is overwritten.

        A target given as ``module:function`` is imported by the child alone, so that the caller need
        not load what the job needs.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.started = time.monotonic()
        with _environment(ONE_THREAD):
            self._process = _started(target, args, log)

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.exitcode

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def kill(self) -> None:
        """Kill the child with the processes it started; returns when it is gone."""
        # Before its first line has run, the child has no group of its own yet.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()

    def log_tail(self, limit: int = 2000) -> str:
        """The last ``limit`` characters of the log."""
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")[-limit:].strip()
        except FileNotFoundError:
            return ""


def _started(target: Callable[..., None] | str, args: tuple[Any, ...], log: Path) -> BaseProcess:
    """Start it; once more where the fork server was killed while it served us.

    A child that the dead server may have forked ends by itself, for nobody holds the other end of its pipe any more. The
    next start makes a new server, once the kernel has done with the old one.
    """
    for wait_s in SERVER_GONE_S:
        process = _context().Process(target=_main, args=(target, args, log), daemon=False)
        try:
            process.start()
            return process
        except (EOFError, ConnectionError):
            time.sleep(wait_s)
    raise RuntimeError(f"the fork server of the jobs died {len(SERVER_GONE_S)} times; see who kills it, then --resume")


def wait_any(children: list[Child], timeout_s: float) -> None:
    """Return when one of ``children`` has ended, or after ``timeout_s``."""
    connection.wait([child._process.sentinel for child in children], timeout=timeout_s)


def _context() -> multiprocessing.context.ForkServerContext | multiprocessing.context.SpawnContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the children that are started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _main(target: Callable[..., None] | str, args: tuple[Any, ...], log: Path) -> None:
    """First lines of a child: own session, log, watch; then ``target``."""
    # A session of its own: Ctrl-C on the terminal asks the orchestrator to drain, not the jobs to
    # stop, and one killpg reaches the rollout workers too.
    os.setsid()
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # The fork server's buffering follows its own stdout; a log that ends with a kill must hold every line before it.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    try:
        (_resolve(target) if isinstance(target, str) else target)(*args)
    except InputError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(1)
    except Exception as error:
        if not storage_error(error, log.parent):
            raise
        with contextlib.suppress(OSError):
            print(storage_line(error, log.parent), file=sys.stderr, flush=True)
        os._exit(EXIT_STORAGE)  # what is still buffered cannot be written either


def _die_with_parent() -> None:
    # The pipe behind this belongs to the launcher, not to the fork server that forked us, and no
    # sibling holds its other end: it closes exactly when the launcher is gone.
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    launcher.join()
    os.killpg(os.getpid(), signal.SIGKILL)


def _resolve(name: str) -> Callable[..., None]:
    module, function = name.split(":")
    target: Callable[..., None] = getattr(importlib.import_module(module), function)
    return target
