"""Specialist calls: gather the typed input from the run, call, and record the decision.

One Decision per call, by key (version, role): a call that was recorded before a crash is read back
instead of being made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeVar

from agents.checklist import open_questions
from agents.types import (
    BacktestInput,
    BacktestReport,
    Check,
    CurateInput,
    CurateOutput,
    Decision,
    DesignInput,
    Diagnosis,
    Dropped,
    Intervention,
    SkillRef,
)
from graph import trying, upgrading
from graph.bases import fixed_factors
from graph.harnessing import Proposal, commit_candidate, replay_candidate
from graph.memory import remembered
from graph.notes import notes_of
from graph.planning import too_late
from graph.registry import UPGRADE, Upgrade, orders
from graph.situations import cases_of, diagnose_input
from graph.state import Deps
from graph.track import track_record
from graph.versions import Version, realised
from trainer.gate import GateReport
from trainer.types import HealthReport, Record

if TYPE_CHECKING:
    from skills_db.types import Skill

Role = Literal["diagnostician", "designer", "backtester", "curator"]
T = TypeVar("T", bound=Record)


def _decide(
    deps: Deps,
    version: str,
    role: Role,
    name: str,
    kind: type[T],
    inputs: Mapping[str, str],
    call: Callable[[], T | None],
    occasion: str = "",
) -> T | None:
    """Make the call once, save its output as ``<name>.json`` and record the decision; None is an answer too.

    ``occasion`` tells a second call of the same role on a version from its first.
    """
    start = time.monotonic()
    output = deps.record.load(version, name, kind) if deps.record.saved(version, name) else call()
    if output is not None:
        deps.record.save(version, name, output)
    decision = Decision(
        id=f"{version}.{role}{occasion}",
        run_id=deps.run_id,
        version=version,
        role=role,
        inputs=inputs,
        output=output.model_dump(mode="json") if output else {},
        rationale=rationale(output),
        model=deps.specialists.name,
        duration_s=time.monotonic() - start,
    )
    deps.record.append("decisions", decision.id, decision.model_dump(mode="json"))
    return output


def _given(output: T | None) -> T:
    """For the roles that must answer."""
    if output is None:
        raise TypeError("a specialist returned nothing where an answer is required")
    return output


def rationale(output: Record | None) -> str:
    """Why, in the specialist's own words."""
    match output:
        case Diagnosis():
            return output.hypothesis
        case Intervention():
            return output.rationale
        case BacktestReport():
            untold = [f"cannot tell: {', '.join(output.untold)}"] if output.untold else []
            return "; ".join(output.reasons or ("no check failed", *output.warnings, *untold))
        case CurateOutput():
            return output.note
        case Upgrade():
            return output.line or "no gap is open"
    return "no untried idea is left for this situation"


def skill_refs(deps: Deps) -> tuple[SkillRef, ...]:
    return tuple(_ref(skill) for skill in deps.skills.list())


def _ref(skill: Skill) -> SkillRef:
    return SkillRef(
        name=skill.name,
        description=skill.description,
        domains=(*skill.domains, "*") if skill.shared else skill.domains,
        trigger=skill.trigger,
        factor=skill.factor,
        value=skill.value,
        wins=skill.wins,
        losses=skill.losses,
        preconditions=skill.preconditions,
        vetoes=skill.vetoes,
        body=skill.body,
    )


def diagnose(deps: Deps, candidate: str, tip: str) -> Diagnosis:
    """One bottleneck of the tip, and what the run's first procedure would have named instead."""
    version = deps.record.load(tip, "version", Version)
    inp = diagnose_input(deps, candidate, tip)

    def call() -> Diagnosis:
        found, adopted = deps.specialists.diagnose(inp), orders(deps.record, candidate)
        if not adopted:
            return found
        before = deps.specialists.diagnose(inp.model_copy(update={"procedure": adopted[0].before})).bottleneck
        return found.model_copy(update={"otherwise": before if before != found.bottleneck else ""})

    inputs = {"health": f"versions/{tip}/health.json", "harness": version.harness_commit}
    return _given(_decide(deps, candidate, "diagnostician", "diagnosis", Diagnosis, inputs, call))


def upgrade(deps: Deps, candidate: str, tip: str) -> Upgrade:
    """What the diagnostics could not see, and the new one that can, registered in the harness."""

    def call() -> Upgrade:
        return upgrading.decided(deps, candidate, tip)

    inputs = {"diagnosis": f"{candidate}.diagnostician", "health": f"versions/{tip}/health.json"}
    found = _given(_decide(deps, candidate, "diagnostician", UPGRADE, Upgrade, inputs, call, UPGRADED))
    upgrading.enter(deps, candidate, found)
    return found


def design(deps: Deps, candidate: str, tip: str) -> Intervention | None:
    """The designer's intervention, committed to the harness; None when it has no untried idea."""
    version = deps.record.load(tip, "version", Version)
    harness = deps.harness.load(version.harness_commit)
    diagnosis = deps.record.load(candidate, "diagnosis", Diagnosis)
    inp = DesignInput(
        domain=deps.config.run.domain,
        diagnosis=diagnosis,
        recipe=harness.recipe,
        terms=tuple(harness.terms),
        cases=cases_of(deps, candidate),
        skills=skill_refs(deps),
        fixed=fixed_factors(deps),
        memory=remembered(deps.record),
        notes=notes_of(deps.record.root),
        escalate=deps.config.designer.escalate,
    )
    inputs = {"diagnosis": f"{candidate}.diagnostician", "harness": version.harness_commit}
    idea = _decide(
        deps, candidate, "designer", "intervention", Intervention, inputs, lambda: deps.specialists.design(inp)
    )
    if idea is None:
        return None
    for number, dropped in enumerate(idea.dropped):
        _search(deps, f"{candidate}.dropped.{number}", candidate, dropped)
    commit_candidate(deps, candidate, version, diagnosis, idea)
    return idea


