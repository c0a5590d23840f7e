"""Isolation by bubblewrap: namespaces, no privileges, a system call filter, control groups. No daemon, no image.

A sandbox is one process tree with a pid namespace of its own: when the process that bubblewrap starts ends, the
kernel ends everything in it. It dies with us.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sandboxes import cgroups, kept, rootfs, seccomp
from sandboxes.owners import is_gone, this_process
from sandboxes.pipes import PipeChannel
from sandboxes.types import ENVIRONMENT, MIB, Isolation, Limits, Owner, SandboxFailure, SandboxUnavailable

USER = 65534
DEFAULTS = Limits()
REMEDY = "install it (apt install bubblewrap) and allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)"
LAUNCHER = Path(__file__).with_name("launch.py")


@dataclass(frozen=True)
class _Open:
    """A running sandbox of this process, for the sweep."""

    name: str
    owner: Owner
    ends: float  # monotonic seconds
    channel: PipeChannel


class BubblewrapBackend:
    """sandboxes.types.Backend."""

    name = "bubblewrap"

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def isolation(self) -> Isolation:
        return _isolation(self)

    def create(self, owner: Owner, limits: Limits = DEFAULTS) -> kept.KeptSandbox:
        return kept.open_sandbox(self.spawn(kept.argv(), owner, limits), limits)

    def spawn(self, argv: Sequence[str], owner: Owner, limits: Limits = DEFAULTS) -> PipeChannel:
        places = cgroups.places()
        group = cgroups.create(places, owner, limits) if places else None
        name = (
            group.name if group else f"evotrainer-{owner.pid}-{owner.started}-{len(self._open)}-{time.monotonic_ns()}"
        )
        try:
            process = _start(argv, limits, group)
        except BaseException as error:
            if group:
                cgroups.remove(group)
            if isinstance(error, OSError):
                raise SandboxFailure(f"cannot start bubblewrap: {error}") from error
            raise

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
            if group:
                cgroups.remove(group)
            self._open.pop(name, None)

        last = 0

        def oom_kills() -> int:
            nonlocal last  # the counter goes with the group, the knowledge stays
            last = max(last, group.oom_kills() if group else 0)
            return last

        channel = PipeChannel(process, _before(oom_kills, end), oom_kills)
        self._open[name] = _Open(name, owner, time.monotonic() + owner.lifetime_s, channel)
        return channel

    def reap(self) -> list[str]:
        over = [
            o for o in list(self._open.values()) if o.ends < time.monotonic() or is_gone(o.owner.pid, o.owner.started)
        ]
        for sandbox in over:
            sandbox.channel.kill()
        places = cgroups.places()
        return sorted({sandbox.name for sandbox in over} | set(cgroups.reap(places) if places else ()))


def _before(first: Callable[[], object], then: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        then()

    return both


@cache
def _isolation(backend: BubblewrapBackend) -> Isolation:
    """What a real sandbox says, once per process."""
    try:
        with backend.create(this_process("probe", 60.0)) as sandbox:
            ran = sandbox.exec(["true"], timeout_s=30.0)
    except SandboxFailure as error:
        raise SandboxUnavailable(f"bubblewrap does not work here ({error}): {REMEDY}") from error
    if (ran.kind, ran.exit_code) != ("exit", 0):
        raise SandboxUnavailable(f"bubblewrap does not work here ({ran.kind}, {ran.detail}): {REMEDY}")
    notes = [] if os.geteuid() == 0 else ["under our own user id"]
    if cgroups.places() is None:
        notes += ["memory bounded for each process, CPU not at all", "no report of memory kills"]
    return Isolation("bubblewrap", "namespaces", "cgroup" if cgroups.places() else "rlimit", tuple(notes))


def _command(argv: Sequence[str], limits: Limits, group: cgroups.Group | None, filter_fd: int) -> list[str]:
    """The launcher's command line."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailable(f"bubblewrap is missing: {REMEDY}")
    root = rootfs.ensure()
    stage = root.parent / "stage"
    command = [
        bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
        "--as-pid-1", "--cap-drop", "ALL", "--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox",
        "--ro-bind", str(root), "/", "--proc", "/proc", "--dev", "/dev",
        # bubblewrap's /dev is a writable memory file system without bounds: close it, but for the bounded part.
        "--bind", f"{stage}/shm", "/dev/shm", "--remount-ro", "/dev",
        "--bind", f"{stage}/tmp", "/tmp", "--bind", f"{stage}/task", "/task", "--chdir", "/task",
        *(word for name, value in ENVIRONMENT.items() for word in ("--setenv", name, value)),
        "--seccomp", str(filter_fd), "--", *argv,
    ]  # fmt: skip
    resources = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1024}
    if group is None:
        resources |= {"RLIMIT_AS": limits.memory_mb * MIB, "RLIMIT_NPROC": limits.pids + cgroups.OUR_PIDS}
    spec = {
        "parent": os.getpid(),
        "entrances": group.entrances() if group else [],
        "user": USER if os.geteuid() == 0 else None,
        "stage": str(stage),
        "size": limits.disk_mb * MIB,
        "inodes": limits.inodes,
        "limits": resources,
        "argv": command,
    }
    return [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(spec)]


class _Starter:
    """A thread that starts processes and lives as long as we do: a process that dies with its parent dies, to the
    kernel, with the *thread* that started it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[list[str], int, Future[subprocess.Popen[bytes]]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="sandbox-starter", daemon=True).start()

    def start(self, command: list[str], descriptor: int) -> subprocess.Popen[bytes]:
        future: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((command, descriptor, future))
        return future.result()

    def _work(self) -> None:
        while True:
            command, descriptor, future = self._jobs.get()
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    env={}, cwd="/", pass_fds=(descriptor,), start_new_session=True, bufsize=0,
                )  # fmt: skip
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(process)


_starter: _Starter | None = None
_starter_lock = threading.Lock()


def _start(argv: Sequence[str], limits: Limits, group: cgroups.Group | None) -> subprocess.Popen[bytes]:
    global _starter
    descriptor = seccomp.descriptor()
    try:
        command = _command(argv, limits, group, descriptor)
        with _starter_lock:
            if _starter is None or _starter.pid != os.getpid():
                _starter = _Starter()
        return _starter.start(command, descriptor)
    finally:
        os.close(descriptor)
