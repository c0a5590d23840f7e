"""What runs remember of each other (``--memory DIR``): how every version ended, and the skills that came of it.

One JSONL file per memory, a line per case and per piece of a skill's evidence, each with the seed of its run. A run takes what others
left once, before its first candidate, and keeps its own copy, so that it decides the same when it is resumed. It leaves out what runs of
its own seed left: those trained the very same policies, and choosing by their outcome would test a change on what it was chosen for.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from agents.types import Case
from graph.record import RunRecord, read_record, write_atomic
from graph.seals import seal
from graph.state import Deps
from skills_db.store import SkillStore
from skills_db.types import Skill, SkillNote
from trainer.types import InputError, Record
from trainer.validation import one_line

FILE = "memory.json"
SKILLS = "memory"
"""Folder of the skills that a run took."""
KEPT = 5000
"""Entries that a memory keeps, the latest."""


class KeptCase(Record):
    kind: Literal["case"] = "case"
    key: str
    seed: int
    case: Case


class KeptSkill(Record):
    kind: Literal["skill"] = "skill"
    key: str
    seed: int
    note: SkillNote


Entry = Annotated[KeptCase | KeptSkill, Field(discriminator="kind")]
_ENTRY: TypeAdapter[KeptCase | KeptSkill] = TypeAdapter(Entry)


class Memory(Record):
    """The cases that a run took of others."""

    cases: tuple[Case, ...] = ()
    runs: int = 0


def memory_file(folder: str) -> Path:
    return Path(folder) / "memory.jsonl"


def read_memory(path: Path) -> list[KeptCase | KeptSkill]:
    """All entries, the oldest first; none where there is no file. InputError, with the line, where one is damaged."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); mend or delete it, or leave --memory out") from error
    found: dict[tuple[str, str], KeptCase | KeptSkill] = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = _ENTRY.validate_json(line)
        except ValidationError as error:
            raise InputError(f"{one_line(error, f'{path}:{number}', Record)}; delete the line") from error
        found[entry.kind, entry.key] = entry
    return list(found.values())


def take(deps: Deps) -> None:
    """Copy what others left, once."""
    root, folder = deps.record.root, deps.config.run.memory
    if (root / FILE).exists():
        return
    known = read_memory(memory_file(folder)) if folder else []
    others = [entry for entry in known if entry.seed != deps.config.run.seed]
    shutil.rmtree(root / SKILLS, ignore_errors=True)
    store = SkillStore([root / SKILLS])
    for entry in others:
        if isinstance(entry, KeptSkill):
            store.write(entry.note, entry.key)
    cases = tuple(e.case.model_copy(update={"version": e.key}) for e in others if isinstance(e, KeptCase))
    memory = Memory(cases=cases, runs=len({e.key.rpartition("/")[0] for e in others}))
    write_atomic(root / FILE, memory.model_dump_json(indent=1) + "\n")
    seal(root, [root / FILE])
    if folder:
        deps.say(
            "baseline",
            f"memory {folder}: {len(cases)} cases and {len(store.list())} skills of {memory.runs} other runs",
        )


def remembered(record: RunRecord) -> tuple[Case, ...]:
    """The cases that this run took; runs of before there was a memory took none."""
    path = record.root / FILE
    return read_record(path, Memory).cases if path.exists() else ()


def leave(deps: Deps) -> None:
    """Enter this run's cases and skills (again: nothing changes). A memory that cannot be written costs the run nothing."""
    folder = deps.config.run.memory
    if not folder or deps.config.designer.candidates == "null":
        return
    path, own = memory_file(folder), list(_own(deps))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = {(entry.kind, entry.key) for entry in own}
            kept = [*(e for e in read_memory(path) if (e.kind, e.key) not in keys), *own][-KEPT:]
            write_atomic(path, "".join(entry.model_dump_json() + "\n" for entry in kept))
    except (InputError, OSError) as error:
        deps.say("report", f"later runs will not remember this one: {error}")


def _own(deps: Deps) -> Iterator[KeptCase | KeptSkill]:
    seed = deps.config.run.seed
    for entry in deps.record.entries("cases"):
        case = Case.model_validate({k: v for k, v in entry.items() if k != "key"})
        if case.minutes is None and not case.blocked:  # what there was no time for was not tried
            yield KeptCase(key=f"{deps.run_id}/{entry['key']}", seed=seed, case=case)
    for skill in deps.skills.list():
        yield from (
            KeptSkill(key=key, seed=seed, note=note) for key, note in _notes(skill) if key.startswith(f"{deps.run_id}/")
        )


def _notes(skill: Skill) -> Iterator[tuple[str, SkillNote]]:
    for e in skill.evidence:
        yield (
            e.key,
            SkillNote(
                name=skill.name, description=skill.description, domain=e.domain, trigger=skill.trigger, factor=skill.factor,
                value=e.value, outcome=e.outcome, evidence=e.text, expected_effect=skill.expected_effect, body=skill.body,
                preconditions=skill.preconditions,
            ),
        )  # fmt: skip
