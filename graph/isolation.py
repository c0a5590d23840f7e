"""Which sandbox a run uses: chosen once, said, recorded, never changed silently; its leftovers are swept."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from graph.config import RunSection
from graph.record import read_record, write_atomic
from sandboxes.backends import open_backend
from sandboxes.types import Executor, SandboxFailure, SandboxUnavailable
from trainer.domains import entry_of
from trainer.execution import IsolatedPrograms
from trainer.types import InputError, Record

FILE = "isolation.json"
SWEEP_S = 60.0


class Isolated(Record):
    """The sandbox of a run: backend by name (``none``: nothing is executed) and how strong it is, in words.

    ``parts`` is the backend of the harness's Python parts: that of the domain where it has one; in other domains ``none``
    where the user wants none (such parts are refused), and empty until the first such part is there.
    """

    backend: str = "none"
    description: str = "none: nothing is executed"
    parts: str = ""


def settle(run: RunSection) -> None:
    """Put the run's image and runtime where this process and its jobs look for them: a resumed run keeps its own
    whatever the environment says by then."""
    for name, value in (
        ("EVOTRAINER_SANDBOX_IMAGE", run.sandbox_image),
        ("EVOTRAINER_DOCKER_RUNTIME", run.docker_runtime),
    ):
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)


def choose(domain: str, wanted: str, python_parts: Sequence[str] = ()) -> Isolated:
    """The sandbox for a domain and a harness with ``python_parts`` (their paths). One that executes nothing gets none
    unless one is asked for by name.

    Raises InputError where programs must run and no backend works, or the named one does not.
    """
    executes = entry_of(domain).executes
    if wanted == "none" and executes:
        raise InputError(
            f"run.sandbox: domain {domain} runs programs, and untrusted ones are never run without a sandbox; use auto"
        )
    if wanted == "none" and python_parts:
        raise _refused(python_parts[0])
    if wanted == "none":
        return Isolated(parts="none")
    if wanted == "auto" and not executes:
        return _with_parts(Isolated(), python_parts[0]) if python_parts else Isolated()
    try:
        backend = open_backend(wanted)
        return Isolated(backend=backend.name, description=str(backend.isolation()), parts=backend.name)
    except SandboxUnavailable as error:
        raise InputError(f"run.sandbox: {error}") from error


def _with_parts(isolated: Isolated, path: str) -> Isolated:
    """The same with a backend for Python parts, of which ``path`` is the first."""
    try:
        backend = open_backend("auto")
    except SandboxUnavailable as error:
        raise _refused(path, str(error)) from error
    description = f"none for tasks; Python parts of the harness: {backend.isolation()}"
    return isolated.model_copy(update={"parts": backend.name, "description": description})


def _refused(path: str, reason: str = "") -> InputError:
    from trainer.python_parts import no_sandbox

    return no_sandbox(path, reason)


def of_run(root: Path, domain: str, wanted: str) -> Isolated:
    """The recorded sandbox of a run, chosen and recorded at its first start. Raises InputError where the recorded one
    no longer works: another would be another experiment."""
    file = root / FILE
    if not file.exists():
        _write(file, choose(domain, wanted))
    chosen = recorded(root)
    for name in {chosen.backend, chosen.parts} - {"none", ""}:
        try:
            open_backend(name)
        except SandboxUnavailable as error:
            raise InputError(f"{file}: this run is isolated by {name}, which does not work now: {error}") from error
    return chosen


def recorded(root: Path) -> Isolated:
    """What ``of_run`` recorded."""
    return read_record(root / FILE, Isolated)


def _write(file: Path, isolated: Isolated) -> None:
    write_atomic(file, isolated.model_dump_json(indent=1) + "\n")


class HarnessSandbox:
    """Where the Python parts of a run's harness are executed. The backend is chosen once, when the first part is there,
    then said and recorded; no sandbox starts before something runs."""

    def __init__(self, root: Path, run: str, say: Callable[[str, str], None]) -> None:
        self._file = root / FILE
        self._run = run
        self._say = say
        self._recorded = recorded(root)
        self._programs: IsolatedPrograms | None = None

    @property
    def backend(self) -> str:
        """Its name, ``none`` as long as there is none."""
        return self._recorded.parts or "none"

    @property
    def executor(self) -> Executor | None:
        """Runs Python parts; None as long as there is no backend."""
        if self._programs is None and self.backend != "none":
            self._programs = IsolatedPrograms(self.backend, self._run)
        return self._programs

    def admit(self, python_parts: Sequence[str]) -> None:
        """Make sure that these parts (paths) can be run. Raises InputError, naming the first and the remedy."""
        if not python_parts or self.backend != "none":
            return
        if self._recorded.parts == "none":
            raise _refused(python_parts[0])
        self._recorded = _with_parts(self._recorded, python_parts[0])
        _write(self._file, self._recorded)
        self._say("run", f"{python_parts[0]} is Python; sandbox {self._recorded.description}")

    def close(self) -> None:
        if self._programs is not None:
            self._programs.close()
            self._programs = None


@contextlib.contextmanager
def swept(current: Callable[[], str], say: Callable[[str, str], None]) -> Iterator[None]:
    """Remove leftovers of dead owners at the start, every SWEEP_S seconds, and at the end. ``current`` names the
    run's backend, which may come late."""
    _sweep(current(), say)
    stop = threading.Event()

    def timer() -> None:
        while not stop.wait(SWEEP_S):
            _sweep(current(), say)

    thread = threading.Thread(target=timer, daemon=True, name="sandbox-sweep")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _sweep(current(), say)


def _sweep(backend: str, say: Callable[[str, str], None]) -> None:
    if backend == "none":
        return
    try:
        removed = open_backend(backend).reap()
    except (SandboxFailure, SandboxUnavailable) as error:
        say("sandbox", f"leftovers could not be swept: {error}")
        return
    if removed:
        say("sandbox", f"removed {len(removed)} left over by processes that are gone")
