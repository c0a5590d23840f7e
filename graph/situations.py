"""What specialists are given: earlier cases, and a version's health report as the harness of now reads it."""

from __future__ import annotations

from collections.abc import Sequence

from agents.types import Case, DiagnoseInput
from graph.registry import ever, orders, registered
from graph.state import Deps
from graph.versions import Version, results_of
from trainer.evolve.labels import Source
from trainer.types import Diagnostic, Finding, HealthReport


def cases_of(deps: Deps, candidate: str) -> tuple[Case, ...]:
    """What was known before this candidate: one that is done again after a repair must not learn from itself, and what
    was refused for lack of time counts until there is more of it."""
    known = (e for e in deps.record.entries("cases") if str(e["version"]) < candidate)
    cases = (Case.model_validate({k: v for k, v in entry.items() if k != "key"}) for entry in known)
    return tuple(case for case in cases if case.minutes is None or case.minutes >= deps.config.run.minutes)


def diagnose_input(deps: Deps, candidate: str, tip: str) -> DiagnoseInput:
    """What the diagnosis for ``candidate`` is made from, in the order that the harness has by then."""
    version = deps.record.load(tip, "version", Version)
    harness = deps.harness.load(version.harness_commit)
    report = deps.record.load(tip, "health", HealthReport)
    parent = version.parent if deps.record.saved(version.parent, "health") else None
    adopted = orders(deps.record, candidate)
    return DiagnoseInput(
        domain=deps.config.run.domain,
        report=seen(deps, report, candidate),
        recipe=harness.recipe,
        procedure=adopted[-1].order if adopted else harness.procedure,
        parent_report=deps.record.load(parent, "health", HealthReport) if parent else None,
        cases=cases_of(deps, candidate),
    )


def seen(deps: Deps, report: HealthReport, version: str) -> HealthReport:
    """The report with what was registered since, and without what was retired, as it stands when ``version`` is designed."""
    now = registered(deps.record, version)
    gone = ever(deps.record) - now.keys()
    kept = tuple(f for f in report.findings if f.diagnostic not in gone)
    known = {f.diagnostic for f in kept}
    later = [d for name, d in now.items() if name not in known]
    added = read(deps, report.version, later) if later else ()
    return report.model_copy(update={"findings": (*kept, *added)})


def read(deps: Deps, version: str, diagnostics: Sequence[Diagnostic]) -> Sequence[Finding]:
    """Findings of SQL diagnostics over a trained version's rollouts; none where those were pruned."""
    from trainer.diagnose import run_diagnostic
    from trainer.evolve.labels import open_version

    source = source_of(deps, version, bad=False, why="")
    if not source:
        return ()
    with open_version(source) as con:
        return tuple(run_diagnostic(con, d) for d in diagnostics)


def source_of(deps: Deps, version: str, *, bad: bool, why: str) -> Source | None:
    """A version's rollouts as evidence, or None where they are no longer there."""
    found = [r.rollouts_dir for r in results_of(deps, version).results if r.rollouts_dir]
    there = tuple(folder for folder in found if any(folder.glob("*.parquet")))
    return Source(version=version, rollouts=there, bad=bad, why=why) if there and len(there) == len(found) else None
