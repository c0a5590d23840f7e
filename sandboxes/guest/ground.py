"""What programs find in a sandbox, and the return to it after each. Standard library only.

A reset counts only if it can be seen to be complete; else the server ends, and its sandbox with it.
"""

# A fork must be cheap, so pathlib is not loaded.
# ruff: noqa: PTH101, PTH106, PTH108, PTH112, PTH116, PTH123, PTH208
from __future__ import annotations

import contextlib
import os
import resource
import signal
import stat

from sandboxes.guest.program import WORK

NO_STORAGE = {b"proc", b"sysfs", b"devpts", b"mqueue", b"cgroup", b"cgroup2"}
"""File systems on which an unprivileged user leaves nothing; message queues are limited to none."""
USUAL = {b"/tmp", b"/task", b"/dev/shm", b"/var/tmp"}
WATCHED = ("/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg", "/proc/key-users")
"""Kernel objects that live on without a process: what these files say must not change."""
SOCKETS = "/proc/net/sockstat"


def writable_places() -> list[bytes]:
    """Mounted folders in which we may write, and the usual ones where the system is not read-only."""
    places = set(USUAL)
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            before, _, after = line.partition(b" - ")
            fields = before.split()
            if b"rw" in fields[5].split(b",") and after.split()[0] not in NO_STORAGE:
                places.add(fields[4].decode("unicode_escape").encode("latin-1"))
    return sorted(p for p in places - {b"/"} if os.path.isdir(p) and os.access(p, os.W_OK))


def remove(path: bytes) -> None:
    """A file or folder with all in it. Raises OSError or RecursionError. Nobody else lives here, so nothing moves
    between the looks."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    try:
        os.rmdir(path)
    except OSError:
        os.chmod(path, 0o700)
        for name in os.listdir(path):
            remove(path + b"/" + name)
        os.rmdir(path)


class Ground:
    """A sandbox that is ours alone."""

    def __init__(self) -> None:
        """Raises OSError where something that was there before cannot be removed."""
        self._complete = True
        self._places = writable_places()
        for place in self._places:
            for name in os.listdir(place):
                remove(place + b"/" + name)
        self._modes = [os.stat(place).st_mode for place in self._places]
        self._attributes = [set(os.listxattr(place)) for place in self._places]
        self._watched = [os.open(path, os.O_RDONLY) for path in WATCHED if os.access(path, os.R_OK)]
        self._sockets = os.open(SOCKETS, os.O_RDONLY) if os.access(SOCKETS, os.R_OK) else -1
        self.clear()  # the first program finds what the others will
        self._before = self._state()

    def kill_rest(self) -> None:
        """Nobody but us lives on. As a rule there is nobody, which one call tells: orphans become our children."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            return

    def clear(self) -> None:
        """Remove every file a program left."""
        try:
            for place, mode, attributes in zip(self._places, self._modes, self._attributes, strict=True):
                if os.stat(place).st_mode != mode:
                    os.chmod(place, mode)
                while names := os.listdir(place):
                    for name in names:
                        remove(place + b"/" + name)
                for attribute in set(os.listxattr(place)) - attributes:
                    os.removexattr(place, attribute)
                with contextlib.suppress(PermissionError):  # another's folder: its times could not be chosen either
                    os.utime(place, (0, 0))
        except (OSError, RecursionError):
            self._complete = False

    def is_clean(self) -> bool:
        """Whether all is as it was before the first program."""
        return self._complete and self._state() == self._before

    def _state(self) -> list[object]:
        """Kernel objects without a process, and what a program could change about this process."""
        seen: list[object] = [os.pread(fd, 4096, 0) for fd in self._watched]
        if self._sockets >= 0:
            # In use and waiting count in this network; the other fields are the whole machine's.
            words = os.pread(self._sockets, 4096, 0).split()
            seen += [words[i + 1] for i, word in enumerate(words) if word in (b"inuse", b"tw")]
        seen += [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0)]
        seen += [resource.getrlimit(kind) for kind in range(16)]
        return seen


class Shared:
    """A sandbox that others use too: only our own folder and processes are removed."""

    def __init__(self) -> None:
        self.clear()

    def kill_rest(self) -> None:
        """What we started, and what became ours."""
        try:
            while True:
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
                with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                    for pid in file.read().split():
                        os.kill(int(pid), signal.SIGKILL)
                os.waitpid(-1, 0)
        except ChildProcessError:
            return

    def clear(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            remove(WORK.encode())

    def is_clean(self) -> bool:
        return True
