"""Control groups of sandboxes: memory, processes and CPU, with v1 controllers or the one v2 tree.

A group is named ``evotrainer-<pid>-<started>-<deadline>-<n>``: owner's pid and start (milliseconds), the time it may
be swept at (whole seconds since the epoch) and a counter. The name alone says whether it is a leftover.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sandboxes.owners import is_gone, this_process
from sandboxes.types import MIB, Limits, Owner, SandboxFailure

NAME = re.compile(r"evotrainer-(\d+)-(\d+)-(\d+)-[\d.]+")
NEEDED = ("memory", "pids")
OURS_MB = 16
"""Memory beyond the limit, for the processes that keep a sandbox (bubblewrap, the keeper)."""
OUR_PIDS = 2
_counter = itertools.count()


@dataclass(frozen=True)
class Places:
    """Where groups are made: the folder of each v1 controller, or that of the v2 tree under ``unified``."""

    folders: dict[str, Path]

    @property
    def unified(self) -> bool:
        return "unified" in self.folders


@dataclass(frozen=True)
class Group:
    """One sandbox's groups, all of one name."""

    places: Places
    name: str

    def folders(self) -> list[Path]:
        return [folder / self.name for folder in self.places.folders.values()]

    def entrances(self) -> list[str]:
        """The files to which a process writes 0 to come in."""
        return [str(folder / "cgroup.procs") for folder in self.folders()]

    def oom_kills(self) -> int:
        """Processes the kernel killed in it for memory; 0 once it is gone."""
        memory = self.places.folders["unified" if self.places.unified else "memory"] / self.name
        try:
            text = (memory / ("memory.events" if self.places.unified else "memory.oom_control")).read_text()
        except OSError:
            return 0
        return int(dict(line.split() for line in text.splitlines()).get("oom_kill", 0))


@cache
def places() -> Places | None:
    """Where this process may make groups that limit memory and processes; None where it may not."""
    found = find_places(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    if found is None:
        return None
    try:
        remove(create(found, this_process("probe", 60.0), Limits()))
    except SandboxFailure:
        return None
    return found


def find_places(own: str, mounts: str) -> Places | None:
    """The folders, from the texts of /proc/self/cgroup and /proc/self/mountinfo."""
    mounted: dict[str, tuple[Path, str]] = {}  # controller -> (mount point, the group that is its root)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        top, place = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        if kind == "cgroup2":
            mounted.setdefault("", (Path(place), top))
        elif kind == "cgroup":
            mounted |= {option: (Path(place), top) for option in options.split(",") if option.isalpha()}
    ours: dict[str, Path] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            if controller in mounted:
                point, root = mounted[controller]
                # In a container the mount shows a part of the tree; a group outside of it is not reachable.
                inside = os.path.relpath(path, root)
                ours[controller] = point if inside.startswith("..") else point / inside
    if all(controller in ours for controller in NEEDED):
        return Places({name: ours[name] for name in (*NEEDED, "cpu") if name in ours})
    if "" in ours:
        # A v2 group that has processes cannot hand controllers down: the nearest ancestor that does.
        for folder in (ours[""], *ours[""].parents):
            with contextlib.suppress(OSError):
                if set(NEEDED) <= set((folder / "cgroup.subtree_control").read_text().split()):
                    return Places({"unified": folder})
            if folder == mounted[""][0]:
                break
    return None


def create(where: Places, owner: Owner, limits: Limits) -> Group:
    """A group with the limits set. Raises SandboxFailure."""
    deadline = int(time.time() + owner.lifetime_s) + 1
    unique = f"{os.getpid()}.{next(_counter)}"
    group = Group(where, f"evotrainer-{owner.pid}-{owner.started}-{deadline}-{unique}")
    memory, pids = str((limits.memory_mb + OURS_MB) * MIB), str(limits.pids + OUR_PIDS)
    quota = str(max(1000, int(limits.cpus * 100_000)))  # per 0.1 s; the kernel takes no less than 1 ms
    try:
        for folder in group.folders():
            folder.mkdir()
        if where.unified:
            tree = where.folders["unified"] / group.name
            _set(tree / "memory.max", memory)
            _set(tree / "memory.swap.max", "0", optional=True)
            _set(tree / "pids.max", pids)
            _set(tree / "cpu.max", f"{quota} 100000", optional=True)
        else:
            _set(where.folders["memory"] / group.name / "memory.limit_in_bytes", memory)
            _set(where.folders["memory"] / group.name / "memory.memsw.limit_in_bytes", memory, optional=True)
            _set(where.folders["pids"] / group.name / "pids.max", pids)
            if "cpu" in where.folders:
                _set(where.folders["cpu"] / group.name / "cpu.cfs_quota_us", quota, optional=True)
    except OSError as error:
        remove(group)
        raise SandboxFailure(f"cannot make the control group {group.name}: {error}") from error
    return group


def remove(group: Group, patience_s: float = 5.0) -> bool:
    """Kill what is in it and remove it; whether it is gone. Twice does no harm."""
    gone = [_remove(folder, time.monotonic() + patience_s) for folder in group.folders()]
    return all(gone)


def reap(where: Places) -> list[str]:
    """Remove the groups whose owner is gone or whose time is over, wherever in the tree they were made."""
    removed = set()
    for folder in where.folders.values():
        top = next((p for p in (folder, *folder.parents) if p.is_mount()), folder)
        for path in _named(top):
            pid, started, deadline = map(int, NAME.fullmatch(path.name).groups())  # type: ignore[union-attr]
            over = time.time() > deadline or is_gone(pid, started)
            if over and _remove(path, time.monotonic() + 5.0):
                removed.add(path.name)
    return sorted(removed)


def _named(top: Path) -> Iterator[Path]:
    for parent, folders, _ in os.walk(top):
        ours = [name for name in folders if NAME.fullmatch(name)]
        yield from (Path(parent, name) for name in ours)
        folders[:] = [name for name in folders if name not in ours]


def _remove(folder: Path, deadline: float) -> bool:
    pause = 0.0005
    while True:
        try:
            folder.rmdir()
            return True
        except FileNotFoundError:
            return True
        except OSError:  # busy: something is in it still, or was a moment ago
            with contextlib.suppress(OSError, ValueError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(int(pid), signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def _set(file: Path, value: str, optional: bool = False) -> None:
    """``optional`` for what some kernels are built without."""
    if not optional or file.exists():
        file.write_text(value)
