"""The fork server: runs short programs, each in a fresh process, inside one sandbox. Standard library only.

The host sends the text of this and its sister modules (see sandboxes.pool), so nothing of ours has to exist in the
sandbox. Requests come on stdin (4-byte length, marshal of a Request); per request stdout gets ``S`` before anything of
the program runs, then the answer (4-byte length, JSON):
``{"kind", "cases": [[status, value, error]…], "error", "wall_s", "last"}``. ``last`` announces that this server ends
because it cannot prove that nothing of the program is left. Status ``killed`` is SIGKILL by another than us: the host
knows whether it was the kernel, for memory.

This process never compiles nor parses anything that a program gave. `call` runs all cases in one process, `stdin` one
process per case. Limits are kept from here, by poll and SIGKILL, since a program may block signals. What a process
reports from inside can be forged by the program in it; that gains nothing, because expected outputs are not here.
"""

# A fork must be cheap, so pathlib is not loaded.
# ruff: noqa: PTH112
from __future__ import annotations

import gc
import json
import marshal
import os
import resource
import select
import signal
import site
import sys
import time
from typing import Any, NoReturn

from sandboxes.guest.ground import Ground, Shared
from sandboxes.guest.program import (
    END,
    ERROR,
    HEADER,
    LIMIT,
    OK,
    OOM,
    PR_SET_DUMPABLE,
    Request,
    bound,
    live,
    prctl,
)

STATUS = {OK: "ok", ERROR: "error", OOM: "oom", LIMIT: "output_limit"}
QUIET_S, TICK_S = 0.02, 0.05
CLOSING_S = 0.0005
CHUNK = 1 << 18
KILLED = "signal 9"
PR_SET_CHILD_SUBREAPER = 36
FIXED_LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_FSIZE: 256 << 20,
    resource.RLIMIT_MSGQUEUE: 0,  # queues would outlive their process
}
"""For this process and all programs."""

Frame = tuple[int, str, str]


# ------------------------------------------------------------------------------------ one process


def take_frames(buffer: bytearray, frames: list[Frame], limit: int, most: int) -> bool:
    """Move whole frames out of ``buffer``; False if what is there cannot be ours."""
    while len(buffer) >= HEADER:
        code, size = buffer[0], int.from_bytes(buffer[1:5], "big")
        error_size = int.from_bytes(buffer[5:9], "big")
        if code > END or size > limit or error_size > 1300 or len(frames) >= most:
            return False
        end = HEADER + size + error_size
        if len(buffer) < end:
            break
        value, error = buffer[HEADER : HEADER + size], buffer[HEADER + size : end]
        frames.append((code, value.decode("utf-8", "replace"), error.decode("utf-8", "replace")))
        del buffer[:end]
    return True


def read_some(fd: int, into: bytearray) -> bool:
    """Append what is there; False at the end of the stream."""
    try:
        data = os.read(fd, CHUNK)
    except BlockingIOError:
        return True
    into += data
    return bool(data)


def drain(fd: int, into: bytearray) -> None:
    """Take what is left of a stream to which nobody writes any more."""
    size = -1
    while size < len(into):
        size = len(into)
        read_some(fd, into)


def supervise(request: Request, text: str | None, ground: Ground | Shared) -> tuple[str, list[Frame], bytes, str]:
    """One process from fork to death, with all it started: kind, what it reported, stdout, and how it ended where it
    neither came to its end nor was ended by us."""
    _, mode, _, cases, _, time_s, output_limit, _ = request
    results, results_w = os.pipe()
    out, out_w = os.pipe()
    err, err_w = (out, out_w) if mode == "call" else os.pipe()
    streams = {results: bytearray(), out: bytearray(), err: bytearray()}
    for fd in streams:
        os.set_blocking(fd, False)
    pid = os.fork()
    if pid == 0:
        live(request, text, results_w, out_w, err_w)
    for fd in {results_w, out_w, err_w}:
        os.close(fd)
    poll = select.poll()
    for fd in streams:
        poll.register(fd, 0)  # at first only ends wake us: a short program costs one wake-up, not one per case
    open_fds, frames, most = set(streams), list[Frame](), len(cases) + 3
    seen = dropped = 0
    deadline, wait, closing = time.monotonic() + time_s, QUIET_S, CLOSING_S
    kind, ended = "exit", ""
    killed = True
    while True:
        events = poll.poll(max(0.0, min(wait, deadline - time.monotonic())) * 1000)
        for fd in tuple(open_fds):
            if not read_some(fd, streams[fd]):
                poll.unregister(fd)
                open_fds.discard(fd)
        if not take_frames(streams[results], frames, output_limit, most):
            kind = "died"
            break
        if frames and frames[-1][0] == END:
            break
        dropped += len(streams[err])
        streams[err].clear()
        if len(frames) > seen:
            seen, dropped, deadline = len(frames), 0, time.monotonic() + time_s
        if dropped + len(streams[out]) > output_limit:
            kind = "output_limit"
            break
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            killed, ended = False, how_it_ended(status)
            break
        if time.monotonic() >= deadline:
            kind = "timeout"
            break
        if results not in open_fds:  # most likely it is just ending; if it lives on, it is asked less and less often
            wait = closing = min(2 * closing, TICK_S)
        elif not events:
            wait = TICK_S
        if wait != QUIET_S:
            for fd in open_fds:
                poll.modify(fd, select.POLLIN)
    if killed:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    ground.kill_rest()
    if kind != "died":
        drain(results, streams[results])
        if not take_frames(streams[results], frames, output_limit, most):
            kind = "died"
        if frames and frames[-1][0] == END:
            ended = ""  # it told us and was gone between our look at its pipe and our look at it
        drain(out, streams[out])
        if kind == "exit" and mode != "call" and len(streams[out]) > output_limit:
            kind = "output_limit"
    for fd in streams:
        os.close(fd)
    frames = [f for f in frames if f[0] in STATUS]
    return kind, frames, bytes(streams[out][:output_limit]), ended


