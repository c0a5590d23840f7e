"""A folder for the temporary files of one process and its jobs, so that a killed one leaves nothing for good.

Libraries make temporary files of their own (DuckDB's spill folder, the sockets of multiprocessing) and remove them when
they end, which a killed process does not. All of them go into one folder that names its owner; the next process to start
removes those whose owner is gone. Short names: a socket's path has 107 bytes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import tempfile
from pathlib import Path

from graph.leftovers import alive

_NAME = re.compile(r"evotrainer-(\d+)-\w+")


@functools.cache
def use_scratch() -> Path:
    """Make the folder, and let this process and its children put their temporary files there until it ends."""
    base = Path(tempfile.gettempdir())
    sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f"evotrainer-{os.getpid()}-", dir=base))
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    atexit.register(_leave, folder, os.getpid())
    return folder


def sweep(base: Path) -> None:
    """Remove the folders of this user's processes that are gone."""
    for folder in base.glob("evotrainer-*"):
        owner = _NAME.fullmatch(folder.name)
        with contextlib.suppress(FileNotFoundError):
            if owner and folder.lstat().st_uid == os.getuid() and not alive(int(owner[1])):
                shutil.rmtree(folder, ignore_errors=True)


def _leave(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the registration
        shutil.rmtree(folder, ignore_errors=True)
