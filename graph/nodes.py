"""The nodes: read the state, call those who know, return what changed.

A node that is killed runs again from its first line, so each step asks first what is already done:
jobs and evaluations are answered from disk, commits by their trailers, entries by their key.
"""

from __future__ import annotations

from langgraph.runtime import Runtime

from graph import (
    bases,
    calibrating,
    certifying,
    decide,
    escalating,
    gating,
    memory,
    planning,
    reporting,
    routing,
    setup,
    track,
    versions,
)
from graph.lineage import stand
from graph.state import Deps, LoopState
from graph.versions import BASE, BASELINE, Unjudged, Version, version_id
from trainer.embedded.launcher import EvaluationTimedOut


def prepare(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """Harness repository, frozen suites, base policy."""
    deps = runtime.context
    setup.make_suites(deps)
    bases.make_base(deps)
    return {
        "champion": BASELINE,
        "tip": BASELINE,
        "next_version": 1,
        "trained": 0,
        "refused": 0,
        "stop": "",
        "verdict": "",
        "reports": 0,
    }


def baseline(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """Train and judge the harness as it is, on all baseline seeds: the noise floor comes from here."""
    deps = runtime.context
    seeds = deps.config.trainer.seeds
    commit = deps.harness.head()
    deps.record.save(BASELINE, "version", Version(id=BASELINE, parent=BASE, harness_commit=commit, title="reference"))
    versions.train_seeds(deps, [(BASELINE, seeds)])
    if failure := versions.results_of(deps, BASELINE).failure:
        raise RuntimeError(f"the baseline could not be trained: {failure}; its log is under versions/{BASELINE}/")
    versions.evaluate_seeds(deps, [(BASE, 1)], ["validation"])
    versions.evaluate_seeds(deps, [(BASELINE, seeds)], ["validation", "gate"])
    health = versions.health_of(deps, BASELINE, None)
    reporting.enter_baseline(deps, health)
    calibrating.calibrate(deps)
    track.recall(deps)
    memory.take(deps)
    deps.say("plan", planning.line(deps, planning.plan(deps)))
    return {"seeds": seeds}


def diagnose(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """One bottleneck of the tip; the coming version's folder holds the diagnosis."""
    deps = runtime.context
    candidate = version_id(state["next_version"])
    stop = escalating.escalate(deps, candidate, state["tip"])
    diagnosis = decide.diagnose(deps, candidate, state["tip"])
    deps.say(
        "diagnose",
        f"{candidate}: {diagnosis.bottleneck} ({diagnosis.layer}, {diagnosis.severity}): {diagnosis.hypothesis}",
    )
    return {"candidate": candidate, "verdict": "", "seeds": 0, "stop": stop}


def upgrade_harness(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """A new diagnostic, where those that there are do not suffice; it serves from the next diagnosis on."""
    deps = runtime.context
    if said := decide.upgrade(deps, state["candidate"], state["tip"]).line:
        deps.say("upgrade", said)
    return {}


def design(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """One single-factor intervention, committed on a branch of its own."""
    deps = runtime.context
    intervention = decide.design(deps, state["candidate"], state["tip"])
    if intervention is None:
        return {"stop": "no untried idea is left for this situation"}
    p = intervention.prediction
    deps.say(
        "design", f"{state['candidate']}: {intervention.title}; predicts {p.metric} {p.direction} by {p.min_effect:g}"
    )
    return {}


def backtest(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """Checks and matched replay before any training; the checklist must be closed."""
    deps = runtime.context
    report = decide.backtest(deps, state["candidate"], state["tip"])
    untold = [f"cannot tell: {', '.join(report.untold)}"] if report.untold and report.verdict == "pass" else []
    said = (report.verdict, *report.reasons, *report.warnings, *untold)
    deps.say("backtest", f"{state['candidate']}: {'; '.join(said)}")
    if report.verdict == "refuse":
        gating.refuse(deps, state["candidate"], report.reasons)
        return {"verdict": "refused"}
    return {"seeds": deps.config.gate.first_seeds, "parent_seeds": 0}


def train(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """Train the candidate's seeds, and the tip's where the gate asked for more of them."""
    versions.train_seeds(runtime.context, gating.wanted(runtime.context, state))
    return {}


def evaluate(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """Validation and gate suites on the fixed protocol, then the candidate's health report."""
    deps, candidate = runtime.context, state["candidate"]
    if not versions.failure_of(deps.record, candidate):
        try:
            versions.evaluate_seeds(deps, gating.wanted(deps, state), ["validation", "gate"])
        except EvaluationTimedOut as late:
            if late.version != candidate:
                raise
            deps.record.save(candidate, "unjudged", Unjudged(reason=str(late)))
            return {}
        versions.health_of(deps, candidate, state["tip"])
    return {}


def gate(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """The verdict, or the number of seeds the gate still needs; a final verdict is written to git."""
    deps = runtime.context
    report = gating.judge_candidate(deps, state)
    if isinstance(report, str):
        deps.say("gate", f"{state['candidate']}: failed: {report}")
        gating.settle(deps, state, None, report)
        return {"verdict": "failed"}
    deps.say("gate", gating.line(state["candidate"], report))
    if report.status == "needs_seeds":
        return {
            "seeds": report.n_seeds + report.need_seeds,
            "parent_seeds": report.n_parent_seeds + report.need_parent_seeds,
        }
    gating.settle(deps, state, report, "")
    champion, tip = stand(deps.record.entries("ledger"))
    return {"verdict": report.verdict, "champion": champion, "tip": tip}


def curate(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """What was learned, and whether there is room for another version."""
    deps = runtime.context
    output = decide.curate(deps, state["candidate"], state["verdict"])
    deps.say("curate", f"{state['candidate']}: {output.note}")
    refused = state["refused"] + 1 if state["verdict"] == "refused" else 0
    trained = state["trained"] + (state["verdict"] != "refused")
    now = planning.plan(deps)
    stop = out_of_budget(deps, {**state, "trained": trained, "refused": refused}, now)
    if not stop:
        deps.say("plan", planning.line(deps, now))
    return {"next_version": state["next_version"] + 1, "trained": trained, "refused": refused, "stop": stop}


def out_of_budget(deps: Deps, state: LoopState, now: planning.Plan) -> str:
    """Why no further version fits into the run's budgets, or an empty string."""
    return routing.stop_reason(
        trained=state["trained"],
        versions=deps.config.run.versions,
        refused=state["refused"],
        elapsed_s=deps.elapsed(),
        next_s=now.next_s,
        minutes=deps.config.run.minutes,
    )


def certify(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """Test the chain of provisional steps, if there is one, on fresh seeds: only this moves main."""
    deps = runtime.context
    deps.say("certify" if certifying.pending(deps.record) else "report", state["stop"])
    if not certifying.pending(deps.record):
        return {}
    champion, tip = certifying.certify_tip(deps)
    return {"champion": champion, "tip": tip}


def report(state: LoopState, runtime: Runtime[Deps]) -> LoopState:
    """Open a fresh sealed shard, measure warm start, baseline and champion on it, write the report."""
    deps = runtime.context
    reporting.make_report(deps, state)
    return {"reports": state["reports"] + 1}
