"""What the folders of the versions say was decided, and the stores must hold: an entry that was lost is entered again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from agents.types import BacktestReport, CurateOutput, Decision, Intervention
from graph.certifying import entry_of, key_of
from graph.config import resolve
from graph.decide import LESSON, rationale
from graph.gating import verdict_entry
from graph.integrity.folders import DECIDED, KINDS
from graph.integrity.types import Problem, Run, fault
from graph.lineage import chain
from graph.record import Store, read_record
from graph.reporting import baseline_entry
from graph.session import Manifest
from graph.versions import BASELINE, Version, failure_of, version_id
from trainer.gate_types import GateReport
from trainer.gitio import Git
from trainer.harness import HarnessRepo
from trainer.harness_refs import merge_of
from trainer.types import HealthReport, InputError, Record

T = TypeVar("T", bound=Record)


class Entry(NamedTuple):
    store: Store
    key: str
    value: Mapping[str, Any]


def entry_problems(run: Run) -> Iterator[Problem]:
    for entry in lost(run):
        yield run.problem(run.record.path(entry.store), f"the entry {entry.key} is missing", "enter")


def lost(run: Run) -> Iterator[Entry]:
    """Entries of versions that are behind the machine, as far as their records can be read."""
    for version in _behind(run):
        for entry in _entries(run, version):
            if not any(e["key"] == entry.key for e in run.stores[entry.store]):
                yield entry


def _behind(run: Run) -> Iterator[str]:
    """The baseline once a candidate was diagnosed, and each candidate that was curated."""
    if (run.record.version_dir(version_id(1)) / "diagnosis.json").exists():
        yield BASELINE
    yield from sorted(p.parent.name for p in (run.root / "versions").glob("v*/curation.json"))


def _entries(run: Run, name: str) -> Iterator[Entry]:
    try:
        if name == BASELINE:
            yield Entry("ledger", f"{name}.baseline", _baseline(run))
            return
        verdict = _verdict(run, name)
        if verdict:
            yield Entry("ledger", f"{name}.verdict", verdict)
        case = run.record.load(name, "curation", CurateOutput).case.model_copy(update={"version": name})
        yield Entry("cases", name, case.model_dump(mode="json"))
        for number, dropped in enumerate(run.record.load(name, "intervention", Intervention).dropped):
            yield Entry("search", f"{name}.dropped.{number}", {"version": name, **dropped.model_dump(mode="json")})
        yield from _tested(run, name)
        yield from _decisions(run, name)
    except InputError:
        return  # a record that is damaged has a problem of its own; once it is mended, this is looked at again


def _baseline(run: Run) -> Mapping[str, Any]:
    seeds = resolve(run.root / "config.toml", {}, {}, {}).config.trainer.seeds
    scores = run.record.load(BASELINE, "health", HealthReport).scores
    return baseline_entry(run.record.load(BASELINE, "version", Version), seeds, scores)


def _verdict(run: Run, name: str) -> Mapping[str, Any] | None:
    record = run.record
    version, backtest = record.load(name, "version", Version), record.load(name, "backtest", BacktestReport)
    if backtest.verdict == "refuse":
        return verdict_entry(version, "refused", None, "; ".join(backtest.reasons), "")
    if record.saved(name, "gate"):
        gate = record.load(name, "gate", GateReport)
        merge = merge_of(_git(run), version.harness_commit) if gate.verdict == "promoted" else ""
        return verdict_entry(version, gate.verdict or "", gate, "", merge)
    failure = failure_of(record, name)
    return verdict_entry(version, "failed", None, failure, "") if failure else None


def _tested(run: Run, name: str) -> Iterator[Entry]:
    """What a certification wrote, if this version was the tip of a chain."""
    record = run.record
    if record.saved(name, "certificate"):
        report = record.load(name, "certificate", GateReport)
        links = chain(_told(run), name)
        commit = record.load(name, "version", Version).harness_commit
        merge = merge_of(_git(run), commit) if report.verdict == "promoted" else ""
        yield Entry("ledger", key_of(name), entry_of(record, links, report, "", merge))
    if record.saved(name, "lesson"):
        case = record.load(name, "lesson", CurateOutput).case.model_copy(update={"version": name})
        yield Entry("cases", f"{name}{LESSON}", case.model_dump(mode="json"))


def _told(run: Run) -> Iterator[Mapping[str, Any]]:
    """Who came from whom and what main held, as the folders of the versions have it: the ledger may lack it."""
    record = run.record
    for folder in sorted((run.root / "versions").glob("v*/")):
        name = folder.name
        if record.saved(name, "version"):
            version = record.load(name, "version", Version)
            verdict = record.load(name, "gate", GateReport).verdict if record.saved(name, "gate") else ""
            yield {"kind": "verdict", "version": name, "parent": version.parent, "verdict": verdict}
        if record.saved(name, "certificate"):
            verdict = record.load(name, "certificate", GateReport).verdict
            yield {"kind": "certification", "version": name, "verdict": verdict}


def _git(run: Run) -> Git:
    return HarnessRepo(run.root.absolute() / "harness").git


def _decisions(run: Run, name: str) -> Iterator[Entry]:
    """Without what only the lost entry knew: what the call read, and what it took."""
    run_id = read_record(run.root / "manifest.json", Manifest).run_id
    specialists = resolve(run.root / "config.toml", {}, {}, {}).config.run.specialists
    model = next((e["model"] for e in run.stores["decisions"]), specialists)
    for stem, role in DECIDED.items():
        path: Path = run.record.version_dir(name) / f"{stem}.json"
        if path.exists() and not fault(path, KINDS[stem]):
            output = read_record(path, KINDS[stem])
            decision = Decision.model_validate(
                {
                    "id": f"{name}.{role}",
                    "run_id": run_id,
                    "version": name,
                    "role": role.partition(".")[0],
                    "output": output.model_dump(mode="json"),
                    "rationale": rationale(output),
                    "model": model,
                }
            )
            yield Entry("decisions", decision.id, decision.model_dump(mode="json"))
