from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.types import Executor
from trainer.diagnose import health_report
from trainer.harness_files import apply_edit, parse_harness
from trainer.replay import _TOLD, UNTOLD, replay
from trainer.replay_scores import constant_offset, order_agreement
from trainer.seed_harness import load_seed_files
from trainer.types import (
    Harness,
    HarnessEdit,
    InputError,
    PutDiagnostic,
    PutTerm,
    Recipe,
    RewardTerm,
    SetOption,
    SetWeight,
)

from .rollout_tables import GROUPS, Columns, N, group_number, write

PARENT = parse_harness(load_seed_files(), "parent")


def edited(change: Any) -> Harness:
    return parse_harness(apply_edit(load_seed_files(), HarnessEdit(change=change)), "candidate")


def option(path: str, value: Any) -> Harness:
    return edited(SetOption(path=path, value=value))


def paid(sql: str, weight: float = 1.0) -> Harness:
    return edited(PutTerm(term=RewardTerm(name="added", description="An added term.", sql=sql), weight=weight))


def half_dead(c: Columns) -> None:
    """Five of ten groups fail as a whole; they are shorter than the others."""
    dead = group_number(c) % 10 < 5
    c["outcome"][dead] = 0.0
    c["response_length"] = np.where(dead, 10, 30)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [write(tmp_path_factory.mktemp("parent"), half_dead)]


def test_where_a_replay_cannot_tell_it_says_so_and_why(stored: list[Path]) -> None:
    assert replay(stored, PARENT, PARENT.model_copy(update={"commit": "x"})).note == "the harnesses are equal"
    for path, value, why in (
        ("optim.lr", 1e-3, "updates"),
        ("rollout.temperature", 0.7, "another temperature"),
        ("actor.entropy_coeff", 0.01, "no policy"),
        ("actor.kl_loss_coef", 0.01, "base policy"),
        ("actor.ppo_epochs", 4, "updates"),
        ("warm_start.worked", 0.8, "another policy"),
        ("data.levels", (2,), "no stored rollout is of level 2"),
    ):
        report = replay(stored, PARENT, option(path, value))
        assert (report.factor, report.applicable, report.metrics) == (path, False, {}) and why in report.note
    two = edited(SetOption(path="rollout.n", value=4))
    two = two.model_copy(
        update={"recipe": option("reward.diversity", True).recipe.model_copy(update={"rollout": two.recipe.rollout})}
    )
    assert "one at a time" in replay(stored, PARENT, two).note


def test_every_option_of_the_recipe_is_replayed_or_has_a_reason_not_to_be() -> None:
    for option_name in (name for name in Recipe().options()):
        scoring = option_name.startswith(
            ("reward.", "algorithm.adv_", "algorithm.norm_", "algorithm.filter_groups.", "algorithm.variance_filter.")
        )
        ways = [prefix for prefix in (*_TOLD, *UNTOLD) if option_name.startswith(prefix)]
        assert len(ways) == 1 or (scoring and not ways), option_name


def test_an_offset_changes_no_group_and_says_so(stored: list[Path]) -> None:
    report = replay(stored, PARENT, paid("1"))
    assert report.applicable and (report.factor, report.rollouts, report.groups) == ("reward.term.added", 1280, 160)
    for name in ("signal_groups", "signal_tokens", "order_agreement", "score/std", "advantage/abs_mean"):
        before, after = report.metrics[name]
        assert after == pytest.approx(before), name
    mean = report.metrics["score/mean"][0]
    assert report.metrics["score/mean"][1] == pytest.approx(mean + 1)
    assert report.metrics["constant_offset"] == pytest.approx((0.0, 1 / (1 + mean)))


def test_a_term_that_ranks_against_the_outcome_is_seen(stored: list[Path]) -> None:
    against = replay(stored, PARENT, paid("1 - outcome", 2.0))
    assert against.metrics["order_agreement"] == (1.0, 0.0)
    beside = replay(stored, PARENT, paid("hash(response) % 1000 / 1000.0", 0.5))
    assert beside.metrics["order_agreement"] == (1.0, 1.0)
    assert beside.metrics["signal_groups"] == (0.5, 1.0)


def test_taking_the_outcome_away_leaves_no_signal(stored: list[Path]) -> None:
    report = replay(stored, PARENT, edited(SetWeight(term="outcome", value=0.0)))
    assert report.factor == "reward.weights.outcome"
    assert report.metrics["signal_groups"] == (0.5, 0.0)
    assert report.metrics["order_agreement"] == (1.0, 0.5)


def test_the_outcome_filter_keeps_the_groups_with_a_signal(stored: list[Path]) -> None:
    report = replay(stored, PARENT, option("algorithm.filter_groups.enable", True))
    assert report.metrics["kept_groups"] == (1.0, 0.5)
    assert report.metrics["kept_tokens"] == pytest.approx((1.0, 0.75))  # 30 of 10 + 30 tokens
    assert report.metrics["signal_tokens"] == pytest.approx((0.75, 0.75))
    assert report.metrics["kept_all_fail"] == (0.5, 0.0)


