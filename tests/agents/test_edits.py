from __future__ import annotations

import pytest

from agents.edits import apply_change, is_noop, make_change, normalise, rollback, value_text
from trainer.types import (
    Diagnostic,
    HarnessEdit,
    PutDiagnostic,
    PutTerm,
    Recipe,
    RewardRecipe,
    RewardTerm,
    SetOption,
    SetWeight,
)

TERM = RewardTerm(name="brief", description="d", sql="1")


@pytest.mark.parametrize(
    ("factor", "value", "change"),
    [
        ("optim.lr", 1e-4, SetOption(path="optim.lr", value=1e-4)),
        ("data.levels", [0, 1], SetOption(path="data.levels", value=(0, 1))),
        ("actor.use_kl_loss", False, SetOption(path="actor.use_kl_loss", value=False)),
        ("reward.weights.brief", 0.5, SetWeight(term="brief", value=0.5)),
        ("reward.term.brief", {"term": TERM, "weight": 0.5}, PutTerm(term=TERM, weight=0.5)),
    ],
)
def test_make_and_spell(factor: str, value: object, change: object) -> None:
    made = make_change(factor, value)
    assert made == change and HarnessEdit(change=made).factor == factor


@pytest.mark.parametrize(
    ("factor", "value"),
    [("optim.rate", 1), ("optim", 1), ("seed", 1), ("reward.weights.x", "much"), ("reward.term.x", {}), ("optim.lr", None),
     ("reward.weights", 1), ("reward.term.x", "sql")],
)  # fmt: skip
def test_what_is_no_change_is_named(factor: str, value: object) -> None:
    with pytest.raises(ValueError, match=factor):
        make_change(factor, value)


@pytest.mark.parametrize(
    ("path", "value"), [("optim.lr", 0.0), ("rollout.n", 1), ("data.levels", "all"), ("actor.loss_agg_mode", "mean")]
)
def test_values_out_of_range_do_not_apply(path: str, value: float | str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        apply_change(Recipe(), SetOption(path=path, value=value))


def test_equal_values_are_spelled_equally() -> None:
    texts = {value_text(normalise(Recipe(), SetOption(path="rollout.temperature", value=v))) for v in (2, 2.0)}
    assert texts == {"2.0"}


def test_noop() -> None:
    recipe = Recipe(reward=RewardRecipe(weights={"outcome": 1.0}))
    assert is_noop(recipe, ("outcome",), SetOption(path="optim.lr", value=3e-4))
    assert is_noop(recipe, ("outcome", "brief"), SetWeight(term="brief", value=0.0))
    assert not is_noop(recipe, ("outcome", "brief"), SetWeight(term="brief", value=0.1))
    assert not is_noop(recipe, ("outcome",), PutTerm(term=TERM, weight=0.0))


def test_every_change_says_how_it_is_undone() -> None:
    diagnostic = Diagnostic(name="mine", layer="signal", description="d", metric="SELECT 1", warn=1, critical=2)
    changes = (
        (SetOption(path="optim.lr", value=1e-4), "back to 3e-4"),
        (SetWeight(term="outcome", value=0.5), "back to 1"),
        (PutTerm(term=TERM, weight=1.0), "remove reward/brief.toml"),
        (PutDiagnostic(diagnostic=diagnostic), "remove diagnostics/mine.toml"),
    )
    for change, words in changes:
        assert words in rollback(Recipe(), HarnessEdit(change=change))


def test_two_python_terms_of_one_name_are_two_values() -> None:
    def put(source: str) -> PutTerm:
        term = RewardTerm(name="style", description="Style.", python=source)
        return PutTerm(term=term, weight=0.1)

    one, two = (put(f"def reward(rows):\n    return [{value}.0 for _ in rows]\n") for value in (0, 1))
    assert value_text(one) != value_text(two)
