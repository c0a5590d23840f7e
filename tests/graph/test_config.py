"""The configuration: layers, precedence, and one clear line for each kind of mistake."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.config import dump, parse_value, read_file, resolve
from trainer.types import InputError


def line(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_precedence_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[run]\nseed = 1\nminutes = 2.0\nversions = 3\n[trainer]\ntoken_budget = 77\n")
    environ = {"EVOTRAINER_SEED": "11", "EVOTRAINER_RUN__MINUTES": "12", "OTHER": "x"}
    resolved = resolve(file, environ, {"run.seed": 21}, {})
    config = resolved.config
    assert (config.run.seed, config.run.minutes, config.run.versions) == (21, 12.0, 3)
    assert config.trainer.token_budget == 77
    assert resolved.origins["run.seed"] == "--seed"
    assert resolved.origins["run.minutes"] == "EVOTRAINER_RUN__MINUTES"
    assert resolved.origins["run.versions"] == str(file)
    assert resolved.origins["run.domain"] == "default"


def test_set_reaches_the_recipe_and_is_reported_as_chosen() -> None:
    resolved = resolve(None, {}, {}, {"recipe.optim.lr": "2e-3", "recipe.reward.weights.format": "0.5"})
    assert resolved.config.recipe.optim.lr == 2e-3
    assert resolved.chosen("recipe") == {"optim.lr": 2e-3, "reward.weights.format": 0.5}


@pytest.mark.parametrize(
    ("sets", "environ", "words"),
    [
        ({"recipe.optim.learning_rate": "1"}, {}, ["--set", "recipe.optim.learning_rate"]),
        ({"recipe.optim.lrr": "1"}, {}, ["--set", "recipe.optim.lrr", "did you mean 'recipe.optim.lr'"]),
        ({"run.minuts": "3"}, {}, ["did you mean 'run.minutes'"]),
        ({}, {"EVOTRAINER_VERSION": "3"}, ["EVOTRAINER_VERSION", "did you mean 'run.versions'"]),
        ({"run.minutes": "soon"}, {}, ["--set", "run.minutes"]),
        ({"recipe.rollout.n": "1"}, {}, ["--set", "recipe.rollout.n", "2"]),
        ({"recipe.actor.loss_agg_mode": "mean"}, {}, ["recipe.actor.loss_agg_mode", "token-mean"]),
        ({"run.versions": "2.5"}, {}, ["run.versions"]),
    ],
)
def test_mistakes_get_one_line_with_source_key_and_remedy(
    sets: dict[str, str], environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        resolve(None, environ, {}, sets)
    text = line(error)
    assert all(word in text for word in words), text


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[run\nseed=1")
    for path in (bad, tmp_path / "none.toml", tmp_path):
        with pytest.raises(InputError) as error:
            resolve(path, {}, {}, {})
        assert str(path) in line(error)


def test_a_dumped_configuration_reads_back_equal(tmp_path: Path) -> None:
    resolved = resolve(None, {}, {"run.seed": 5}, {"recipe.optim.lr": "2e-3", "recipe.data.levels": "[1, 2]"})
    file = tmp_path / "config.toml"
    file.write_text(dump(resolved))
    assert resolve(file, {}, {}, {}).config == resolved.config
    assert "seed = 5  # --seed" in file.read_text()
    assert "lr = 0.002  # --set" in file.read_text()


def test_every_shipped_configuration_resolves() -> None:
    for path in sorted(Path("graph/configs").glob("*.toml")):
        resolve(path, {}, {}, {})
        assert read_file(path)


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_values_of_set_are_toml(value: float) -> None:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    assert parse_value(text) == value


@given(
    st.text(alphabet=st.characters(categories=["L"]), min_size=1).filter(
        lambda t: t not in ("true", "false", "inf", "nan")
    )
)
def test_words_of_set_need_no_quotes(text: str) -> None:
    assert parse_value(text) == text
