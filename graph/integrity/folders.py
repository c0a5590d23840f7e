"""The records of each version: they parse, and what the ledger speaks of is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agents.types import BacktestReport, CurateOutput, Diagnosis, Intervention
from graph.decide import LESSON, UPGRADED
from graph.escalating import AUDIT, Audit
from graph.harnessing import Proposal
from graph.integrity.types import MISSING, Mend, Problem, Run, fault
from graph.registry import UPGRADE, Upgrade
from graph.trying import TRIAL, Trial
from graph.versions import BASELINE, Results, Unjudged, Version
from trainer.commits import slug_of
from trainer.gate_types import GateReport
from trainer.types import HealthReport, Record

KINDS: Mapping[str, type[Record]] = {
    "version": Version,
    "diagnosis": Diagnosis,
    "intervention": Intervention,
    "proposal": Proposal,
    "backtest": BacktestReport,
    "training": Results,
    "unjudged": Unjudged,
    "health": HealthReport,
    "gate": GateReport,
    "curation": CurateOutput,
    "certificate": GateReport,
    "lesson": CurateOutput,
    UPGRADE: Upgrade,
    AUDIT: Audit,
    TRIAL: Trial,
}
DECIDED: Mapping[str, str] = {
    "diagnosis": "diagnostician",
    "intervention": "designer",
    "backtest": "backtester",
    "curation": "curator",
    "lesson": f"curator{LESSON}",
    UPGRADE: f"diagnostician{UPGRADED}",
}
"""Records that a specialist made, and whose decision (by role and occasion) holds them a second time."""


def kind_of(stem: str) -> type[Record] | None:
    return KINDS.get("gate" if stem.startswith("gate-") else stem)


def folder_problems(run: Run) -> Iterator[Problem]:
    for folder in sorted((run.root / "versions").glob("*/")):
        for path in sorted(folder.glob("*.json")):
            kind = kind_of(path.stem)
            if kind is None:
                yield run.problem(path, "is no record of a version", remedy="move it out of the run")
            elif what := fault(path, kind):
                yield run.problem(path, what, mend_of(run, folder.name, path.stem))
        yield from _missing(run, folder.name)


def _missing(run: Run, version: str) -> Iterator[Problem]:
    entry = run.settled.get(version)
    if entry is None:
        return  # not settled: its nodes run again
    wanted = decided(entry)
    if run.stores["decisions"] and any(e["key"] == f"{version}.{DECIDED[UPGRADE]}" for e in run.stores["decisions"]):
        wanted.append(UPGRADE)
    if version == BASELINE or entry["gate"]:
        wanted += ["training", "health"]
    if tested := certification(run, version):
        wanted += decided(tested)
    for name in wanted:
        path = run.record.version_dir(version) / f"{name}.json"
        if not path.exists():
            yield run.problem(path, MISSING, mend_of(run, version, name))


def decided(entry: Mapping[str, Any]) -> list[str]:
    """The records behind an entry of the ledger that hold decisions: nothing measured makes them again."""
    if entry["kind"] == "certification":
        return ["certificate"] if entry["gate"] else []
    if entry["kind"] == "baseline":
        return ["version"]
    return ["version", "diagnosis", "intervention", "proposal", "backtest", *(["gate"] if entry["gate"] else [])]


def mend_of(run: Run, version: str, name: str) -> Mend:
    """A record is written again from the ledger or a decision where they hold it; else its work is done again."""
    if restored(run, version, name):
        return "restore"
    return "remake" if version in run.settled else "rewind"


def restored(run: Run, version: str, name: str) -> Record | None:
    """The record as ledger and decisions have it, or None where they do not."""
    if name in DECIDED:
        return _decided(run, version, name)
    entry = certification(run, version) if name == "certificate" else run.settled.get(version)
    if entry is None or name not in _FROM_LEDGER:
        return None
    try:
        return _FROM_LEDGER[name](entry)
    except (KeyError, ValueError):
        return None


def _decided(run: Run, version: str, name: str) -> Record | None:
    key = f"{version}.{DECIDED[name]}"
    decision = next((e for e in run.stores["decisions"] if e["key"] == key), None)
    try:
        return KINDS[name].model_validate(decision["output"]) if decision and decision["output"] else None
    except (KeyError, ValueError):
        return None


def _version(entry: Mapping[str, Any]) -> Version:
    return Version(
        id=entry["version"],
        parent=entry["parent"],
        harness_commit=entry["harness_commit"],
        factor=entry.get("factor", ""),
        title=entry.get("title", "reference"),
    )


def _proposal(entry: Mapping[str, Any]) -> Proposal:
    error = "" if entry["harness_commit"] else "; ".join(entry["reasons"])
    return Proposal(commit=entry["harness_commit"], slug=slug_of(entry["version"], entry["title"]), error=error)


def certification(run: Run, version: str) -> Mapping[str, Any] | None:
    """The ledger's entry of the chain that ended with this version."""
    return next((e for e in run.ledger if e["kind"] == "certification" and e["version"] == version), None)


def _gate(entry: Mapping[str, Any]) -> GateReport:
    return GateReport.model_validate(entry["gate"])


_FROM_LEDGER: Mapping[str, Callable[[Mapping[str, Any]], Record]] = {
    "version": _version,
    "proposal": _proposal,
    "gate": _gate,
    "certificate": _gate,
}
