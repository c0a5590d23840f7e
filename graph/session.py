"""One process's hold on a run: folder, lock, manifest, checkpoints, signals."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import sqlite3
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from graph.config import Resolved, dump, resolve
from graph.record import read_record, write_atomic
from graph.seals import seal
from graph.state import schema_hash
from trainer.gitio import Git, GitError
from trainer.storage import ROOM
from trainer.types import SCHEMA_VERSION, InputError, Record

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.runtime import RunControl

REFUSED = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
}
Status = Literal["running", "done", "interrupted", "failed"]


class Locked(Exception):
    """Another process holds the run."""


class Manifest(Record):
    """What a run is: written when it is made, with the fingerprint of the machine that runs it."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    name: str
    created: str
    machine_hash: str
    """Hash of node names and state fields."""
    written_by: str = ""
    """Version and commit of the EvoTrainer that made the run; empty in runs of before it was written down."""


class StatusFile(Record):
    status: Status
    pid: int
    message: str = ""


def run_dir(runs_dir: Path, name: str) -> Path:
    if not name or name != Path(name).name or name.startswith("."):
        raise InputError(f"run.name: '{name}' is not a plain folder name; use letters, digits, dots and dashes")
    return runs_dir / name


def find_run(text: str, runs_dir: Path) -> Path:
    """A run by path or by name below ``runs_dir``."""
    for candidate in (Path(text), runs_dir / text):
        if (candidate / "manifest.json").is_file():
            require_schema(candidate / "manifest.json")
            return candidate
    known = sorted(p.parent.name for p in runs_dir.glob("*/manifest.json"))
    raise InputError(f"{text}: no such run; known in {runs_dir}: {', '.join(known) or 'none'}")


def require_schema(path: Path) -> None:
    """Raises InputError, with the version that reads it, for a record of a later schema than ours. Earlier ones are read:
    fields are only ever added, with a default."""
    try:
        record = json.loads(path.read_bytes())
        schema, writer = int(record["schema_version"]), str(record.get("written_by") or "a later version")
    except (ValueError, KeyError, TypeError):
        return  # damage is found and named by whoever reads the record
    if schema > SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema_version {schema}: written by {writer}, this EvoTrainer reads up to {SCHEMA_VERSION}; "
            "open the run with that version"
        )


def program() -> str:
    """Version and, in a git checkout, commit of this EvoTrainer."""
    root = Path(__file__).resolve().parents[1]
    version = str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])
    with contextlib.suppress(GitError, InputError):
        return f"EvoTrainer {version} ({Git(root / '.git', root)('rev-parse', '--short', 'HEAD')})"
    return f"EvoTrainer {version}"


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the run exclusively; the kernel drops the lock of a dead process."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise Locked(holder_of(root, file)) from err
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def holder_of(root: Path, lock: TextIO) -> str:
    """Who has the run, as one line."""
    lock.seek(0)
    return f"{root}: in use by process {lock.read().strip() or '?'}; wait for it or stop it"


def create(root: Path, resolved: Resolved, node_names: tuple[str, ...]) -> Manifest:
    """Make a new run's folder: manifest last, so that a half-made one is not taken for a run."""
    config = resolved.config
    digest = hashlib.sha256(f"{root.name}|{config.model_dump_json()}".encode()).hexdigest()[:12]
    manifest = Manifest(
        run_id=f"{root.name}-{digest}",
        name=root.name,
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        machine_hash=schema_hash(node_names),
        written_by=program(),
    )
    write_atomic(root / "config.toml", dump(resolved))
    write_atomic(root / "config.origins.json", json.dumps(dict(resolved.origins), indent=1, sort_keys=True) + "\n")
    seal(root, [root / "config.toml", root / "config.origins.json"])
    write_atomic(root / "manifest.json", manifest.model_dump_json(indent=1) + "\n")
    seal(root, [root / "manifest.json"])
    return manifest


