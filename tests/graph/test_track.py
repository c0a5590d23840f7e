"""The score that a run keeps of its predictions and replays, from its own files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.proxies import PROXIES
from agents.types import BacktestReport, Intervention, Prediction
from graph.record import RunRecord, read_record
from graph.track import FILE, Earlier, own_past, track_record
from graph.versions import Version, realised
from tests.agents.situations import finding, lower_rate
from tests.runs import LEAST, Runner, arguments
from tests.trainer.rollout_tables import write
from trainer.harness_files import apply_edit, parse_harness
from trainer.replay import replay
from trainer.seed_harness import load_seed_files
from trainer.types import HarnessEdit, HealthReport, ReplayReport, SetOption


def health(record: RunRecord, version: str, dead: float) -> None:
    scores = {"validation/mean": 0.5}
    report = HealthReport(version=version, findings=(finding("dead_groups", "warn", dead),), scores=scores)
    record.save(version, "health", report)


def trained(record: RunRecord, version: str, factor: str, replayed: tuple[float, float] | None, dead: float) -> None:
    """A version against v0000 that foretold fewer dead groups."""
    idea = lower_rate().model_copy(
        update={
            "edit": HarnessEdit(change=SetOption(path=factor, value=16)),
            "prediction": Prediction(metric="dead_groups", direction="down", min_effect=0.05),
        }
    )
    metrics = {"signal_groups": replayed} if replayed else {}
    replay = ReplayReport(factor=factor, applicable=bool(metrics), metrics=metrics)
    record.save(version, "version", Version(id=version, parent="v0000", harness_commit="c"))
    record.save(version, "intervention", idea)
    record.save(version, "backtest", BacktestReport(verdict="pass", checks=(), replay=replay))
    health(record, version, dead)


def test_the_record_is_what_was_trained_and_measured(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    health(record, "v0000", 0.4)
    record.save("v0000", "version", Version(id="v0000", parent="", harness_commit="b"))
    trained(record, "v0001", "rollout.n", (0.6, 0.8), 0.3)
    trained(record, "v0002", "optim.lr", None, 0.5)
    trained(record, "v0003", "rollout.n", (0.6, 0.7), 0.45)
    trained(record, "v0004", "rollout.n", (0.6, 0.8), 0.1)
    (record.version_dir("v0004") / "health.json").unlink()  # refused, or still in training
    found = track_record(record)
    assert [(p.version, p.factor) for p in found.past] == [
        ("v0001", "rollout.n"),
        ("v0002", "optim.lr"),
        ("v0003", "rollout.n"),
    ]
    assert [p.replayed for p in found.past] == [pytest.approx(-0.2), None, pytest.approx(-0.1)]
    assert [p.realised for p in found.past] == [pytest.approx(-0.1), pytest.approx(0.1), pytest.approx(0.05)]
    assert (found.predictions.n, found.predictions.hits) == (3, 1)
    assert (found.replays.n, found.replays.hits) == (2, 1) and set(found.families) == {"rollout"}


def test_a_real_run_scores_itself_and_its_report_shows_it(whole: Path) -> None:
    record = RunRecord(whole)
    found = track_record(record)
    judged = [v["version"] for v in record.verdicts() if record.saved(v["version"], "health")]
    assert [p.version for p in found.past] == judged
    for past in found.past:
        reports = (record.load(version, "health", HealthReport) for version in (past.version, "v0000"))
        assert realised(past.prediction.metric, *reports) == past.realised
        assert record.load(past.version, "intervention", Intervention).prediction == past.prediction
    page = (whole / "report.html").read_text(encoding="utf-8")
    if found.past:
        assert "How far they could be relied on" in page and f"of {len(found.past)} right" in page


def test_every_quantity_that_stands_for_a_prediction_is_replayed(tmp_path: Path) -> None:
    """The table of agents.proxies and the replays of trainer name the same things, for each prefix of factors."""
    stored = [write(tmp_path / "rollouts")]
    parent = parse_harness(load_seed_files(), "parent")
    options: dict[str, object] = {
        "reward.diversity": True, "rollout.n": 4, "data.levels": (1,), "data.train_batch_size": 4,
        "data.max_response_length": 19, "data.hints.enable": True, "algorithm.filter_groups.enable": True,
        "algorithm.variance_filter.enable": True,
    }  # fmt: skip
    longer = {"data.max_response_length": 128}
    replayed: dict[str, set[str]] = {}
    for path, value in (*options.items(), *longer.items()):
        edit = HarnessEdit(change=SetOption.model_validate({"path": path, "value": value}))
        report = replay(stored, parent, parse_harness(apply_edit(load_seed_files(), edit), "candidate"))
        assert report.applicable, report.note
        replayed.setdefault(path, set()).update(report.metrics)
    for metric, proxies in PROXIES.items():
        for proxy in proxies:
            for prefix in proxy.factors:
                names = set().union(*(found for path, found in replayed.items() if path.startswith(prefix)))
                assert proxy.name in names, (metric, proxy)


def test_a_real_replay_says_what_it_told_and_what_not(broken: Callable[[], Path]) -> None:
    """The backtest of a run's first candidate, as it was written."""
    record = RunRecord(broken())
    report = record.load("v0001", "backtest", BacktestReport)
    assert report.replay and {c.name for c in report.checks} >= {"replay", "prediction"}
    assert ("replay" in report.untold) == (not report.replay.applicable)
    said = json.dumps([d for d in record.entries("decisions") if d["role"] == "backtester"])
    assert report.verdict == "refuse" or all(name in said for name in report.untold)


def test_earlier_runs_count_once_a_run_that_repeats_them_learns_nothing_and_a_damaged_store_stops_nothing(
    tmp_path: Path,
) -> None:
    runner = Runner(tmp_path / "home")

    def run(name: str, seed: int, **options: object) -> tuple[RunRecord, str]:
        values = {**LEAST, "warm_start.steps": 20, **{k.replace("__", "."): v for k, v in options.items()}}
        done = runner.run(*arguments(tmp_path, name, values, versions=1), "--seed", str(seed))
        assert done.returncode == 0, done.stderr
        return RunRecord(tmp_path / name), done.stderr + done.stdout

    def taken(record: RunRecord) -> Earlier:
        return read_record(record.root / FILE, Earlier)

    first, _ = run("first", 0)
    left = own_past(first)
    assert left and taken(first) == Earlier()
    again, _ = run("again", 0, trainer__parallel=1)
    assert taken(again) == Earlier() and own_past(again) == left, "the same trainings, twice"
    given, said = run("given", 1, **{"designer.given": '["optim.lr=3e-4"]'})
    (name,) = {p.run for p in taken(given).past}
    assert name.startswith("seed 0, recipe ") and f"{len(left)} predictions of 1 earlier run score" in said
    assert [p.model_copy(update={"run": ""}) for p in taken(given).past] == list(left)
    both = track_record(given)
    assert both.predictions.n == len(left) + len(own_past(given))
    assert f"Counted with {len(left)} predictions of 1 earlier run" in (given.root / "report.html").read_text()
    (store,) = (runner.home / "cache").rglob("backtests/*.json")
    assert list(json.loads(store.read_text())["runs"]) == [name], "what a person gave is no prediction of ours"
    alone, _ = run("alone", 2, designer__use_history="false")
    assert taken(alone) == Earlier()
    store.write_text("{")
    spoilt, said = run("spoilt", 3)
    assert taken(spoilt) == Earlier() and store.read_text() == "{"
    assert f"predictions of earlier runs are left out: {store}" in said
    assert "later runs will not learn" in said
