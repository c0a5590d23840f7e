"""Routing is pure: plain dicts in, a node's name out."""

from graph.routing import (
    MAX_REFUSED,
    after_backtest,
    after_curate,
    after_design,
    after_diagnose,
    after_gate,
    stop_reason,
)
from graph.state import schema_hash


def test_the_loop_goes_on_until_something_stops_it() -> None:
    assert after_design({"stop": ""}) == "backtest"
    assert after_design({"stop": "no idea"}) == "certify"
    assert after_backtest({"verdict": "refused"}) == "curate"
    assert after_backtest({"verdict": ""}) == "train"
    assert after_gate({"verdict": ""}) == "train"
    assert after_gate({"verdict": "undecided"}) == "curate"
    assert after_curate({"stop": ""}) == "diagnose"
    assert after_curate({"stop": "time"}) == "certify"


def test_stop_reasons_name_the_budget() -> None:
    room = {"trained": 0, "versions": 3, "refused": 0, "elapsed_s": 10.0, "next_s": 20.0, "minutes": 1.0}
    assert stop_reason(**room) == ""  # type: ignore[arg-type]
    assert "3 candidate versions" in stop_reason(**{**room, "trained": 3})  # type: ignore[arg-type]
    assert "1 min" in stop_reason(**{**room, "elapsed_s": 41.0})  # type: ignore[arg-type]
    assert "refused" in stop_reason(**{**room, "refused": MAX_REFUSED})  # type: ignore[arg-type]


def test_the_schema_hash_changes_with_the_nodes() -> None:
    assert schema_hash(("a", "b")) == schema_hash(("a", "b"))
    assert schema_hash(("a", "b")) != schema_hash(("a", "c"))


def test_an_evaluation_that_does_not_hold_is_not_certified_with() -> None:
    assert after_diagnose({"stop": ""}) == "upgrade_harness"
    assert after_diagnose({"stop": "the evaluation does not hold"}) == "report"
