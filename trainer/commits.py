"""What a specialist may name and say in the harness repository: names, ids, commit messages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trainer.types import (
    DropDiagnostic,
    HarnessEdit,
    InputError,
    PutDiagnostic,
    PutTerm,
    SetOption,
    SetProcedure,
    SetWeight,
)

TRAILERS = (
    "Version", "Parent-Version", "Factor", "Agent", "Model", "Evidence", "Skill", "Expected-Effect",
    "Run-Id", "Verdict", "Score", "Approved-By",
)  # fmt: skip
"""The trailers of candidates and merges, in the order in which they are written."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TRAILER = re.compile(r"[A-Za-z][A-Za-z-]*")


def check_name(what: str, name: str) -> str:
    """``name`` if it can be one component of a ref or path and is no option; else InputError."""
    if not _NAME.fullmatch(name):
        raise InputError(f"harness: {what}: expected lower-case letters, digits, '-' or '_', got {name[:60]!r}")
    return name


def check_commit(commit: str) -> str:
    """``commit`` if it is a full object name; names of refs and revision syntax are refused."""
    if not _COMMIT.fullmatch(commit):
        raise InputError(f"harness: commit: expected a full commit id, got {commit[:60]!r}")
    return commit


def slug_of(version: str, title: str) -> str:
    """A branch name's last part: ``("v0004", "Dynamic sampling!")`` → ``0004-dynamic-sampling``."""
    words = re.findall(r"[a-z0-9]+", title.lower())
    return check_name("slug", "-".join([version.removeprefix("v"), *words])[:60].rstrip("-"))


def subject_prefix(edit: HarnessEdit) -> str:
    """The conventional prefix of a candidate's commit subject, without the colon: ``tune(optim)``,
    ``tune(filter)``, ``reward``, ``diag``."""
    match edit.change:
        case SetOption(path=path):
            return "tune(filter)" if path.startswith("algorithm.filter_groups.") else f"tune({path.split('.')[0]})"
        case SetWeight() | PutTerm():
            return "reward"
        case PutDiagnostic() | DropDiagnostic() | SetProcedure():
            return "diag"


def message(subject: str, body: str, trailers: Mapping[str, str]) -> str:
    """A commit message in which only ``trailers`` are trailers, whatever the texts contain.

    Subject and trailer values are forced onto one line; empty trailers are left out; those named in
    TRAILERS come first, in that order.
    """
    title = one_line_of(subject)
    if not title:
        raise InputError("harness: subject: empty; give the commit a title")
    for key in trailers:
        if not _TRAILER.fullmatch(key):
            raise InputError(f"harness: trailer: expected letters and '-', got {key[:60]!r}")
    # git takes '#' lines at the end of a message, and all below a scissors line, for comments.
    lines = [_printable(line).rstrip() for line in body.splitlines()]
    text = "\n".join(f" {line}" if line.startswith("#") else line for line in lines).strip("\n")
    order = [*(key for key in TRAILERS if key in trailers), *(key for key in trailers if key not in TRAILERS)]
    block = "\n".join(f"{key}: {value}" for key in order if (value := one_line_of(trailers[key])))
    return "\n\n".join(part for part in (title, text, block) if part) + "\n"


def one_line_of(text: str) -> str:
    """The text on one line: white space, control and format characters become single spaces."""
    return " ".join(_printable(text).split())


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
