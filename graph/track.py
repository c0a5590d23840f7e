"""What was foretold of a run's versions, and what training did: read from their records."""

from __future__ import annotations

from agents.backtest_score import record_of
from agents.proxies import foretold
from agents.types import BacktestRecord, BacktestReport, Intervention, PastPrediction
from graph.record import RunRecord
from graph.versions import Version, realised
from trainer.types import HealthReport


def track_record(record: RunRecord) -> BacktestRecord:
    """The score so far of the run's predictions and replays, over every version that was trained and evaluated.

    Other runs are left out: their budgets, start points and suites differ, and so does what a change is worth in them.
    """
    past = []
    for folder in sorted((record.root / "versions").glob("v*")):
        name = folder.name
        if not all(record.saved(name, part) for part in ("version", "intervention", "backtest", "health")):
            continue
        idea = record.load(name, "intervention", Intervention)
        parent = record.load(name, "version", Version).parent
        if not record.saved(parent, "health"):
            continue
        reports = (record.load(version, "health", HealthReport) for version in (name, parent))
        change = realised(idea.prediction.metric, *reports)
        if change is None:
            continue
        replay = record.load(name, "backtest", BacktestReport).replay
        told = foretold(idea.prediction.metric, idea.edit.factor, replay)
        past.append(
            PastPrediction(
                version=name,
                factor=idea.edit.factor,
                prediction=idea.prediction,
                replayed=told.change if told else None,
                realised=change,
            )
        )
    return record_of(past)
