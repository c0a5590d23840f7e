"""The read-only system that programs see: Python without packages, a shell, small tools, and nothing else of ours.

Built once from this machine's own files into a cache, under a temporary name that is renamed when it is whole.
The cache folder of a version holds ``root`` (the system), ``stage`` (an empty folder to mount on) and
``manifest.json`` (what was copied, from where), which every use is checked against.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from sandboxes.types import SandboxUnavailable

PYTHON = "/usr/local/bin/python3"
"""The interpreter inside."""

SHELL = ("sh", "bash", "grep", "sed", "find", "xargs", "awk", "tar", "gzip", "diff", "cmp", "patch", "which", "git")
COREUTILS = """
    [ arch b2sum base32 base64 basename basenc cat chgrp chmod chown cksum comm cp csplit cut date dd df dir dirname du
    echo env expand expr factor false fmt fold groups head hostid id install join link ln logname ls md5sum mkdir mkfifo
    mknod mktemp mv nice nl nohup nproc numfmt od paste pathchk pr printenv printf ptx pwd readlink realpath rm rmdir
    seq sha1sum sha224sum sha256sum sha384sum sha512sum shred shuf sleep sort split stat stdbuf stty sum sync tac tail
    tee test timeout touch tr true truncate tsort tty uname unexpand uniq unlink uptime users vdir wc who whoami yes
""".split()  # noqa: SIM905  (a hundred quotes would not read better)
NEEDED = {"sh", "cat", "tar", "env", "ls"}

NOT_STDLIB = {
    "site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "tkinter", "ensurepip", "turtledemo",
    "turtle.py", "lib2to3", "sitecustomize.py", "usercustomize.py", "EXTERNALLY-MANAGED",
}  # fmt: skip
NOT_MODULES = ("_tkinter.", "_test", "_xxtest", "xxlimited", "_ctypes_test.", "nis.")
NOT_GIT = (
    "git-remote-",
    "git-http",
    "git-imap",
    "git-daemon",
    "git-svn",
    "git-p4",
    "git-web",
    "git-instaweb",
    "git-cvs",
)

PASSWD = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"
ETC = {
    "etc/passwd": PASSWD,
    "etc/group": GROUP,
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
FOLDERS = ("proc", "dev", "etc", "tmp", "task", "usr/bin", "usr/lib", "usr/local/bin")
OPEN_FOLDERS = {"tmp", "task"}
# Merged as on every current system, so that one path names a file whatever the machine's own layout is.
LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64")}


@dataclass(frozen=True)
class Plan:
    """What the system consists of: relative target to the file of ours it copies, and links made anew."""

    files: dict[str, Path]
    links: dict[str, str]


def ensure() -> Path:
    """The system's folder, building it if it is missing, damaged or made of files that have changed since.

    World-readable and reachable by any user. Raises SandboxUnavailable with one line.
    """
    return _ensured(cache_folder())


def cache_folder() -> Path:
    """Where systems are kept: the user's cache, unless we are root in a home that nobody else may enter."""
    users = platformdirs.user_cache_path("evotrainer")
    if os.geteuid() != 0 or all(parent.stat().st_mode & stat.S_IXOTH for parent in users.parents if parent.exists()):
        return users
    return Path("/var/cache/evotrainer")


@cache
def _ensured(folder: Path) -> Path:
    return ensure_in(folder)


def ensure_in(folder: Path) -> Path:
    """``ensure`` for another cache folder, looking every time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        target = folder / f"rootfs-{_key()}"
        with (folder / ".lock").open("w") as lock:
            # Two runs that start together build once; the lock of a killed one is free.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_whole(target):
                _build(folder, target)
        return target / "root"
    except OSError as error:
        raise SandboxUnavailable(f"cannot prepare the sandbox's system in {folder}: {error}") from error


def is_whole(target: Path) -> bool:
    """Whether the copy is exactly what was built, and what it was built from has not changed."""
    try:
        manifest = json.loads((target / "manifest.json").read_bytes())
        return bool(
            manifest["root"] == _listing(target / "root")
            and all(_stamp(Path(path)) == stamp for path, stamp in manifest["sources"].items())
            and (target / "stage").is_dir()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _build(folder: Path, target: Path) -> None:
    for leftover in folder.glob(".build-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    plan = _plan()
    temporary = Path(tempfile.mkdtemp(prefix=".build-", dir=folder))
    root = temporary / "root"
    for name in FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, source in plan.files.items():
        copy = root / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        status = source.stat()
        os.utime(copy, ns=(status.st_mtime_ns, status.st_mtime_ns))  # bytecode is valid only with its source's time
        copy.chmod(0o755 if status.st_mode & stat.S_IXUSR else 0o644)  # and never setuid
    for name, text in ETC.items():
        (root / name).write_text(text)
        (root / name).chmod(0o644)
    for name, destination in plan.links.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(destination)
    for path in (temporary, root, *(p for p in root.rglob("*") if p.is_dir() and not p.is_symlink())):
        path.chmod(0o1777 if str(path.relative_to(temporary)).removeprefix("root/") in OPEN_FOLDERS else 0o755)
    (temporary / "stage").mkdir(mode=0o755)
    sources = {str(path): _stamp(path) for path in sorted(set(plan.files.values()))}
    (temporary / "manifest.json").write_text(json.dumps({"root": _listing(root), "sources": sources}))
    if target.exists():
        damaged = Path(tempfile.mkdtemp(prefix=".build-", dir=folder))
        target.rename(damaged / "damaged")
        shutil.rmtree(damaged, ignore_errors=True)
    temporary.rename(target)


def _key() -> str:
    """Names a version by what is cheap to know: this builder, the interpreter and the tools."""
    parts = [Path(__file__).read_bytes().hex(), sys.version]
    parts += [str((name, path, _stamp(path))) for name, path in sorted(_tools().items())]
    parts.append(str((_interpreter(), _stamp(_interpreter()))))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _plan() -> Plan:
    files = {f"usr/bin/{name}": path for name, path in _tools().items()}
    links = {"usr/local/bin/python3": _interpreter().name, "usr/local/bin/python": "python3", **LINKS}
    files[f"usr/local/bin/{_interpreter().name}"] = _interpreter()
    files |= _standard_library()
    if "usr/bin/git" in files:
        git_files, git_links = _git()
        files, links = files | git_files, links | git_links
    files |= _libraries(files)
    tops = {name.split("/")[1] for name in files if name.startswith("usr/")} | {"bin", "lib"}
    links = {name: to for name, to in links.items() if name not in LINKS or name in tops}
    return Plan(files, {"usr/sbin": "bin", "sbin": "usr/bin", **links})


@cache
def _tools() -> dict[str, Path]:
    found = {name: shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin") for name in (*SHELL, *COREUTILS)}
    if missing := sorted(name for name in NEEDED if not found[name]):
        raise SandboxUnavailable(f"cannot prepare the sandbox's system: no {', '.join(missing)} in /usr/bin or /bin")
    return {name: Path(path).resolve() for name, path in found.items() if path}


def _interpreter() -> Path:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = Path(sys.base_prefix, "bin", name)
    if not path.exists():
        raise SandboxUnavailable(f"cannot prepare the sandbox's system: {path} is missing; use a CPython for Linux")
    return path


def _standard_library() -> dict[str, Path]:
    source = Path(sysconfig.get_path("stdlib"))
    # Next to the interpreter's folder, where it finds its library from its own path: no variable needed.
    target = Path("usr/local", sys.platlibdir, _interpreter().name)
    files = {str(target / path.relative_to(source)): path for path in _walk(source)}
    # As the running interpreter found it: what was configured is wrong for one that was moved.
    dynamic = next((Path(p) for p in sys.path if p.endswith("/lib-dynload")), source / "lib-dynload")
    if dynamic.is_dir():
        files |= {str(target / "lib-dynload" / path.relative_to(dynamic)): path for path in _walk(dynamic)}
    return {name: path for name, path in files.items() if not path.name.startswith(NOT_MODULES)}


def _walk(folder: Path) -> Iterator[Path]:
    """The regular files of a library; a link counts as the file it leads to, if that lies in the library."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(d for d in folders if d not in NOT_STDLIB and not d.startswith("config-"))
        for name in sorted(names):
            path = Path(parent, name)
            if name in NOT_STDLIB or ".opt-" in name or name.startswith("turtle."):
                continue
            if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
                yield path


def _git() -> tuple[dict[str, Path], dict[str, str]]:
    """git's own commands and the templates of ``git init``; nothing that needs a network."""
    asked = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=False)
    core, templates = Path(asked.stdout.strip()), Path("/usr/share/git-core/templates")
    if asked.returncode or not core.is_absolute() or not core.is_dir():
        return {}, {}
    binary, files, links = _tools()["git"], dict[str, Path](), dict[str, str]()
    for path in sorted(core.iterdir()):
        name = _inside(path)
        if path.name.startswith(NOT_GIT) or not path.is_file():
            continue
        if path.resolve() == binary or path.samefile(binary):
            links[name] = "/usr/bin/git"
        elif path.is_symlink() and path.resolve().parent == core.resolve():
            links[name] = path.resolve().name
        elif not path.is_symlink():
            files[name] = path
    files |= {_inside(path): path for path in sorted(templates.rglob("*")) if path.is_file()}
    return files, {name: to for name, to in links.items() if to == "/usr/bin/git" or _sibling(name, to) in files}


