from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.facts import Condition, Facts, fill, gather, parse_condition, show, unmet
from tests.agents.situations import finding
from trainer.types import ActorRecipe, DataRecipe, Recipe, RewardRecipe


def test_gather_names_what_conditions_speak_of() -> None:
    recipe = Recipe(
        actor=ActorRecipe(ppo_epochs=2, ppo_mini_batch_size=12),
        data=DataRecipe(train_batch_size=32),
        reward=RewardRecipe(weights={"outcome": 1.0, "format": 0.2, "brevity": 0.0}),
    )
    found = (finding("dead_groups", "warn", 0.4), finding("broken", "info", None), finding("x", "critical", 1.0))
    facts = gather(
        "math",
        recipe,
        found,
        {"validation/mean": 0.5, "validation/pass@8": 0.9},
        terms=("overlong",),
        parent_scores={"validation/mean": 0.4, "gone": 1.0},
        trends={"actor/entropy": (1.0, 1.5, 0.5), "empty": ()},
    )
    expected = {
        "domain": "math", "optim.lr": 3e-4, "reward.weights.format": 0.2, "reward.weights.overlong": 0.0,
        "updates_per_batch": 6, "shaping_terms": 1, "findings.dead_groups": 0.4, "severity.dead_groups": 2,
        "severity.broken": 1, "count.warn": 2, "count.critical": 1, "trends.actor/entropy.rise": -0.5,
        "trends.actor/entropy.fall": 1.0,
    }  # fmt: skip
    assert {name: facts.get(name) for name in expected} == expected
    assert facts["scores.gap"] == pytest.approx(0.4)
    assert facts["delta.validation/mean"] == pytest.approx(0.1)
    assert "findings.broken" not in facts and "delta.gone" not in facts and "trends.empty.first" not in facts


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (("lr", ">", 1), True),
        (("lr", ">", 2), False),
        (("lr", ">=", 2), True),
        (("lr", "in", (2, 3)), True),
        (("lr", "not in", (2, 3)), False),
        (("word", "==", "grpo"), True),
        (("word", "<", 3), False),
        (("unknown", "!=", 3), False),
        (("severity.unknown", "<", 2), True),
        (("severity.unknown", ">=", 2), False),
    ],
)
def test_conditions(condition: tuple[str, str, object], holds: bool) -> None:
    left, op, right = condition
    parsed = Condition.model_validate({"left": left, "op": op, "right": right})
    facts: Facts = {"lr": 2, "word": "grpo"}
    assert parsed.holds(facts) is holds
    assert (unmet([parsed], facts) == "") is holds


@given(
    st.sampled_from(["optim.lr", "severity.x", "scores.validation/mean"]),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"]),
    st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
)
def test_a_condition_reads_back_from_its_text(left: str, op: str, right: object) -> None:
    condition = Condition.model_validate({"left": left, "op": op, "right": right})
    assert parse_condition(str(condition)) == condition


@pytest.mark.parametrize("text", ["", "only after a long warm start", "lr > ", "lr > nonsense", "lr ~ 3"])
def test_free_text_is_no_condition(text: str) -> None:
    assert parse_condition(text) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3e-4, "3e-4"), (1.5e-4, "1.5e-4"), (0.01, "0.01"), (0.28, "0.28"), (0.0, "0"), (True, "on"), (False, "off"),
        (16, "16"), ((1, 2), "1+2"), ((), "all"), ("rloo", "rloo"),
    ],
)  # fmt: skip
def test_show(value: object, words: str) -> None:
    assert show(value) == words


def test_fill_formats_numbers_and_admits_what_it_does_not_know() -> None:
    facts: Facts = {"findings.x": 0.625, "optim.lr": 2e-3, "word": "grpo"}
    assert fill("{findings.x:.0%} at {optim.lr}, {word:.2f}, {none:.2f}", facts) == "62% at 2e-3, grpo, unknown"
