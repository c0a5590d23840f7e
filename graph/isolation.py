"""Which sandbox a run uses: chosen once, said, recorded, never changed silently; its leftovers are swept."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from graph.record import read_record, write_atomic
from sandboxes.backends import open_backend
from sandboxes.types import Backend, SandboxFailure, SandboxUnavailable
from trainer.domains import DOMAINS
from trainer.types import InputError, Record

FILE = "isolation.json"
SWEEP_S = 60.0


class Isolated(Record):
    """The sandbox of a run: backend by name (``none``: nothing is executed) and how strong it is, in words."""

    backend: str = "none"
    description: str = "none: nothing is executed"


def choose(domain: str, wanted: str) -> Isolated:
    """The sandbox for a domain. One that executes nothing gets none unless one is asked for by name.

    Raises InputError where programs must run and no backend works, or the named one does not.
    """
    executes = domain in DOMAINS and DOMAINS[domain].executes
    if wanted == "none" and executes:
        raise InputError(
            f"run.sandbox: domain {domain} runs programs, and untrusted ones are never run without a sandbox; use auto"
        )
    if wanted == "none" or (wanted == "auto" and not executes):
        return Isolated()
    try:
        backend = open_backend(wanted)
        return Isolated(backend=backend.name, description=str(backend.isolation()))
    except SandboxUnavailable as error:
        raise InputError(f"run.sandbox: {error}") from error


def of_run(root: Path, domain: str, wanted: str) -> Isolated:
    """The recorded sandbox of a run, chosen and recorded at its first start. Raises InputError where the recorded one
    no longer works: another would be another experiment."""
    file = root / FILE
    if not file.exists():
        write_atomic(file, choose(domain, wanted).model_dump_json(indent=1) + "\n")
    recorded = read_record(file, Isolated)
    if recorded.backend != "none":
        try:
            open_backend(recorded.backend)
        except SandboxUnavailable as error:
            raise InputError(
                f"{file}: this run is isolated by {recorded.backend}, which does not work now: {error}"
            ) from error
    return recorded


@contextlib.contextmanager
def swept(backend: str, say: Callable[[str, str], None]) -> Iterator[None]:
    """Remove leftovers of dead owners at the start, every SWEEP_S seconds, and at the end."""
    if backend == "none":
        yield
        return
    keeper = open_backend(backend)
    _sweep(keeper, say)
    stop = threading.Event()

    def timer() -> None:
        while not stop.wait(SWEEP_S):
            _sweep(keeper, say)

    thread = threading.Thread(target=timer, daemon=True, name="sandbox-sweep")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _sweep(keeper, say)


def _sweep(backend: Backend, say: Callable[[str, str], None]) -> None:
    try:
        removed = backend.reap()
    except SandboxFailure as error:
        say("sandbox", f"leftovers could not be swept: {error}")
        return
    if removed:
        say("sandbox", f"removed {len(removed)} left over by processes that are gone")
