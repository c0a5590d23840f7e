"""The Docker backend: one hardened container per sandbox, any engine that DOCKER_HOST names.

Memory counts what lies in /task and /tmp too: both are in memory. The image is never pulled
(``python -m sandboxes.images build``); EVOTRAINER_DOCKER_RUNTIME names another runtime, such as gVisor's ``runsc``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from sandboxes.archives import pack, unpack
from sandboxes.docker_channel import DockerChannel
from sandboxes.docker_container import TOOL, Container, remove, this_host
from sandboxes.docker_engine import Engine, Gone
from sandboxes.images import image_name, missing
from sandboxes.kept import CLEAN, PACK, UNPACK
from sandboxes.owners import is_gone
from sandboxes.types import MIB, Executed, Isolation, Limits, Owner, SandboxFailure, SandboxUnavailable

TOOL_S = 120.0
"""Seconds for our own small commands in a sandbox (reading, writing, archives)."""
NO_FILE = 44
MAX_WORD, MAX_WORDS = 128 * 1024, 2 * MIB - 64 * 1024
"""Linux: one argument, and all together with the default stack of 8 MiB, less what we add."""


class DockerSandbox:
    """A sandbox in a container of its own. One command at a time; threads wait for each other."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._lock = threading.Lock()
        self._ooms = 0
        self._closed = False
        self._end: Executed | None = None  # what every further command gets

    def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: bytes = b"", output_limit: int = MIB) -> Executed:
        if not argv:
            raise ValueError("no command")
        if reason := _no_system_takes(argv):
            return Executed("exit", 126, stderr=reason)
        with self._lock:
            if self._closed or self._end is not None:
                return self._end or Executed("died", detail="the sandbox is closed")
            talk = process = None
            try:
                process = self._container.start(argv)
                talk = self._container.talk(process, stdin, timeout_s, output_limit)
                ooms, self._ooms = self._ooms, self._container.sweep()
            except Gone as error:
                self._end = self._ended(str(error), by_the_program=process is not None)
                if talk is None or talk.stop == "exit":
                    return self._end
                ooms = self._ooms
            except SandboxFailure as error:
                return Executed("infra_failure", detail=str(error))
            limited = talk.stop == "output_limit"
            if talk.stop != "exit":
                return Executed(talk.stop, None, talk.out, talk.err, truncated=limited, wall_s=talk.wall_s)
            if self._ooms > ooms and talk.exit_code != 0:
                return Executed("oom", None, talk.out, talk.err, wall_s=talk.wall_s)
            return Executed("exit", talk.exit_code, talk.out, talk.err, wall_s=talk.wall_s)

    def _ended(self, reason: str, *, by_the_program: bool) -> Executed:
        if self._closed:
            return Executed("infra_failure", detail="the sandbox was closed meanwhile")
        if time.time() >= self._container.deadline:
            return Executed("infra_failure", detail=f"the sandbox's lifetime is over ({reason})")
        # Nothing of a program survives its command, so what ends between two commands was ended from outside.
        return Executed("died" if by_the_program else "infra_failure", detail=f"the sandbox has ended ({reason})")

    def read(self, path: str, limit: int = 64 * MIB) -> bytes:
        script = f'[ -f "$1" ] && [ -r "$1" ] || exit {NO_FILE}; exec head -c "$2" -- "$1"'
        code, data, error = self._tool(script, [_path(path), str(limit + 1)], limit=limit + 4096)
        if code == NO_FILE:
            raise FileNotFoundError(f"{path}: no regular file that can be read")
        if code:
            raise SandboxFailure(f"docker: cannot read {path}: {error}")
        if len(data) > limit:
            raise SandboxFailure(f"docker: {path} has more than {limit} bytes")
        return data

    def write(self, path: str, data: bytes) -> None:
        # Writing to a FIFO that a program left would wait for ever.
        script = (
            'if [ -e "$1" ] && [ ! -f "$1" ]; then echo "no regular file" >&2; exit 1; fi; '
            'mkdir -p -- "$(dirname -- "$1")" && exec cat >"$1"'
        )
        code, _, error = self._tool(script, [_path(path)], stdin=data)
        if code:
            raise OSError(f"cannot write {path}: {error}")

    def upload(self, source: Path, target: str) -> None:
        place = PurePosixPath(_path(target))
        folder, name = (place, ".") if source.is_dir() else (place.parent, place.name)
        self._put(pack(source, name), str(folder), f"upload to {target}")

    def download(self, source: str, target: Path) -> None:
        unpack(self._get(_path(source)), target, limit=2 * self._most())

    def snapshot(self) -> bytes:
        return self._get("/task")

    def restore(self, snapshot: bytes) -> None:
        self._put(snapshot, "/task", "restore", first=CLEAN)

    def _get(self, source: str) -> bytes:
        # What its owner may not read would be left out: such modes are changed, and only such.
        script = f'[ -e "$1" ] || exit {NO_FILE}; chmod -R u+rX -- "$1" 2>/dev/null; {PACK}'
        code, data, error = self._tool(script, [source], limit=self._most())
        if code == NO_FILE:
            raise FileNotFoundError(f"{source}: nothing there")
        if code:
            raise SandboxFailure(f"docker: cannot pack {source}: {error}")
        return data

    def _put(self, archive: bytes, folder: str, what: str, first: str = ":") -> None:
        code, _, error = self._tool(f"{first}\n{UNPACK}", [folder], stdin=archive)
        if code:
            raise SandboxFailure(f"docker: cannot {what}: {error}")

    def _most(self) -> int:
        """Bytes of the largest honest archive; a sparse file may pretend to be any size."""
        limits = self._container.limits
        return limits.disk_mb * MIB + limits.inodes * 4096 + MIB

    def _tool(
        self, script: str, args: Sequence[str], *, stdin: bytes = b"", limit: int = MIB
    ) -> tuple[int, bytes, str]:
        """Run one of our own scripts: exit code, output, the last line of its errors. Raises SandboxFailure."""
        with self._lock:
            if self._closed or self._end is not None:
                raise SandboxFailure(f"docker: {self._end.detail if self._end else 'the sandbox is closed'}")
            try:
                process = self._container.start(args, script=TOOL + script)
                talk = self._container.talk(process, stdin, TOOL_S, limit)
                if talk.exit_code is None:
                    self._container.sweep()
            except Gone as error:
                self._end = self._ended(str(error), by_the_program=False)
                raise SandboxFailure(f"docker: {self._end.detail}") from error
        if talk.exit_code is None:
            raise SandboxFailure(f"docker: {talk.stop} (more than {limit} bytes or {TOOL_S:.0f} s)")
        return talk.exit_code, talk.out, talk.err.decode(errors="replace").strip().rpartition("\n")[2]

    def is_alive(self) -> bool:
        return not self._closed and self._end is None and self._container.is_alive()

    def close(self) -> None:
        # Without the lock: whoever closes must not wait for a command's time limit.
        if not self._closed:
            self._closed = True
            self._container.remove()

    def __enter__(self) -> DockerSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DockerBackend:
    """Sandboxes in containers of a Docker engine."""

    name = "docker"

    def __init__(self) -> None:
        self._engine: tuple[int, Engine] | None = None
        self._has_reaped = False
        self._lock = threading.Lock()

    def isolation(self) -> Isolation:
        engine, image, runtime = self._connect(), image_name(), _runtime()
        try:
            if not _holds(engine, image):
                raise SandboxUnavailable(missing(image))
            info = engine.info
        except (Gone, SandboxFailure) as error:
            raise SandboxUnavailable(str(error)) from error
        if runtime and runtime not in info.get("Runtimes", {}):
            known = ", ".join(sorted(info.get("Runtimes", {})))
            raise SandboxUnavailable(f"docker: EVOTRAINER_DOCKER_RUNTIME={runtime} is unknown to the engine: {known}")
        if not (info.get("MemoryLimit") and info.get("PidsLimit")):
            raise SandboxUnavailable(
                "docker: the engine cannot limit memory and processes; delegate cgroups to it, or use bubblewrap"
            )
        level = {None: "container", "runsc": "container+gvisor"}.get(runtime, f"container+{runtime}")
        notes = () if any("seccomp" in option for option in info.get("SecurityOptions") or ()) else ("no seccomp",)
        return Isolation(self.name, level, "cgroup", notes)

    def create(self, owner: Owner, limits: Limits = Limits()) -> DockerSandbox:  # noqa: B008  (frozen)
        return DockerSandbox(self._start(owner, limits))

    def spawn(self, argv: Sequence[str], owner: Owner, limits: Limits = Limits()) -> DockerChannel:  # noqa: B008
        container = self._start(owner, limits)
        try:
            return DockerChannel(container, argv)
        except Gone as error:
            raise SandboxFailure(f"docker: the container ended at once: {error}") from error
        except SandboxFailure:
            container.remove()
            raise

    def _start(self, owner: Owner, limits: Limits) -> Container:
        engine, image = self._connect(), image_name()
        try:
            if not _holds(engine, image):
                raise SandboxUnavailable(missing(image))
            if not self._has_reaped:
                self._has_reaped = True
                self.reap()  # what earlier runs left would fill the machine sooner or later
            return Container(engine, image, owner, limits, _runtime())
        except Gone as error:
            raise SandboxFailure(f"docker: the container ended at once: {error}") from error

    def reap(self) -> list[str]:
        engine = self._connect()
        with engine.doing("list containers"):
            found = engine.api.containers(all=True, filters={"label": "evotrainer.run"})
        removed = []
        for container in found:
            if _is_leftover(container["Labels"]):
                remove(engine, container["Id"])
                removed.append(container["Names"][0].removeprefix("/"))
        return removed

    def _connect(self) -> Engine:
        """This process's connection: a forked child must not share its parent's."""
        with self._lock:
            if self._engine is None or self._engine[0] != os.getpid():
                self._engine = (os.getpid(), Engine())
            return self._engine[1]


def _no_system_takes(argv: Sequence[str]) -> bytes:
    """Why no kernel would start this command, or nothing: the engine's answer would look like its own failure."""
    if any("\0" in word for word in argv):
        return b"null byte in an argument"
    sizes = [len(os.fsencode(word)) + 1 for word in argv]
    return b"argument list too long" if max(sizes) > MAX_WORD or sum(sizes) + 8 * len(sizes) > MAX_WORDS else b""


def _is_leftover(labels: dict[str, str]) -> bool:
    """Whether the owner named by the labels is gone or the time is over; what cannot be read is left alone."""
    try:
        if time.time() > float(labels["evotrainer.deadline"]):
            return True
        here = labels["evotrainer.host"] == this_host()
        return here and is_gone(int(labels["evotrainer.pid"]), int(labels["evotrainer.started"]))
    except (KeyError, ValueError):
        return False


def _holds(engine: Engine, image: str) -> bool:
    with engine.doing("look for the image"):
        return engine.image(image) is not None


def _runtime() -> str | None:
    return os.environ.get("EVOTRAINER_DOCKER_RUNTIME") or None


def _path(path: str) -> str:
    """Absolute; relative paths are /task's."""
    return str(PurePosixPath("/task", path))
