"""A sandbox over a channel to its keeper (sandboxes/guest/keeper.py): requests out, frames back.

What comes back is not trusted: a frame that breaks the protocol ends the sandbox.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from sandboxes import archives, rootfs
from sandboxes.pipes import CHUNK, TAKE, PipeChannel
from sandboxes.types import ENVIRONMENT, MIB, Executed, Limits, SandboxFailure

START_S = 30.0
GRACE_S = 10.0
"""How much later than the keeper we lose patience, and take the whole sandbox down."""
COPY_S = 60.0
"""Wall limit of moving files."""
BOOTSTRAP = f"""
{TAKE}
exec(compile(take(int.from_bytes(take(4), "big")), "keeper", "exec"))
"""
TAR = "exec tar --create --file=- --format=gnu --sparse --sort=name --ignore-failed-read --numeric-owner --"
PACK = f"""
[ -e "$1" ] || [ -L "$1" ] || {{ echo "no such file or folder" >&2; exit 2; }}
if [ -d "$1" ]; then cd -- "$1" && {TAR} .; exit 2; fi
cd -- "$(dirname -- "$1")" && {TAR} "$(basename -- "$1")"
"""
UNPACK = 'mkdir -p -- "$1" && cd -- "$1" && exec tar --extract --file=- --preserve-permissions --no-same-owner'
CLEAN = "chmod -R u+rwX . 2>/dev/null; find . -mindepth 1 -delete"


class _Broken(Exception):
    """The keeper ended or spoke nonsense."""


def argv() -> list[str]:
    return [rootfs.PYTHON, "-I", "-S", "-X", "utf8", "-c", BOOTSTRAP]


def open_sandbox(channel: PipeChannel, limits: Limits) -> KeptSandbox:
    """Bring the keeper in over ``channel``, which runs ``argv()``. Raises SandboxFailure."""
    source = Path(__file__).with_name("guest").joinpath("keeper.py").read_bytes()
    try:
        channel.write(len(source).to_bytes(4, "big") + source)
        ready = channel.read(5, START_S)
    except (EOFError, TimeoutError) as error:
        detail = channel.detail()
        channel.close()
        raise SandboxFailure(f"the sandbox did not start: {detail}") from error
    if ready != b"R\0\0\0\0":
        channel.close()
        raise SandboxFailure("the sandbox did not start: its keeper spoke nonsense")
    return KeptSandbox(channel, limits)


class KeptSandbox:
    """sandboxes.types.Sandbox; one command at a time."""

    def __init__(self, channel: PipeChannel, limits: Limits) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        # Headers of an archive, a block a file and more for long names, next to what fits on its disk.
        self._archive_limit = limits.disk_mb * MIB + limits.inodes * 4096 + MIB
        self._dead = ""

    def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", output_limit: int = MIB) -> Executed:
        if not argv:
            raise ValueError("no command")
        return self._ask(_command(argv), stdin, timeout_s, output_limit)

    def read(self, path: str, limit: int = 64 * MIB) -> bytes:
        done = self._ask({"op": "read", "path": path}, b"", COPY_S, limit)
        if done.kind == "exit" and done.exit_code:
            raise FileNotFoundError(done.exit_code, _line(done), path)
        if done.kind == "output_limit":
            raise SandboxFailure(f"{path} is larger than {limit} bytes")
        return self._content(done, f"read {path}")

    def write(self, path: str, data: bytes) -> None:
        done = self._ask({"op": "write", "path": path}, data, COPY_S, MIB)
        if done.kind == "exit" and done.exit_code:
            raise OSError(done.exit_code, os.strerror(done.exit_code), path)
        self._content(done, f"write {path}")

    def upload(self, source: Path, target: str) -> None:
        folder = target if source.is_dir() else str(PurePosixPath(target).parent)
        name = "." if source.is_dir() else PurePosixPath(target).name
        self._unpack(archives.pack(source, name), folder, f"upload to {target}")

    def download(self, source: str, target: Path) -> None:
        archives.unpack(self._pack(source), target, limit=2 * self._archive_limit)

    def snapshot(self) -> bytes:
        return self._pack("/task")

    def restore(self, snapshot: bytes) -> None:
        self._content(self._ask(_command(["sh", "-c", CLEAN]), b"", COPY_S, MIB), "clear /task")
        self._unpack(snapshot, "/task", "restore")

    def is_alive(self) -> bool:
        return not self._dead and self._channel.is_running()

    def close(self) -> None:
        self._dead = self._dead or "it is closed"
        self._channel.close()

    def __enter__(self) -> KeptSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pack(self, source: str) -> bytes:
        done = self._ask(_command(["sh", "-c", PACK, "sh", source]), b"", COPY_S, self._archive_limit)
        if done.kind == "exit" and done.exit_code == 2 and not done.stdout:
            raise FileNotFoundError(2, _line(done), source)
        return self._content(done, f"pack {source}")

    def _unpack(self, archive: bytes, folder: str, what: str) -> None:
        self._content(self._ask(_command(["sh", "-c", UNPACK, "sh", folder]), archive, COPY_S, MIB), what)

    def _content(self, done: Executed, what: str) -> bytes:
        if (done.kind, done.exit_code) != ("exit", 0):
            raise SandboxFailure(f"cannot {what}: {done.kind} {_line(done)}".rstrip())
        return done.stdout

    def _ask(self, request: dict[str, Any], stdin: bytes, timeout_s: float, limit: int) -> Executed:
        """One request to its end; every way it can go is an outcome."""
        with self._lock:
            if not self.is_alive():
                self._dead = self._dead or self._channel.detail()
                return Executed("died", detail=self._dead)
            start, kills = time.monotonic(), self._channel.oom_kills()
            header = json.dumps({**request, "stdin": len(stdin), "timeout": timeout_s, "limit": limit}).encode()
            outputs = {b"O": bytearray(), b"E": bytearray()}
            kind, code, detail = "died", None, ""
            try:
                self._channel.send(len(header).to_bytes(4, "big") + header + stdin)
                kind, code, detail = self._replies(outputs, start + timeout_s + GRACE_S, limit)
            except TimeoutError:
                kind, detail = "timeout", "the sandbox no longer reacted and was taken down"
                self._end(detail)
            except (EOFError, _Broken) as error:
                detail = str(error)
                self._end(detail)
            if self._channel.oom_kills() > kills:
                detail = detail or "the kernel killed a process for memory"
                if kind == "died" or (kind == "exit" and code != 0):
                    kind, code = "oom", None
        return Executed(
            kind,  # type: ignore[arg-type]
            code if kind == "exit" else None,
            bytes(outputs[b"O"]),
            bytes(outputs[b"E"]),
            kind == "output_limit",
            time.monotonic() - start,
            detail,
        )

    def _replies(self, outputs: dict[bytes, bytearray], deadline: float, limit: int) -> tuple[str, int, str]:
        taken = 0
        while True:
            head = self._channel.read(5, deadline - time.monotonic())
            letter, size = head[:1], int.from_bytes(head[1:], "big")
            if size > CHUNK:
                raise _Broken("the keeper sent a frame beyond its size")
            data = self._channel.read(size, deadline - time.monotonic())
            if letter in outputs:
                taken += size
                if taken > limit:
                    raise _Broken("the keeper sent more than its limit")
                outputs[letter] += data
            elif letter == b"X":
                return _verdict(data)
            else:
                raise _Broken("the keeper sent an unknown frame")

    def _end(self, why: str) -> None:
        self._dead = why
        self._channel.kill()


def _command(argv: Sequence[str]) -> dict[str, Any]:
    return {"op": "exec", "argv": list(argv), "environment": dict(ENVIRONMENT)}


def _verdict(data: bytes) -> tuple[str, int, str]:
    try:
        reply = json.loads(data)
        kind, code, detail = reply["kind"], reply["code"], reply["detail"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _Broken("the keeper sent no verdict") from error
    if (
        kind not in ("exit", "timeout", "output_limit", "infra_failure")
        or type(code) is not int
        or type(detail) is not str
    ):
        raise _Broken("the keeper sent no verdict")
    return kind, code, detail


def _line(done: Executed) -> str:
    return (done.stderr.decode(errors="replace").strip().splitlines() or [done.detail])[-1]
