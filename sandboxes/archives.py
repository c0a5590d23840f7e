"""Tar archives across the border: packing what is ours, unpacking what a sandbox made, which is not trusted."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from sandboxes.types import MIB, SandboxFailure


def pack(source: Path, name: str) -> bytes:
    """A file or folder of ours as an archive with the top entry ``name``; links as links, owners left out."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(source, name, filter=anonymous)
    return buffer.getvalue()


def unpack(data: bytes, target: Path, limit: int) -> None:
    """Unpack an untrusted archive into ``target``, which must not exist: a folder if the archive's top is ``.``,
    else the one file it holds. At most ``limit`` bytes of content.

    Raises FileExistsError, and SandboxFailure, leaving nothing, for devices, FIFOs, names or links that lead out, names
    used twice, damage.
    """
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{target} exists")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpack-") as folder:
        stage = Path(folder, "content")
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                members = archive.getmembers()
                if len(members) == 1 and members[0].isreg():
                    _write(archive, members[0], stage, limit)
                else:
                    _folder(archive, members, stage, limit)
        except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError) as error:
            raise SandboxFailure(f"refused an archive from the sandbox: {error}") from error
        stage.rename(target)


def _folder(archive: tarfile.TarFile, members: list[tarfile.TarInfo], target: Path, limit: int) -> None:
    # Folders and files first, links last: nothing is ever written through a link, whatever the order in the archive.
    target.mkdir()
    folders, files, links = {PurePosixPath("."): 0o755}, set[PurePosixPath](), dict[PurePosixPath, str]()
    for member in members:
        name = _inside(member.name)
        if member.isdir() and name in folders:
            continue
        if name.parent not in folders or name in folders or name in files or name in links:
            raise SandboxFailure(f"refused an archive from the sandbox: {member.name!r} is out of place")
        if member.isdir():
            (target / name).mkdir()
            folders[name] = member.mode & 0o777 | 0o700
        elif member.isreg():
            _write(archive, member, target / name, limit)
            limit -= member.size
            files.add(name)
        elif member.islnk() and _inside(member.linkname) in files:
            (target / name).hardlink_to(target / _inside(member.linkname))
            files.add(name)
        elif member.issym():
            links[name] = _stays(name, member.linkname)
        else:
            raise SandboxFailure(f"refused an archive from the sandbox: {member.name!r} is no file, folder or link")
    for name, destination in links.items():
        (target / name).symlink_to(destination)
    for name, mode in folders.items():
        (target / name).chmod(mode)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path, limit: int) -> None:
    if member.size > limit:
        raise SandboxFailure(f"refused an archive from the sandbox: {member.name!r} exceeds the size limit")
    content = archive.extractfile(member)
    assert content is not None
    with content, path.open("xb") as file:
        shutil.copyfileobj(content, file, MIB)
    path.chmod(member.mode & 0o777 | 0o600)


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise SandboxFailure(f"refused an archive from the sandbox: {name!r} leads out of it")
    return path


def _stays(name: PurePosixPath, destination: str) -> str:
    """A link's destination, if it surely lies inside: relative, and upward only at its start, where folders are
    real; further on ``..`` could follow another link, and mean another place than it says."""
    parts = PurePosixPath(destination).parts
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    if not parts or parts[0] == "/" or ".." in parts[ups:] or ups > len(name.parts) - 1 or "\0" in destination:
        raise SandboxFailure(f"refused an archive from the sandbox: the link {str(name)!r} leads out of it")
    return destination
