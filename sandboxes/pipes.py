"""The pipes of a long-lived process, without deadlocks: whoever waits for one direction also serves the other."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Callable

CHUNK = 1 << 16
INBOX = 1 << 20
"""Bytes of stdout taken in before anyone asks for them: a flood beyond stays in the pipe."""
TAIL = 2048
"""Bytes of stderr kept, for messages."""
ENDING_S = 0.5
PATIENCE_S = 1.0
"""How long a write waits for a reader that takes nothing; what is left then goes out while reading."""
TAKE = """
import os
def take(size):
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data
"""
"""The other end of ``write``: Python source, for programs that are themselves sent over the channel."""


class PipeChannel:
    """sandboxes.types.Channel over a process with three pipes.

    ``end`` kills it with everything it started and removes its sandbox; ``oom`` says whether the kernel killed in
    it. For one thread at a time, except ``kill``.
    """

    def __init__(self, process: subprocess.Popen[bytes], end: Callable[[], None], oom: Callable[[], int]) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.process = process
        self.oom_kills = oom
        self._end = end
        self._in, self._out, self._err = process.stdin.fileno(), process.stdout.fileno(), process.stderr.fileno()
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._open = {self._in, self._out, self._err}
        self._outbox, self._inbox, self._tail = bytearray(), bytearray(), bytearray()
        self._closed = False

    def send(self, data: bytes) -> None:
        """``write`` that never waits. Raises EOFError when the process is gone."""
        self._outbox += data
        self._pump(0.0, INBOX)
        if self._in not in self._open:
            raise EOFError(self.detail())

    def write(self, data: bytes) -> None:
        self.send(data)
        last = time.monotonic()
        while self._outbox and time.monotonic() - last < PATIENCE_S:
            before = len(self._outbox)
            self._pump(PATIENCE_S, INBOX)
            if len(self._outbox) < before:
                last = time.monotonic()
            if self._in not in self._open:
                raise EOFError(self.detail())

    def read(self, size: int, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while len(self._inbox) < size:
            if self._out not in self._open:
                raise EOFError(self.detail())
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer within {timeout_s:g} s")
            self._pump(left, max(size, INBOX))
        data = bytes(self._inbox[:size])
        del self._inbox[:size]
        return data

    def was_oom(self) -> bool:
        return self.oom_kills() > 0

    def detail(self) -> str:
        """One line for people: how it ended, and the last it said on stderr."""
        if self._out not in self._open and not self._closed:
            # The end of its output comes a moment before its own.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(ENDING_S)
        if not self._closed:
            self._take_errors()
        said = " | ".join(self._tail.decode(errors="replace").split("\n")).strip(" |")
        code = self.process.poll()
        ended = "the process closed its output" if code is None else f"the process ended with {code}"
        return f"{ended}: {said}" if said else ended

    def is_running(self) -> bool:
        return not self._closed and self.process.poll() is None

    def kill(self) -> None:
        """End the process and its sandbox; only ``close`` is left to do. Twice does no harm."""
        self._end()

    def close(self) -> None:
        if self._closed:
            return
        self.kill()
        self._take_errors()
        self._closed = True
        self._open.clear()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()
        self._inbox.clear()
        self._outbox.clear()

    def __enter__(self) -> PipeChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pump(self, wait_s: float, room: int) -> None:
        """Move what can move, after waiting at most ``wait_s`` for something to be movable."""
        poll = select.poll()
        if self._outbox and self._in in self._open:
            poll.register(self._in, select.POLLOUT)
        if len(self._inbox) < room and self._out in self._open:
            poll.register(self._out, select.POLLIN)
        if self._err in self._open:
            poll.register(self._err, select.POLLIN)
        for descriptor, _ in poll.poll(max(0.0, wait_s) * 1000):
            try:
                if descriptor == self._in:
                    del self._outbox[: os.write(self._in, memoryview(self._outbox)[:CHUNK].tobytes())]
                elif descriptor == self._err:
                    self._take_errors()
                else:
                    data = os.read(self._out, CHUNK)
                    self._inbox += data
                    if not data:
                        self._open.discard(self._out)
            except BlockingIOError:
                pass
            except OSError:
                self._open.discard(descriptor)

    def _take_errors(self) -> None:
        with contextlib.suppress(OSError):
            while self._err in self._open:
                data = os.read(self._err, CHUNK)
                self._tail = (self._tail + data)[-TAIL:]
                if not data:
                    self._open.discard(self._err)
