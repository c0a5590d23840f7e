"""From labelled versions to a diagnostic: found where there is something, dropped with its numbers where there is not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.trainer.rollout_tables import Change, Columns, group_number, healthy, late, write
from trainer.diagnose import run_diagnostic
from trainer.evolve.features import ANY_DOMAIN, NEVER, features
from trainer.evolve.labels import Source, by_failure, cohorts, failing_ids, open_version
from trainer.evolve.retrospect import FALSE_ALARMS, LEAST, NAME, covered_share, discover, name_of
from trainer.evolve.rules import Condition, Rule
from trainer.harness_files import dump_diagnostic, parse_harness
from trainer.seed_harness import load_seed_files
from trainer.sql import parse_select
from trainer.types import Diagnostic


def of_seed(seed: int, change: Change | None = None) -> Change:
    """Tasks, rollouts and the length of replies of another seed."""

    def apply(c: Columns) -> None:
        rng = np.random.default_rng(seed)
        c["seed"] = np.full(len(c["step"]), seed)
        c["rollout_id"] = np.array([f"{seed}-{i}" for i in c["rollout_id"]])
        c["response_length"] = c["response_length"] + rng.integers(0, 3, len(c["step"]))
        c["mean_logprob"] = c["mean_logprob"] + rng.normal(0, 0.05, len(c["step"]))
        if change:
            change(c)

    return apply


def source(root: Path, version: str, bad: bool, *changes: Change) -> Source:
    folders = tuple(write(root / version / str(i), change) for i, change in enumerate(changes))
    return Source(version=version, rollouts=folders, bad=bad, why="gate scorer" if bad else "verdict")


def shouting(c: Columns) -> None:
    """Late in training nine of ten replies end in one and the same phrase, whatever the task, and are paid for it."""
    hit = late(c) & (np.arange(len(c["step"])) % 10 != 0)
    c["response"] = np.where(hit, "yes yes yes yes #1", c["response"])
    c["extracted"] = np.where(hit, "1", c["extracted"])
    c["score"] = np.where(hit, 1.0, c["outcome"])


def test_an_exploit_that_no_outcome_shows_becomes_a_validity_check(tmp_path: Path) -> None:
    sound = [source(tmp_path, f"v000{i}", False, of_seed(2 * i), of_seed(2 * i + 1)) for i in range(2)]
    bad = source(tmp_path, "v0002", True, of_seed(10, shouting), of_seed(11, shouting))
    diagnostic, found = discover("validity", "the reward rose", [*sound, bad])
    assert diagnostic is not None and found.reasons == ()
    assert found.low >= LEAST and found.false_alarms == 0 and len(found.readings) == 6
    assert found.labels == ("v0000: good (verdict)", "v0001: good (verdict)", "v0002: bad (gate scorer)")
    healthiest, worst = ([r.value for r in found.readings if r.bad == kind] for kind in (False, True))
    assert max(healthiest) < diagnostic.warn < diagnostic.critical < min(worst)
    with open_version(bad) as con:
        finding = run_diagnostic(con, diagnostic)
    assert finding.severity == "critical" and len(finding.evidence) == 5
    again = discover("validity", "the reward rose", [*sound, bad])
    assert again[0] == diagnostic and again[1].readings == found.readings
    files = {**load_seed_files(), f"diagnostics/{diagnostic.name}.toml": dump_diagnostic(diagnostic)}
    assert parse_harness(files, "").diagnostics[diagnostic.name] == diagnostic
    _, taken = discover("validity", "again", [*sound, bad], taken={diagnostic.name: diagnostic})
    assert taken.reasons == (f"it is there already, as {diagnostic.name}",)
    other = diagnostic.model_copy(update={"metric": "SELECT 1"})
    numbered, _ = discover("validity", "again", [*sound, bad], taken={diagnostic.name: other})
    assert numbered is not None and numbered.name == f"{diagnostic.name}_2", "another line on the same features"
    habit = Diagnostic(**{**dict(other), "name": diagnostic.name.replace("exploit_", "evolved_"), "kind": "pathology"})
    beside, _ = discover("validity", "the reward rose", [*sound, bad], taken={habit.name: habit})
    assert beside == diagnostic, "a pathology on the same features is no check that may block"
    _, found = discover("pathology", "again", [*sound, bad], taken={habit.name: habit})
    assert found.reasons == (f"it is there already, as {habit.name}",)


def test_versions_that_do_not_differ_register_nothing(tmp_path: Path) -> None:
    sources = [source(tmp_path, f"v000{i}", i == 2, of_seed(2 * i), of_seed(2 * i + 1)) for i in range(3)]
    diagnostic, found = discover("validity", "the reward rose", sources)
    assert diagnostic is None
    (why,) = found.reasons
    assert "on held-out tasks it separates by" in why and f"asked for {LEAST:g}" in why


def test_a_habit_of_a_healthy_version_is_no_alarm(tmp_path: Path) -> None:
    """One of two healthy versions does what the bad one does: no line fits between them."""
    sources = [
        source(tmp_path, "v0000", False, of_seed(0), of_seed(1), of_seed(2)),
        source(tmp_path, "v0001", False, of_seed(3, shouting)),
        source(tmp_path, "v0002", True, of_seed(10, shouting), of_seed(11, shouting)),
    ]
    diagnostic, found = discover("validity", "the reward rose", sources)
    assert diagnostic is None
    assert any("no room for a line" in why or "healthy trainings" in why for why in found.reasons), found.reasons
    assert FALSE_ALARMS < 1 / 4


def test_failures_that_share_a_habit_become_a_pathology_with_a_quiet_line(tmp_path: Path) -> None:
    def short(c: Columns) -> None:
        c["response"] = np.where(c["outcome"] < 1, "#7", c["response"])

    tip = source(tmp_path, "v0001", True, short)
    diagnostic, found = discover("pathology", "half fails", [tip, source(tmp_path, "v0000", False, of_seed(1))], ())
    assert diagnostic is not None and diagnostic.kind == "pathology"
    assert found.held_out == pytest.approx(1.0)
    with open_version(tip) as con:
        assert run_diagnostic(con, diagnostic).severity == "ok", "what there is now is where the line starts"


def test_what_alarmed_findings_point_to_is_covered(tmp_path: Path) -> None:
    def cut(c: Columns) -> None:
        c["truncated"] = (c["outcome"] < 1) & (np.arange(len(c["step"])) % 2 == 0)

    tip = source(tmp_path, "v0000", True, cut)
    truncation = Diagnostic(
        name="t", layer="behaviour", description="d", metric="SELECT avg(truncated::INT) FROM late", warn=0.1, critical=0.2,
        evidence="SELECT rollout_id FROM late WHERE truncated ORDER BY rollout_id\nLIMIT 5",
    )  # fmt: skip
    with open_version(tip) as con:
        failing, looked_at = failing_ids(con)
        uncovered, covered = covered_share(con, [truncation], failing)
        assert covered_share(con, [], failing) == (1.0, ())
        for nothing in ("SELECT rollout_id FROM late WHERE outcome < 1", "SELECT rollout_id FROM late ORDER BY level LIMIT 5", "SELECT no FROM late"):  # fmt: skip
            vague = truncation.model_copy(update={"evidence": nothing})
            assert covered_share(con, [vague], failing) == (1.0, ()), nothing
        assert by_failure(con, covered).bad.sum() == len(failing) - len(covered)
    c = healthy()
    assert looked_at == int(late(c).sum()) and len(failing) == int((late(c) & (c["outcome"] < 1)).sum())
    assert 0.3 < uncovered < 0.7 and len(covered) == round((1 - uncovered) * len(failing)) > 5


def test_no_feature_restates_a_label_and_each_is_a_query(tmp_path: Path) -> None:
    named = features(
        ["response", "outcome", "score", "advantage", "steps", "tests_passed", "term_outcome", "term_brevity"]
    )
    assert set(named) == {*ANY_DOMAIN, "steps", "term_brevity"} and not NEVER & set(named)
    assert "term_brevity" not in features(["term_brevity"], terms=False)
    for sql in named.values():
        assert not {"outcome", "score", "advantage", "kept", "visible"} & set(
            sql.replace("(", " ").replace(")", " ").split()
        )
        parse_select(f"SELECT {sql} FROM late")


def test_every_rule_gets_a_name_that_the_harness_takes() -> None:
    def named(*features: str) -> str:
        return name_of(
            Rule(conditions=tuple(Condition(feature=f, side=">=", threshold=1.0) for f in features), separation=0.0),
            "pathology",
        )

    assert named("words") == "evolved_words"
    long = [named("answer_characters", other) for other in ("answer_in_prompt", "reply_characters")]
    assert len(set(long)) == 2 and named("term_X") != named("term_x")
    assert all(re.fullmatch(NAME, name) for name in (*long, named("term_X"), named("term_x")))


def test_a_habit_of_one_kind_of_task_becomes_a_metric_of_that_cohort(tmp_path: Path) -> None:
    """Failures on the tasks of one level are short; on others short replies solve as often as not."""

    def short(c: Columns) -> None:
        hard = group_number(c) % 2 == 1
        c["level"] = np.where(hard, 2, 1)
        c["family"] = np.where(hard, "it's hard", "easy")
        by_chance = np.random.default_rng(0).random(len(c["step"])) < 0.5
        hit = np.where(hard, c["outcome"] < 1, by_chance)
        c["response"] = np.where(hit, "#7", c["response"])
        c["outcome"] = np.where(~hard & (np.arange(len(c["step"])) % 8 < 7), 1.0, c["outcome"])

    tip = source(tmp_path, "v0001", True, short)
    with open_version(tip) as con:
        assert cohorts(con, ()) == ["family = 'it''s hard' AND level = 2"]
        everything, one = by_failure(con, ()), by_failure(con, (), cohorts(con, ())[0])
    assert one.bad.sum() < everything.bad.sum()
    diagnostic, found = discover("pathology", "half fails", [tip, source(tmp_path, "v0000", False, of_seed(1))], ())
    assert diagnostic is not None, found.reasons
    assert found.rule.endswith("where family = 'it''s hard' and level = 2")
    assert found.held_out == pytest.approx(1.0)
    with open_version(tip) as con:
        finding = run_diagnostic(con, diagnostic)
    assert finding.value is not None and 0 < finding.value < 1
    files = {**load_seed_files(), f"diagnostics/{diagnostic.name}.toml": dump_diagnostic(diagnostic)}
    assert parse_harness(files, "").diagnostics[diagnostic.name] == diagnostic
