"""Backtester: what can be known to be wrong with a candidate before any training."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agents.edits import failed_before
from agents.types import BacktestInput, BacktestReport, Check
from trainer.types import ReplayReport, SetOption

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

Metrics = Mapping[str, tuple[float, float]]
"""Name to (parent, candidate), as in ReplayReport.metrics."""


def backtest(inp: BacktestInput) -> BacktestReport:
    """Refuse if any check fails; the reasons are the details of the failed checks."""
    checks = (
        _paths(inp),
        _single_factor(inp),
        _seed_only(inp),
        _config_valid(inp),
        _not_failed_before(inp),
        _replay(inp),
    )
    reasons = tuple(f"{check.name}: {check.detail}" for check in checks if not check.passed)
    return BacktestReport(verdict="refuse" if reasons else "pass", checks=checks, reasons=reasons, replay=inp.replay)


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


def _replay(inp: BacktestInput) -> Check:
    factor, replay = inp.intervention.edit.factor, inp.replay
    if replay is None or not replay.applicable:
        why = (
            replay.note
            if replay and replay.note
            else f"{factor} acts in training only"
            if replay
            else "nothing was replayed"
        )
        return Check(name="replay", passed=True, detail=f"replay cannot tell: {why}")
    numbers = ", ".join(f"{name} {a:.3f} → {b:.3f}" for name, (a, b) in sorted(replay.metrics.items()))
    problem = ""
    if replay.metrics.get("scoring_errors", (0.0, 0.0))[1] > 0:
        problem = f"cannot be scored ({replay.note})"
    elif factor.startswith("reward."):
        problem = reward_problem(replay.metrics)
    elif factor.startswith(FILTER):
        problem = filter_problem(replay.metrics, opens=_opens(inp))
    return Check(
        name="replay", passed=not problem, detail=f"{problem}: {numbers}" if problem else _sample(replay, numbers)
    )


def reward_problem(metrics: Metrics) -> str:
    """What is wrong with a reward edit on the same rollouts; empty if nothing.

    Group-normalised advantages see only differences within a group, so an edit must not cost groups
    their spread, must not be a constant offset, and must not rank rollouts against their outcome. A
    term that is taken away may cost spread when that spread ranked against the outcome.
    """
    order_before, order_after = metrics.get("order_agreement", (1.0, 1.0))
    if order_after < order_before - ORDER_TOLERANCE or order_after < min(order_before, CHANCE) - EPSILON:
        return "ranks rollouts against their outcome"
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
    return isinstance(change, SetOption) and (change.value is False or change.path == f"{FILTER}max_num_gen_batches")


def _sample(replay: ReplayReport, numbers: str) -> str:
    return f"{replay.rollouts} rollouts in {replay.groups} groups: {numbers}"
