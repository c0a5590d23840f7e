"""What every record has in common, and how bad input from outside is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1

Layer = Literal["score", "signal", "behaviour", "version"]
Severity = Literal["ok", "info", "warn", "critical"]
DiagnosticKind = Literal["pathology", "validity"]
Verdict = Literal["promoted", "provisional", "rejected", "undecided", "invalid", "unconfirmed", "no_information"]


class Record(BaseModel):
    """Base of all records: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def flatten(tree: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and leaf values of nested tables."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{head}{key}.")
        else:
            yield head + key, value


class InputError(Exception):
    """Bad input from outside (config, task file, checkpoint, run directory).

    The message is one line that names the file, the field and the remedy; the command line prints
    it and exits with 2. Nothing in the project catches it to go on.
    """
