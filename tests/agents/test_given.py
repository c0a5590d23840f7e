"""Given candidates come in their order, once each, screened or not."""

from __future__ import annotations

import pytest

from agents.edits import apply_change, value_text
from agents.given import GivenCandidates, parse_given
from agents.playbook import Playbook, load_rules
from agents.types import BacktestInput, Case, DesignInput
from tests.agents.test_null import ask
from trainer.types import PutTerm, Recipe, SetOption, SetWeight

TERM = 'reward.term.short={term={name="short", description="short", sql="-response_length"}, weight=2}'


def given(*texts: str, screen: bool = True) -> GivenCandidates:
    return GivenCandidates(Playbook(load_rules()), changes=[parse_given(t) for t in texts], screen=screen)


def case_of(factor: str, value: str) -> Case:
    return Case(signature="s", domain="math", bottleneck="b", factor=factor, value=value, verdict="rejected")


def test_texts_become_changes() -> None:
    assert parse_given("optim.lr = 3e-4") == SetOption(path="optim.lr", value=3e-4)
    assert parse_given("reward.tests=visible") == SetOption(path="reward.tests", value="visible")
    assert parse_given("data.levels=[1, 2]") == SetOption(path="data.levels", value=(1, 2))
    assert parse_given("reward.weights.format=1") == SetWeight(term="format", value=1)
    term = parse_given(TERM)
    assert isinstance(term, PutTerm)
    assert (term.term.sql, term.weight) == ("-response_length", 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("optim.lr", "is not FACTOR=VALUE"),
        ("optim.rate=1", "is not a factor"),
        ("optim.lr=high", "number"),
        ("reward.term.short=2", "does not take"),
    ],
)
def test_what_is_no_change_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_given(text)


def test_each_is_designed_once_in_order_and_what_changes_nothing_is_dropped() -> None:
    specialists = given(f"optim.lr={Recipe().optim.lr}", "optim.lr=1e-4", "rollout.n=16")
    first = specialists.design(ask(Recipe()))
    assert first is not None
    assert (first.edit.factor, apply_change(Recipe(), first.edit.change).optim.lr) == ("optim.lr", 1e-4)
    assert [d.reason for d in first.dropped] == ["changes nothing"]
    tried: tuple[Case, ...] = (case_of("optim.lr", value_text(first.edit.change)),)
    second = specialists.design(with_cases(tried))
    assert second is not None
    assert second.edit.factor == "rollout.n"
    tried += (case_of("rollout.n", value_text(second.edit.change)),)
    assert specialists.design(with_cases(tried)) is None


def test_an_impossible_change_is_dropped_with_its_reason() -> None:
    used = Recipe.model_validate({"algorithm": {"filter_groups": {"enable": True}}})
    specialists = given("algorithm.variance_filter.enable=true", "optim.lr=1e-4")
    idea = specialists.design(ask(used))
    assert idea is not None
    assert idea.edit.factor == "optim.lr"
    assert "both choose groups" in idea.dropped[0].reason


def test_what_could_not_be_committed_is_refused_though_nothing_is_screened() -> None:
    specialists = given("optim.lr=1e-4", screen=False)
    idea = specialists.design(ask(Recipe()))
    assert idea is not None
    inp = BacktestInput(
        domain="math",
        intervention=idea,
        signature="s",
        actual_factors=("optim.lr",),
        paths=(),
        config_error="",
        replay=None,
    )
    assert specialists.backtest(inp).verdict == "pass"
    refused = specialists.backtest(inp.model_copy(update={"actual_factors": (), "config_error": "no such term"}))
    assert (refused.verdict, refused.reasons) == ("refuse", ("no such term",))


def with_cases(cases: tuple[Case, ...]) -> DesignInput:
    return ask(Recipe()).model_copy(update={"cases": cases})
