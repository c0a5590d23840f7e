"""The gate's turn: which seeds are needed, what it is given, and what its verdict does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents.types import Intervention
from graph import harnessing
from graph.calibrating import calibration_of
from graph.record import RunRecord
from graph.registry import registered
from graph.state import Deps, LoopState
from graph.versions import Seeds, Version, evaluations, failure_of, proxy_scores, seeds_of, stalled
from trainer.gate import Arm, GateInput, GateReport, VersionSpread, judge
from trainer.gate_certify import provisional
from trainer.types import Finding, Harness, HealthReport


def wanted(deps: Deps, state: LoopState) -> Sequence[tuple[str, int]]:
    """(version, seeds) to train: the candidate's, and the tip's where it has fewer than asked."""
    tip = state["tip"]
    parent_seeds = max(state.get("parent_seeds", 0), seeds_of(deps.record, tip))
    return [(tip, parent_seeds), (state["candidate"], state["seeds"])]


def judge_candidate(deps: Deps, state: LoopState) -> GateReport | str:
    """The gate's report on the seeds so far, or why the candidate could not be trained or evaluated.

    A search that is certified at its end only asks whether a candidate is worth building on; else every candidate
    faces the test for promotion.
    """
    candidate, tip = state["candidate"], state["tip"]
    if failure := failure_of(deps.record, candidate):
        return failure
    seeds = state["seeds"]
    arms = arms_of(deps, (tip, seeds_of(deps.record, tip)), (candidate, seeds))
    if deps.config.gate.strategy == "certify":
        report = provisional(arms[1], arms[0], deps.config.gate, pool(deps.record), calibration_of(deps.record))
    else:
        before = reports(deps.record, "verdict")
        inp = GateInput(
            parent=arms[0],
            candidate=arms[1],
            index=len(before),
            spent=tuple(look.spent for look in before),
            pool=pool(deps.record),
            calibration=calibration_of(deps.record),
            deltas=tuple(look.delta for look in before),
        )
        report = judge(inp, deps.config.gate)
    report = blocked(deps.record, candidate, report)
    deps.record.save(candidate, f"gate-{seeds}-seeds", report)
    return report


def blocked(record: RunRecord, candidate: str, report: GateReport) -> GateReport:
    """What a validity diagnostic that the run evolved says against a gain: it may block, and never promotes. It was registered
    before the candidate was designed, so that nothing was fitted to it."""
    if report.verdict not in ("promoted", "provisional"):
        return report
    raised = alarms(record, candidate)
    if not raised:
        return report
    why = f"blocked by {raised[0].diagnostic}, which reads {raised[0].value:.2f} against {raised[0].line:.2f}: {raised[0].description}"
    changed = {"verdict": "invalid", "unblocked": report.verdict, "blocked_by": raised[0].diagnostic}
    return report.model_copy(update={**changed, "reasons": (why, *report.reasons)})


def alarms(record: RunRecord, version: str) -> Sequence[Finding]:
    """Critical findings of evolved validity diagnostics on a trained version."""
    known = {name for name, d in registered(record, version).items() if d.kind == "validity"}
    findings = record.load(version, "health", HealthReport).findings
    return [f for f in findings if f.diagnostic in known and f.severity == "critical"]


def reports(record: RunRecord, *kinds: str) -> Sequence[GateReport]:
    """The gate's final reports so far, on candidates (``verdict``) or on chains (``certification``)."""
    settled = sorted(record.entries("ledger"), key=lambda e: str(e["version"]))
    return [GateReport.model_validate(e["gate"]) for e in settled if e["kind"] in kinds and e["gate"]]


def arms_of(deps: Deps, parent: tuple[str, Seeds], candidate: tuple[str, Seeds]) -> tuple[Arm, Arm]:
    """Parent and candidate as the gate reads them: the candidate's own reward is the proxy on both."""
    harness = deps.harness.load(deps.record.load(candidate[0], "version", Version).harness_commit)
    return _arm(deps, *parent, harness), _arm(deps, *candidate, harness)