def test_a_filter_on_a_shaped_score_keeps_groups_that_fail_as_a_whole(stored: list[Path]) -> None:
    shaped = load_seed_files()
    term = RewardTerm(name="noise", description="Noise.", sql="hash(response) % 1000 / 1000.0")
    shaped = dict(apply_edit(shaped, HarnessEdit(change=PutTerm(term=term, weight=0.1))))
    filtered = apply_edit(shaped, HarnessEdit(change=SetOption(path="algorithm.filter_groups.enable", value=True)))
    on_score = apply_edit(filtered, HarnessEdit(change=SetOption(path="algorithm.filter_groups.metric", value="score")))
    report = replay(stored, parse_harness(filtered, "a"), parse_harness(on_score, "b"))
    assert report.metrics["kept_all_fail"] == (0.0, 0.5)


def test_estimators_change_the_scale_and_nothing_else(stored: list[Path]) -> None:
    for path, value in (("algorithm.norm_adv_by_std_in_grpo", False), ("algorithm.adv_estimator", "rloo")):
        metrics = replay(stored, PARENT, option(path, value)).metrics
        before, after = metrics.pop("advantage/abs_mean")  # type: ignore[attr-defined]
        assert 0 < after < before
        assert all(a == b for a, b in metrics.values())


def test_a_term_without_numbers_is_a_scoring_error(stored: list[Path]) -> None:
    report = replay(stored, PARENT, paid("CASE WHEN outcome > 0 THEN 1 END"))
    assert report.applicable and dict(report.metrics) == {"scoring_errors": (0.0, 1.0)}
    assert report.note.startswith("reward/added.toml: sql: gives NULL")
    unknown = replay(stored, PARENT, paid("outcom"))
    assert unknown.metrics["scoring_errors"] == (0.0, 1.0) and "outcome" in unknown.note


def test_a_sample_is_whole_steps_over_the_training_and_always_the_same(stored: list[Path]) -> None:
    reports = [replay(stored, PARENT, paid("response_length"), max_rollouts=400) for _ in range(2)]
    assert reports[0] == reports[1]
    assert (reports[0].groups, reports[0].rollouts) == (40, 320)  # every fourth of 16 steps


def test_what_the_health_report_reads_late_a_replay_reads_on_all(stored: list[Path]) -> None:
    """``collected_alike`` and ``commonest_score`` by the queries of their diagnostics, all quarters for the last."""
    candidate = paid("CASE WHEN response_length > 20 THEN 0.5 ELSE 0.25 END")
    metrics = replay(stored, PARENT, candidate).metrics
    assert metrics["collected_alike"] == (0.0, 0.5)  # half of the groups are long
    table = pa.concat_tables(pq.read_table(file) for file in sorted(stored[0].glob("*.parquet")))
    paid_amounts = Counter(zip(table["outcome"].to_pylist(), table["response_length"].to_pylist(), strict=True))
    assert metrics["commonest_score"][1] == max(paid_amounts.values()) / table.num_rows
    # Within a group all replies have one length here: nothing to correlate with.
    assert metrics["length_correlation"] == (0.0, 0.0)


def test_scores_that_differ_by_rounding_alone_are_counted(stored: list[Path]) -> None:
    noisy = paid("(hash(response) % 7) * 1e-9")
    metrics = replay(stored, PARENT, noisy).metrics
    assert metrics["float_noise_groups"] == (0.0, 0.5) and metrics["signal_groups"] == (0.5, 0.5)


def test_a_diagnostic_is_read_on_the_stored_rollouts(stored: list[Path]) -> None:
    dead = PARENT.diagnostics["dead_groups"]
    whole = dead.model_copy(update={"metric": "SELECT avg(dead::INT) FROM groups", "warn": 0.4})
    report = replay(stored, PARENT, edited(PutDiagnostic(diagnostic=whole)))
    known = health_report("v0", stored, {"dead_groups": whole, "old": dead.model_copy(update={"name": "old"})}, {}, [])
    new, old = known.findings
    assert report.applicable and report.rollouts == 1280 and report.findings == (new,)
    assert report.metrics == {"dead_groups": (old.value, new.value)} and new.value == 0.5 and new.severity == "warn"


def test_a_diagnostic_that_cannot_be_evaluated_says_so(stored: list[Path]) -> None:
    broken = PARENT.diagnostics["dead_groups"].model_copy(
        update={"name": "broken", "metric": "SELECT avg(x) FROM late"}
    )
    (finding,) = replay(stored, PARENT, edited(PutDiagnostic(diagnostic=broken))).findings
    assert finding.value is None and "x" in finding.error


def test_a_diagnostic_may_compare_the_parents_scores(stored: list[Path]) -> None:
    gap = PARENT.diagnostics["proxy_vs_gate"].model_copy(update={"warn": 0.05})
    scores = {"validation/mean": 0.6, "gate/mean": 0.5}
    (finding,) = replay(stored, PARENT, edited(PutDiagnostic(diagnostic=gap)), scores=scores).findings
    assert finding.value == pytest.approx(0.1) and finding.severity == "warn"


