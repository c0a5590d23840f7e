"""The end of a run: sealed shards are opened here and nowhere else, then everything is written down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.types import BacktestReport, Diagnosis, Intervention
from graph import isolation, versions
from graph.curves import read_curves
from graph.record import write_atomic
from graph.report_types import (
    Command,
    CostRow,
    Estimate,
    HarnessCommit,
    PolicyRow,
    ReportData,
    SampleRollout,
    VersionRow,
)
from graph.state import Deps, LoopState
from graph.summary import PolicySummary, Score, Summary, VersionSummary
from graph.versions import BASE, BASELINE, Version, evaluations, results_of, seeds_of, task_ids, write_tasks
from trainer.evaluation import Interval, mean_interval, paired_interval, pass_at_k
from trainer.types import Cost, Evaluation, HealthReport

SAMPLES = 6


def enter_baseline(deps: Deps, health: HealthReport) -> None:
    """The ledger's first entry, and a line with score and noise."""
    seeds = seeds_of(deps.record, BASELINE)
    interval = mean_interval(evaluations(deps.record, BASELINE, seeds, "validation"))
    version = deps.record.load(BASELINE, "version", Version)
    entry = {
        "kind": "baseline",
        "version": BASELINE,
        "parent": BASE,
        "harness_commit": version.harness_commit,
        "seeds": seeds,
        "scores": dict(health.scores),
    }
    deps.record.append("ledger", f"{BASELINE}.baseline", entry)
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


def make_report(deps: Deps, state: LoopState) -> None:
    """Measure the three policies on a fresh sealed shard; write summary.json and report.html."""
    from graph.report import render_report

    shard, champion = state["reports"], state["champion"]
    open_sealed(deps, shard)
    names = list(dict.fromkeys([BASELINE, champion]))
    versions.evaluate_seeds(deps, [(BASE, 1), *((v, seeds_of(deps.record, v)) for v in names)], ["sealed"], shard=shard)
    summary = summarise(deps, state, shard)
    write_atomic(deps.record.root / "summary.json", summary.model_dump_json(indent=1) + "\n")
    render_report(report_data(deps, summary), Path(summary.report))


def _score(interval: Interval) -> Score:
    return Score(mean=interval.mean, ci_low=interval.ci_low, ci_high=interval.ci_high, n=interval.n)


