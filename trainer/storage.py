"""Files that are there whole or not at all, and storage that takes no more: which errors mean it, and what to say."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

EXIT_STORAGE = 74
"""Exit code of a job that could not write (sysexits.h: EX_IOERR). Its log may be what could not be written."""

REMEDIES: Mapping[int, str] = {
    errno.ENOSPC: "free disk space",
    errno.EDQUOT: "free space within your quota",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EROFS: "make the folder writable or move the run",
    errno.EACCES: "make the folder writable",
    errno.EPERM: "make the folder writable",
    errno.EIO: "check the disk",
}


_SAID = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Those that are unmistakable in the words of git, Arrow or safetensors."""


ROOM = 1 << 16
"""Bytes that must be free before anything else is looked for behind a failure."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which then takes the place of ``path``: a kill leaves the old file or the new one, a failure
    the old one and nothing beside it. The name tells the owner, so that what a kill left can be swept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def storage_error(error: BaseException, where: Path) -> int:
    """The error number if storage refused to take something, else 0. Some libraries keep it in their message only, and git
    may say no more than that it failed: then a disk without room is the reason."""
    if isinstance(error, OSError) and error.errno is not None and error.errno in REMEDIES:
        return error.errno
    if number := next((n for n in _SAID if os.strerror(n) in str(error)), 0):
        return number
    return errno.ENOSPC if where.exists() and shutil.disk_usage(where).free < ROOM else 0


def storage_line(error: BaseException, where: Path) -> str:
    """One line: file, what the system said, remedy. ``where`` stands in for a file the error does not name."""
    number = storage_error(error, where)
    file = getattr(error, "filename", None) or where
    return f"{file}: {os.strerror(number)}; {REMEDIES[number]}"
