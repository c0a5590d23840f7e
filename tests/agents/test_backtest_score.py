"""The backtest's own score."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from agents.backtest_score import distrusted, record_of, wilson
from agents.types import PastPrediction, Prediction


def version(
    realised: float, replayed: float | None = None, factor: str = "rollout.n", probability: float | None = None,
    direction: str = "down",
) -> PastPrediction:  # fmt: skip
    prediction = Prediction.model_validate(
        {"metric": "dead_groups", "direction": direction, "min_effect": 0.1, "probability": probability}
    )
    return PastPrediction(version="v", factor=factor, prediction=prediction, replayed=replayed, realised=realised)


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_interval_is_wilsons(hits: int, misses: int) -> None:
    n = hits + misses
    if n == 0:
        assert wilson(0, 0) == (0.0, 1.0)
        return
    known = binomtest(hits, n).proportion_ci(0.95, method="wilson")
    # Z is rounded at the seventh digit.
    assert wilson(hits, n) == pytest.approx((known.low, known.high), abs=1e-6)


def test_predictions_are_scored_by_direction_size_and_probability() -> None:
    past = [
        version(-0.2, probability=0.9),
        version(-0.05, probability=0.5),
        version(0.1, probability=0.8),
        version(-0.1),
    ]
    score = record_of(past).predictions
    assert (score.n, score.hits) == (4, 3)
    assert score.sizes == pytest.approx((0.125, 0.75, 1.25))  # of 2, 0.5, -1 and 1 times the predicted effect
    # Held: yes, no (too small), no (the other way); the version without a probability does not count.
    assert score.brier == pytest.approx((0.1**2 + 0.5**2 + 0.8**2) / 3)
    assert record_of([version(-0.2)]).predictions.brier is None


def test_replays_are_scored_by_whether_they_agree_with_training() -> None:
    past = [
        version(-0.2, -0.1),  # foretold and came
        version(0.1, -0.1),  # foretold and did not
        version(0.1, 0.2),  # denied, and rightly
        version(-0.1, 0.0),  # denied, and wrongly
        version(-0.3, None, factor="optim.lr"),  # no replay
    ]
    record = record_of(past)
    assert (record.replays.n, record.replays.hits) == (4, 2) and record.predictions.n == 5
    assert record.replays.sizes == pytest.approx((-0.25, 0.5, 1.25))  # of 2, -1 and 0.5; a standing replay has no size
    assert set(record.families) == {"rollout"} and record.families["rollout"] == record.replays


def test_a_rise_is_scored_like_a_fall() -> None:
    falls = record_of([version(-0.2, -0.1), version(0.1, -0.1)])
    rises = record_of([version(0.2, 0.1, direction="up"), version(-0.1, 0.1, direction="up")])
    assert (falls.replays, falls.predictions) == (rises.replays, rises.predictions)


@pytest.mark.parametrize(
    ("wrong", "right", "trusted"), [(3, 0, True), (4, 0, False), (5, 1, True), (7, 1, False), (0, 9, True)]
)
def test_only_a_record_worse_than_a_coins_is_distrusted(wrong: int, right: int, trusted: bool) -> None:
    record = record_of([version(0.1, -0.1)] * wrong + [version(-0.1, -0.1)] * right)
    assert (distrusted(record, "rollout.n") is None) == trusted
    assert distrusted(record, "reward.weights.x") is None and distrusted(None, "rollout.n") is None


def test_nothing_trained_is_nothing_known() -> None:
    record = record_of([])
    assert (record.predictions.n, record.predictions.low, record.predictions.high) == (0, 0.0, 1.0)
    assert record.replays.sizes is None and record.families == {}
