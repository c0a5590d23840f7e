"""Domains by short name: task families with their fixed verifiers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from trainer.types import Domain, InputError

DOMAINS: dict[str, str] = {"math": "trainer.domains.math.domain:create"}
"""Short name to ``module:factory``; a factory takes the task file (or None) and returns a Domain."""


def load_domain(name: str, tasks_file: Path | None = None) -> Domain:
    """The domain ``name``, with the tasks of ``tasks_file`` where one is given.

    Raises InputError for an unknown name and for a task file that cannot be used.
    """
    if name not in DOMAINS:
        raise InputError(f"domain {name!r} is unknown: choose one of {', '.join(sorted(DOMAINS))}")
    module, factory = DOMAINS[name].split(":")
    domain: Domain = getattr(import_module(module), factory)(tasks_file)
    return domain
