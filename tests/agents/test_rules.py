"""The playbook's tables: what is shipped is sound, what is damaged is named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from agents.candidates import Candidate, from_idea
from agents.edits import OPTIONS, apply_change
from agents.facts import gather
from agents.proxies import PROXIES
from agents.rules import DEFAULT, Rules, load_rules
from tests.agents.situations import TERMS, finding, situation, to_design
from trainer.types import ActorRecipe, DataRecipe, FilterGroups, Hints, InputError, OptimRecipe, Recipe, RewardRecipe
from trainer.types import AlgorithmRecipe as Algorithm

SEED_HARNESS = Path(__file__).parents[2] / "trainer" / "seed_harness"
# Between them these start points meet every precondition of the shipped ideas.
RECIPES = (
    Recipe(),
    Recipe(optim=OptimRecipe(lr=2e-3), actor=ActorRecipe(ppo_epochs=2, use_kl_loss=False)),
    Recipe(algorithm=Algorithm(filter_groups=FilterGroups(enable=True, metric="score"), adv_estimator="rloo")),
    Recipe(reward=RewardRecipe(weights={"outcome": 0.0, "format": 1.0, "brevity": 0.5})),
    Recipe(reward=RewardRecipe(tests="visible")),
    Recipe(actor=ActorRecipe(loss_agg_mode="seq-mean-token-mean"), data=DataRecipe(levels=(2,))),
    Recipe(data=DataRecipe(hints=Hints(enable=True))),
)


def test_every_seed_diagnostic_is_a_bottleneck(rules: Rules) -> None:
    names = {file.stem for file in SEED_HARNESS.rglob("diagnostics/*.toml")}
    assert len(names) >= 24
    assert names <= set(rules.bottlenecks)


def test_every_prediction_names_a_metric_that_a_health_report_has(rules: Rules) -> None:
    """A score (see graph.versions.named_scores) or a seed diagnostic; what replays stand for is one too."""
    known = {file.stem for file in SEED_HARNESS.rglob("diagnostics/*.toml")}
    known |= {"validation/mean", "gate/mean"}
    predictions = [b.predict for b in rules.bottlenecks.values()]
    predictions += [idea.predict for idea in rules.ideas.values() if idea.predict]
    assert {p.metric for p in predictions} | set(PROXIES) <= known
    assert all(p.min_effect > 0 for p in predictions)


def test_headroom_has_many_different_ideas(rules: Rules) -> None:
    factors = {rules.ideas[name].factor for name in rules.bottlenecks["headroom"].ideas}
    assert len(factors) >= 8


def test_every_idea_is_used_and_says_why(rules: Rules) -> None:
    used = {name for bottleneck in rules.bottlenecks.values() for name in bottleneck.ideas}
    assert used == set(rules.ideas)
    assert all(idea.because.endswith(".") and idea.source for idea in rules.ideas.values())


def test_every_idea_yields_a_valid_change_somewhere(rules: Rules) -> None:
    """Each idea's factor is a factor of the recipe, and the values it computes validate."""
    seen: set[str] = set()
    for recipe in RECIPES:
        inp = to_design(situation(recipe=recipe), rules)
        facts = gather("math", recipe, [finding("reward/format")], inp.diagnosis.scores, terms=TERMS)
        for name, idea in rules.ideas.items():
            for item in from_idea(name, idea, "headroom", rules.bottlenecks["headroom"], 0.0, inp, facts, 1.0):
                if isinstance(item, Candidate):
                    seen.add(name)
                    factor = item.edit.factor
                    assert factor in OPTIONS or factor.startswith("reward.")
                    assert apply_change(recipe, item.edit.change) != recipe
                    assert "{" not in item.title and len(item.title) <= 72 and item.title[0].islower()
    assert seen == set(rules.ideas)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("schema_version = 1", "schema_version = 2", "schema_version"),
        ('factor = "optim.lr"', 'factor = "optim.rate"', "optim.rate is not a factor of the recipe"),
        ("values = [0.15]", "values = []", "ideas.cut-lr.values"),
        ('values = [true]\nbecause = "Groups whose', 'values = ["maybe"]\nbecause = "Groups whose', "dynamic-sampling"),
        ('["optim.lr", ">", 6e-4]', '["optim.lr", "~", 6e-4]', "when"),
        ('["optim.lr", ">", 6e-4]', '["optim.lr", ">"]', "[name, op, value]"),
        ('["optim.lr", ">", 6e-4]', '["optim.rate", ">", 6e-4]', "unknown fact 'optim.rate'"),
        ('next = ["cut-lr-further"]', 'next = ["no-such-idea"]', "'no-such-idea', which is not defined"),
        (
            'explains = ["format_failures"]\nstatement = "{findings.trunc',
            'explains = ["length_inflation"]\nstatement = "{findings.trunc',
            "circle",
        ),
        ("the learning rate to {value}", "the learning rate to {x}", "unknown placeholder {x}"),
        (":.0%} of groups fail", ":.0q} of groups fail", "bad format"),
        ('how = "add"\nvalues = [0.2, 0.4]', 'how = "add"\nvalues = [true]', "needs numbers"),
        ('name = "overlong"', 'name = "other"', "reward.term.other"),
        ('title = "warm', 'titel = "warm', "titel"),
        ("[ranking]", "[ranking", "not TOML"),
    ],
)
def test_a_damaged_playbook_is_one_line_with_file_and_field(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = DEFAULT.read_text(encoding="utf-8")
    assert old in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_rules(file)
    message = str(caught.value)
    assert says in message and str(file) in message and "\n" not in message


def test_a_missing_playbook_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_rules(tmp_path / "none.toml")


def test_the_playbook_is_plain_toml_that_round_trips() -> None:
    assert Rules.model_validate(tomllib.loads(DEFAULT.read_text(encoding="utf-8"))) == load_rules()
