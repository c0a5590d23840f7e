"""A long-lived process in a container of its own, spoken to over its standard streams."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from sandboxes.docker_container import Container
from sandboxes.docker_engine import Gone
from sandboxes.types import MIB, SandboxFailure

PATIENCE_S = 1.0
INBOX = MIB
"""Bytes of stdout taken in before anyone asks for them."""
ERROR_TAIL = 2048


class DockerChannel:
    """The streams of one process in a container of its own. For one thread at a time, except ``close``."""

    def __init__(self, container: Container, argv: Sequence[str]) -> None:
        self._container = container
        self._stream = container.start(argv).stream
        self._outbox = bytearray()
        self._oom = self._closed = False

    def write(self, data: bytes) -> None:
        """Waits a second for a process that takes nothing; what is left then goes out while reading."""
        self._outbox += data
        moved = time.monotonic()
        while self._outbox and time.monotonic() - moved < PATIENCE_S:
            self._raise_if_ended()
            if self._exchange(PATIENCE_S, INBOX):
                moved = time.monotonic()
        self._raise_if_ended()

    def read(self, size: int, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        out = self._stream.out
        while len(out) < size:
            self._raise_if_ended()
            wait = deadline - time.monotonic()
            if wait <= 0:
                raise TimeoutError(f"{len(out)} of {size} bytes within {timeout_s:g} s")
            self._exchange(wait, max(size, INBOX))
        data = bytes(memoryview(out)[:size])
        del out[:size]
        return data

    def _exchange(self, wait_s: float, room: int) -> int:
        # What it says meanwhile is taken in, or both sides would wait for each other; a flood beyond stays there.
        with memoryview(self._outbox) as pending:
            sent = self._stream.exchange(pending, wait_s, read=len(self._stream.out) < room)
        del self._outbox[:sent], self._stream.err[:-ERROR_TAIL]
        return sent

    def _raise_if_ended(self) -> None:
        if self._stream.ended or self._closed:
            said = " ".join(self._stream.err.decode(errors="replace").split())
            raise EOFError(f"the process has ended: {said}" if said else "the process has ended")

    def was_oom(self) -> bool:
        """Asked after ``close`` it repeats what was known before."""
        if not self._closed:
            with suppress(Gone, SandboxFailure):
                self._oom = self._container.oom_kills() > 0
        return self._oom

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stream.close()
            self._container.remove()

    def __enter__(self) -> DockerChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
