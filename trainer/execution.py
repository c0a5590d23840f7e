"""Programs of untrusted origin, run by warm workers in a sandbox that starts with the first of them."""

from __future__ import annotations

from collections.abc import Sequence

from sandboxes.types import Executor, Program, Ran, SandboxUnavailable
from trainer.types import InputError


class IsolatedPrograms:
    """Implements ``sandboxes.types.Executor`` on a backend by name; nothing is started before it is needed."""

    def __init__(self, backend: str, run: str, workers: int = 1) -> None:
        self._backend = backend
        self._run = run
        self._workers = workers
        self._pool: Executor | None = None

    def run(self, programs: Sequence[Program]) -> list[Ran]:
        """See Executor. Raises InputError, with the remedy, where the backend does not work here."""
        if not programs:
            return []
        if self._pool is None:
            self._pool = open_pool(self._backend, self._run, self._workers)
        return self._pool.run(programs)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def open_pool(backend: str, run: str, workers: int) -> Executor:
    """Warm workers on a backend (sandboxes.backends); ``run`` labels their sandboxes."""
    from sandboxes.backends import open_backend
    from sandboxes.owners import this_process
    from sandboxes.pool import Pool

    if backend == "none":
        raise InputError("sandbox: none was chosen, and untrusted programs are never run without; use --sandbox auto")
    try:
        return Pool(open_backend(backend), this_process(run), workers=workers)
    except SandboxUnavailable as error:
        raise InputError(f"sandbox: {error}") from error
