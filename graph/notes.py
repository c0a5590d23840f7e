"""Knowledge from outside: notes that a person drops into a run's ``notes/`` folder, read before each design.

A line ``try FACTOR = VALUE`` (a list mark before it is fine) is an idea; everything else is for people. Ideas of notes are tried
when those of the own playbook and skills have run out, or at once when two versions in a row have failed.
"""

from __future__ import annotations

import re
from pathlib import Path

from agents.types import Note

FOLDER = "notes"
LARGEST = 1 << 16
"""Bytes of a file that are read."""
MOST, LONGEST = 50, 1000
"""Ideas of a run, and characters of one."""
_IDEA = re.compile(r"^\s*(?:(?:[-*+]|\d+\.)\s+)?try[:\s]\s*(\S.*=.*\S)\s*$", re.IGNORECASE)


def notes_of(root: Path) -> tuple[Note, ...]:
    """Ideas of all notes, by file name and line; a file that cannot be read counts as one that has none."""
    found = []
    for path in sorted((root / FOLDER).glob("*.md")):
        try:
            if not path.is_file():
                continue
            with path.open("rb") as file:
                text = file.read(LARGEST).decode("utf-8", "replace")
        except OSError:
            continue
        name = path.name.encode("utf-8", "replace").decode()
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) <= LONGEST and (idea := _IDEA.match(line)):
                found.append(Note(source=f"{FOLDER}/{name}:{number}", text=idea[1].replace("`", "")))
    return tuple(found[:MOST])
