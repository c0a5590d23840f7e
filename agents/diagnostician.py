"""Diagnostician: from a health report to ONE bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agents.facts import SEVERITY_RANK, Facts, fill, gather, show
from agents.rules import Rules
from agents.types import DiagnoseInput, Diagnosis
from trainer.types import Finding, Layer, Record, Severity


class Suspect(Record):
    """A bottleneck that is present, with the findings that say so (none if a sign says so)."""

    key: str
    layer: Layer
    severity: Severity
    findings: tuple[Finding, ...]
    validity: bool


def diagnose(inp: DiagnoseInput, rules: Rules) -> Diagnosis:
    """Name the one bottleneck to work on.

    Symptoms give way to what explains them. The rest are ordered by: validity before pathology at
    the same severity, severity, the procedure's layers, the playbook's order. When nothing is at
    warn or critical, the bottleneck is one of ``rules.healthy``.
    """
    report = inp.report
    facts = gather(
        inp.domain,
        inp.recipe,
        report.findings,
        report.scores,
        parent_scores=inp.parent_report.scores if inp.parent_report else None,
        trends=report.trends,
    )
    suspects = _suspects(report.findings, facts, rules)
    causes = {key: cause for key in suspects if (cause := _cause(key, suspects, rules))}
    roots = sorted((s for s in suspects.values() if s.key not in causes), key=lambda s: _order(s, inp.procedure, rules))
    symptoms = sorted((suspects[key] for key in causes), key=lambda s: _order(s, inp.procedure, rules))
    others = [f"{s.key}: {_reading(s)}; {_tried(s.key, inp)}ranks behind" for s in roots[1:]]
    others += [f"{s.key}: {_reading(s)}; explained by {causes[s.key]}" for s in symptoms]
    if roots:
        first = roots[0]
        evidence = (*first.findings, *(f for s in symptoms for f in s.findings if f not in first.findings))
        key, layer, severity = first.key, first.layer, first.severity
    else:
        key, severity, evidence = _healthy(facts, rules), "ok", ()
        layer = rules.bottlenecks[key].layer
        others = [f"{other}: its signs do not hold" for other in rules.healthy if other != key]
    return Diagnosis(
        version=report.version,
        bottleneck=key,
        layer=layer,
        severity=severity,
        findings=evidence or tuple(report.findings),
        hypothesis=_statement(key, evidence, facts, rules),
        alternatives=tuple(others),
        ties=tuple(s.key for s in roots[1:] if _tied(s, roots[0])),
        signature=signature(inp.domain, key, report.findings),
        scores=report.scores,
    )


def signature(domain: str, bottleneck: str, findings: Sequence[Finding]) -> str:
    """``domain|bottleneck|diagnostic:severity,…`` over the findings at warn or critical, sorted. A diagnostic
    that could not be read says nothing about the situation and is left out."""
    alarms = sorted(f"{f.diagnostic}:{f.severity}" for f in findings if _alarming(f))
    return f"{domain}|{bottleneck}|{','.join(alarms)}"


def _alarming(finding: Finding) -> bool:
    # A diagnostic without a value has read nothing, whatever severity it carries; one with a value and an error has.
    return SEVERITY_RANK[finding.severity] >= SEVERITY_RANK["warn"] and finding.value is not None


def _suspects(findings: Sequence[Finding], facts: Facts, rules: Rules) -> Mapping[str, Suspect]:
    grouped: dict[str, list[Finding]] = {}
    for finding in findings:
        if _alarming(finding):
            for key in rules.keys_of(finding.diagnostic):
                grouped.setdefault(key, []).append(finding)
    for key, rule in rules.bottlenecks.items():
        if key not in rules.healthy and any(all(c.holds(facts) for c in row) for row in rule.signs):
            grouped.setdefault(key, [])
    return {key: _suspect(key, found, rules) for key, found in grouped.items()}


def _suspect(key: str, found: list[Finding], rules: Rules) -> Suspect:
    worst = max(found, key=lambda f: SEVERITY_RANK[f.severity], default=None)
    rule = rules.bottlenecks.get(key)
    return Suspect(
        key=key,
        layer=rule.layer if rule else worst.layer if worst else "version",
        severity=worst.severity if worst else "critical",
        findings=tuple(sorted(found, key=lambda f: (-SEVERITY_RANK[f.severity], f.diagnostic))),
        validity=any(f.kind == "validity" for f in found),
    )


def _cause(key: str, suspects: Mapping[str, Suspect], rules: Rules) -> str:
    """The first present bottleneck that explains ``key``; empty if none does."""
    return next((k for k, rule in rules.bottlenecks.items() if k in suspects and key in rule.explains), "")


def _order(suspect: Suspect, procedure: Sequence[Layer], rules: Rules) -> tuple[int, bool, int, int, str]:
    keys = list(rules.bottlenecks)
    layer = procedure.index(suspect.layer) if suspect.layer in procedure else len(procedure)
    place = keys.index(suspect.key) if suspect.key in keys else len(keys)
    return -SEVERITY_RANK[suspect.severity], not suspect.validity, layer, place, suspect.key


def _tied(other: Suspect, first: Suspect) -> bool:
    same = (other.severity, other.validity) == (first.severity, first.validity)
    return same and other.layer != first.layer


def _healthy(facts: Facts, rules: Rules) -> str:
    for key in rules.healthy:
        if any(all(c.holds(facts) for c in row) for row in rules.bottlenecks[key].signs):
            return key
    return rules.healthy[-1]


def _statement(key: str, findings: Sequence[Finding], facts: Facts, rules: Rules) -> str:
    if key in rules.bottlenecks:
        return fill(rules.bottlenecks[key].statement, facts)
    finding = findings[0]
    what = finding.description.rstrip(".") or finding.diagnostic
    value = "unknown" if finding.value is None else show(finding.value)
    return f"{what}: {finding.diagnostic} reads {value} against the line {show(finding.line)}; relieving it lets the score rise."


def _reading(suspect: Suspect) -> str:
    if not suspect.findings:
        return "signs hold"
    worst = suspect.findings[0]
    value = "unknown" if worst.value is None else show(worst.value)
    return f"{suspect.severity}, {value} against {show(worst.line)}"


def _tried(key: str, inp: DiagnoseInput) -> str:
    count = sum(1 for case in inp.cases if case.domain == inp.domain and case.bottleneck == key)
    return f"tried {count} times before; " if count else ""
