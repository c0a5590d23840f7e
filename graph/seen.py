"""What a run's harness learned to see, as the report shows it: each gap, each new diagnostic, and what it changed."""

from __future__ import annotations

from collections.abc import Sequence

from agents.procedure import Reordered
from agents.types import Diagnosis
from graph.record import RunRecord
from graph.registry import Upgrade, upgrades
from graph.report_types import Estimate, Seen
from graph.upgrading import judged
from trainer.gate_types import GateReport
from trainer.types import Diagnostic, HealthReport


def seen_rows(record: RunRecord) -> tuple[Seen, ...]:
    """One row per gap, in the order in which they were met."""
    every = upgrades(record)
    retired = {name: version for version, found in every for name in (*found.retired, *found.folded)}
    return tuple(_row(record, version, found, retired) for version, found in every if found.gap)


def _row(record: RunRecord, version: str, found: Upgrade, retired: dict[str, str]) -> Seen:
    r, d = found.retrospect, found.diagnostic
    row = Seen(version=version, gap=found.gap.why if found.gap else "")
    if found.procedure:
        return _order_row(record, row, found.procedure)
    if r is None:
        return row
    tasks = Estimate(mean=r.held_out, ci_low=r.low, ci_high=r.high) if r.rule else None
    healthy, bad = (tuple(x.value for x in r.readings if x.bad == kind) for kind in (False, True))
    row = row.model_copy(
        update={
            "rule": r.rule,
            "held_out": tasks,
            "healthy": healthy,
            "bad": bad,
            "labels": r.labels,
            "why_not": r.reasons,
        }
    )
    if d is None:
        return row
    later = [e["version"] for e in record.verdicts() if e["gate"] and e["version"] >= version]
    raised = [v for v in later if _raised(record, v, d)]
    states = {v: judged(record, v).state for v in raised}
    return row.model_copy(
        update={
            "name": d.name,
            "kind": d.kind,
            "warn": d.warn,
            "critical": d.critical,
            "blocked": tuple(v for v in later if _blocked(record, v, d)),
            # Without it, the diagnosis of these would have been another one.
            "named": tuple(v for v, diagnosis in _diagnoses(record) if diagnosis.bottleneck == d.name),
            "first_right": next((v for v in raised if states[v] == "invalid"), ""),
            "first_wrong": next((v for v in raised if states[v] == "sound"), ""),
            "retired": retired.get(d.name, ""),
        }
    )


def _order_row(record: RunRecord, row: Seen, p: Reordered) -> Seen:
    rule = "" if p.reasons else ", ".join(p.order)
    other = tuple(v for v, found in _diagnoses(record) if v > row.version and found.otherwise)
    changed = {
        "rule": rule, "name": "" if p.reasons else "order of diagnosis", "kind": "procedure", "named": other,
        "why_not": p.reasons, "labels": tuple(f"{v}: brought a step, still named" for v in p.kept)
        + tuple(f"{v}: brought no step, something else would have been named" for v in p.elsewhere),
    }  # fmt: skip
    return row.model_copy(update=changed)


def _raised(record: RunRecord, version: str, d: Diagnostic) -> bool:
    findings = record.load(version, "health", HealthReport).findings
    return any(f.diagnostic == d.name and f.severity in ("warn", "critical") for f in findings)


def _blocked(record: RunRecord, version: str, d: Diagnostic) -> bool:
    return record.load(version, "gate", GateReport).blocked_by == d.name


def _diagnoses(record: RunRecord) -> Sequence[tuple[str, Diagnosis]]:
    found = sorted(path.parent.name for path in (record.root / "versions").glob("v*/diagnosis.json"))
    return [(v, record.load(v, "diagnosis", Diagnosis)) for v in found]
