"""The two-way stream of an attached process: bytes in, frames of stdout and stderr out."""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress

CHUNK = 1 << 16
HEADER = 8


class Stream:
    """An upgraded connection. ``out`` and ``err`` hold what came and was not taken; ``ended`` says that no more comes.

    Frames: one byte stream number (1 stdout, 2 stderr), three of nothing, four of length, big-endian; then the data
    (Docker Engine API, "Attach to a container").
    """

    def __init__(self, connection: socket.socket, early: bytes = b"") -> None:
        self.out, self.err, self.ended = bytearray(), bytearray(), False
        self._connection = connection
        self._header, self._left, self._number = bytearray(), 0, 0
        self._writable = True
        connection.setblocking(False)
        self._feed(early)

    def exchange(self, pending: memoryview, wait_s: float, *, read: bool = True) -> int:
        """Wait once for the connection, then move what moves (at most one chunk each way); bytes of ``pending`` sent.

        Once the other side takes no more, everything counts as sent.
        """
        gone = 0
        if pending and not self._writable:
            gone, pending, wait_s = len(pending), pending[:0], 0.0
        events = (select.POLLIN if read and not self.ended else 0) | (select.POLLOUT if pending else 0)
        if not events:
            time.sleep(max(0.0, min(wait_s, 0.05)))
            return gone
        poll = select.poll()
        poll.register(self._connection, events)
        ready = dict(poll.poll(max(0, round(wait_s * 1000)))).get(self._connection.fileno(), 0)
        if ready & (select.POLLIN | select.POLLHUP | select.POLLERR):
            if not read:
                self._writable = not ready & (select.POLLHUP | select.POLLERR)
            else:
                self._receive()
        if ready & select.POLLOUT and pending:
            try:
                return self._connection.send(pending[:CHUNK])
            except BlockingIOError:
                return 0
            except OSError:
                self._writable = False
                return len(pending)
        return gone

    def finish(self) -> None:
        """No more input: the process reads to the end of its stdin."""
        self._writable = False
        with suppress(OSError):  # it has ended already
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.ended = True
        self._connection.close()

    def _receive(self) -> None:
        try:
            data = self._connection.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.ended = True
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not self._left:
                take = HEADER - len(self._header)
                self._header += view[:take]
                view = view[take:]
                if len(self._header) < HEADER:
                    return
                self._number, self._left = self._header[0], int.from_bytes(self._header[4:], "big")
                self._header.clear()
                continue
            part = view[: self._left]
            (self.err if self._number == 2 else self.out).extend(part)
            self._left -= len(part)
            view = view[len(part) :]
