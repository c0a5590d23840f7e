"""Folders to tar archives and back; what comes out of a sandbox is hostile until checked."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from sandboxes.types import SandboxFailure

MAX_LINKS = 40
"""Links followed in one path before it counts as a loop (as in Linux)."""


def pack(source: Path, name: str) -> bytes:
    """A file as the member ``name``, or a folder's content; links as links. Raises OSError."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        if source.is_dir():
            for path in sorted(source.rglob("*")):
                tar.add(path, str(path.relative_to(source)), recursive=False)
        else:
            tar.add(source, name, recursive=False)
    return buffer.getvalue()


def unpack(data: bytes, target: Path, *, single: bool = False) -> None:
    """Write an archive's members below ``target``, or its one file as ``target``, which must not exist.

    Nothing is left behind on failure. Raises FileExistsError, and SandboxFailure for devices, FIFOs, hard links,
    names or links that lead out, or a damaged archive.
    """
    if target.is_symlink() or target.exists():
        raise FileExistsError(f"{target} exists")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
        stage = Path(folder, "content")
        stage.mkdir()
        try:
            _extract(data, stage)
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise SandboxFailure(f"download refused: damaged archive: {error}") from error
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise SandboxFailure(f"download refused: one name for two things: {error}") from error
        found = [*stage.iterdir()]
        if single and (len(found) != 1 or found[0].is_dir()):
            raise SandboxFailure(f"download refused: {len(found)} things where one file was asked for")
        (found[0] if single else stage).rename(target)


def _extract(data: bytes, stage: Path) -> None:
    links: dict[tuple[str, ...], str] = {}
    modes: dict[Path, int] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for member in tar:
            parts = _parts(member.name)
            path = stage.joinpath(*parts)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                modes[path] = member.mode & 0o777 | 0o700
            elif member.isreg() and not member.issparse():
                path.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None
                with path.open("xb") as file:
                    shutil.copyfileobj(content, file)
                path.chmod(member.mode & 0o777 | 0o400)
            elif member.issym() and parts not in links and parts:
                links[parts] = member.linkname
            else:
                raise SandboxFailure(f"download refused: {member.name!r} is no file, folder or symbolic link")
    # Links come last: until here the stage holds folders and files that we made, so nothing can lead out of it.
    for parts, destination in links.items():
        if not _stays_inside(parts, links):
            raise SandboxFailure(f"download refused: link {'/'.join(parts)!r} leads out, to {destination!r}")
    for parts, destination in links.items():
        path = stage.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(destination)
    for path, mode in modes.items():
        path.chmod(mode)


def _parts(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise SandboxFailure(f"download refused: the name {name!r} leads out")
    return parts


def _stays_inside(start: tuple[str, ...], links: Mapping[tuple[str, ...], str]) -> bool:
    """Whether following a link never leaves the root, worked out on the names alone.

    The file system is not asked: its answer changes with lengths and with what already lies there.
    """
    place: list[str] = []
    todo = list(reversed(start))
    followed = 0
    while todo:
        part = todo.pop()
        if part == "..":
            if not place:
                return False
            place.pop()
        elif (*place, part) in links:
            destination = links[*place, part]
            followed += 1
            if destination.startswith("/"):
                return False
            if followed > MAX_LINKS:
                return True  # a loop leads nowhere
            todo.extend(reversed(PurePosixPath(destination).parts))
        else:
            place.append(part)
    return True
