"""Backtester: what can be known to be wrong with a candidate before any training."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from agents.backtest_score import distrusted
from agents.edits import failed_before, family
from agents.proxies import foretold
from agents.types import BacktestInput, BacktestReport, Check
from trainer.types import SetOption

HARNESS_PATH = re.compile(r"recipe\.toml|procedure\.toml|(reward|diagnostics)/[a-z][a-z0-9_]{0,40}\.toml")
FILTER = "algorithm.filter_groups."

# Differences of replayed shares below this are rounding, not effect.
EPSILON = 1e-6
# Within-group order may lose this much agreement with the outcome before a reward counts as reversing it.
ORDER_TOLERANCE = 0.05
# Order agreement is an AUC: at one half the reward says nothing about the outcome.
CHANCE = 0.5
# Share of the reward's size that may newly come from terms with one value on nearly every rollout.
OFFSET_TOLERANCE = 0.01
# The over-filtering line: with fewer groups kept the budget buys too few updates.
KEPT_LINE = 0.3

# Prefixes of factors to the replayed share of what they act on: at zero on both sides they do nothing.
LEVERS: Mapping[str, str] = {
    "actor.mask_truncated": "masked_rollouts",
    "actor.imitation.": "imitated_rollouts",
    "actor.clip_ratio_": "clipped_tokens",
    "actor.policy_loss.": "clipped_tokens",
    "data.hints.": "hinted_groups",
    f"{FILTER}max_num_gen_batches": "refills",
}

Metrics = Mapping[str, tuple[float, float]]
"""Name to (parent, candidate), as in ReplayReport.metrics."""


class Judged(NamedTuple):
    """A check with what it came to: ``untold`` had nothing to go by, ``warned`` would have failed under a better record."""

    check: Check
    status: Literal["passed", "failed", "untold", "warned"]


def backtest(inp: BacktestInput) -> BacktestReport:
    """Refuse if any check fails; the reasons are the details of the failed checks. What a replay has against a candidate
    only warns where replays of the factor's family were wrong more often than right."""
    checks = (
        _paths(inp),
        _single_factor(inp),
        _seed_only(inp),
        _config_valid(inp),
        _not_failed_before(inp),
    )
    replayed = (_replay(inp), _prediction(inp))
    reasons = tuple(_line(c) for c in (*checks, *(j.check for j in replayed)) if not c.passed)
    return BacktestReport(
        verdict="refuse" if reasons else "pass",
        checks=(*checks, *(judged.check for judged in replayed)),
        reasons=reasons,
        untold=tuple(judged.check.name for judged in replayed if judged.status == "untold"),
        warnings=tuple(_line(judged.check) for judged in replayed if judged.status == "warned"),
        replay=inp.replay,
    )


def _line(check: Check) -> str:
    return f"{check.name}: {check.detail}"


def _paths(inp: BacktestInput) -> Check:
    outside = [path for path in inp.paths if not HARNESS_PATH.fullmatch(path)]
    if outside:
        return Check(name="paths", passed=False, detail=f"outside the harness: {', '.join(outside)}")
    if not inp.paths:
        return Check(name="paths", passed=False, detail="the candidate is identical to its parent")
    return Check(name="paths", passed=True, detail=", ".join(inp.paths))


def _single_factor(inp: BacktestInput) -> Check:
    declared, actual = inp.intervention.edit.factor, ", ".join(inp.actual_factors) or "nothing"
    passed = set(inp.actual_factors) == {declared}
    return Check(
        name="single_factor", passed=passed, detail=declared if passed else f"declared {declared}, changed {actual}"
    )


def _seed_only(inp: BacktestInput) -> Check:
    seeds = bool(inp.actual_factors) and all(f.rpartition(".")[2] == "seed" for f in inp.actual_factors)
    return Check(
        name="seed_only", passed=not seeds, detail="only the seed differs" if seeds else "not a change of seed"
    )


