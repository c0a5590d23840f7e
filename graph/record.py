"""The record of a run: append-only JSONL stores and the files of each version.

``ledger`` says what happened to each version, ``decisions`` holds one entry per specialist call,
``cases`` what was tried in which situation, ``search`` what was considered and dropped. Every
entry has a key; appending a key that is already there does nothing, so that a node that runs again
after a crash writes nothing twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from graph.seals import note
from trainer.storage import replacing
from trainer.types import InputError, Record

Store = Literal["ledger", "decisions", "cases", "search"]
STORES: tuple[Store, ...] = ("ledger", "decisions", "cases", "search")
T = TypeVar("T", bound=Record)
MEND = "restore it from a copy, or let python -m graph.runs check RUN --repair see what can be done"


def write_atomic(path: Path, text: str) -> None:
    """Replace ``path`` as a whole; a kill leaves the old file or the new one."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_record(path: Path, kind: type[T]) -> T:
    """Parse one JSON record; damage is an InputError that names the file and the remedy."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError as err:
        raise InputError(f"{path}: missing; {MEND}") from err
    except ValidationError as err:
        first = err.errors()[0]
        where = ".".join(str(p) for p in first["loc"]) or "whole file"
        raise InputError(f"{path}: field {where}: {first['msg']}; {MEND}") from err


@dataclass(frozen=True)
class Line:
    """One line of a store: ``entry`` is None where it is damaged; ``whole`` says whether it ends."""

    number: int
    text: str
    entry: dict[str, Any] | None
    whole: bool


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of a store, damaged ones included; none where there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for number, text in enumerate(file, 1):
            entry = None
            with contextlib.suppress(ValueError):
                entry = json.loads(text)
            yield Line(number, text, entry if isinstance(entry, dict) and "key" in entry else None, text.endswith("\n"))


class RunRecord:
    """One run's stores. Open it under the run's lock to write; anybody may read."""

    def __init__(self, root: Path, *, writable: bool = False) -> None:
        self.root = root
        self._keys: dict[Store, set[str]] = {}
        if writable:
            (root / "record").mkdir(parents=True, exist_ok=True)
            for store in STORES:
                self._mend_tail(store)
                self._keys[store] = {entry["key"] for entry in self.entries(store)}

    def path(self, store: Store) -> Path:
        return self.root / "record" / f"{store}.jsonl"

    def _mend_tail(self, store: Store) -> None:
        """A kill in the middle of a write leaves a line without its end. Its node runs again and
        writes it anew, so the torn part moves aside."""
        path = self.path(store)
        if not path.exists():
            return
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.with_suffix(".torn").open("ab") as torn:
                torn.write(data[whole:] + b"\n")
            with path.open("r+b") as file:
                file.truncate(whole)

    def entries(self, store: Store) -> Iterator[dict[str, Any]]:
        """All entries in order of writing. A damaged line is an InputError with file and line."""
        for line in lines_of(self.path(store)):
            if not line.whole:
                return  # being written, or torn: see _mend_tail
            if line.entry is None:
                raise InputError(
                    f"{self.path(store)}: line {line.number} is damaged; set it aside with "
                    f"python -m graph.runs check {shlex.quote(str(self.root))} --repair"
                )
            yield line.entry

    def verdicts(self) -> list[dict[str, Any]]:
        """The ledger's verdicts in order of version, whatever the order of their lines (a repair may append one late)."""
        return sorted((e for e in self.entries("ledger") if e["kind"] == "verdict"), key=lambda e: str(e["version"]))

    def append(self, store: Store, key: str, entry: Mapping[str, Any]) -> bool:
        """Write one entry durably; False if the key was there already."""
        if key in self._keys[store]:
            return False
        line = json.dumps({"key": key, **entry}, ensure_ascii=False, sort_keys=True)
        with self.path(store).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._keys[store].add(key)
        return True

    def has(self, store: Store, key: str) -> bool:
        return key in self._keys[store]

    # ------------------------------------------------------------------ files of a version

    def version_dir(self, version: str) -> Path:
        return self.root / "versions" / version

    def seed_dir(self, version: str, seed: int) -> Path:
        return self.version_dir(version) / f"seed-{seed}"

    def save(self, version: str, name: str, value: Record) -> Path:
        """Write ``versions/<version>/<name>.json``."""
        path = self.version_dir(version) / f"{name}.json"
        text = value.model_dump_json(indent=1) + "\n"
        note(self.root, {path: hashlib.sha256(text.encode()).hexdigest()})
        write_atomic(path, text)
        return path

    def load(self, version: str, name: str, kind: type[T]) -> T:
        return read_record(self.version_dir(version) / f"{name}.json", kind)

    def saved(self, version: str, name: str) -> bool:
        return (self.version_dir(version) / f"{name}.json").exists()
