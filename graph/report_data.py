"""Gathers what the report of a run shows, from its record, its rollouts and its harness repository."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from agents.types import BacktestReport, Diagnosis, Intervention
from graph import versions
from graph.calibrating import baseline_spread, calibration_of, detectable
from graph.curves import read_curves
from graph.decide import skill_refs
from graph.health import health_of, solve_rates
from graph.lineage import stand
from graph.report_types import (
    ChainRow,
    Command,
    CostRow,
    Estimate,
    Floor,
    HarnessCommit,
    PaidTerm,
    PolicyRow,
    ReportData,
    SampleRollout,
    VersionRow,
)
from graph.reporting import own_skills
from graph.seen import seen_rows
from graph.state import Deps
from graph.summary import CertificationSummary, PolicySummary, Score, Summary, VersionSummary
from graph.track import track_record
from graph.trying import trial_of
from graph.versions import BASELINE, EARLY, Version, add_costs, evaluations, results_of, seeds_of
from trainer.evidence import open_rollouts
from trainer.gate_evidence import CALIBRATION_DF
from trainer.gate_types import GateReport
from trainer.sql import select
from trainer.types import Cost

SAMPLE_TASKS = 3


def report_data(deps: Deps, summary: Summary) -> ReportData:
    record = deps.record
    trained = [BASELINE, *(v.version for v in summary.versions if record.saved(v.version, "training"))]
    metrics = {v: [r.metrics_file for r in results_of(deps, v).results if r.metrics_file] for v in trained}
    rollouts = {v: _rollout_dirs(deps, v) for v in trained}
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
        tip=stand(record.entries("ledger")).tip,
        baseline=BASELINE,
        floor=_floor(deps),
        policies=tuple(
            _row(role, p)
            for role, p in (
                ("warm start", summary.warm_start),
                ("baseline", summary.baseline),
                ("champion", summary.champion),
            )
        ),
        learned=_estimate(summary.learned),
        gain=_estimate(summary.gain),
        versions=(_baseline_row(deps), *(_version_row(deps, v) for v in summary.versions)),
        track=track_record(record),
        chains=tuple(_chain_row(c, versions.suites_of(record).protocol.validation) for c in summary.certifications),
        rates=tuple(solve_rates(record, [v for v in trained if record.saved(v, "health")])),
        health=health_of(record.root, summary.champion.version),
        seen=seen_rows(record),
        curves=read_curves(metrics, rollouts),
        rollouts=tuple(_samples(deps, summary.champion.version)),
        skills=tuple(r for r in skill_refs(deps) if r.name in own_skills(record.root)),
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


def _floor(deps: Deps) -> Floor | None:
    own, stored = baseline_spread(deps.record), calibration_of(deps.record)
    if own.df < 1:
        return None
    seen = detectable(own, stored, deps.config.gate)
    borrowed = min(stored.df, CALIBRATION_DF) if stored else 0.0
    return Floor(sigma=seen.sigma, mde=seen.mde, seeds=own.df + 1, borrowed=borrowed)


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


def _chain_row(c: CertificationSummary, tasks: int) -> ChainRow:
    fresh = None
    if c.delta is not None and c.ci_low is not None and c.ci_high is not None:
        fresh = Estimate(mean=c.delta, ci_low=c.ci_low, ci_high=c.ci_high, n=tasks)
    chosen, verdict = c.selected, cast("Any", c.verdict)
    return ChainRow(
        steps=(c.parent, *c.chain),
        verdict=verdict,
        selected=Estimate(mean=chosen.mean, ci_low=chosen.ci_low, ci_high=chosen.ci_high, n=tasks),
        fresh=fresh,
        seeds=c.seeds,
        sigma=c.sigma,
        mde=c.mde,
        reasons=c.reasons,
    )


def _baseline_row(deps: Deps) -> VersionRow:
    version = deps.record.load(BASELINE, "version", Version)
    return VersionRow(
        version=BASELINE,
        verdict="baseline",
        seeds=seeds_of(deps.record, BASELINE),
        early=_early(deps, BASELINE),
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
        early=_early(deps, v.version) if record.saved(v.version, "training") else (),
        harness_commit=v.harness_commit,
        diagnosis=record.load(v.version, "diagnosis", Diagnosis),
        intervention=record.load(v.version, "intervention", Intervention),
        backtest=record.load(v.version, "backtest", BacktestReport),
        gate=record.load(v.version, "gate", GateReport) if record.saved(v.version, "gate") else None,
        diff=patch,
    )


def _early(deps: Deps, version: str) -> tuple[str, ...]:
    results = enumerate(results_of(deps, version).results)
    return tuple(f"seed {seed} ended early: {EARLY[r.early_stop]}" for seed, r in results if r.early_stop)


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


def _rollout_dirs(deps: Deps, version: str) -> list[Path]:
    """Where a version's rollouts are, those left out that were pruned."""
    found = [r.rollouts_dir for r in results_of(deps, version).results if r.rollouts_dir]
    return [folder for folder in found if any(folder.glob("*.parquet"))]


def _samples(deps: Deps, version: str) -> Sequence[SampleRollout]:
    """A solved and a failed reply (where there are both) to a few tasks of the version's last step, tasks with both first."""
    query = f"""
        WITH final AS (SELECT * FROM rollouts WHERE step = (SELECT max(step) FROM rollouts)),
            shown AS (SELECT group_id FROM final GROUP BY group_id ORDER BY stddev_pop(outcome) = 0, group_id
                LIMIT {SAMPLE_TASKS})
        SELECT * FROM final SEMI JOIN shown USING (group_id)
        QUALIFY row_number() OVER (PARTITION BY group_id, outcome = 1 ORDER BY rollout_id) = 1
        ORDER BY group_id, outcome DESC, rollout_id"""
    commit = deps.record.load(version, "version", Version).harness_commit
    weights = deps.harness.load(commit).recipe.reward.weights
    with open_rollouts(_rollout_dirs(deps, version)) as connection:
        rows = select(connection, query).to_pylist()
    own = SampleRollout.model_fields.keys()
    return [
        SampleRollout(
            version=version,
            terms=tuple(
                PaidTerm(name=name, value=value, weight=weights.get(name, 0.0))
                for column, value in row.items()
                if column != (name := column.removeprefix("term_"))
            ),
            **{column: value for column, value in row.items() if column in own},
        )
        for row in rows
    ]


def _costs(deps: Deps, trained: Sequence[str]) -> Sequence[CostRow]:
    """What each version's trainings took, and what all evaluations of trained versions took."""
    rows = [
        CostRow(item=f"training {v}", cost=add_costs([r.cost for r in results_of(deps, v).results])) for v in trained
    ]
    every = [(e["version"], trial_of(deps.record, e["version"])) for e in deps.record.verdicts()]
    rows += [CostRow(item=f"trial {v}, skill {trial.skill}", cost=trial.cost) for v, trial in every if trial]
    judged = [
        evaluation
        for version in trained
        if deps.record.saved(version, "health")
        for suite in ("validation", "gate")
        for evaluation in evaluations(deps.record, version, seeds_of(deps.record, version), suite)
    ]
    cost = Cost(wall_s=sum(e.wall_s for e in judged), tokens=sum(e.tokens for e in judged))
    return [*rows, CostRow(item="evaluation, all versions", cost=cost)]
