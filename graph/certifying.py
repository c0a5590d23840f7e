"""The end of a search on weak evidence: its tip is trained on fresh seeds and tested once against the champion.

A certified chain is one claim: its tip is better than the champion it started from. Its single steps stay provisional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents.types import Intervention
from graph import decide, gating, harnessing, versions
from graph.calibrating import calibration_of
from graph.lineage import Stand, chain, stand
from graph.record import RunRecord
from graph.state import Deps
from graph.versions import Version, failure_of, paired, seeds_of
from trainer.embedded.launcher import EvaluationTimedOut
from trainer.gate import GateReport
from trainer.gate_certify import certify


def pending(record: RunRecord) -> bool:
    """Whether there is a chain whose tip has not been tested."""
    now = stand(record.entries("ledger"))
    return now.tip != now.champion and not record.has("ledger", key_of(now.tip))


def key_of(tip: str) -> str:
    return f"{tip}.certification"


def fresh(deps: Deps, tip: str) -> range:
    """The tip's training seeds that no verdict has seen."""
    first = deps.record.load(tip, "gate", GateReport).n_seeds
    return range(first, first + deps.config.gate.certify_seeds)


def certify_tip(deps: Deps) -> Stand:
    """Train, evaluate, judge and enter the chain that is pending; where the search stands then."""
    champion, tip = stand(deps.record.entries("ledger"))
    seeds = fresh(deps, tip)
    links = chain(deps.record.entries("ledger"), tip)
    deps.say("certify", f"{' → '.join(links)}: {len(seeds)} fresh seeds of {tip}, one test")
    own = (champion, max(seeds_of(deps.record, champion), deps.config.gate.certify_seeds))
    report: GateReport | None = None
    failure = _train(deps, own, (tip, seeds))
    if not failure:
        arms = gating.arms_of(deps, own, (tip, seeds))
        known = gating.pool(deps.record), calibration_of(deps.record)
        report = certify(arms[1], arms[0], deps.config.gate, share_of(deps), *known)
        deps.say("certify", gating.line(tip, report))
    else:
        deps.say("certify", f"{tip}: failed: {failure}")
    _enter(deps, links, report, failure)
    return stand(deps.record.entries("ledger"))


def share_of(deps: Deps) -> float:
    """The alpha of the next certification: a part of what earlier ones left."""
    policy = deps.config.gate
    left = policy.alpha - sum(report.spent for report in gating.reports(deps.record, "certification"))
    return policy.certify_share * left


def _train(deps: Deps, champion: tuple[str, int], tip: tuple[str, range]) -> str:
    """Why the tip's fresh seeds cannot be judged, or an empty string."""
    name, seeds = tip
    versions.train_seeds(deps, [champion, (name, seeds.stop)])
    if failure := failure_of(deps.record, name):
        return failure
    try:
        versions.evaluate_seeds(deps, [champion, (name, seeds)], ["validation", "gate"])
    except EvaluationTimedOut as late:
        if late.version != name:
            raise
        return str(late)
    return ""


def _enter(deps: Deps, links: Sequence[str], report: GateReport | None, failure: str) -> None:
    """Git first (idempotent), then the tip's file, then the ledger, then what a single step taught."""
    tip, steps, commit = links[-1], len(links) - 1, ""
    if report:
        if report.verdict == "promoted":
            title = deps.record.load(tip, "intervention", Intervention).title
            told = title if steps == 1 else f"{steps} steps, the last: {title}"
            commit = harnessing.promote(deps, tip, told, report, gating.metrics_of(report))
        deps.record.save(tip, "certificate", report)
    deps.record.append("ledger", key_of(tip), entry_of(deps.record, links, report, failure, commit))
    if report and steps == 1:
        decide.learn(deps, tip, report)


def entry_of(
    record: RunRecord, links: Sequence[str], gate: GateReport | None, failure: str, merge_commit: str
) -> Mapping[str, Any]:
    """The ledger's entry of a tested chain. ``selected`` is the gain as the search saw it: on the seeds that chose the tip."""
    champion, *steps = links
    tip = record.load(steps[-1], "version", Version)
    chosen = record.load(tip.id, "gate", GateReport).n_seeds
    return {
        "kind": "certification",
        "version": tip.id,
        "parent": champion,
        "chain": steps,
        "harness_commit": tip.harness_commit,
        "merge_commit": merge_commit,
        "verdict": gate.verdict if gate else "failed",
        "gate": gate.model_dump(mode="json") if gate else None,
        "selected": paired(record, (tip.id, chosen), (champion, seeds_of(record, champion))).model_dump(mode="json"),
        "reasons": list(gate.reasons) if gate else [failure],
    }