def _sibling(name: str, other: str) -> str:
    return str(Path(name).parent / other)


def _libraries(files: dict[str, Path]) -> dict[str, Path]:
    """The shared libraries of ``files``, all beside the C library, where the loader always looks."""
    found: dict[str, Path] = {}
    binaries = sorted({path for path in files.values() if _is_elf(path)})
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    asked = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False, env=environment)
    loaders = {}
    for line in asked.stdout.splitlines():
        name, _, rest = line.strip().partition(" => ")
        if rest.startswith("/"):
            found[name] = Path(rest.partition(" (")[0])
        elif name.startswith("/") and " (0x" in name:
            loader = Path(name.partition(" (")[0])
            loaders[_inside(loader)] = loader.resolve()
    if "libc.so.6" not in found or not loaders:
        reason = (asked.stderr.strip().splitlines() or ["it names no C library; only glibc systems are supported"])[0]
        raise SandboxUnavailable(f"cannot prepare the sandbox's system: ldd failed: {reason}")
    libc = found["libc.so.6"]
    for name in ("libgcc_s.so.1", "libnss_files.so.2"):  # loaded by the C library itself, at run time
        if (libc.parent / name).exists():
            found[name] = libc.parent / name
    folder = Path(_inside(libc)).parent
    return {str(folder / name): path.resolve() for name, path in found.items()} | loaders


def _inside(path: Path) -> str:
    """Where a system file of ours lies inside: the same path, with /lib meaning /usr/lib."""
    name = str(path).removeprefix("/")
    return name if name.startswith("usr/") else f"usr/{name}"


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _listing(root: Path) -> dict[str, list[object]]:
    """Everything below ``root``: mode, and size and time of files or the destination of links."""

    def entries(folder: str) -> Iterable[os.DirEntry[str]]:
        with os.scandir(folder) as found:
            for entry in found:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    yield from entries(entry.path)

    listing: dict[str, list[object]] = {"": [root.stat().st_mode]}
    for entry in entries(str(root)):
        status = entry.stat(follow_symlinks=False)
        details: list[object] = [status.st_mode]
        if stat.S_ISREG(status.st_mode):
            details += [status.st_size, status.st_mtime_ns]
        elif stat.S_ISLNK(status.st_mode):
            details = [os.readlink(entry.path)]  # noqa: PTH115  (a path object for each file would double the time)
        listing[os.path.relpath(entry.path, root)] = details
    return listing
