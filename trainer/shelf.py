"""What earlier runs left for later ones: an entry per run, in one file for all runs of a kind."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import Field, ValidationError

from trainer.storage import replacing
from trainer.types import SCHEMA_VERSION, InputError, Record
from trainer.validation import one_line

T = TypeVar("T")
KEPT = 200
"""Runs whose entries are kept, the latest: a file that is read at every start stays small."""


class Fingerprint(Record):
    """What must be equal for runs to be of a kind; ``protocol_hash`` covers tasks, sampling and scoring."""

    domain: str
    protocol_hash: str
    token_budget: Annotated[int, Field(gt=0)]
    base_policy: str
    """Content hash of the policy that every training starts from."""
    recipe: str = ""
    """Hash of the recipe that the baseline trains with, where that makes a kind of its own."""

    @property
    def key(self) -> str:
        return hashlib.sha256(self.model_dump_json(exclude_defaults=True).encode()).hexdigest()[:16]


class Shelf(Record, Generic[T]):
    """The entries of all runs with one fingerprint, by run, in the order in which they were last written."""

    schema_version: int = SCHEMA_VERSION
    fingerprint: Fingerprint
    runs: Mapping[str, T] = Field(default_factory=dict)

    def others(self, run: str) -> Mapping[str, T]:
        """The entries of all runs but this one: nobody learns from themselves."""
        return {name: entry for name, entry in self.runs.items() if name != run}


def shelf_file(folder: Path, fingerprint: Fingerprint) -> Path:
    return folder / f"{fingerprint.key}.json"


def read_shelf(folder: Path, fingerprint: Fingerprint, kind: type[Shelf[T]]) -> Shelf[T]:
    """What is stored; an empty shelf where there is no file. InputError for a file that is damaged or another's."""
    path = shelf_file(folder, fingerprint)
    remedy = "delete the file, later runs write it again"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return kind(fingerprint=fingerprint)
    except OSError as err:
        raise InputError(f"{path}: cannot be read ({err.strerror}); check its permissions or delete it") from err
    except UnicodeDecodeError as err:
        raise InputError(f"{path}: damaged (not UTF-8); {remedy}") from err
    try:
        found = kind.model_validate_json(text)
    except ValidationError as err:
        raise InputError(f"{one_line(err, str(path), kind)}; {remedy}") from err
    if found.schema_version != SCHEMA_VERSION or found.fingerprint != fingerprint:
        field = "fingerprint" if found.fingerprint != fingerprint else "schema_version"
        raise InputError(f"{path}: {field}: not that of this run; {remedy}")
    return found


def put(folder: Path, fingerprint: Fingerprint, kind: type[Shelf[T]], run: str, entry: T) -> None:
    """Enter what ``run`` leaves (again: replaced, so that a repeated call changes nothing) and write the file whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = shelf_file(folder, fingerprint)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # runs end side by side: nobody's entry may get lost
        stored = read_shelf(folder, fingerprint, kind)
        runs = {**stored.others(run), run: entry}
        changed = kind(fingerprint=fingerprint, runs=dict(list(runs.items())[-KEPT:]))
        with replacing(path) as partial:
            partial.write_text(changed.model_dump_json(indent=1) + "\n", encoding="utf-8")
