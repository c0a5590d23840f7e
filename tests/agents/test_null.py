"""A null candidate changes one option and nothing that the trainer does."""

from __future__ import annotations

from agents.edits import apply_change
from agents.null import IDLE, NullCandidates
from agents.playbook import Playbook
from agents.types import DesignInput, Diagnosis
from trainer.types import Recipe


def ask(recipe: Recipe) -> DesignInput:
    diagnosis = Diagnosis(
        version="v0000", bottleneck="headroom", layer="score", severity="ok", findings=(), hypothesis="h", signature="s"
    )
    return DesignInput(domain="math", diagnosis=diagnosis, recipe=recipe, terms=("outcome",))


def test_the_option_is_idle_and_the_next_one_differs() -> None:
    recipe = Recipe()
    for _ in range(3):
        idea = NullCandidates(Playbook()).design(ask(recipe))
        assert idea is not None
        after = apply_change(recipe, idea.edit.change)
        assert after != recipe
        assert not after.algorithm.filter_groups.enable
        recipe = after


def test_an_option_in_use_is_left_alone() -> None:
    used = Recipe.model_validate({"algorithm": {"filter_groups": {"enable": True}}})
    idea = NullCandidates(Playbook()).design(ask(used))
    assert idea is not None
    assert idea.edit.factor == "algorithm.kl_ctrl.horizon"
    everything = {"filter_groups": {"enable": True}, "use_kl_in_reward": True}
    assert NullCandidates(Playbook()).design(ask(Recipe.model_validate({"algorithm": everything}))) is None
    assert len(IDLE) == 2
