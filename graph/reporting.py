"""The end of a run: sealed shards are opened here and nowhere else, then everything is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agents.types import Intervention
from graph import isolation, memory, versions
from graph.bases import base_of
from graph.record import write_atomic
from graph.registry import END, registered
from graph.state import Deps, LoopState
from graph.summary import CertificationSummary, PolicySummary, Score, Summary, VersionSummary
from graph.track import remember
from graph.versions import BASE, BASELINE, Version, evaluations, results_of, seeds_of, task_ids, unselected, write_tasks
from trainer.evaluation import Interval, mean_interval, paired_interval, pass_at_k
from trainer.types import Evaluation, HealthReport


def baseline_entry(version: Version, seeds: int, scores: Mapping[str, float]) -> Mapping[str, Any]:
    """The ledger's first entry."""
    return {
        "kind": "baseline",
        "version": version.id,
        "parent": version.parent,
        "harness_commit": version.harness_commit,
        "seeds": seeds,
        "scores": dict(scores),
    }


def enter_baseline(deps: Deps, health: HealthReport) -> None:
    """The ledger's first entry, and a line with score and noise."""
    seeds = seeds_of(deps.record, BASELINE)
    interval = mean_interval(evaluations(deps.record, BASELINE, seeds, "validation"))
    version = deps.record.load(BASELINE, "version", Version)
    deps.record.append("ledger", f"{BASELINE}.baseline", baseline_entry(version, seeds, health.scores))
    sick = [f"{f.diagnostic} ({f.severity})" for f in health.findings if f.severity in ("warn", "critical")]
    start = health.scores.get("base/mean")
    before = "" if start is None else f" from {100 * start:.1f} % before RL"
    deps.say(
        "baseline",
        f"{100 * interval.mean:.1f} % solved (95 % interval {100 * interval.ci_low:.1f} to {100 * interval.ci_high:.1f})"
        f"{before}; findings: {', '.join(sick) or 'none'}",
    )


def open_sealed(deps: Deps, shard: int) -> None:
    """Make the shard's task file. A shard is opened by one report only."""
    path = deps.record.root / "tasks" / f"sealed-{shard}.jsonl"
    if path.exists():
        return
    tasks = deps.domain.tasks("sealed", deps.config.evaluation.sealed, shard)
    known = task_ids(path.with_name("validation.jsonl")) | task_ids(path.with_name("gate.jsonl"))
    if shared := known & {t.id for t in tasks}:
        raise RuntimeError(f"{len(shared)} sealed tasks are validation or gate tasks, for instance {min(shared)}")
    write_tasks(path, tasks)


def missing(root: Path) -> list[str]:
    """Files of a finished run's report that are not there."""
    return [name for name in ("summary.json", "report.html") if not (root / name).exists()]


def make_report(deps: Deps, state: LoopState) -> None:
    """Measure the three policies on a fresh sealed shard; write summary.json and report.html."""
    from graph.report import render_report
    from graph.report_data import report_data

    shard, champion = state["reports"], state["champion"]
    open_sealed(deps, shard)
    names = list(dict.fromkeys([BASELINE, champion]))
    judged = [(BASE, range(1)), *((v, unselected(deps.record, v)) for v in names)]
    versions.evaluate_seeds(deps, judged, ["sealed"], shard=shard)
    summary = summarise(deps, state, shard)
    write_atomic(deps.record.root / "summary.json", summary.model_dump_json(indent=1) + "\n")
    render_report(report_data(deps, summary), Path(summary.report))
    remember(deps)
    memory.leave(deps)


def _score(interval: Interval) -> Score:
    return Score(mean=interval.mean, ci_low=interval.ci_low, ci_high=interval.ci_high, n=interval.n)


def _policy(deps: Deps, version: str, shard: int) -> tuple[PolicySummary, tuple[Evaluation, ...]]:
    record = deps.record
    seeds = range(1) if version == BASE else unselected(record, version)
    scored = evaluations(record, version, seeds, "validation")
    if version == BASE:
        checkpoint = str(base_of(record).path)
    else:
        best = max(zip(seeds, scored, strict=True), key=lambda pair: pair[1].mean)[0]
        checkpoint = str(results_of(deps, version).results[best].checkpoint)
    sealed = evaluations(record, version, seeds, f"sealed-{shard}")
    k = len(sealed[0].scores[0])
    summary = PolicySummary(
        version=version,
        checkpoint=checkpoint,
        validation=_score(mean_interval(scored)),
        sealed=_score(mean_interval(sealed)),
        sealed_pass_at_k=sum(pass_at_k(e.scores, k) for e in sealed) / len(sealed),
    )
    return summary, sealed


