"""Content hashes of what a run has finished: ``record/hashes.jsonl``, append-only, one file per line.

A record's hash is written before the record, a job's after it: a kill in between leaves a line without its file or a file
without its line, and neither is damage. A file is whole if it has any of the contents noted for it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = Path("record", "hashes.jsonl")


def seal(root: Path, paths: Iterable[Path]) -> None:
    """Note the contents of files of the run, folders with all that is in them."""
    files = [f for p in paths for f in (sorted(p.rglob("*")) if p.is_dir() else [p]) if f.is_file()]
    note(root, {file: digest(file) for file in files})


def note(root: Path, digests: Mapping[Path, str]) -> None:
    """Append (file, SHA-256 in hex) durably; what is noted already is not noted again."""
    known = sealed(root)
    entries = {str(file.relative_to(root)): value for file, value in digests.items()}
    lines = [
        json.dumps({"file": file, "sha256": value}) + "\n"
        for file, value in entries.items()
        if value not in known[file]
    ]
    if not lines:
        return
    path = root / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # torn by a kill
                file.write(b"\n")
        file.write("".join(lines).encode())
        file.flush()
        os.fsync(file.fileno())


def sealed(root: Path) -> Mapping[str, frozenset[str]]:
    """Hashes by file, relative to the run; empty for a file that has none. Lines that cannot be read are left out."""
    found: dict[str, frozenset[str]] = defaultdict(frozenset)
    path = root / FILE
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
            found[entry["file"]] |= {entry["sha256"]}
        except (ValueError, KeyError, TypeError):
            continue
    return found


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
