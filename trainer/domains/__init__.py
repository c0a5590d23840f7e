"""Domains by short name: task families with their fixed verifiers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

from trainer.domains.planted import exploits
from trainer.types import Domain, InputError, Recipe

LOOK_AT = 8
"""Tasks that are looked at to see what a domain's tasks have."""


class Entry(NamedTuple):
    """``factory`` is ``module:function``, called with the task file (or None) and, where the domain ``executes``
    programs, with an executor for them. ``sources`` are patterns of the files here that decide its scores."""

    factory: str
    sources: tuple[str, ...]
    executes: bool = False


DOMAINS: dict[str, Entry] = {
    "math": Entry("trainer.domains.math.domain:create", ("math/**/*.py",)),
    "code": Entry("trainer.domains.code.domain:create", ("code/**/*.py",), executes=True),
}


def entry_of(name: str) -> Entry:
    """The domain's entry; a planted exploit (``planted_<name>``) has one too. Raises InputError for an unknown name."""
    planted = name.removeprefix(exploits.PREFIX)
    if planted != name and planted in exploits.names():
        own = ("math/**/*.py", "planted/*.py", f"planted/exploits/{planted}.toml")
        return Entry("trainer.domains.planted.domain:create", own)
    if name not in DOMAINS:
        known = (
            f"choose one of {', '.join(sorted(DOMAINS))}, or {exploits.PREFIX}<one of {', '.join(exploits.names())}>"
        )
        raise InputError(f"domain {name!r} is unknown: {known}")
    return DOMAINS[name]


def load_domain(name: str, tasks_file: Path | None = None, *, sandbox: str = "none", run: str = "") -> Domain:
    """The domain ``name``, with the tasks of ``tasks_file`` where one is given.

    ``sandbox`` is the backend (sandboxes.backends) that isolates what it executes, started when the first program
    comes; ``run`` labels it. With ``none`` executing is refused then. Close the domain after use. Raises InputError for
    an unknown name and for a task file that cannot be used.
    """
    entry = entry_of(name)
    module, factory = entry.factory.split(":")
    create = getattr(import_module(module), factory)
    if name.startswith(exploits.PREFIX):
        planted: Domain = create(name.removeprefix(exploits.PREFIX), tasks_file)
        return planted
    if not entry.executes:
        domain: Domain = create(tasks_file)
        return domain
    from trainer.execution import IsolatedPrograms

    executing: Domain = create(tasks_file, IsolatedPrograms(sandbox, run))
    return executing


@contextmanager
def opened_domain(name: str, tasks_file: str | None, *, sandbox: str, run: str) -> Iterator[Domain]:
    """``load_domain``, closed at the end."""
    domain = load_domain(name, Path(tasks_file) if tasks_file else None, sandbox=sandbox, run=run)
    try:
        yield domain
    finally:
        domain.close()


def misfit(recipe: Recipe, domain: Domain, split: Literal["train", "validation"]) -> tuple[str, str] | None:
    """The first option of the recipe that the domain's tasks cannot serve, with the reason and the remedy."""
    tasks = domain.tasks(split, LOOK_AT)
    weak = getattr(domain, "weak_verifier", False) or any(task.tests and task.tests.visible for task in tasks)
    if recipe.reward.tests == "visible" and not weak:
        return "reward.tests", f"tasks of domain {domain.name} show no tests; use 'hidden'"
    if recipe.data.hints.enable and not any(domain.hint(task) for task in tasks):
        return "data.hints.enable", f"domain {domain.name} has no worked replies to these tasks; use false"
    return None
