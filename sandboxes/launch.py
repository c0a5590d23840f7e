"""What runs between us and bubblewrap, as a script of its own: ``python -I -S launch.py SPEC``, SPEC a JSON object.

It does what bubblewrap cannot: enters the control groups, really becomes another user, and mounts one memory file
system, bounded in bytes and in files, for all writable places of the sandbox together. Then it becomes bubblewrap.
Only the standard library, no package of ours: the interpreter starts in isolated mode.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 0x4000, 0x40000
WRITABLE = {"task": 0o755, "tmp": 0o1777, "shm": 0o1777}
"""Folders of the memory file system, bound to /task, /tmp and /dev/shm."""

_libc = ctypes.CDLL(None, use_errno=True)


def main(spec: dict[str, Any]) -> None:
    """Keys: ``parent`` (our pid), ``entrances`` (cgroup.procs files), ``user`` (uid and gid to become, or null),
    ``stage`` (folder to mount on), ``size`` (bytes), ``inodes``, ``limits`` (resource name to value), ``argv``."""
    _follow(spec["parent"])
    for entrance in spec["entrances"]:
        Path(entrance).write_text("0")
    if spec["user"] is not None:
        os.setgroups([])
        os.setresgid(*[spec["user"]] * 3)
        os.setresuid(*[spec["user"]] * 3)
        # The change made our own /proc entries root's, and forgot whom to die with.
        _call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)
        _follow(spec["parent"])
    _mount(spec["stage"], spec["size"], spec["inodes"])
    for name, value in spec["limits"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
    os.chdir("/")
    os.execve(spec["argv"][0], spec["argv"], {})


def _follow(parent: int) -> None:
    """Die with our parent, also if it died before we could ask for that."""
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _mount(stage: str, size: int, inodes: int) -> None:
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", CLONE_NEWUSER | CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _call("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    options = f"size={size},nr_inodes={inodes + len(WRITABLE) + 1},mode=0755".encode()
    _call("mount", b"sandbox", os.fsencode(stage), b"tmpfs", ctypes.c_ulong(MS_NOSUID | MS_NODEV), options)
    for name, mode in WRITABLE.items():
        folder = Path(stage, name)
        folder.mkdir()
        folder.chmod(mode)


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except OSError as error:
        sys.exit(f"launch: {error}")