def _search(deps: Deps, key: str, version: str, dropped: Dropped) -> None:
    deps.record.append("search", key, {"version": version, **dropped.model_dump(mode="json")})


def backtest(deps: Deps, candidate: str, tip: str) -> BacktestReport:
    """The backtester's checks; an open question of the checklist refuses the training as well, and so do a
    warm start that there is no time for and a skill that does harm in its trial."""
    parent = deps.record.load(tip, "version", Version)
    diagnosis = deps.record.load(candidate, "diagnosis", Diagnosis)
    idea = deps.record.load(candidate, "intervention", Intervention)
    proposal = deps.record.load(candidate, "proposal", Proposal)
    diff = deps.harness.diff(parent.harness_commit, proposal.commit) if proposal.commit else None
    inp = BacktestInput(
        domain=deps.config.run.domain,
        intervention=idea,
        signature=diagnosis.signature,
        actual_factors=diff.factors if diff else (),
        paths=diff.paths if diff else (),
        config_error=proposal.error,
        replay=replay_candidate(deps, tip, parent, proposal) if proposal.commit else None,
        cases=cases_of(deps, candidate),
        record=track_record(deps.record),
    )

    def call() -> BacktestReport:
        report = deps.specialists.backtest(inp)
        if report.verdict == "refuse":
            return report
        if questions := open_questions(diagnosis, idea, report):
            check = Check(name="checklist", passed=False, detail="open: " + ", ".join(questions))
        elif proposal.commit and (late := too_late(deps, deps.harness.load(proposal.commit).recipe)):
            check = Check(name=TIME, passed=False, detail=late)
        elif proposal.commit and (trial := trying.tried(deps, candidate, tip, idea, proposal)):
            check = Check(name=trying.TRIAL, passed=not trial.harmful, detail=trial.line)
        else:
            return report
        if check.passed:
            return report.model_copy(update={"checks": (*report.checks, check)})
        return report.model_copy(
            update={"verdict": "refuse", "checks": (*report.checks, check), "reasons": (check.detail,)}
        )

    inputs = {"intervention": f"{candidate}.designer", "harness": proposal.commit or "none"}
    return _given(_decide(deps, candidate, "backtester", "backtest", BacktestReport, inputs, call))


def curate(deps: Deps, candidate: str, verdict: str) -> CurateOutput:
    """Case and skill of a finished version; the case key is the version, so it is written once."""
    gate = deps.record.load(candidate, "gate", GateReport) if deps.record.saved(candidate, "gate") else None
    inputs = {"gate": f"versions/{candidate}/gate.json", "intervention": f"{candidate}.designer"}
    inp = _finished(deps, candidate, verdict, gate)
    output = _given(
        _decide(deps, candidate, "curator", "curation", CurateOutput, inputs, lambda: deps.specialists.curate(inp))
    )
    _keep(deps, candidate, candidate, output)
    return output


def learn(deps: Deps, tip: str, certificate: GateReport) -> CurateOutput:
    """What a chain of one step taught when it was tested on fresh seeds; longer ones say nothing about single steps."""
    inputs = {"gate": f"versions/{tip}/certificate.json", "intervention": f"{tip}.designer"}
    inp = _finished(deps, tip, certificate.verdict, certificate)

    def call() -> CurateOutput:
        return deps.specialists.curate(inp)

    output = _given(_decide(deps, tip, "curator", "lesson", CurateOutput, inputs, call, LESSON))
    _keep(deps, f"{tip}{LESSON}", tip, output)
    return output


LESSON = ".certified"
UPGRADED = ".upgrade"
TIME = "time"
"""The check that fails where a candidate's own warm start no longer fits into the run's minutes."""


def _finished(deps: Deps, candidate: str, verdict: str, gate: GateReport | None) -> CurateInput:
    record = deps.record
    version = record.load(candidate, "version", Version) if record.saved(candidate, "version") else None
    idea = record.load(candidate, "intervention", Intervention)
    change, trial = None, trying.trial_of(record, candidate)
    if gate and version:
        change = realised(
            idea.prediction.metric,
            record.load(candidate, "health", HealthReport),
            record.load(version.parent, "health", HealthReport),
        )
    return CurateInput(
        domain=deps.config.run.domain,
        blocked=bool(gate and gate.blocked_by),
        harmed=trial.line if trial and trial.harmful else "",
        diagnosis=record.load(candidate, "diagnosis", Diagnosis),
        intervention=idea,
        verdict=verdict,
        delta=gate.delta if gate else None,
        ci=(gate.ci_low, gate.ci_high) if gate and gate.ci_low is not None and gate.ci_high is not None else None,
        seeds=gate.n_seeds if gate else 0,
        realised=change,
        skills=skill_refs(deps),
    )


def _keep(deps: Deps, key: str, version: str, output: CurateOutput) -> None:
    report = deps.record.load(version, "backtest", BacktestReport)
    late = any(check.name == TIME for check in report.checks)
    minutes = deps.config.run.minutes if late else None
    case = output.case.model_copy(update={"version": version, "minutes": minutes})
    deps.record.append("cases", key, case.model_dump(mode="json"))
    if output.skill:
        deps.skills.write(output.skill.model_dump(), evidence_key=f"{deps.run_id}/{key}")