def reopen(root: Path, node_names: tuple[str, ...]) -> tuple[Manifest, Resolved]:
    """Manifest and saved configuration of a run. Refuses one written by a machine of another shape."""
    manifest = read_record(root / "manifest.json", Manifest)
    if manifest.machine_hash != schema_hash(node_names):
        raise InputError(
            f"{root / 'manifest.json'}: machine_hash differs: written by {manifest.written_by or 'an earlier version'}; resume it "
            f"with that one, or let this one take it over: python -m graph.runs check {shlex.quote(str(root))} --repair"
        )
    resolved = resolve(root / "config.toml", {}, {}, {})
    try:
        origins = json.loads((root / "config.origins.json").read_bytes())
    except (OSError, ValueError) as err:
        raise InputError(f"{root / 'config.origins.json'}: damaged ({err}); restore it from a copy of the run") from err
    return manifest, Resolved(config=resolved.config, origins=origins)


def set_status(root: Path, status: Status, message: str = "") -> None:
    value = StatusFile(status=status, pid=os.getpid(), message=message)
    write_atomic(root / "status.json", value.model_dump_json() + "\n")


@contextlib.contextmanager
def checkpoints(root: Path, *, writable: bool = True) -> Iterator[SqliteSaver]:
    """The LangGraph checkpointer of a run; the state holds plain values only, so nothing else is unpacked.

    Raises InputError, with the remedy, for a damaged file; read only, every page of it is looked at.
    """
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.checkpoint.sqlite import SqliteSaver

    path = root / "checkpoints.sqlite"
    try:
        with contextlib.closing(_connection(path, writable)) as connection:
            words = connection.execute(f"PRAGMA {'quick' if writable else 'integrity'}_check").fetchall()
            if words != [("ok",)]:
                raise sqlite3.DatabaseError(words[0][0])
            saver = SqliteSaver(connection, serde=JsonPlusSerializer(allowed_msgpack_modules=None))
            saver.is_setup = not writable  # its tables are there
            yield saver
    except sqlite3.DatabaseError as err:
        # The low byte is the primary code: these say that the file could not be written, not that it is damaged.
        if number := _refused(getattr(err, "sqlite_errorcode", 0), root):
            raise OSError(number, os.strerror(number), str(path)) from err
        raise InputError(
            f"{path}: damaged ({' '.join(str(err).split())}); set it aside with python -m graph.runs check "
            f"{shlex.quote(str(root))} --repair and --resume: finished work is kept"
        ) from err


def _refused(code: int, root: Path) -> int:
    """The error number where SQLite could not write, else 0. Where room for its index is lacking it speaks of I/O."""
    number = REFUSED.get(code & 0xFF, 0)
    full = code == sqlite3.SQLITE_IOERR_SHMSIZE or shutil.disk_usage(root).free < ROOM
    return errno.ENOSPC if number in (errno.EIO, errno.EACCES) and full else number


def _connection(path: Path, writable: bool) -> sqlite3.Connection:
    if writable:
        return sqlite3.connect(path, check_same_thread=False)
    # Without a journal beside it nobody's last words are missed, and no right to write is needed.
    journal = path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.absolute().as_uri()}?mode=ro{'' if journal else '&immutable=1'}"
    return sqlite3.connect(uri, uri=True, check_same_thread=False)


@contextlib.contextmanager
def draining(control: RunControl, say: Any) -> Iterator[None]:
    """First SIGINT or SIGTERM: finish the node and stop. A second one: stop now (finished jobs are kept)."""

    def handler(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if control.drain_requested:
            raise KeyboardInterrupt
        control.request_drain(name)
        say("run", f"{name}: stopping after this node; once more to stop at once")

    before = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def fresh_name(runs_dir: Path, domain: str, seed: int) -> str:
    """``math-seed0``, then ``math-seed0-2`` …"""
    stem = f"{domain}-seed{seed}"
    taken = {p.name for p in runs_dir.glob(f"{stem}*")} if runs_dir.exists() else set()
    if stem not in taken:
        return stem
    return next(f"{stem}-{i}" for i in range(2, 10**6) if f"{stem}-{i}" not in taken)
