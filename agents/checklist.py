"""The six questions that must be answered before a version may train."""

from __future__ import annotations

from agents.types import BacktestReport, Diagnosis, Intervention


def open_questions(
    diagnosis: Diagnosis | None, intervention: Intervention | None, backtest: BacktestReport | None
) -> tuple[str, ...]:
    """The questions still open, in order; empty means training may start."""
    checks = {check.name: check.passed for check in backtest.checks} if backtest else {}
    answered = {
        "bottleneck: which one thing holds the score back?": bool(diagnosis and diagnosis.bottleneck.strip()),
        "hypothesis: what falsifiable statement explains it?": bool(
            diagnosis and diagnosis.hypothesis.strip() and intervention and intervention.hypothesis.strip()
        ),
        "isolated: does the edit change exactly one factor?": checks.get("single_factor", False),
        "backtested: did the candidate pass the backtest?": backtest is not None and backtest.verdict == "pass",
        "success criterion: what would count as success?": bool(
            intervention
            and intervention.success.strip()
            and intervention.prediction.metric.strip()
            and intervention.prediction.min_effect > 0
        ),
        "rollback: how is the edit undone?": bool(intervention and intervention.rollback.strip()),
    }
    return tuple(question for question, is_answered in answered.items() if not is_answered)