def _version_summary(deps: Deps, entry: dict[str, Any]) -> VersionSummary:
    record, name = deps.record, entry["version"]
    idea = record.load(name, "intervention", Intervention)
    p, gate = idea.prediction, entry["gate"] or {}
    realised = None
    if gate:
        parent = record.load(entry["parent"], "health", HealthReport)
        realised = versions.realised(p.metric, record.load(name, "health", HealthReport), parent)
    return VersionSummary(
        version=name,
        parent=entry["parent"],
        factor=entry["factor"],
        title=entry["title"],
        prediction=f"{p.metric} {p.direction} ≥ {p.min_effect:g}",
        realised=realised,
        verdict=entry["verdict"],
        delta=gate.get("delta"),
        ci_low=gate.get("ci_low"),
        ci_high=gate.get("ci_high"),
        mde=gate.get("mde"),
        seeds=gate.get("n_seeds", 0),
        reasons=tuple(entry["reasons"]),
        harness_commit=entry["harness_commit"],
    )


def summarise(deps: Deps, state: LoopState, shard: int) -> Summary:
    record, config = deps.record, deps.config
    warm, warm_sealed = _policy(deps, BASE, shard)
    baseline, base_sealed = _policy(deps, BASELINE, shard)
    champion, champion_sealed = _policy(deps, state["champion"], shard)
    entries = [e for e in record.entries("ledger") if e["kind"] == "verdict"]
    times = deps.jobs.clock.times()
    peaks = [
        r.cost.peak_rss_mb
        for v in [BASELINE, *(e["version"] for e in entries if e["gate"])]
        for r in results_of(deps, v).results
    ]
    return Summary(
        run=record.root.name,
        domain=config.run.domain,
        seed=config.run.seed,
        status="done",
        stop=state["stop"],
        sandbox=isolation.recorded(record.root).description,
        warm_start=warm,
        baseline=baseline,
        champion=champion,
        learned=_score(paired_interval(base_sealed, warm_sealed)),
        gain=_gain(champion_sealed, base_sealed, same=state["champion"] == BASELINE),
        versions=tuple(_version_summary(deps, e) for e in entries),
        certifications=tuple(_certification(e) for e in record.entries("ledger") if e["kind"] == "certification"),
        harness=str(record.root / "harness"),
        report=str(record.root / "report.html"),
        diagnostics_added=tuple(registered(record, END)),
        skills_added=tuple(s.name for s in deps.skills.list() if s.name in own_skills(record.root)),
        wall_s=times.wall_s,
        train_s=times.train_s,
        orchestration_share=max(0.0, 1 - (times.train_s + times.evaluate_s) / times.wall_s),
        peak_rss_mb=max([peak_rss_mb(), *peaks]),
    )


def _certification(entry: Mapping[str, Any]) -> CertificationSummary:
    gate = entry["gate"] or {}
    return CertificationSummary(
        version=entry["version"],
        parent=entry["parent"],
        chain=tuple(entry["chain"]),
        verdict=entry["verdict"],
        **{name: gate.get(name) for name in ("delta", "ci_low", "ci_high", "p", "mde", "sigma")},
        seeds=gate.get("n_seeds", 0),
        selected=Interval.model_validate(entry["selected"]),
        reasons=tuple(entry["reasons"]),
    )


def _gain(champion: Sequence[Evaluation], baseline: Sequence[Evaluation], *, same: bool) -> Score:
    if same:  # nothing was promoted: the difference is zero by identity, not by measurement
        return Score(mean=0.0, ci_low=0.0, ci_high=0.0, n=len(baseline[0].task_ids))
    return _score(paired_interval(champion, baseline))


def own_skills(root: Path) -> frozenset[str]:
    return frozenset(p.parent.name for p in (root / "skills").glob("*/SKILL.md"))


def peak_rss_mb() -> float:
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
