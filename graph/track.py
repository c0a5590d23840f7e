"""What was foretold of versions, and what training did: read from the records of this run, and from what earlier runs left.

Earlier runs count where they are of the same kind: domain, protocol, token budget and base policy. What they left is read
once, before the first candidate, so that a run that is resumed decides as it would have.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.backtest_score import record_of
from agents.proxies import foretold
from agents.types import BacktestRecord, BacktestReport, Intervention, PastPrediction
from graph.kind import fingerprint_of, recipe_of, shelf_folder
from graph.record import RunRecord, read_record, write_atomic
from graph.seals import seal
from graph.state import Deps
from graph.versions import Version, realised
from trainer.shelf import Shelf, put, read_shelf
from trainer.types import HealthReport, InputError, Record

FILE = "earlier.json"


class History(Shelf[tuple[PastPrediction, ...]]):
    """What all runs of one kind foretold and saw."""


class Earlier(Record):
    """What this run takes from earlier ones."""

    past: tuple[PastPrediction, ...] = ()


def recall(deps: Deps) -> None:
    """Take what earlier runs left, once."""
    path = deps.record.root / FILE
    if path.exists():
        return
    past = _earlier(deps) if deps.config.designer.use_history else ()
    write_atomic(path, Earlier(past=past).model_dump_json(indent=1) + "\n")
    seal(deps.record.root, [path])
    if past:
        runs = len({p.run for p in past})
        of = f"{runs} earlier run{'s' if runs != 1 else ''}"
        deps.say("baseline", f"{len(past)} predictions of {of} score the backtest")


def remember(deps: Deps) -> None:
    """Leave what specialists of this run foretold for later ones. A store that cannot be written costs the run nothing."""
    designer = deps.config.designer
    if designer.candidates == "null" or designer.given or not (past := own_past(deps.record)):
        return
    try:
        put(
            shelf_folder("backtests"),
            fingerprint_of(deps),
            History,
            f"{_seed(deps)}, recipe {recipe_of(deps)}",
            tuple(past),
        )
    except (InputError, OSError) as error:
        deps.say("report", f"later runs will not learn how predictions of this one came out: {error}")


def track_record(record: RunRecord) -> BacktestRecord:
    """The score so far of predictions and replays, over every version that was trained and evaluated: the earlier runs'
    first, then this one's."""
    path = record.root / FILE  # runs of before there was such a store took nothing
    earlier = read_record(path, Earlier).past if path.exists() else ()
    return record_of([*earlier, *own_past(record)])


def own_past(record: RunRecord) -> Sequence[PastPrediction]:
    """What became of this run's predictions."""
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
    return past


def _earlier(deps: Deps) -> tuple[PastPrediction, ...]:
    try:
        known = read_shelf(shelf_folder("backtests"), fingerprint_of(deps), History)
    except (InputError, OSError) as error:
        deps.say("baseline", f"predictions of earlier runs are left out: {error}")
        return ()
    left = {name: past for name, past in known.runs.items() if name.partition(",")[0] != _seed(deps)}
    return tuple(p.model_copy(update={"run": name}) for name, past in left.items() for p in past)


def _seed(deps: Deps) -> str:
    """Runs of one seed train much the same: of one recipe the latest counts, and none learns from its twin."""
    return f"seed {deps.config.run.seed}"
