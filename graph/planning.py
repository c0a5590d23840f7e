"""What fits into the time that is left: candidates of the search, the certification of its tip, the report.

Seconds come from the run's own jobs, so the plan grows better as the run goes on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from graph.bases import start_s
from graph.lineage import stand
from graph.state import Deps
from graph.versions import BASELINE, evaluations, results_of, seeds_of, unselected
from trainer.types import Recipe


class Pace(NamedTuple):
    """Measured means: seconds of one training, of one evaluation on validation and gate tasks, of one on sealed tasks; jobs
    at once; and wall seconds per second of jobs, which is what the loop itself adds."""

    train_s: float
    evaluate_s: float
    sealed_s: float
    lanes: int
    overhead: float

    def batch_s(self, jobs: int, seconds: float) -> float:
        return self.overhead * math.ceil(jobs / self.lanes) * seconds


class Plan(NamedTuple):
    """Wall seconds of one more candidate, of certification and report, what is left, and how many candidates fit."""

    candidate_s: float
    certify_s: float
    report_s: float
    left_s: float
    candidates: int

    @property
    def next_s(self) -> float:
        """One more candidate and all that must follow."""
        return self.candidate_s + self.certify_s + self.report_s


def pace(deps: Deps) -> Pace:
    """From every training and the baseline's evaluations."""
    record, config = deps.record, deps.config
    versions = [BASELINE, *(e["version"] for e in record.verdicts() if e["gate"])]
    walls = [r.cost.wall_s for v in versions for r in results_of(deps, v).results]
    seeds = seeds_of(record, BASELINE)
    evaluated = [e.wall_s for suite in ("validation", "gate") for e in evaluations(record, BASELINE, seeds, suite)]
    evaluate_s = sum(evaluated) / seeds
    times = deps.jobs.clock.times()
    busy = times.train_s + times.evaluate_s
    return Pace(
        train_s=sum(walls) / len(walls),
        evaluate_s=evaluate_s,
        sealed_s=evaluate_s / 2 * config.evaluation.sealed / config.evaluation.validation,
        lanes=deps.jobs.parallel,
        overhead=max(1.0, times.wall_s / busy) if busy else 1.0,
    )


def plan(deps: Deps) -> Plan:
    """The plan from here on."""
    config, record, at = deps.config, deps.record, pace(deps)
    policy, one = config.gate, at.train_s + at.evaluate_s
    certifying = policy.strategy == "certify"
    champion = stand(record.entries("ledger")).champion
    missing = max(0, policy.certify_seeds - seeds_of(record, champion))
    certify_s = at.batch_s(policy.certify_seeds + missing, one) if certifying else 0.0
    measured = (
        1 + seeds_of(record, BASELINE) + (policy.certify_seeds if certifying else len(unselected(record, champion)))
    )
    report_s = at.batch_s(measured, at.sealed_s)
    candidate_s = at.batch_s(policy.first_seeds, one)
    left = config.run.minutes * 60 - deps.elapsed()
    return Plan(candidate_s, certify_s, report_s, left, max(0, int((left - certify_s - report_s) / candidate_s)))


def too_late(deps: Deps, recipe: Recipe) -> str:
    """Why there is no time for a candidate's own warm start, or an empty string."""
    needed = start_s(deps, recipe)
    if not needed:
        return ""
    now = plan(deps)
    if needed + now.next_s <= now.left_s:
        return ""
    return (
        f"its warm start takes about {needed:.0f} s before {now.next_s:.0f} s of training, certification and report, "
        f"and {now.left_s:.0f} s are left"
    )


def line(deps: Deps, now: Plan) -> str:
    """The plan in one line."""
    policy, after, capped = deps.config.gate, "", ""
    wanted = deps.config.run.versions - sum(e["verdict"] != "refused" for e in deps.record.verdicts())
    if wanted < now.candidates:
        capped = f"; --versions allows {wanted}"
    if policy.strategy == "certify":
        after = f", then {policy.certify_seeds} fresh seeds of the tip ({now.certify_s:.0f} s)"
    return (
        f"{now.left_s:.0f} s left: room for {now.candidates} candidates × {policy.first_seeds} seeds ({now.candidate_s:.0f} s each{capped}){after} "
        f"and the report ({now.report_s:.0f} s)"
    )