def _config_valid(inp: BacktestInput) -> Check:
    return Check(name="config_valid", passed=not inp.config_error, detail=inp.config_error or "parses and validates")


def _not_failed_before(inp: BacktestInput) -> Check:
    case = failed_before(inp.cases, inp.signature, inp.intervention.edit)
    detail = f"{case.verdict} in this situation before {case.version}".rstrip() if case else "untried in this situation"
    return Check(name="not_failed_before", passed=case is None, detail=detail)


def _replay(inp: BacktestInput) -> Judged:
    """What the replayed numbers say against the candidate, whatever it predicts."""
    factor, replay = inp.intervention.edit.factor, inp.replay
    if replay is None or not replay.applicable:
        why = (replay.note or f"{factor} acts in training only") if replay else "nothing was replayed"
        return Judged(Check(name="replay", passed=True, detail=f"cannot tell: {why}"), "untold")
    numbers = _numbers(replay.metrics)
    broken = [f"{finding.diagnostic}: {finding.error}" for finding in replay.findings if finding.error]
    if broken or replay.metrics.get("scoring_errors", (0.0, 0.0))[1] > 0:
        # No forecast: it does not run. A record of wrong forecasts is no excuse.
        detail = f"cannot be evaluated ({'; '.join(broken) or replay.note})"
        return Judged(Check(name="replay", passed=False, detail=detail), "failed")
    read = ", ".join(
        f"{f.diagnostic} reads {f.value:.3f} ({f.severity})" for f in replay.findings if f.value is not None
    )
    problem = lever_problem(factor, replay.metrics)
    if not problem and factor.startswith("reward."):
        problem = reward_problem(replay.metrics)
    elif not problem and factor.startswith(FILTER):
        problem = filter_problem(replay.metrics, opens=_opens(inp))
    if problem:
        return _weighed(inp, "replay", f"{problem}: {numbers}")
    detail = f"{replay.rollouts} rollouts in {replay.groups} groups: {numbers}" if replay.groups else read
    return Judged(Check(name="replay", passed=True, detail=detail), "passed")


def _numbers(metrics: Metrics) -> str:
    """The metrics that move, and how many do not: a reader looks for a difference."""
    moved = {name: pair for name, pair in sorted(metrics.items()) if abs(pair[1] - pair[0]) > EPSILON}
    still = len(metrics) - len(moved)
    parts = [f"{name} {a:.3f} → {b:.3f}" for name, (a, b) in moved.items()]
    return ", ".join([*parts, *([f"{still} unchanged"] if still else [])])


def _prediction(inp: BacktestInput) -> Judged:
    """Whether the replay moves the predicted metric in the predicted direction."""
    p, replay = inp.intervention.prediction, inp.replay
    told = foretold(p.metric, inp.intervention.edit.factor, replay if replay and replay.applicable else None)
    if told is None:
        return Judged(Check(name="prediction", passed=True, detail=f"cannot tell: no replay of {p.metric}"), "untold")
    predicted = f"{p.metric} {p.direction} by {p.min_effect:g} is predicted"
    numbers = f"{told.name} {told.before:.3f} → {told.after:.3f}"
    moved = p.signed(told.change)
    if moved <= EPSILON:
        how = "not move it" if abs(moved) <= EPSILON else "move it the other way"
        return _weighed(inp, "prediction", f"{predicted}, and the stored rollouts would {how}: {numbers}")
    short = "" if moved >= p.min_effect else ", less than that before any learning"
    return Judged(Check(name="prediction", passed=True, detail=f"{predicted}; replayed {numbers}{short}"), "passed")


def _weighed(inp: BacktestInput, name: str, detail: str) -> Judged:
    """A replay's objection: a failed check, or a warning where the record of such replays is bad."""
    score = distrusted(inp.record, inp.intervention.edit.factor)
    if score is None:
        return Judged(Check(name=name, passed=False, detail=detail), "failed")
    record = f"right in {score.hits} of {score.n} (95 % interval {score.low:.0%} to {score.high:.0%})"
    kind = family(inp.intervention.edit.factor)
    detail = f"{detail}; no ground to refuse: replays of {kind} factors were {record}"
    return Judged(Check(name=name, passed=True, detail=detail), "warned")


