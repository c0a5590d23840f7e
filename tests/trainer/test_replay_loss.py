"""Replays of the loss, on rollouts of a real training; each quantity is computed once more from its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.trainer.embedded.toy import copy_recipe
from tests.trainer.real_rollouts import Trained, mean
from trainer.replay import replay


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    recipe = copy_recipe(
        data={"hints": {"enable": True, "ratio": 0.4, "decay": False}}, algorithm={"filter_groups": {"enable": True}}
    )
    return Trained(tmp_path_factory.mktemp("parent"), recipe, token_budget=4000)


def trained_rows(trained: Trained) -> list[dict[str, Any]]:
    """Rows of groups with both outcomes: the stored ``kept`` also leaves out what came after a full batch."""
    groups = trained.groups(lambda row: True)
    return [row for group in groups if len({r["outcome"] for r in group}) > 1 for row in group]


def test_masked_rollouts_are_the_cut_ones_that_were_kept(trained: Trained) -> None:
    metrics = trained.replay(actor__mask_truncated=True).metrics
    rows = trained_rows(trained)
    tokens = sum(row["response_length"] for row in rows)
    cut = sum(row["response_length"] for row in rows if row["truncated"])
    assert metrics["masked_rollouts"] == pytest.approx((0.0, mean([row["truncated"] for row in rows])))
    assert metrics["masked_tokens"] == pytest.approx((0.0, cut / tokens)) and 0 < cut < tokens
    # Every rollout of a group with spread has an advantage, but one whose score is the mean.
    gradient = sum(row["response_length"] for row in rows if row["advantage"] != 0 and not row["truncated"])
    assert metrics["gradient_tokens"][1] == pytest.approx(gradient / tokens)


WEIGHTS: dict[str, Callable[[int, int, int], float]] = {
    "token-mean": lambda length, tokens, rows: 1 / tokens,
    "token-sum": lambda length, tokens, rows: 1,
    "seq-mean-token-sum": lambda length, tokens, rows: 1 / rows,
    "seq-mean-token-mean": lambda length, tokens, rows: 1 / rows / length,
    "seq-mean-token-sum-norm": lambda length, tokens, rows: 1 / rows / 6,
}


@pytest.mark.parametrize("mode", [mode for mode in WEIGHTS if mode != "token-mean"])
def test_the_loss_weighs_tokens_as_its_mode_says(trained: Trained, mode: str) -> None:
    metrics = trained.replay(actor__loss_agg_mode=mode).metrics
    rows = trained_rows(trained)
    for side, each in enumerate(("token-mean", mode)):
        scales, longer = [], 0.0
        for step in sorted({row["step"] for row in rows}):
            own = [row for row in rows if row["step"] == step]
            tokens = sum(row["response_length"] for row in own)
            cost = [
                abs(row["advantage"]) * row["response_length"] * WEIGHTS[each](row["response_length"], tokens, len(own))
                for row in own
            ]
            typical = tokens / len(own)
            scales.append(sum(cost))
            longer += sum(c for c, row in zip(cost, own, strict=True) if row["response_length"] > typical)
        assert metrics["loss/abs_mean"][side] == pytest.approx(mean(scales))
        assert metrics["loss/long_share"][side] == pytest.approx(longer / sum(scales))


def test_averaging_within_replies_takes_weight_off_the_long_ones(trained: Trained) -> None:
    by_token, by_reply = trained.replay(actor__loss_agg_mode="seq-mean-token-mean").metrics["loss/long_share"]
    assert by_reply < by_token


def test_imitated_rollouts_are_the_correct_ones(trained: Trained) -> None:
    rows = trained_rows(trained)
    own = trained.replay(actor__imitation__coef=0.1).metrics
    assert own["imitated_rollouts"] == pytest.approx((0.0, mean([row["outcome"] == 1 for row in rows])))
    assert own["imitation/coef"] == (0.0, 0.1)
    # A hint gives the toy's answer away, so that its groups have no spread and only an open filter keeps them.
    unfiltered: dict[str, Any] = {"algorithm__filter_groups__enable": False}
    parent = trained.harness(actor__imitation__coef=0.1, **unfiltered)
    candidate = trained.harness("candidate", actor__imitation={"coef": 0.1, "on": "hinted"}, **unfiltered)
    helped = mean([row["outcome"] == 1 and row["hint_length"] > 0 for row in trained.rows()])
    metrics = replay(trained.directories, parent, candidate).metrics
    assert metrics["imitated_rollouts"][1] == pytest.approx(helped) and helped > 0


def test_nothing_is_clipped_where_a_batch_is_used_once(trained: Trained) -> None:
    """As the training's own metric says."""
    assert max(step["actor/pg_clipfrac"] for step in trained.metrics) == 0.0
    for option in ({"actor__clip_ratio_high": 0.3}, {"actor__policy_loss__loss_mode": "gspo"}):
        report = trained.replay(**option)
        assert report.metrics == {"clipped_tokens": (0.0, 0.0)} and "every ratio is 1" in report.note
    again: dict[str, Any] = {"actor__ppo_epochs": 2}
    parent, candidate = trained.harness(**again), trained.harness("c", actor__clip_ratio_high=0.3, **again)
    report = replay(trained.directories, parent, candidate)
    assert not report.applicable and "ratios" in report.note
