"""Another order of diagnosis, replayed on the versions that the run trained (agents.procedure)."""

from __future__ import annotations

from agents.edits import is_failed
from agents.procedure import Past, Reordered, reordered
from agents.types import Case, DiagnoseInput, Intervention
from graph.situations import cases_of, diagnose_input
from graph.state import Deps
from graph.versions import Version

UNTRAINED = ("refused", "failed")


def reorder(deps: Deps, candidate: str, tip: str) -> Reordered:
    """What each order would have named before each version that was trained before ``candidate``, read with the diagnostics of now."""
    record = deps.record
    # What a certificate says of a version stands after its verdict, and counts instead.
    ends = {case.version: case for case in cases_of(deps, candidate)}
    cases = [case for case in ends.values() if case.verdict not in UNTRAINED]
    tips = {case.version: record.load(case.version, "version", Version).parent for case in cases}
    situations = {name: diagnose_input(deps, candidate, name) for name in {tip, *tips.values()}}
    past = [_past(deps, case, situations[tips[case.version]]) for case in cases]
    return reordered(past, situations[tip].procedure, deps.specialists.diagnose)


def _past(deps: Deps, case: Case, situation: DiagnoseInput) -> Past:
    return Past(
        version=case.version,
        inp=situation,
        worked_on=worked_on(deps, case),
        helped=not is_failed(case),
    )


def worked_on(deps: Deps, case: Case) -> str:
    """The bottleneck that a version's change addressed; of versions of before that was recorded, the diagnosed one."""
    return deps.record.load(case.version, "intervention", Intervention).bottleneck or case.bottleneck