def _arm(deps: Deps, version: str, seeds: Seeds, harness: Harness) -> Arm:
    return Arm(
        version=version,
        validation=evaluations(deps.record, version, seeds, "validation"),
        gate=evaluations(deps.record, version, seeds, "gate"),
        proxy=proxy_scores(deps, version, seeds, harness),
        stalled=stalled(deps.record, version),
    )


def pool(record: RunRecord) -> tuple[VersionSpread, ...]:
    """How much the seeds of every version seen so far differ."""
    looks = reports(record, "verdict", "certification")
    return tuple(spread for look in looks for spread in (look.parent_spread, look.spread))


def settle(deps: Deps, state: LoopState, report: GateReport | None, failure: str) -> None:
    """Write a final verdict: git first (idempotent), then the version's file, then the ledger."""
    candidate = state["candidate"]
    idea = deps.record.load(candidate, "intervention", Intervention)
    metrics = metrics_of(report) if report else {"verdict": "failed", "reason": failure}
    commit = ""
    if report and report.verdict == "promoted":
        commit = harnessing.promote(deps, candidate, idea.title, report, metrics)
    elif report and report.verdict == "provisional":
        harnessing.advance(deps, candidate, "; ".join(report.reasons), metrics)
    else:
        verdict = report.verdict if report else "failed"
        harnessing.retire(deps, candidate, verdict, "; ".join(report.reasons) if report else failure, metrics)
    if report:
        deps.record.save(candidate, "gate", report)
    enter_verdict(deps, candidate, report.verdict if report else "failed", report, failure, commit)


def enter_verdict(
    deps: Deps, candidate: str, verdict: str, gate: GateReport | None, reason: str, merge_commit: str
) -> None:
    version = deps.record.load(candidate, "version", Version)
    deps.record.append("ledger", f"{candidate}.verdict", verdict_entry(version, verdict, gate, reason, merge_commit))


def verdict_entry(
    version: Version, verdict: str, gate: GateReport | None, reason: str, merge_commit: str
) -> Mapping[str, Any]:
    """The ledger's entry of a settled candidate."""
    return {
        "kind": "verdict",
        "version": version.id,
        "parent": version.parent,
        "factor": version.factor,
        "title": version.title,
        "harness_commit": version.harness_commit,
        "merge_commit": merge_commit,
        "verdict": verdict,
        "gate": gate.model_dump(mode="json") if gate else None,
        "reasons": list(gate.reasons) if gate else [reason],
    }


def metrics_of(report: GateReport) -> Mapping[str, object]:
    return {
        "verdict": report.verdict,
        "delta": report.delta,
        "ci": [report.ci_low, report.ci_high],
        "p": report.p,
        "mde": report.mde,
        "seeds": report.n_seeds,
    }


def line(candidate: str, report: GateReport) -> str:
    """One line for a person: verdict or what is missing, delta with interval, least detectable effect."""
    delta = "" if report.delta is None else f" {100 * report.delta:+.1f} pp"
    if report.ci_low is not None and report.ci_high is not None:
        delta += f" (95 % interval {100 * report.ci_low:+.1f} to {100 * report.ci_high:+.1f})"
    mde = "" if report.mde is None else f"; detectable from {100 * report.mde:.1f} pp"
    word = report.verdict if report.status == "final" else "no verdict yet"
    return f"{candidate}: {word}{delta}{mde}; {report.reasons[0]}"


def refuse(deps: Deps, candidate: str, reasons: Sequence[str]) -> None:
    """A design that the backtest refused: kept in git and in the ledger, never trained."""
    harnessing.retire(deps, candidate, "refused", "; ".join(reasons), {"verdict": "refused", "reasons": list(reasons)})
    enter_verdict(deps, candidate, "refused", None, "; ".join(reasons), "")
