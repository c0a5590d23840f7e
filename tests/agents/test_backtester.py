from __future__ import annotations

from collections.abc import Mapping

import pytest

from agents.backtest_score import record_of
from agents.backtester import backtest
from agents.edits import value_text
from agents.types import BacktestInput, BacktestReport, Case, Check, PastPrediction, Prediction
from tests.agents.situations import lower_rate
from trainer.types import (
    Change,
    Diagnostic,
    Finding,
    HarnessEdit,
    PutDiagnostic,
    PutTerm,
    ReplayReport,
    RewardTerm,
    SetOption,
    SetWeight,
)

WEIGHT = SetWeight(term="brevity", value=0.3)
FILTER = SetOption(path="algorithm.filter_groups.enable", value=True)
REFILL = SetOption(path="algorithm.filter_groups.max_num_gen_batches", value=6)
UNFILTER = SetOption(path="algorithm.filter_groups.enable", value=False)


def judge(change: Change | None = None, **fields: object) -> BacktestReport:
    idea = lower_rate()
    if change is not None:
        idea = idea.model_copy(update={"edit": HarnessEdit(change=change)})
    given = {
        "domain": "math",
        "intervention": idea,
        "signature": "math|x|",
        "actual_factors": (idea.edit.factor,),
        "paths": ("recipe.toml",),
        "config_error": "",
        "replay": None,
        **fields,
    }
    return backtest(BacktestInput.model_validate(given))


def replayed(change: Change, **metrics: tuple[float, float]) -> BacktestReport:
    named: Mapping[str, tuple[float, float]] = {name.replace("__", "/"): pair for name, pair in metrics.items()}
    factor = HarnessEdit(change=change).factor
    report = ReplayReport(factor=factor, applicable=True, rollouts=80, groups=10, metrics=named)
    return judge(change, replay=report)


def named(report: BacktestReport, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def failed(report: BacktestReport) -> set[str]:
    assert (report.verdict == "refuse") == bool(report.reasons)
    return {check.name for check in report.checks if not check.passed}


def test_a_sound_candidate_passes_with_every_check_on_record() -> None:
    report = judge()
    assert report.verdict == "pass"
    names = [check.name for check in report.checks]
    assert names == [
        *("paths", "single_factor", "seed_only", "config_valid", "not_failed_before"),
        *("replay", "prediction"),
    ]
    assert all(check.detail for check in report.checks)


@pytest.mark.parametrize(
    "path",
    ["recipe.toml", "procedure.toml", "reward/overlong.toml", "diagnostics/dead_groups.toml"],
)
def test_harness_parts_may_change(path: str) -> None:
    assert judge(paths=(path,)).verdict == "pass"


@pytest.mark.parametrize(
    "path",
    [
        "gate.py",
        "../recipe.toml",
        "reward/../gate.toml",
        "reward/x.py",
        "reward/a/b.toml",
        "/recipe.toml",
        "recipe.toml\n",
        "NOTES.md",
    ],
)
def test_nothing_else_may_change(path: str) -> None:
    assert failed(judge(paths=("recipe.toml", path))) == {"paths"}


def test_an_identical_candidate_is_refused() -> None:
    assert failed(judge(paths=(), actual_factors=())) == {"paths", "single_factor"}


@pytest.mark.parametrize("actual", [("optim.lr", "rollout.n"), ("rollout.n",), ()])
def test_the_declared_factor_must_be_the_actual_one(actual: tuple[str, ...]) -> None:
    report = judge(actual_factors=actual)
    assert failed(report) == {"single_factor"}
    assert "declared optim.lr" in report.reasons[0]


def test_a_seed_is_no_intervention() -> None:
    assert "seed_only" in failed(judge(actual_factors=("data.seed",)))
    assert "seed_only" not in failed(judge(actual_factors=("data.seed", "optim.lr")))


def test_a_config_error_is_passed_on() -> None:
    report = judge(config_error="recipe.toml: optim.lr: too large")
    assert failed(report) == {"config_valid"}
    assert report.reasons == ("config_valid: recipe.toml: optim.lr: too large",)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, True),
        ({"verdict": "undecided"}, True),
        ({"verdict": "refused"}, True),
        ({"verdict": "promoted"}, False),
        ({"verdict": "provisional"}, False),
        ({"signature": "math|y|"}, False),
        ({"value": "0.0001"}, False),
        ({"factor": "rollout.n"}, False),
    ],
)
def test_what_failed_here_is_not_tried_again(fields: dict[str, str], refused: bool) -> None:
    same = {
        "signature": "math|x|",
        "domain": "math",
        "bottleneck": "x",
        "factor": "optim.lr",
        "value": value_text(lower_rate().edit.change),
        "verdict": "rejected",
        "version": "v3",
    }
    report = judge(cases=(Case.model_validate(same | fields),))
    assert failed(report) == ({"not_failed_before"} if refused else set())


