"""The skill library: folders with a SKILL.md are the truth, an FTS5 index finds them."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from skills_db.format import parse, render
from skills_db.types import Evidence, Problem, Skill, SkillNote, balance, check_name

SEED_DIR = Path(__file__).with_name("seed")
FILE = "SKILL.md"


class SkillStore:
    """Skills of several directories as one library.

    The first directory is written to (and made on the first write); the others are read only. A
    skill of an earlier directory hides one of the same name in a later one, so that evidence on a
    shipped skill makes a copy of it and leaves the shipped one alone.
    """

    def __init__(self, dirs: Sequence[Path]) -> None:
        if not dirs:
            raise ValueError("a skill store needs at least one directory")
        self.dirs = tuple(Path(d).absolute() for d in dirs)

    def list(self) -> Sequence[Skill]:
        """All readable skills, by name."""
        return self._read()[0]

    def problems(self) -> Sequence[Problem]:
        """Skill folders that were left out because they are damaged."""
        return self._read()[1]

    def get(self, name: str) -> Skill | None:
        """The skill of that name, or None."""
        return next((skill for skill in self.list() if skill.name == name), None)

    def write(self, note: SkillNote | Mapping[str, object], evidence_key: str) -> Path:
        """Write a new skill or merge evidence into an existing one; return its folder.

        It merges where ``merge_into`` says so, and where a skill of that name or with the same
        trigger and factor exists: two skills never say the same. ``evidence_key`` (run/version)
        names the measurement: writing it again changes nothing. Raises ValueError (pydantic's) on
        a note that is not acceptable.
        """
        note = SkillNote.model_validate(note)
        with self._locked():
            known = self._match(note)
            new = _evidence(note, evidence_key)
            skill = merge(known, note, new) if known else _new(note, new, self._free_name(note.name))
            return self._save(skill)

    def search(self, query: str, limit: int = 10) -> Sequence[Skill]:
        """Skills that hold any word of the query, best first (BM25; name and description weigh most)."""
        words = re.findall(r"\w+", query)
        if not words:
            return []
        skills = {skill.name: skill for skill in self.list()}
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute(
                "CREATE VIRTUAL TABLE skills USING fts5(name, description, facts, body, tokenize='porter unicode61')"
            )
            db.executemany("INSERT INTO skills VALUES (?, ?, ?, ?)", (_indexed(skill) for skill in skills.values()))
            # Quoted words are plain words to FTS5, whatever operators they look like.
            match = " OR ".join(f'"{word}"' for word in words)
            rows = db.execute(
                "SELECT name FROM skills WHERE skills MATCH ? ORDER BY bm25(skills, 4, 4, 2, 1), name LIMIT ?",
                (match, limit),
            )
            return [skills[name] for (name,) in rows]

    def _read(self) -> tuple[Sequence[Skill], Sequence[Problem]]:
        found: dict[str, Skill] = {}
        problems: list[Problem] = []
        for directory in self.dirs:
            for file in sorted(directory.glob(f"*/{FILE}")):
                if file.parent.name in found:
                    continue
                try:
                    check_name(file.parent.name)
                    found[file.parent.name] = parse(file.read_text(encoding="utf-8"), file.parent.name)
                except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
                    problems.append(Problem(path=str(file), reason=str(error)))
        return [found[name] for name in sorted(found)], problems

    def _match(self, note: SkillNote) -> Skill | None:
        skills = self.list()
        named = [s for s in skills if s.name == note.merge_into]
        same = [s for s in skills if (s.trigger, s.factor) == (note.trigger, note.factor)]
        return next(iter([*named, *same]), None)

    def _free_name(self, name: str) -> str:
        """``name``, or with a number behind it where another or a damaged skill has the folder."""
        number, free = 1, name
        while any((directory / free).exists() for directory in self.dirs):
            number += 1
            free = f"{name[:60].rstrip('-')}-{number}"
        return free

    def _save(self, skill: Skill) -> Path:
        folder = self.dirs[0] / skill.name
        folder.mkdir(parents=True, exist_ok=True)
        text = render(skill)
        file = folder / FILE
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            return folder
        # The lock makes this name ours; the rename makes the change all or nothing.
        temporary = folder / f".{FILE}.new"
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
        return folder

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Writers take turns, across processes: two runs may share one library."""
        self.dirs[0].mkdir(parents=True, exist_ok=True)
        with (self.dirs[0] / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def merge(skill: Skill, note: SkillNote, new: Evidence) -> Skill:
    """The skill with one more piece of evidence; one of the same key is replaced.

    The value with the best record leads; the present one keeps its place on a tie.
    """
    evidence = (*(e for e in skill.evidence if e.key != new.key), new)
    evidence = tuple(sorted(evidence, key=lambda e: e.key))
    score = balance(evidence)
    best = max(score.values())
    leads = skill.value if score.get(skill.value, 0) >= best else next(v for v, s in score.items() if s == best)
    effect = note.expected_effect if note.value == leads and note.outcome == "win" else skill.expected_effect
    return skill.model_copy(update={"evidence": evidence, "value": leads, "expected_effect": effect})


def _new(note: SkillNote, evidence: Evidence, name: str) -> Skill:
    return Skill(
        name=name,
        description=note.description,
        origin=note.domain,
        trigger=note.trigger,
        factor=note.factor,
        value=note.value,
        preconditions=note.preconditions,
        expected_effect=note.expected_effect,
        source=evidence.key,
        evidence=(evidence,),
        body=note.body.strip(),
    )


def _evidence(note: SkillNote, key: str) -> Evidence:
    return Evidence(key=key, domain=note.domain, outcome=note.outcome, value=note.value, text=note.evidence)


def _indexed(skill: Skill) -> tuple[str, str, str, str]:
    facts = " ".join([skill.trigger, skill.factor, *skill.domains, skill.source, *(e.text for e in skill.evidence)])
    return skill.name, skill.description, facts, skill.body