def test_a_damaged_page_names_its_file(tmp_path: Path) -> None:
    directory = write(tmp_path / "rollouts")
    file = directory / "step-000001.parquet"
    content = bytearray(file.read_bytes())
    content[4:2000] = bytes(1996)  # footer and magic stay intact
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"step-000001\.parquet: damaged"):
        replay([directory], PARENT, paid("1"))


def test_groups_of_equal_names_in_two_seeds_stay_apart(stored: list[Path], tmp_path: Path) -> None:
    def second(c: Columns) -> None:
        half_dead(c)
        c["seed"] = c["seed"] + 1

    report = replay([*stored, write(tmp_path, second)], PARENT, paid("1"))
    assert (report.groups, report.rollouts) == (320, 2560)


@given(
    st.lists(
        st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([0.0, 1.0])), min_size=1, max_size=6),
        min_size=1,
        max_size=5,
    )
)
def test_order_agreement_is_the_share_of_pairs(batch: list[list[tuple[float, float]]]) -> None:
    score, outcome = (np.array([m[i] for g in batch for m in g]) for i in (0, 1))
    group = np.array([i for i, g in enumerate(batch) for _ in g])
    pairs = [1.0 if a[0] > b[0] else 0.5 if a[0] == b[0] else 0.0 for g in batch for a in g for b in g if a[1] > b[1]]
    expected = sum(pairs) / len(pairs) if pairs else None
    assert order_agreement(score, outcome, group) == (None if expected is None else pytest.approx(expected))
    assert order_agreement(outcome, outcome, group) in (None, 1.0)


def test_an_offset_needs_94_percent() -> None:
    values = {"a": np.array([1.0] * 94 + [0.0] * 6), "b": np.array([1.0] * 93 + [0.0] * 7)}
    assert constant_offset(values, {"a": 1.0}) == pytest.approx(1.0)
    assert constant_offset(values, {"a": 1.0, "b": 1.0}) == pytest.approx(94 / 187)
    assert constant_offset(values, {"b": 1.0}) == 0.0
    assert constant_offset(values, {"a": 0.0}) == 0.0


# ------------------------------------------------------------------------------------ Python terms


def python_term(source: str, name: str = "added") -> PutTerm:
    return PutTerm(term=RewardTerm(name=name, description="An added term.", python=source), weight=0.5)


LENGTH = "def reward(rows):\n    return [row['response_length'] / 64 for row in rows]\n"
# One value of batches, as a term that looks beyond its row may have.
COUNT = "def reward(rows):\n    return [len(rows)] * len(rows)\n"


def test_a_python_term_replays_as_the_same_sql_does(stored: list[Path], executor: Executor) -> None:
    isolated = replay(stored, PARENT, edited(python_term(LENGTH)), executor=executor)
    assert isolated.note == "" and isolated.metrics == replay(stored, PARENT, paid("response_length / 64", 0.5)).metrics


def test_a_python_term_sees_the_batches_of_training(stored: list[Path], executor: Executor) -> None:
    before, after = replay(stored, PARENT, edited(python_term(COUNT)), executor=executor).metrics["score/mean"]
    assert after - before == pytest.approx(0.5 * GROUPS * N)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (LENGTH.replace("64", "0"), "error: ZeroDivisionError: division by zero"),
        ("def reward(rows):\n    return [1.0]\n", "wrong_value: gives 1 values for 80 rows"),
    ],
)
def test_a_python_term_that_does_not_run_is_a_scoring_error(
    stored: list[Path], executor: Executor, source: str, words: str
) -> None:
    report = replay(stored, PARENT, edited(python_term(source)), executor=executor)
    assert report.applicable and report.metrics == {"scoring_errors": (0.0, 1.0)}
    assert report.note.startswith("reward/added.toml: python: ") and words in report.note


def test_a_term_of_the_parent_that_does_not_run_counts_zero_on_both_sides(
    stored: list[Path], executor: Executor
) -> None:
    source = "def reward(rows):\n    return [1 / (rows[0]['task_id'] != 'task0') for row in rows]\n"
    files = apply_edit(load_seed_files(), HarnessEdit(change=python_term(source, "moody")))
    parent = parse_harness(files, "parent")
    other = HarnessEdit(change=SetWeight(term="brevity", value=0.2))
    report = replay(stored, parent, parse_harness(apply_edit(files, other), "candidate"), executor=executor)
    assert report.note == "reward/moody.toml counts 0 in 1 of 16 batches (error: ZeroDivisionError: division by zero)"
    assert "scoring_errors" not in report.metrics
    alone = replay(stored, PARENT, edited(SetWeight(term="brevity", value=0.2))).metrics["score/mean"]
    for mine, without in zip(report.metrics["score/mean"], alone, strict=True):
        assert mine == pytest.approx(without + 0.5 * 15 / 16)


def test_without_a_sandbox_a_python_candidate_cannot_be_scored(stored: list[Path]) -> None:
    report = replay(stored, PARENT, edited(python_term(LENGTH)))
    assert report.metrics == {"scoring_errors": (0.0, 1.0)}
    assert report.note.startswith("reward/added.toml: python: runs in a sandbox only")