def test_a_replay_that_cannot_tell_says_so_and_is_no_pass() -> None:
    silent = ReplayReport(factor="optim.lr", applicable=False, note="stored rollouts hold no updates")
    for replay, words in ((silent, "stored rollouts hold no updates"), (None, "nothing was replayed")):
        report = judge(replay=replay)
        check = named(report, "replay")
        assert check.passed and check.detail == f"cannot tell: {words}"
        assert report.verdict == "pass" and report.untold == ("replay", "prediction")
        assert named(report, "prediction").detail == "cannot tell: no replay of validation/mean"


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ({"signal_groups": (0.6, 0.8), "order_agreement": (1.0, 1.0), "score__mean": (0.5, 0.4)}, ""),
        ({"signal_groups": (0.6, 0.6), "order_agreement": (1.0, 0.97), "score__std": (0.1, 0.2)}, ""),
        ({"signal_groups": (0.6, 0.5), "order_agreement": (1.0, 1.0)}, "fewer groups with a signal"),
        ({"signal_groups": (0.9, 0.5), "order_agreement": (0.6, 1.0)}, ""),
        ({"signal_groups": (0.6, 0.9), "order_agreement": (1.0, 0.9)}, "against their outcome"),
        ({"signal_groups": (0.6, 0.9), "order_agreement": (0.45, 0.44)}, "against their outcome"),
        ({"signal_groups": (0.6, 0.9), "order_agreement": (0.2, 0.4)}, ""),
        (
            {
                "signal_groups": (0.6, 0.6),
                "order_agreement": (1.0, 1.0),
                "score__std": (0.1, 0.1),
                "score__mean": (0.5, 0.8),
            },
            "constant offset",
        ),
        ({"signal_groups": (0.6, 0.7), "constant_offset": (0.0, 0.3)}, "constant offset"),
        ({"signal_groups": (0.6, 0.9), "gate_order_agreement": (0.9, 0.8)}, "gate suite's replies"),
        ({"signal_groups": (0.6, 0.9), "gate_order_agreement": (0.9, 0.88)}, ""),
        ({"scoring_errors": (0.0, 1.0)}, "cannot be evaluated"),
        ({}, ""),
    ],
)
def test_reward_edits_are_replayed(metrics: dict[str, tuple[float, float]], problem: str) -> None:
    put = PutTerm(term=RewardTerm(name="brevity", description="d", sql="1"), weight=0.3)
    isolated = PutTerm(
        term=RewardTerm(name="brevity", description="d", python="def reward(rows): return []"), weight=0.3
    )
    for change in (WEIGHT, put, isolated):
        report = replayed(change, **metrics)
        assert failed(report) == ({"replay"} if problem else set())
        assert problem in named(report, "replay").detail


def test_a_term_that_does_not_run_is_refused_with_what_it_did() -> None:
    note = "reward/brevity.toml: python: timeout: no value within 5 s: correct the term"
    replay = ReplayReport(
        factor="reward.term.brevity", applicable=True, metrics={"scoring_errors": (0.0, 1.0)}, note=note
    )
    report = judge(replay=replay)
    assert report.verdict == "refuse" and any(f"cannot be evaluated ({note})" in reason for reason in report.reasons)


