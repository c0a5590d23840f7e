from __future__ import annotations

import pytest

from agents.checklist import open_questions
from agents.rules import Rules
from agents.types import BacktestReport, Check, Prediction
from tests.agents.situations import lower_rate, situation, to_design

PASSED = BacktestReport(verdict="pass", checks=(Check(name="single_factor", passed=True, detail="optim.lr"),))
SPREAD = BacktestReport(
    verdict="refuse", checks=(Check(name="single_factor", passed=False, detail="two"),), reasons=("two",)
)


def asked(questions: tuple[str, ...]) -> list[str]:
    return [question.partition(":")[0] for question in questions]


def test_nothing_is_open_for_a_complete_proposal(rules: Rules) -> None:
    assert open_questions(to_design(situation(), rules).diagnosis, lower_rate(), PASSED) == ()


def test_everything_is_open_at_the_start() -> None:
    six = ["bottleneck", "hypothesis", "isolated", "backtested", "success criterion", "rollback"]
    assert asked(open_questions(None, None, None)) == six


@pytest.mark.parametrize(
    ("update", "question"),
    [
        ({"hypothesis": " "}, "hypothesis"),
        ({"success": ""}, "success criterion"),
        ({"prediction": Prediction(metric="validation/mean", direction="up", min_effect=0.0)}, "success criterion"),
        ({"prediction": Prediction(metric="", direction="up", min_effect=0.1)}, "success criterion"),
        ({"rollback": ""}, "rollback"),
    ],
)
def test_a_gap_in_the_intervention_is_named(update: dict[str, object], question: str, rules: Rules) -> None:
    idea = lower_rate().model_copy(update=update)
    assert asked(open_questions(to_design(situation(), rules).diagnosis, idea, PASSED)) == [question]


def test_gaps_in_diagnosis_and_backtest_are_named(rules: Rules) -> None:
    diagnosis = to_design(situation(), rules).diagnosis
    assert asked(open_questions(diagnosis.model_copy(update={"bottleneck": ""}), lower_rate(), PASSED)) == [
        "bottleneck"
    ]
    assert asked(open_questions(diagnosis.model_copy(update={"hypothesis": ""}), lower_rate(), PASSED)) == [
        "hypothesis"
    ]
    assert asked(open_questions(diagnosis, lower_rate(), SPREAD)) == ["isolated", "backtested"]
    assert asked(open_questions(diagnosis, lower_rate(), None)) == ["isolated", "backtested"]
