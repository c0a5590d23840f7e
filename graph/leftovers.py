"""Temporary files that killed processes left in a run.

Whoever writes a file of a run writes it under a temporary name that holds its process id, then renames it. The names below
are the contract between the writers and this sweep.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

_NAMES = re.compile(
    r"""\..+\.(?P<file>\d+)\.partial          # trainer.storage.replacing
      | \.state\.((?P<folder>\d+)|old)       # trainer.embedded.resume.save_state
      | \.harness\.building                  # trainer.harness.HarnessRepo.create
    """,
    re.VERBOSE,
)


def leftovers(root: Path) -> list[Path]:
    """Temporary files and folders whose writer is gone, by path. Nothing inside the harness or what was set aside."""
    found = []
    for folder, names, files in os.walk(root):
        if Path(folder) == root:
            names[:] = [n for n in names if n not in ("harness", "damaged", "worktrees")]
        for name in [*names, *files]:
            match = _NAMES.fullmatch(name)
            if match and not any(alive(int(pid)) for pid in match.groupdict().values() if pid):
                found.append(Path(folder) / name)
        names[:] = [n for n in names if not _NAMES.fullmatch(n)]
    return sorted(found)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep(root: Path) -> list[Path]:
    """Remove the leftovers; returns what they were."""
    found = leftovers(root)
    for path in found:
        remove(path)
    return found


def alive(pid: int) -> bool:
    """Whether a process of this id runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