@pytest.mark.parametrize(
    ("change", "metrics", "problem"),
    [
        (FILTER, {"kept_groups": (1.0, 0.6), "kept_tokens": (1.0, 0.6), "signal_tokens": (0.6, 0.6)}, ""),
        (FILTER, {"kept_groups": (1.0, 0.2), "kept_tokens": (1.0, 0.2), "signal_tokens": (0.2, 0.2)}, "less than 30%"),
        (FILTER, {"kept_tokens": (1.0, 0.2)}, "less than 30%"),
        (FILTER, {"kept_groups": (1.0, 1.0)}, "changes nothing"),
        (FILTER, {"kept_groups": (0.6, 0.9), "kept_all_fail": (0.0, 0.3)}, "fail as a whole"),
        (FILTER, {"kept_groups": (1.0, 0.6), "kept_tokens": (1.0, 0.6), "signal_tokens": (0.6, 0.2)}, "less signal"),
        (UNFILTER, {"kept_groups": (0.2, 1.0), "kept_tokens": (0.2, 1.0), "signal_tokens": (0.2, 0.2)}, ""),
        (UNFILTER, {"kept_groups": (0.5, 0.4)}, "fewer groups"),
        (REFILL, {"kept_groups": (0.6, 0.2), "refills": (0.4, 3.0), "filled_batch": (0.5, 1.0)}, ""),
        (REFILL, {"kept_groups": (1.0, 1.0), "refills": (0.0, 0.0)}, "nothing to act on"),
    ],
)
def test_filter_edits_are_replayed(change: Change, metrics: dict[str, tuple[float, float]], problem: str) -> None:
    report = replayed(change, **metrics)
    assert failed(report) == ({"replay"} if problem else set())
    assert problem in named(report, "replay").detail


def test_other_replayed_factors_are_reported_and_not_judged() -> None:
    change = SetOption(path="algorithm.norm_adv_by_std_in_grpo", value=False)
    report = replayed(change, signal_groups=(0.6, 0.6), advantage__abs_mean=(0.8, 0.3))
    assert report.verdict == "pass"
    assert named(report, "replay").detail == "80 rollouts in 10 groups: advantage/abs_mean 0.800 → 0.300, 1 unchanged"


LONGER = SetOption(path="rollout.n", value=16)
LEVELS = SetOption(path="data.levels", value=(0, 1))
HINTS = SetOption(path="data.hints.enable", value=True)


@pytest.mark.parametrize(
    ("change", "metrics"),
    [
        (SetOption(path="actor.mask_truncated", value=True), {"masked_rollouts": (0.0, 0.0)}),
        (SetOption(path="actor.clip_ratio_high", value=0.3), {"clipped_tokens": (0.0, 0.0)}),
        (SetOption(path="actor.policy_loss.loss_mode", value="gspo"), {"clipped_tokens": (0.0, 0.0)}),
        (SetOption(path="actor.imitation.coef", value=0.1), {"imitated_rollouts": (0.0, 0.0)}),
        (HINTS, {"hinted_groups": (0.0, 0.0)}),
    ],
)
def test_a_lever_that_finds_nothing_to_act_on_is_refused(
    change: Change, metrics: dict[str, tuple[float, float]]
) -> None:
    report = replayed(change, **metrics)
    assert failed(report) == {"replay"} and "nothing to act on" in report.reasons[0]
    acts = dict.fromkeys(metrics, (0.0, 0.2))
    assert replayed(change, **acts).verdict == "pass"


def predicting(change: Change, metric: str, direction: str, **fields: object) -> BacktestReport:
    """The verdict on a change that predicts at least 0.05 of the metric."""
    metrics = fields.pop("metrics", {})
    prediction = Prediction.model_validate({"metric": metric, "direction": direction, "min_effect": 0.05})
    idea = lower_rate().model_copy(update={"edit": HarnessEdit(change=change), "prediction": prediction})
    report = ReplayReport(factor=idea.edit.factor, applicable=True, rollouts=80, groups=10, metrics=metrics)
    return judge(change, intervention=idea, replay=report, **fields)


