"""When evaluations may be compared, and whether intervals keep their level."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trainer import evaluation
from trainer.evaluation import (
    mean_interval,
    paired_interval,
    paired_over_runs,
    pass_at_k,
    protocol_hash,
    require_same,
    score_array,
)
from trainer.types import EvalProtocol, Evaluation, InputError, Message, Task

PROTOCOL = EvalProtocol(
    domain="math", k=2, temperature=1.0, max_response_length=32, sampling_seed=7, validation=2, sealed=2
)


def task(name: str, answer: str = "4") -> Task:
    return Task(
        id=name, domain="math", family="sum", messages=(Message(role="user", content=f"{name}?"),), answer=answer
    )


SUITES = {"validation": [task("a"), task("b")], "gate": [task("c")]}


def evaluated(rows: np.ndarray, seed: int = 0, version: str = "v0001", **changes: object) -> Evaluation:
    """An evaluation with rows of shape (tasks, samples)."""
    fields: dict[str, object] = {
        "suite": "validation",
        "version": version,
        "seed": seed,
        "protocol_hash": "h",
        "task_ids": tuple(f"t{i}" for i in range(len(rows))),
        "scores": tuple(map(tuple, rows.tolist())),
    }
    return Evaluation.model_validate(fields | changes)


def version(rng: np.random.Generator, tasks: np.ndarray, seeds: int, sd: float, k: int = 2) -> list[Evaluation]:
    """A version with seed noise ``sd`` on tasks of the given solve rates (real numbers, sampling noise .3)."""
    effects = sd * rng.standard_normal(seeds)
    return [
        evaluated(tasks[:, None] + e + 0.3 * rng.standard_normal((len(tasks), k)), s) for s, e in enumerate(effects)
    ]


# ---------------------------------------------------------------------------------- comparability


@pytest.mark.parametrize(
    ("protocol", "suites"),
    [
        (PROTOCOL.model_copy(update={"k": 3}), SUITES),
        (PROTOCOL.model_copy(update={"temperature": 0.9}), SUITES),
        (PROTOCOL, SUITES | {"validation": [task("a"), task("b", answer="5")]}),
        (PROTOCOL, SUITES | {"validation": [task("b"), task("a")]}),
        (PROTOCOL, {"validation": SUITES["gate"], "gate": SUITES["validation"]}),
    ],
)
def test_hash_covers_protocol_and_task_contents(protocol: EvalProtocol, suites: dict[str, list[Task]]) -> None:
    assert protocol_hash(protocol, suites) != protocol_hash(PROTOCOL, SUITES)


def test_hash_is_stable_and_ignores_the_order_of_suites() -> None:
    assert protocol_hash(PROTOCOL, dict(reversed(SUITES.items()))) == protocol_hash(PROTOCOL, SUITES)


@pytest.mark.parametrize("name", ["embedded/evaluate.py", "embedded/sampler.py", "domains/math/verify.py"])
def test_hash_covers_the_evaluation_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    source = tmp_path / "evaluation.py"
    source.write_text("")
    monkeypatch.setattr(evaluation, "PACKAGE", tmp_path)
    monkeypatch.setattr(evaluation, "__file__", str(source))
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    hashes = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / name).write_text(text)
        hashes.add(protocol_hash(PROTOCOL, SUITES))
    (tmp_path / "elsewhere.py").write_text("no evaluation code")
    hashes.add(protocol_hash(PROTOCOL, SUITES))
    assert len(hashes) == 2


GOOD = np.array([[0.0, 1.0], [1.0, 1.0]])


@pytest.mark.parametrize(
    "changes", [{"protocol_hash": "other"}, {"suite": "sealed"}, {"task_ids": ("t1", "t0")}, {"task_ids": ("t0", "x")}]
)
def test_incomparable_evaluations_are_refused_in_one_line(changes: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        require_same(evaluated(GOOD), evaluated(GOOD, 1).model_copy(update=changes))
    assert "\n" not in str(caught.value)
    assert str(next(iter(changes))) in str(caught.value)


@pytest.mark.parametrize(
    "evals",
    [
        [],
        [evaluated(GOOD), evaluated(GOOD)],
        [evaluated(GOOD), evaluated(GOOD, 1, scores=((0.0, 1.0),))],
        [evaluated(GOOD), evaluated(GOOD, 1, scores=((0.0, 1.0), (1.0,)))],
        [evaluated(GOOD, scores=(), task_ids=())],
        [evaluated(np.array([[0.0, math.nan], [1.0, 1.0]]))],
    ],
    ids=["none", "seed twice", "missing task", "missing sample", "empty", "nan"],
)
def test_incomplete_evaluations_are_refused_in_one_line(evals: list[Evaluation]) -> None:
    with pytest.raises(InputError) as caught:
        score_array(evals)
    assert "\n" not in str(caught.value)


# -------------------------------------------------------------------------------------- intervals


def test_mean_interval_covers_new_seeds_on_new_tasks() -> None:
    rng, n, missed = np.random.default_rng(0), 600, 0
    for _ in range(n):
        interval = mean_interval(version(rng, rng.normal(0.5, 0.3, 30), 3, 0.05), level=0.9)
        missed += not interval.ci_low <= 0.5 <= interval.ci_high
    assert missed / n <= 0.1 + 4.5 * math.sqrt(0.1 * 0.9 / n)


def test_paired_interval_covers_the_difference_and_pairs_by_task() -> None:
    rng, n, missed, widths = np.random.default_rng(1), 400, 0, []
    for _ in range(n):
        tasks = rng.normal(0.5, 0.3, 30)
        interval = paired_interval(version(rng, tasks + 0.1, 3, 0.05), version(rng, tasks, 3, 0.05), level=0.9)
        missed += not interval.ci_low <= 0.1 <= interval.ci_high
        widths.append(interval.ci_high - interval.ci_low)
    assert missed / n <= 0.1 + 4.5 * math.sqrt(0.1 * 0.9 / n)
    # Unpaired, the tasks alone (sd .3, 30 of them) would add 2 · 1.645 · .3 · √(2/30) = .25 in quadrature.
    assert np.median(widths) < 0.25


def test_one_seed_says_that_it_covers_tasks_only() -> None:
    rng = np.random.default_rng(2)
    one, two = version(rng, rng.uniform(size=40), 1, 0.05), version(rng, rng.uniform(size=40), 2, 0.05)
    assert mean_interval(one).covers == paired_interval(one, one).covers == "tasks only"
    assert mean_interval(two).covers == paired_interval(two, one).covers == "seeds and tasks"
    assert mean_interval(one).ci_low < mean_interval(one).mean < mean_interval(one).ci_high


def test_seeds_that_happen_to_tie_keep_the_sampling_noise() -> None:
    rows = np.tile([[0.0, 1.0], [1.0, 0.0]], (20, 1))
    interval = mean_interval([evaluated(rows, s) for s in range(3)])
    assert interval.mean == 0.5
    # r = .25 and T = 40, so one seed's mean has a standard error of at least √(.25/40)/√3.
    assert interval.ci_high - interval.mean > math.sqrt(0.25 / 40 / 3)


def test_limits_stay_among_possible_outcomes() -> None:
    interval = mean_interval([evaluated(np.full((30, 2), m), s) for s, m in enumerate((0.05, 0.3, 0.1))])
    assert (interval.ci_low, interval.n, interval.seeds) == (0.0, 30, 3)


def test_interval_over_runs_is_the_t_interval() -> None:
    deltas = [0.1, 0.3, 0.2, 0.05, 0.25]
    expected = stats.ttest_1samp(deltas, 0).confidence_interval(0.95)
    interval = paired_over_runs(deltas)
    assert (interval.ci_low, interval.ci_high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("deltas", [[], [0.1], [0.1, math.nan]])
def test_interval_over_runs_needs_two_finite_runs(deltas: list[float]) -> None:
    with pytest.raises(InputError):
        paired_over_runs(deltas)


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=5, max_size=6), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_pass_at_k_is_the_share_of_k_subsets_with_a_success(scores: list[list[float]], k: int) -> None:
    share = [np.mean([1.0 in subset for subset in itertools.combinations(row, k)]) for row in scores]
    assert pass_at_k(scores, k) == pytest.approx(np.mean(share), abs=1e-12)


@pytest.mark.parametrize(("scores", "k"), [([], 1), ([[1.0]], 2), ([[1.0]], 0)])
def test_pass_at_k_needs_k_samples(scores: list[list[float]], k: int) -> None:
    with pytest.raises(InputError):
        pass_at_k(scores, k)
