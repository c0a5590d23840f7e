"""The first process of a sandbox: runs commands one after the other, and leaves nothing of them behind.

It arrives over its own standard input (see sandboxes.kept), so no file of ours is visible inside, and uses the standard
library only. As process 1 of its namespace no signal from inside reaches it, and what it does not hold dies with it.

A request is a big-endian length (4 bytes), a JSON object of that length and ``stdin`` more bytes, the command's input:
  op       exec (``argv``, ``environment``), read (``path``) or write (``path``)
  timeout  seconds; limit  bytes of stdout and stderr together; stdin  bytes of input that follow
The reply is a sequence of frames, a letter, a big-endian length (4 bytes) and that many bytes: O (stdout) and E (stderr)
as they come, at last X with a JSON object: ``kind`` (exit, timeout, output_limit, infra_failure), ``code``, ``detail``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import stat
import time
from pathlib import Path
from typing import Any, NoReturn

CHUNK = 1 << 16
PR_SET_DUMPABLE = 4

_libc = ctypes.CDLL(None)


def main() -> None:
    # Nobody inside may trace us or look into /proc/1: same user, but not dumpable.
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a handler would let it through, even to process 1
    send(b"R", b"")
    while True:
        serve(json.loads(take(int.from_bytes(take(4), "big"))))


def take(size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(0, min(size - len(data), 1 << 20))
        if not chunk:
            os._exit(0)  # our owner is gone
        data += chunk
    return data


def send(letter: bytes, data: bytes) -> None:
    frame = memoryview(letter + len(data).to_bytes(4, "big") + data)
    try:
        while frame:
            frame = frame[os.write(1, frame) :]
    except OSError:
        os._exit(0)


def serve(request: dict[str, Any]) -> None:
    pending = request["stdin"]
    reply: dict[str, Any]
    try:
        command = Command(request)
    except OSError as error:
        reply = {"kind": "infra_failure", "code": 0, "detail": f"cannot start a process: {error}"}
    else:
        kind = command.attend(time.monotonic() + request["timeout"])
        code = sweep(command.pid)
        kind = command.drain(kind)
        pending = command.pending
        reply = {"kind": kind, "code": code, "detail": ""}
    while pending:
        pending -= len(take(min(pending, CHUNK)))
    send(b"X", json.dumps(reply).encode())


def sweep(main_process: int) -> int:
    """Kill everything else in the sandbox and collect it; the exit code of ``main_process``."""
    code = 0
    while True:
        with contextlib.suppress(ProcessLookupError):
            # To all but us, at once: nothing can fork its way out of it, and no session or group hides.
            os.kill(-1, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return code
        if pid == main_process:
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else 128 - code


class Command:
    """A running request with our ends of its pipes."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.pending: int = request["stdin"]
        self.room: int = request["limit"]
        self.buffer = b""
        pipes = [os.pipe(), os.pipe(), os.pipe()]
        try:
            self.pid = os.fork()
        except OSError:
            for pipe in pipes:
                os.close(pipe[0])
                os.close(pipe[1])
            raise
        if self.pid == 0:
            become(request, pipes[0][0], pipes[1][1], pipes[2][1])
        os.close(pipes[0][0])
        os.close(pipes[1][1])
        os.close(pipes[2][1])
        self.stdin = pipes[0][1]
        self.outputs = {pipes[1][0]: b"O", pipes[2][0]: b"E"}
        os.set_blocking(self.stdin, False)
        self.handle = os.pidfd_open(self.pid)
        if not self.pending:
            self.close_stdin()

    def attend(self, deadline: float) -> str:
        """Serve its pipes until it ends or must end; ``kind``. Its children may still run."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout"
            poll = select.poll()
            poll.register(self.handle, select.POLLIN)
            for output in self.outputs:
                poll.register(output, select.POLLIN)
            if self.stdin >= 0 and self.buffer:
                poll.register(self.stdin, select.POLLOUT)
            elif self.stdin >= 0:
                poll.register(self.stdin, 0)
            more = self.pending and not self.buffer and self.stdin >= 0
            poll.register(0, select.POLLIN if more else 0)
            ready = dict(poll.poll(min(left, 3600.0) * 1000))
            for output in [d for d in self.outputs if d in ready]:
                if not self.forward(output):
                    return "output_limit"
            if self.stdin in ready:
                self.feed()
            if ready.get(0, 0) & select.POLLIN:
                self.buffer = take(min(self.pending, CHUNK))
                self.pending -= len(self.buffer)
            elif 0 in ready:
                os._exit(0)  # our owner is gone
            if self.handle in ready:
                return "exit"

    def drain(self, kind: str) -> str:
        """What is left in the pipes of the dead, without waiting: a descriptor may lie in a socket nobody owns."""
        for output in list(self.outputs):
            os.set_blocking(output, False)
            try:
                while output in self.outputs:
                    if not self.forward(output):
                        kind = "output_limit" if kind == "exit" else kind
                        break
            except BlockingIOError:
                pass
        for descriptor in [*self.outputs, self.handle]:
            os.close(descriptor)
        self.outputs.clear()
        self.close_stdin()
        return kind

    def forward(self, output: int) -> bool:
        """Hand on what is there; False when it is more than is allowed."""
        data = os.read(output, CHUNK)
        letter = self.outputs[output]
        if not data:
            os.close(output)
            del self.outputs[output]
        elif self.room or len(data) <= self.room:
            send(letter, data[: self.room])
        fits = len(data) <= self.room
        self.room -= min(len(data), self.room)
        return fits

    def feed(self) -> None:
        try:
            self.buffer = self.buffer[os.write(self.stdin, self.buffer) :] if self.buffer else self.buffer
            if self.buffer or self.pending:
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # it does not want more
        self.close_stdin()

    def close_stdin(self) -> None:
        self.buffer = b""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1


def become(request: dict[str, Any], stdin: int, stdout: int, stderr: int) -> NoReturn:
    """The child: the command itself, or the small program that reads or writes a file. Never returns."""
    code = 126
    try:
        os.setsid()
        os.dup2(stdin if request["stdin"] or request["op"] != "exec" else os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.closerange(3, 1 << 16)
        os.umask(0o022)
        os.chdir("/task")
        if request["op"] == "read":
            code = read_file(request["path"])
        elif request["op"] == "write":
            code = write_file(request["path"])
        else:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            # Dumpable for a moment, to be allowed to offer itself first to the kernel's memory killer.
            _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
            with open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
                score.write("1000")
            os.execvpe(request["argv"][0], request["argv"], request["environment"])
    except FileNotFoundError as error:
        code = 127 if request["op"] == "exec" else errno.ENOENT
        complain(error)
    except OSError as error:
        code = 126 if request["op"] == "exec" else error.errno or 126
        complain(error)
    except BaseException as error:  # an argument no system takes (a null character), memory
        complain(error)
    finally:
        os._exit(code)


def complain(error: BaseException) -> None:
    os.write(2, f"{error}\n".encode(errors="backslashreplace"))


def read_file(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)  # a FIFO would keep us waiting
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    while data := os.read(descriptor, CHUNK):
        write_all(1, data)
    return 0


def write_file(path: str) -> int:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    os.ftruncate(descriptor, 0)
    while data := os.read(0, CHUNK):
        write_all(descriptor, data)
    return 0


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    main()
