"""Every seed diagnostic fires on a sick training and stays quiet on a healthy one; every file parses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.diagnose import health_report
from trainer.harness_files import parse_harness
from trainer.reward import check_term, score_rollouts
from trainer.seed_harness import load_seed_files
from trainer.types import Diagnostic, Finding, Recipe

from .rollout_tables import Change, Columns, N, group_number, healthy, late, table, write

HARNESS = parse_harness(load_seed_files(), "seed")
HEALTHY_SCORES = {"validation/mean": 0.62, "gate/mean": 0.60}


def part_of_groups(c: Columns, tenths: int) -> Any:
    """Mask of the first ``tenths`` of the ten groups of every late step."""
    return late(c) & (group_number(c) % 10 < tenths)


def all_fail(c: Columns) -> None:
    c["outcome"][part_of_groups(c, 5)] = 0.0


def all_pass(c: Columns) -> None:
    c["outcome"][part_of_groups(c, 5)] = 1.0


def dead_groups(c: Columns) -> None:
    c["outcome"][part_of_groups(c, 6)] = 0.0
    c["outcome"][part_of_groups(c, 3)] = 1.0


def entropy_collapse(c: Columns) -> None:
    c["entropy"][late(c)] = 0.1
    c["mean_logprob"][late(c)] = -0.03
    c["outcome"][part_of_groups(c, 3)] = 0.0


def low_diversity(c: Columns) -> None:
    c["response"] = np.array([f"{g} by one way #{g}" for g in group_number(c)])


def flat_outcome(c: Columns) -> None:
    c["outcome"] = (np.arange(len(c["step"])) % N < 4).astype(float)


def length_inflation(c: Columns) -> None:
    flat_outcome(c)
    c["response_length"] = c["response_length"] + 3 * c["step"]


def length_reward_correlation(c: Columns) -> None:
    length_inflation(c)
    c["response_length"] = c["response_length"] + c["step"] * (c["outcome"] > 0)


def truncation(c: Columns) -> None:
    c["truncated"] = late(c) & (np.arange(len(c["step"])) % 4 == 0)


def format_failures(c: Columns) -> None:
    c["extracted"][late(c) & (np.arange(len(c["step"])) % N >= 4)] = None


def template_collapse(c: Columns) -> None:
    c["response"] = np.where(late(c) & (np.arange(len(c["step"])) % N >= 3), "the answer is #7", c["response"])


def reward_hacking(c: Columns) -> None:
    flat_outcome(c)
    c["score"] = c["outcome"] + 0.5 * (np.arange(len(c["step"])) % N < c["step"] / 2)


def reward_off_outcome(c: Columns) -> None:
    flat_outcome(c)
    c["score"] = c["outcome"] + 2.0 * (np.arange(len(c["step"])) % 3 == 0)


def over_filtering(c: Columns) -> None:
    c["kept"] = group_number(c) % 10 < 2


def filtered_drift(c: Columns) -> None:
    flat_outcome(c)
    c["kept"] = group_number(c) % 10 > 0


def dead_training(c: Columns) -> None:
    c["outcome"][c["step"] % 4 == 0] = 1.0


def performance_collapse(c: Columns) -> None:
    c["outcome"][late(c) & (np.arange(len(c["step"])) % N >= 1)] = 0.0


def repetition(c: Columns) -> None:
    c["repeats"] = np.where(late(c), 0.5, 0.0)


def reach_loss(c: Columns) -> None:
    c["outcome"][part_of_groups(c, 1)] = 0.0


def reward_offset(c: Columns) -> None:
    c["term_brevity"] = np.where(np.arange(len(c["step"])) % 12 > 0, 0.5, 0.0)


def nothing(_: Columns) -> None:
    pass


SICK: Mapping[str, Change] = {
    "dead_groups": dead_groups,
    "dead_groups_all_fail": all_fail,
    "dead_groups_all_pass": all_pass,
    "single_reward_value": all_pass,
    "entropy_collapse": entropy_collapse,
    "low_diversity": low_diversity,
    "length_inflation": length_inflation,
    "length_reward_correlation": length_reward_correlation,
    "truncation": truncation,
    "format_failures": format_failures,
    "template_collapse": template_collapse,
    "reward_hacking": reward_hacking,
    "reward_off_outcome": reward_off_outcome,
    "proxy_vs_gate": nothing,
    "over_filtering": over_filtering,
    "filtered_drift": filtered_drift,
    "dead_training": dead_training,
    "performance_collapse": performance_collapse,
    "repetition": repetition,
    "reach_loss": reach_loss,
    "reward_offset": reward_offset,
}
WEIGHTS = {"outcome": 1.0, "brevity": 0.1}


def test_a_reward_of_one_value_is_off_the_outcome_and_a_shaped_one_that_works_is_not(tmp_path: Path) -> None:
    def equal(c: Columns) -> None:
        flat_outcome(c)
        c["score"] = np.ones(len(c["step"]))

    def shaped(c: Columns) -> None:
        c["score"] = c["outcome"] + 2.0 * (np.arange(len(c["step"])) % 3 == 0)

    def solved(c: Columns) -> None:
        c["outcome"] = (np.arange(len(c["step"])) % 40 > 0).astype(float)
        c["score"] = c["outcome"] + 0.01 * (np.arange(len(c["step"])) % 3 == 0)

    diagnostic = {"reward_off_outcome": HARNESS.diagnostics["reward_off_outcome"]}
    for name, change, value in (
        ("equal", equal, 1.0),
        ("shaped", shaped, 0.0),
        ("solved", solved, 0.0),
        ("plain", flat_outcome, 0.0),
    ):
        found = findings([write(tmp_path / name, change)], diagnostic)["reward_off_outcome"]
        assert found.value == pytest.approx(value, abs=1e-9), name


def findings(
    directories: list[Path], diagnostics: Mapping[str, Diagnostic], scores: Mapping[str, float] = HEALTHY_SCORES
) -> dict[str, Finding]:
    log = directories[0].parent / "metrics-1.jsonl"
    log.write_text('{"step": 1, "data": {"actor/kl_to_base": 0.0}}\n{"step": 2, "data": {"actor/kl_to_base": 0.06}}\n')
    report = health_report("v1", directories, diagnostics, scores, [log], weights=WEIGHTS)
    return {f.diagnostic: f for f in report.findings}


def test_every_seed_diagnostic_has_a_sick_case() -> None:
    assert set(SICK) == set(HARNESS.diagnostics)


def test_all_are_quiet_on_a_healthy_training(tmp_path: Path) -> None:
    found = findings([write(tmp_path)], HARNESS.diagnostics)
    assert {name: (f.severity, f.error) for name, f in found.items()} == dict.fromkeys(HARNESS.diagnostics, ("ok", ""))


@pytest.mark.parametrize("name", sorted(SICK))
def test_each_fires_on_its_pathology(name: str, tmp_path: Path) -> None:
    scores = {"validation/mean": 0.62, "gate/mean": 0.40} if name == "proxy_vs_gate" else HEALTHY_SCORES
    found = findings([write(tmp_path, SICK[name])], {name: HARNESS.diagnostics[name]}, scores)[name]
    assert found.severity in ("warn", "critical"), found
    ids = set(healthy()["rollout_id"])
    assert set(found.evidence) <= ids and len(found.evidence) <= 5
    assert bool(found.evidence) == (name != "proxy_vs_gate")


def test_a_collapse_within_the_first_steps_is_seen(tmp_path: Path) -> None:
    def ruined(c: Columns) -> None:
        c["outcome"] = np.where(c["step"] == 0, c["outcome"], 0.0)

    name = "performance_collapse"
    assert findings([write(tmp_path, ruined)], {name: HARNESS.diagnostics[name]})[name].value == pytest.approx(0.5)


def test_growing_length_that_pays_off_is_no_inflation(tmp_path: Path) -> None:
    def grows(c: Columns) -> None:
        c["response_length"] = c["response_length"] + 3 * c["step"]

    found = findings([write(tmp_path, grows)], HARNESS.diagnostics)
    assert (found["length_inflation"].severity, found["length_reward_correlation"].severity) == ("ok", "ok")


def test_drift_counts_under_a_filter_and_without_a_gain_only(tmp_path: Path) -> None:
    sick = {"filtered_drift": HARNESS.diagnostics["filtered_drift"]}
    changes = {"both": filtered_drift, "a gain": over_filtering, "no filter": flat_outcome}
    values = {n: findings([write(tmp_path / n, change)], sick)["filtered_drift"].value for n, change in changes.items()}
    assert values == {"both": 0.06, "a gain": 0.0, "no filter": 0.0}


def test_a_gain_that_the_gate_scorer_does_not_share_is_seen(tmp_path: Path) -> None:
    diagnostics = {"proxy_vs_gate": HARNESS.diagnostics["proxy_vs_gate"]}
    parent = {"validation/mean": 0.45, "gate/mean": 0.61}
    for gate, severity in ((0.60, "warn"), (0.62, "ok")):
        scores = {"validation/mean": 0.62, "gate/mean": gate}
        report = health_report("v1", [write(tmp_path)], diagnostics, scores, [], parent_scores=parent)
        assert report.findings[0].severity == severity


@pytest.mark.parametrize(
    ("term", "collects", "severity"),
    [
        ("brevity", 1.0, "warn"),
        ("brevity", 0.9, "ok"),  # the line itself
        ("brevity", 0.0, "ok"),  # nobody collects it: no offset, and nothing to pay for
        ("format", 1.0, "ok"),  # looked at, not paid
        ("outcome", 1.0, "ok"),  # solving everything is the aim
    ],
)
def test_only_a_paid_term_that_nearly_all_collect_is_an_offset(
    term: str, collects: float, severity: str, tmp_path: Path
) -> None:
    def pays(c: Columns) -> None:
        c[f"term_{term}"] = (np.arange(len(c["step"])) % 10 < 10 * collects).astype(float)

    name = "reward_offset"
    assert findings([write(tmp_path, pays)], {name: HARNESS.diagnostics[name]})[name].severity == severity


def test_a_graded_term_is_no_offset(tmp_path: Path) -> None:
    def graded(c: Columns) -> None:
        c["term_brevity"] = 1 - c["response_length"] / 64  # everybody collects, and not the same

    found = findings([write(tmp_path, graded)], {"reward_offset": HARNESS.diagnostics["reward_offset"]})
    assert found["reward_offset"].value == 3 / 8  # eight members have three lengths


@pytest.mark.parametrize(("alike", "lost"), [(0, 0.0), (4, 0.5 / 0.9), (8, 1.0)])
def test_replies_that_are_alike_tell_nothing_about_their_task(alike: int, lost: float, tmp_path: Path) -> None:
    """Of eight replies to each of ten tasks ``alike`` are the same everywhere: those are never matched, the rest always."""

    def some(c: Columns) -> None:
        c["response"] = np.where(np.arange(len(c["step"])) % N < alike, "the answer is #7", c["response"])

    found = findings([write(tmp_path, some)], {"template_collapse": HARNESS.diagnostics["template_collapse"]})
    assert found["template_collapse"].value == pytest.approx(lost)


def test_a_training_of_one_step_breaks_no_diagnostic(tmp_path: Path) -> None:
    directory = write(tmp_path)
    for file in sorted(directory.iterdir())[1:]:
        file.unlink()
    found = findings([directory], HARNESS.diagnostics)
    assert {f.error for f in found.values()} <= {"", "no value for these rollouts"}


def test_recipe_states_every_option_and_departs_from_the_records_defaults_in_two() -> None:
    own = {"optim.lr": 5e-4, "actor.use_kl_loss": False}
    defaults = Recipe().options()
    assert HARNESS.recipe.options() == {**defaults, **own}
    text = load_seed_files()["recipe.toml"]
    options = re.findall(r"^(\w+) =", text, flags=re.MULTILINE)
    assert len(options) == len(defaults)


def test_only_the_outcome_is_paid_and_every_term_can_be(tmp_path: Path) -> None:
    assert dict(HARNESS.recipe.reward.weights) == {"outcome": 1.0}
    for term in HARNESS.terms.values():
        check_term(term, ["format_ok"])
    c = healthy()
    c["response_length"][:4] = [0, 51, 58, 64]
    values, score = score_rollouts(table(c), HARNESS.terms, HARNESS.recipe.reward.weights)
    np.testing.assert_array_equal(score, c["outcome"])
    # DAPO eq. 13 with L_max 64 and L_cache 12.8: 0 up to 51.2, then (51.2 − length) / 12.8
    np.testing.assert_allclose(values["overlong"][:4], [0, 0, (51.2 - 58) / 12.8, -1])
    np.testing.assert_allclose(values["brevity"][:4], [1, 1 - 51 / 64, 1 - 58 / 64, 0])


def test_seed_files_are_the_whole_harness_and_every_part_says_why() -> None:
    files = load_seed_files()
    assert {"recipe.toml", "procedure.toml", "reward/outcome.toml", "diagnostics/dead_groups.toml"} <= set(files)
    texts = [(d.source, d.description) for d in HARNESS.diagnostics.values()]
    texts += [(t.source, t.description) for t in HARNESS.terms.values()]
    assert all(source and description.endswith(".") for source, description in texts)
