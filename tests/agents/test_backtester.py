from __future__ import annotations

from collections.abc import Mapping

import pytest

from agents.backtester import backtest
from agents.edits import value_text
from agents.types import BacktestInput, BacktestReport, Case
from tests.agents.situations import lower_rate
from trainer.types import Change, HarnessEdit, PutTerm, ReplayReport, RewardTerm, SetOption, SetWeight

WEIGHT = SetWeight(term="brevity", value=0.3)
FILTER = SetOption(path="algorithm.filter_groups.enable", value=True)
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


def failed(report: BacktestReport) -> set[str]:
    assert (report.verdict == "refuse") == bool(report.reasons)
    return {check.name for check in report.checks if not check.passed}


def test_a_sound_candidate_passes_with_every_check_on_record() -> None:
    report = judge()
    assert report.verdict == "pass"
    names = [check.name for check in report.checks]
    assert names == ["paths", "single_factor", "seed_only", "config_valid", "not_failed_before", "replay"]
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


def test_a_replay_that_cannot_tell_says_so_and_passes() -> None:
    silent = ReplayReport(factor="optim.lr", applicable=False, note="stored rollouts hold no updates")
    for replay, words in ((silent, "stored rollouts hold no updates"), (None, "nothing was replayed")):
        check = judge(replay=replay).checks[-1]
        assert check.passed and check.detail == f"replay cannot tell: {words}"


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
        ({"scoring_errors": (0.0, 1.0)}, "cannot be scored"),
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
        assert problem in report.checks[-1].detail


def test_a_term_that_does_not_run_is_refused_with_what_it_did() -> None:
    note = "reward/brevity.toml: python: timeout: no value within 5 s: correct the term"
    replay = ReplayReport(
        factor="reward.term.brevity", applicable=True, metrics={"scoring_errors": (0.0, 1.0)}, note=note
    )
    report = judge(replay=replay)
    assert report.verdict == "refuse" and any(f"cannot be scored ({note})" in reason for reason in report.reasons)


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
    ],
)
def test_filter_edits_are_replayed(change: Change, metrics: dict[str, tuple[float, float]], problem: str) -> None:
    report = replayed(change, **metrics)
    assert failed(report) == ({"replay"} if problem else set())
    assert problem in report.checks[-1].detail


def test_other_replayed_factors_are_reported_and_not_judged() -> None:
    change = SetOption(path="algorithm.norm_adv_by_std_in_grpo", value=False)
    report = replayed(change, signal_groups=(0.6, 0.6), advantage__abs_mean=(0.8, 0.3))
    assert report.verdict == "pass"
    assert (
        report.checks[-1].detail
        == "80 rollouts in 10 groups: advantage/abs_mean 0.800 → 0.300, signal_groups 0.600 → 0.600"
    )
