"""Options of the recipe that depend on each other, and what a harness may not take from them."""

from __future__ import annotations

import pytest

from trainer.harness_files import apply_edit, parse_harness, set_options
from trainer.seed_harness import load_seed_files
from trainer.types import HarnessEdit, InputError, SetOption, flatten

SEED = load_seed_files("math")


def test_options_that_are_possible_together_only_are_set_together() -> None:
    options = {"actor.imitation.on": "hinted", "actor.imitation.coef": 0.1, "data.hints.enable": True}
    recipe = parse_harness(set_options(SEED, options), "").recipe
    assert (recipe.actor.imitation.on, recipe.data.hints.enable) == ("hinted", True)
    del options["data.hints.enable"]
    with pytest.raises(InputError, match=r"^recipe\.toml: actor\.imitation\.on .* data\.hints\.enable is false$"):
        set_options(SEED, options)


def test_a_reward_file_may_not_take_the_name_of_an_option() -> None:
    term = SEED["reward/brevity.toml"].replace("brevity", "diversity")
    with pytest.raises(InputError, match=r"reward/diversity\.toml: the name diversity stands for an option"):
        parse_harness({**SEED, "reward/diversity.toml": term}, "")


@pytest.mark.parametrize("path", ["seed", "data.seed", "trainer.seed", "rollout.seed", "evaluation.sampling_seed"])
def test_a_seed_is_no_factor(path: str) -> None:
    """Seeds belong to the run: no edit of a harness can choose one, so a change of seed can never look like progress."""
    assert not [name for name in flatten(parse_harness(SEED, "").recipe.model_dump()) if "seed" in name]
    with pytest.raises(InputError, match=path.rpartition(".")[2]):
        apply_edit(SEED, HarnessEdit(change=SetOption(path=path, value=7)))