def _policy(deps: Deps, version: str, shard: int) -> tuple[PolicySummary, tuple[Evaluation, ...]]:
    record = deps.record
    if version == BASE:
        seeds, checkpoint = 1, str(versions.base_of(record).path)
    else:
        seeds = seeds_of(record, version)
        scored = evaluations(record, version, seeds, "validation")
        best = max(range(seeds), key=lambda s: scored[s].mean)
        checkpoint = str(results_of(deps, version).results[best].checkpoint)
    sealed = evaluations(record, version, seeds, f"sealed-{shard}")
    k = len(sealed[0].scores[0])
    summary = PolicySummary(
        version=version,
        checkpoint=checkpoint,
        validation=_score(mean_interval(evaluations(record, version, seeds, "validation"))),
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
        harness=str(record.root / "harness"),
        report=str(record.root / "report.html"),
        diagnostics_added=(),
        skills_added=tuple(s.name for s in deps.skills.list() if s.name in own_skills(record.root)),
        wall_s=times.wall_s,
        train_s=times.train_s,
        orchestration_share=max(0.0, 1 - (times.train_s + times.evaluate_s) / times.wall_s),
        peak_rss_mb=max([peak_rss_mb(), *peaks]),
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


# ----------------------------------------------------------------------------------- report data


def report_data(deps: Deps, summary: Summary) -> ReportData:
    record = deps.record
    trained = [BASELINE, *(v.version for v in summary.versions if record.saved(v.version, "training"))]
    metrics = {v: [r.metrics_file for r in results_of(deps, v).results if r.metrics_file] for v in trained}
    return ReportData(
        run=summary.run,
        domain=summary.domain,
        sandbox=summary.sandbox,
        seed=summary.seed,
        status=f"{summary.status}: {summary.stop}",
        wall_s=summary.wall_s,
        train_s=summary.train_s,
        orchestration_share=summary.orchestration_share,
        policy=summary.warm_start.checkpoint,
        protocol_hash=versions.suites_of(record).protocol_hash,
        champion=summary.champion.version,
        baseline=BASELINE,
        policies=tuple(
            _row(role, p)
            for role, p in (
                ("warm start", summary.warm_start),
                ("baseline", summary.baseline),
                ("champion", summary.champion),
            )
        ),
        gain=_estimate(summary.gain),
        versions=(_baseline_row(deps), *(_version_row(deps, v) for v in summary.versions)),
        curves=read_curves(metrics),
        rollouts=tuple(_samples(deps, summary.champion.version)),
        skills=tuple(r for r in _skill_refs(deps) if r.name in own_skills(record.root)),
        history=tuple(HarnessCommit(commit=c, subject=s) for c, s in deps.harness.story()),
        costs=tuple(_costs(deps, trained)),
        commands=(
            Command(purpose="history of the harness", command=f"git -C '{summary.harness}' log --graph --first-parent"),
            Command(
                purpose="one version",
                command=f"python -m graph.runs show '{record.root}' --version {summary.champion.version}",
            ),
            Command(purpose="more budget", command=f"python -m graph.run --resume '{record.root}' --minutes M"),
        ),
    )


def _skill_refs(deps: Deps) -> Sequence[Any]:
    from graph.decide import skill_refs

    return skill_refs(deps)


def _estimate(score: Score | None) -> Estimate | None:
    return None if score is None else Estimate(**score.model_dump())


def _row(role: str, p: PolicySummary) -> PolicyRow:
    return PolicyRow(
        role=role,
        version=p.version,
        sealed=_estimate(p.sealed),
        validation=_estimate(p.validation),
        checkpoint=p.checkpoint,
    )


def _baseline_row(deps: Deps) -> VersionRow:
    version = deps.record.load(BASELINE, "version", Version)
    return VersionRow(
        version=BASELINE,
        verdict="baseline",
        seeds=seeds_of(deps.record, BASELINE),
        harness_commit=version.harness_commit,
    )


def _version_row(deps: Deps, v: VersionSummary) -> VersionRow:
    record = deps.record
    parent = record.load(v.parent, "version", Version)
    old, new = "", ""
    patch = ""
    if v.harness_commit:
        patch = deps.harness.diff(parent.harness_commit, v.harness_commit).patch
        old, new = (_value(deps, c, v.factor) for c in (parent.harness_commit, v.harness_commit))
    delta = None
    if v.delta is not None and v.ci_low is not None and v.ci_high is not None:
        n = versions.suites_of(record).protocol.validation
        delta = Estimate(mean=v.delta, ci_low=v.ci_low, ci_high=v.ci_high, n=n)
    verdict: Any = v.verdict
    return VersionRow(
        version=v.version,
        parent=v.parent,
        verdict=verdict,
        reasons=v.reasons,
        factor=v.factor,
        old=old,
        new=new,
        realised=v.realised,
        delta=delta,
        seeds=v.seeds,
        harness_commit=v.harness_commit,
        diagnosis=record.load(v.version, "diagnosis", Diagnosis),
        intervention=record.load(v.version, "intervention", Intervention),
        backtest=record.load(v.version, "backtest", BacktestReport),
        diff=patch,
    )


def _value(deps: Deps, commit: str, factor: str) -> str:
    """A factor's value at a commit, empty where it has none there."""
    harness = deps.harness.load(commit)
    if factor.startswith("reward.term."):
        term = harness.terms.get(factor.rsplit(".", 1)[1])
        return (term.sql or term.python) if term else ""
    node: Any = harness.recipe.model_dump(mode="json")
    for part in factor.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return "" if node is None else json.dumps(node)


def _samples(deps: Deps, version: str) -> Sequence[SampleRollout]:
    """A few rollouts of the champion's last steps: solved and unsolved in turn."""
    from trainer.evidence import open_rollouts

    directories = [r.rollouts_dir for r in results_of(deps, version).results if r.rollouts_dir]
    query = (
        "SELECT rollout_id, step, prompt, response, answer, extracted, outcome, score, truncated FROM ("
        " SELECT *, row_number() OVER (PARTITION BY outcome ORDER BY step DESC, rollout_id) AS place FROM rollouts"
        f") WHERE place <= {SAMPLES // 2} ORDER BY outcome DESC, place"
    )
    with open_rollouts(directories) as connection:
        cursor = connection.execute(query)
        names = [d[0] for d in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [
        SampleRollout(version=version, note="solved" if row["outcome"] == 1.0 else "not solved", **row) for row in rows
    ]


def _costs(deps: Deps, trained: Sequence[str]) -> Sequence[CostRow]:
    return [
        CostRow(item=f"training {v}", cost=add_costs([r.cost for r in results_of(deps, v).results])) for v in trained
    ]


def add_costs(costs: Sequence[Cost]) -> Cost:
    """Sums, and the largest peak."""
    return Cost(
        wall_s=sum(c.wall_s for c in costs),
        cpu_s=sum(c.cpu_s for c in costs),
        steps=sum(c.steps for c in costs),
        rollouts=sum(c.rollouts for c in costs),
        tokens=sum(c.tokens for c in costs),
        peak_rss_mb=max((c.peak_rss_mb for c in costs), default=0.0),
    )