def lever_problem(factor: str, metrics: Metrics) -> str:
    """Whether what the factor would act on does not occur in the stored rollouts; empty if it does."""
    name = next((name for prefix, name in LEVERS.items() if factor.startswith(prefix)), "")
    if name and max(metrics.get(name, (1.0, 1.0))) <= EPSILON:
        return "finds nothing to act on in the stored rollouts"
    return ""


def reward_problem(metrics: Metrics) -> str:
    """What is wrong with a reward edit on the same rollouts; empty if nothing.

    Group-normalised advantages see only differences within a group, so an edit must not cost groups
    their spread, must not be a constant offset, and must not rank rollouts against their outcome. A
    term that is taken away may cost spread when that spread ranked against the outcome.
    """
    order_before, order_after = metrics.get("order_agreement", (1.0, 1.0))
    if order_after < order_before - ORDER_TOLERANCE or order_after < min(order_before, CHANCE) - EPSILON:
        return "ranks rollouts against their outcome"
    gate_before, gate_after = metrics.get("gate_order_agreement", (1.0, 1.0))
    if gate_after < gate_before - ORDER_TOLERANCE:
        return "ranks the gate suite's replies against their outcome"
    signal_before, signal_after = metrics.get("signal_groups", (0.0, 0.0))
    if signal_after < signal_before - EPSILON and order_after <= order_before + EPSILON:
        return "leaves fewer groups with a signal"
    offset_before, offset_after = metrics.get("constant_offset", (0.0, 0.0))
    if offset_after > offset_before + OFFSET_TOLERANCE:
        return "adds a constant offset: nearly every rollout earns it, so no group sees it"
    within = [metrics[name] for name in ("signal_groups", "order_agreement", "score/std") if name in metrics]
    mean_before, mean_after = metrics.get("score/mean", (0.0, 0.0))
    if within and all(abs(a - b) <= EPSILON for a, b in within) and abs(mean_after - mean_before) > EPSILON:
        return "is a constant offset: the mean moves, no group changes"
    return ""


def filter_problem(metrics: Metrics, opens: bool) -> str:
    """What is wrong with a filter edit; ``opens`` says that it is meant to keep more, not less."""
    kept_before, kept_after = metrics.get("kept_groups", metrics.get("kept_tokens", (1.0, 1.0)))
    if "refills" in metrics:
        return ""  # more or fewer refills are no other filter
    if opens:
        return "" if kept_after >= kept_before - EPSILON else "keeps fewer groups than before"
    if kept_after < KEPT_LINE and kept_after < kept_before - EPSILON:
        return f"keeps less than {KEPT_LINE:.0%} of the groups"
    if abs(kept_after - kept_before) <= EPSILON:
        return "changes nothing on the stored rollouts"
    fail_before, fail_after = metrics.get("kept_all_fail", (0.0, 0.0))
    if fail_after > fail_before + EPSILON:
        return "keeps more groups that fail as a whole"
    density = [signal / max(tokens, EPSILON) for signal, tokens in _pairs(metrics)]
    if density and density[1] < density[0] - EPSILON:
        return "leaves less signal in what is kept"
    return ""


def _pairs(metrics: Metrics) -> list[tuple[float, float]]:
    """(signal tokens, kept tokens) of the parent and of the candidate; empty where not measured."""
    if "signal_tokens" not in metrics or "kept_tokens" not in metrics:
        return []
    return list(zip(metrics["signal_tokens"], metrics["kept_tokens"], strict=True))


def _opens(inp: BacktestInput) -> bool:
    change = inp.intervention.edit.change
    return isinstance(change, SetOption) and change.value is False