@pytest.mark.parametrize(
    ("change", "metric", "direction", "replayed_name", "pair", "status"),
    [
        (LONGER, "dead_groups", "down", "signal_groups", (0.5, 0.7), "passed"),
        (LONGER, "dead_groups", "down", "signal_groups", (0.5, 0.4), "failed"),
        (LONGER, "dead_groups", "up", "signal_groups", (0.5, 0.4), "passed"),
        (LEVELS, "dead_groups_all_fail", "down", "all_fail_groups", (0.4, 0.1), "passed"),
        (LEVELS, "dead_groups_all_fail", "down", "all_fail_groups", (0.4, 0.4), "failed"),
        (HINTS, "dead_groups_all_fail", "down", "all_fail_groups/at_best", (0.4, 0.3), "passed"),
        (LEVELS, "dead_groups_all_pass", "down", "all_pass_groups", (0.4, 0.5), "failed"),
        (SetOption(path="data.train_batch_size", value=64), "dead_training", "down", "dead_steps", (0.2, 0.1), "passed"),
        (UNFILTER, "over_filtering", "down", "kept_groups", (0.2, 1.0), "passed"),
        (WEIGHT, "reward_offset", "down", "collected_alike", (0.95, 0.0), "passed"),
        (WEIGHT, "reward_offset", "down", "collected_alike", (0.95, 0.97), "failed"),
        (WEIGHT, "length_reward_correlation", "down", "length_correlation", (0.4, 0.5), "failed"),
        (WEIGHT, "single_reward_value", "down", "commonest_score", (0.6, 0.2), "passed"),
        (SetOption(path="data.max_response_length", value=96), "truncation", "down", "truncated/at_best", (0.2, 0.0), "passed"),
        (SetOption(path="data.max_response_length", value=16), "truncation", "down", "truncated", (0.2, 0.5), "failed"),
        # The filter acts on which groups are kept, not on how many fail; the learning rate on nothing that is stored.
        (FILTER, "dead_groups_all_fail", "down", "all_fail_groups", (0.4, 0.4), "untold"),
        (SetOption(path="algorithm.norm_adv_by_std_in_grpo", value=False), "length_reward_correlation", "down", "length_correlation", (0.4, 0.4), "untold"),
        (LONGER, "validation/mean", "up", "signal_groups", (0.5, 0.4), "untold"),
    ],
)  # fmt: skip
def test_a_replay_is_held_against_the_prediction(
    change: Change, metric: str, direction: str, replayed_name: str, pair: tuple[float, float], status: str
) -> None:
    report = predicting(change, metric, direction, metrics={replayed_name: pair})
    check = named(report, "prediction")
    assert ("prediction" in failed(report)) == (not check.passed) == (status == "failed")
    assert ("prediction" in report.untold) == (status == "untold")
    if status != "untold":
        assert (
            f"{replayed_name} {pair[0]:.3f} → {pair[1]:.3f}" in check.detail and f"{metric} {direction}" in check.detail
        )


def test_a_replayed_change_below_the_predicted_one_is_noted_and_passes() -> None:
    report = predicting(LONGER, "dead_groups", "down", metrics={"signal_groups": (0.5, 0.52)})
    assert report.verdict == "pass" and "less than that" in named(report, "prediction").detail


def past(factor: str, wrong: int, right: int) -> tuple[PastPrediction, ...]:
    """Versions of a factor whose replay foretold the predicted fall of dead groups, wrongly or rightly."""
    prediction = Prediction(metric="dead_groups", direction="down", min_effect=0.05)
    realised = [0.1] * wrong + [-0.1] * right
    return tuple(
        PastPrediction(version=f"v{i:04d}", factor=factor, prediction=prediction, replayed=-0.1, realised=value)
        for i, value in enumerate(realised)
    )


@pytest.mark.parametrize(
    ("family", "wrong", "right", "refuses"),
    [
        ("rollout.n", 4, 0, False),
        ("rollout.n", 3, 0, True),
        ("rollout.n", 5, 4, True),
        ("reward.weights.x", 9, 0, True),
    ],
)
def test_replays_that_were_wrong_more_often_than_right_only_warn(
    family: str, wrong: int, right: int, refuses: bool
) -> None:
    record = record_of(past(family, wrong, right))
    report = predicting(LONGER, "dead_groups", "down", metrics={"signal_groups": (0.5, 0.4)}, record=record)
    assert (report.verdict == "refuse") == refuses == (not report.warnings)
    if not refuses:
        assert (
            "right in 0 of 4 (95 % interval 0% to 49%)" in report.warnings[0] and "0.500 → 0.400" in report.warnings[0]
        )
    useless = predicting(LONGER, "dead_groups", "down", metrics={"scoring_errors": (0.0, 1.0)}, record=record)
    assert useless.verdict == "refuse"  # a fact, no forecast


def test_a_changed_diagnostic_is_judged_by_whether_it_reads() -> None:
    diagnostic = Diagnostic(name="d", layer="signal", description="d", metric="SELECT 1", warn=0.1, critical=0.2)
    put = PutDiagnostic(diagnostic=diagnostic)
    reading = {"diagnostic": "d", "kind": "pathology", "layer": "signal", "line": 0.1, "description": "d"}
    for fields, words in (
        ({"severity": "warn", "value": 0.15}, ""),
        ({"severity": "info", "value": None, "error": "no x"}, "no x"),
    ):
        finding = Finding.model_validate(reading | fields)
        report = judge(
            put, replay=ReplayReport(factor="diagnostics.d", applicable=True, rollouts=8, findings=(finding,))
        )
        assert failed(report) == ({"replay"} if words else set())
        assert (words or "d reads 0.150 (warn)") in named(report, "replay").detail
