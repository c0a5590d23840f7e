"""A run on a disk that grows: ``unshare -rm python -m tests.e2e.full_disk HOME DISK COPY``.

Inside a user and mount namespace of its own it mounts a small tmpfs on DISK, starts a run there, and each time the disk is
full gives it some more room and resumes, until the run ends. It prints a JSON list of what the run said each time (exit
code, error lines, temporary files left) and copies the run to COPY, because the disk goes with the namespace.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from graph.leftovers import leftovers
from tests.runs import LEAST, Runner, arguments

FIRST, STEP, ROOM = 300, 1100, 64_000
"""Sizes of the disk in KiB: at first, how much it grows, and more than the run needs."""


def mount(disk: Path, size: int, *options: str) -> None:
    what = ",".join([*options, f"size={size}k"])
    subprocess.run(["mount", "-t", "tmpfs", "-o", what, "none", str(disk)], check=True)


def main() -> int:
    home, disk, copy = map(Path, sys.argv[1:])
    runner, run = Runner(home), disk / "full"
    said = []
    mount(disk, FIRST)
    for size in range(FIRST + STEP, ROOM, STEP):
        fresh = not (run / "manifest.json").exists()
        done = runner.run(*(arguments(disk, run.name, LEAST, versions=1) if fresh else ["--resume", str(run)]))
        said.append({"code": done.returncode, "err": done.stderr, "left": [str(p) for p in leftovers(run)]})
        if done.returncode == 0:
            break
        mount(disk, size, "remount")
    print(json.dumps(said))
    shutil.copytree(run, copy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
