"""Another order of diagnosis, replayed on the versions that the run trained (agents.procedure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from agents.edits import is_failed
from agents.procedure import Past, Reordered, reordered
from agents.types import Case, Intervention
from graph.situations import cases_of, diagnose_input
from graph.state import Deps
from graph.versions import Version


def reorder(deps: Deps, candidate: str, tip: str) -> Reordered:
    """What each order would have named before each version that was trained before ``candidate``, read with the diagnostics of now."""
    cases = _trained(deps, candidate)
    tips = [deps.record.load(case.version, "version", Version).parent for case in cases]
    situations = {name: diagnose_input(deps, candidate, name) for name in {tip, *tips}}
    past = [
        Past(version=case.version, inp=situations[at], worked_on=_worked_on(deps, case), helped=not is_failed(case))
        for case, at in zip(cases, tips, strict=True)
    ]
    return reordered(past, situations[tip].procedure, deps.specialists.diagnose)


def in_vain(deps: Deps, candidate: str, bottleneck: str) -> int:
    """Versions trained since the last step that worked on this bottleneck."""
    since = takewhile(is_failed, reversed(_trained(deps, candidate)))
    return sum(_worked_on(deps, case) == bottleneck for case in since)


def _trained(deps: Deps, candidate: str) -> Sequence[Case]:
    """How each version that could be judged ended. What a certificate says of one stands after its verdict, and counts instead."""
    ends = {case.version: case for case in cases_of(deps, candidate)}
    return [case for case in ends.values() if case.verdict not in ("refused", "failed")]


def _worked_on(deps: Deps, case: Case) -> str:
    """The bottleneck that a version's change addressed; of versions of before that was recorded, the diagnosed one."""
    return deps.record.load(case.version, "intervention", Intervention).bottleneck or case.bottleneck