def how_it_ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.WEXITSTATUS(status)}"


# ------------------------------------------------------------------------------------ one program


def execute(request: Request, ground: Ground | Shared) -> dict[str, Any]:
    """A program with all its cases: what the host is answered, but for ``last``."""
    began = time.monotonic()
    _, mode, _, cases, *_ = request
    if mode == "call":
        kind, frames, _, ended = supervise(request, None, ground)
        rows = [[STATUS[code], value, error] for code, value, error in frames[: len(cases)]]
        if len(rows) < len(cases) and (kind in ("timeout", "output_limit") or ended == KILLED):
            rows.append(["killed" if ended == KILLED else kind, "", ""])
        ground.clear()
    else:
        kind, ended, rows = "exit", "", []
        for text in cases if mode == "stdin" else (None,):
            once, frames, out, how = supervise(request, text, ground)
            ground.clear()
            rows.append(outcome(once, frames, out.decode("utf-8", "replace"), how))
            kind = once if kind == "exit" else kind
            ended = ended or (how if how != "exit code 0" else "")
            if once in ("timeout", "died"):
                break
    count = 1 if mode == "script" else len(cases)
    rows += [["missing", "", ""]] * (count - len(rows))
    return {"kind": kind, "cases": rows, "error": ended, "wall_s": time.monotonic() - began}


def outcome(kind: str, frames: list[Frame], out: str, ended: str) -> list[str]:
    """One run of a script as a case."""
    if kind != "exit":
        return ["missing" if kind == "died" else kind, out, ""]
    if frames:
        code, _, error = frames[0]
        return [STATUS[code], out, error]
    if ended == KILLED:
        return ["killed", out, ended]
    return ["ok", out, ""] if ended == "exit code 0" else ["error", out, ended]


# ------------------------------------------------------------------------------------ the server


def take(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(fd, size - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data


def give(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def prepare() -> tuple[int, int]:
    """Make this process what programs are forked from; the descriptors of the host's pipes."""
    for option, value in ((PR_SET_DUMPABLE, 0), (PR_SET_CHILD_SUBREAPER, 1)):
        if prctl(option, value, 0, 0, 0):
            raise OSError(f"prctl {option} failed")
    inbound, outbound = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    for kind, value in FIXED_LIMITS.items():
        bound(kind, value)
    # The first process of a pid namespace can only be hurt through handlers, and Python has one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)
    site.setquit()
    sys.path += [folder for folder in site.getsitepackages() if os.path.isdir(folder)]
    sys.argv = ["main.py"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandboxes"]:
        del sys.modules[name]
    return inbound, outbound


def main(once: bool) -> NoReturn:
    """Serve until the host closes its pipe; ``once`` as a guest in a sandbox that others use too: one request, and
    only our own folder and processes are removed."""
    if os.getuid() == 0 or not (once or os.getpid() == 1 or os.getppid() == 0):
        sys.exit("fork server: only as an unprivileged user with a sandbox to itself")
    inbound, outbound = prepare()
    ground = Shared() if once else Ground()
    gc.collect()
    gc.freeze()
    gc.disable()
    last = False
    while not last:
        request: Request = marshal.loads(take(inbound, int.from_bytes(take(inbound, 4), "big")))
        give(outbound, b"S")
        answer = execute(request, ground)
        last = once or not ground.is_clean()
        data = json.dumps({**answer, "last": last}).encode()
        give(outbound, len(data).to_bytes(4, "big") + data)
    # So that the sandbox tells whether that was for memory:
    os._exit(1 if once and any(case[0] == "killed" for case in answer["cases"]) else 0)
