"""What the state machine carries from node to node, and the services it runs on.

The state holds ids and small numbers only: everything else is a file of the run, found by its id.
LangGraph rewrites the whole state at each step, and a small one resumes in milliseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict, get_type_hints

if TYPE_CHECKING:
    from agents.types import Specialists
    from graph.config import RunConfig
    from graph.isolation import HarnessSandbox
    from graph.record import RunRecord
    from graph.services import JobRunner
    from skills_db.store import SkillStore
    from trainer.harness import HarnessRepo
    from trainer.types import Domain


class LoopState(TypedDict, total=False):
    """The checkpointed state.

    ``champion`` is the version main holds; ``tip`` the version every candidate builds on and is compared with (the champion,
    or the end of a chain of provisional steps from it); ``candidate`` the version in work; ``next_version`` numbers designs, refused ones included; ``trained`` counts candidates
    that reached training; ``refused`` counts designs refused in this round; ``seeds`` are the
    training seeds the candidate needs, ``parent_seeds`` those the tip needs (0: what it has);
    ``verdict`` the gate's word on the candidate; ``stop`` the reason to finish, empty while the loop
    goes on; ``reports`` counts the sealed shards opened so far.
    """

    champion: str
    tip: str
    candidate: str
    next_version: int
    trained: int
    refused: int
    seeds: int
    parent_seeds: int
    verdict: str
    stop: str
    reports: int


@dataclass(frozen=True)
class Deps:
    """Live services of one process; never checkpointed."""

    run_id: str
    config: RunConfig
    record: RunRecord
    domain: Domain
    sandbox: str
    """Backend that isolates what jobs execute for the domain, or ``none``."""
    parts: HarnessSandbox
    """Where the harness's Python parts run."""
    harness: HarnessRepo
    specialists: Specialists
    jobs: JobRunner
    skills: SkillStore
    say: Callable[[str, str], None]
    """``say(node, line)`` shows one line of progress."""
    elapsed: Callable[[], float]
    """Wall seconds this run has used, earlier processes included."""


def schema_hash(node_names: tuple[str, ...]) -> str:
    """Fingerprint of node names and state fields: a checkpoint of another shape would resume silently wrong."""
    fields = sorted(f"{k}:{v}" for k, v in get_type_hints(LoopState).items())
    return hashlib.sha256("\n".join([*node_names, *fields]).encode()).hexdigest()[:16]
