"""Replays of sampling factors, on rollouts of real trainings; each quantity is computed once more another way."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.trainer.embedded.toy import CopyDomain, copy_policy, copy_recipe
from tests.trainer.real_rollouts import Rows, Trained, mean, outcomes
from trainer.embedded.evaluate import evaluate
from trainer.evidence import write_step
from trainer.replay import replay
from trainer.replay_sampling import Beta, _all, fitted
from trainer.types import EvalProtocol


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("parent"), copy_recipe(rollout={"n": 8}), seeds=(1, 2), token_budget=4000)


@pytest.fixture(scope="module")
def hinted(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    recipe = copy_recipe(data={"hints": {"enable": True, "ratio": 0.4, "decay": False}})
    return Trained(tmp_path_factory.mktemp("hinted"), recipe)


def kinds(groups: list[Rows]) -> tuple[float, float, float]:
    """Shares of groups with both outcomes, without any success, and without any failure."""
    fail, right = mean([max(outcomes(g)) == 0 for g in groups]), mean([min(outcomes(g)) == 1 for g in groups])
    return 1 - fail - right, fail, right


def test_what_is_stored_is_what_training_logged(trained: Trained) -> None:
    """Every step has as many groups, so the means over steps are those over groups."""
    metrics = trained.replay(reward__diversity=True).metrics
    for name, logged in (
        ("all_fail_groups", "signal/dead_groups_all_fail"),
        ("all_pass_groups", "signal/dead_groups_all_pass"),
        ("kept_groups", "signal/kept_groups"),
        ("score/mean", "critic/score/mean"),
    ):
        assert metrics[name][0] == pytest.approx(mean([step[logged] for step in trained.metrics]))
    dead = mean([step["signal/dead_groups"] for step in trained.metrics])
    assert metrics["signal_groups"][0] == pytest.approx(1 - dead) and 0 < dead < 1


def test_smaller_groups_are_every_draw_from_the_stored_ones(trained: Trained) -> None:
    metrics = trained.replay(rollout__n=3).metrics
    for n, side in ((8, 0), (3, 1)):
        draws = [kinds([list(draw)]) for group in trained.groups() for draw in combinations(group, n)]
        for name, expected in zip(
            ("signal_groups", "all_fail_groups", "all_pass_groups"), zip(*draws, strict=True), strict=True
        ):
            assert metrics[name][side] == pytest.approx(mean(expected))
        assert metrics["signal_groups_per_rollout"][side] == pytest.approx(metrics["signal_groups"][side] / n)


def test_larger_groups_are_foretold_from_a_part_of_each(trained: Trained, tmp_path: Path) -> None:
    """Half of each stored group foretells the whole ones, within four standard errors of that many groups."""
    for directory in trained.directories:
        for file in directory.glob("*.parquet"):
            table = pq.read_table(file)
            half = table.filter(pa.array(np.arange(table.num_rows) % 8 < 4))
            write_step(tmp_path / directory.parent.name, int(pc.min(half["step"]).as_py()), half)
    report = replay(
        sorted(tmp_path.iterdir()), trained.harness(rollout__n=4), trained.harness("candidate", rollout__n=8)
    )
    groups = trained.groups()
    for name, seen in zip(("signal_groups", "all_fail_groups", "all_pass_groups"), kinds(groups), strict=True):
        before, foretold = report.metrics[name]
        error = math.sqrt(max(before * (1 - before), 1 / len(groups)) / len(groups))
        assert abs(foretold - seen) < 4 * error, name
    signal = report.metrics["signal_groups"]
    assert signal[1] > signal[0]


def test_the_prior_of_solve_rates_is_found_again() -> None:
    random = np.random.default_rng(0)
    size, groups = 8, 20_000
    solved = random.binomial(size, random.beta(0.6, 1.4, size=groups)).astype(float)
    prior = fitted(solved, np.full(groups, float(size)))
    # Four standard errors of the mean solve rate; the share without any success is a function of the prior alone.
    assert abs(prior.a / (prior.a + prior.b) - 0.3) < 4 * solved.std() / size / math.sqrt(groups)
    fails, expected = mean(list(solved == 0)), _all(1.4, 0.6, size)
    assert abs(fails - expected) < 4 * math.sqrt(expected * (1 - expected) / groups)
    assert _all(2.0, 3.0, 1) == pytest.approx(0.4) and _all(2.0, 3.0, 2) == pytest.approx(2 / 5 * 3 / 6)


def test_a_policy_that_never_succeeds_is_not_called_hopeless_for_good() -> None:
    prior = fitted(np.zeros(10), np.full(10, 8.0))
    assert isinstance(prior, Beta) and 0 < prior.a / (prior.a + prior.b) < 0.01


def test_larger_groups_of_a_shaped_reward_are_untold(trained: Trained) -> None:
    shaped: dict[str, Any] = {"reward__weights": {"outcome": 1.0, "brevity": 0.1}}
    parent, candidate = trained.harness(**shaped), trained.harness("candidate", rollout__n=16, **shaped)
    report = replay(trained.directories, parent, candidate)
    assert not report.applicable and "shaped reward" in report.note
    assert replay(trained.directories, parent, trained.harness("c", rollout__n=4, **shaped)).applicable


def test_levels_are_weighed_by_their_own_groups(trained: Trained) -> None:
    """Per quarter of the stored steps, what the level's groups gave; each step counts once."""
    metrics = trained.replay(data__levels=(1,)).metrics
    groups = trained.groups()
    steps = {seed: sorted({g[0]["step"] for g in groups if g[0]["seed"] == seed}) for seed in (1, 2)}
    quarter = {(seed, step): i * 4 // len(own) for seed, own in steps.items() for i, step in enumerate(own)}
    gives = {}
    for part in range(4):
        pooled = [g for g in groups if g[0]["level"] == 1 and quarter[g[0]["seed"], g[0]["step"]] == part]
        gives[part] = (*kinds(pooled), mean([mean(outcomes(g)) for g in pooled]))
    expected = zip(*(gives[part] for part in quarter.values()), strict=True)
    names = ("signal_groups", "all_fail_groups", "all_pass_groups", "outcome/mean")
    for name, values in zip(names, expected, strict=True):
        assert metrics[name][1] == pytest.approx(mean(values)), name


def test_a_curriculum_that_opens_nothing_is_its_first_level(trained: Trained) -> None:
    """No level is ever solved as a whole, so ``range`` stays with the lowest, as ``data.levels`` would."""
    closed = trained.harness("candidate", data__curriculum={"mode": "range", "open_at": 1.0})
    metrics = replay(trained.directories, trained.harness(), closed)
    assert "one at a time" not in metrics.note
    assert metrics.metrics == trained.replay(data__levels=(0,)).metrics


def test_a_curriculum_by_solve_rate_draws_what_is_nearer_to_one_half(trained: Trained) -> None:
    """Two buckets: the weight moves to the one nearer to one half, and the expected outcome with it."""
    easy, hard = (trained.replay(data__levels=(level,)).metrics["outcome/mean"][1] for level in (0, 1))
    before, after = trained.replay(data__curriculum__mode="solve_rate").metrics["outcome/mean"]
    assert min(easy, hard) < after < max(easy, hard)
    nearer = easy if abs(easy - 0.5) < abs(hard - 0.5) else hard
    assert abs(after - nearer) < abs(before - nearer)


def test_levels_that_were_never_sampled_are_untold(tmp_path: Path, trained: Trained) -> None:
    narrow = Trained(tmp_path, copy_recipe(data={"levels": [1]}), token_budget=1500)
    for levels, why in (((), "only levels 1 were sampled"), ((0, 1), "no stored rollout is of level 0")):
        report = narrow.replay(data__levels=levels)
        assert not report.applicable and why in report.note
    assert "level 7" in trained.replay(data__levels=(1, 7)).note


def test_hints_go_to_groups_that_failed_as_a_whole(trained: Trained) -> None:
    report = trained.replay(data__hints__enable=True)
    fail = kinds(trained.groups())[1]
    assert report.metrics["hinted_groups"] == pytest.approx((0.0, fail))
    assert report.metrics["all_fail_groups/at_best"] == pytest.approx((fail, fail / (1 + fail)))
    assert "not stored" in report.note and 0 < report.metrics["hint_ratio"][1] < 0.5


def test_what_hints_did_is_known_where_the_parent_gave_them(hinted: Trained) -> None:
    metrics = hinted.replay(data__hints__enable=False).metrics
    plain, helped = hinted.groups(), hinted.groups(lambda row: row["hint_length"] > 0)
    assert metrics["hinted_groups"] == pytest.approx((len(helped) / len(plain), 0.0))
    assert metrics["all_fail_groups"] == pytest.approx((kinds(plain + helped)[1], kinds(plain)[1]))
    longer = hinted.replay(data__hints__ratio=0.8)
    assert longer.metrics["hint_ratio"][1] == pytest.approx(2 * longer.metrics["hint_ratio"][0])
    # What another hint would solve is not stored: nothing may look as if it were.
    assert set(longer.metrics) == {"hinted_groups", "hint_ratio"}
    right = mean([outcome for group in helped for outcome in outcomes(group)])
    assert f"{right:.0%} are right" in longer.note


def test_a_shorter_limit_cuts_the_stored_replies(trained: Trained) -> None:
    report = trained.replay(data__max_response_length=5)
    rows = trained.rows()
    cut = [row["response_length"] > 5 for row in rows]
    assert report.metrics["truncated"] == pytest.approx(
        (mean([r["truncated"] for r in rows]), mean([r["truncated"] or c for r, c in zip(rows, cut, strict=True)]))
    )
    left = [0.0 if c else row["outcome"] for row, c in zip(rows, cut, strict=True)]
    assert report.metrics["outcome/mean"] == pytest.approx((mean([r["outcome"] for r in rows]), mean(left)))
    alive = [
        len({o if n <= 5 else 0.0 for o, n in ((r["outcome"], r["response_length"]) for r in g)}) > 1
        for g in trained.groups()
    ]
    assert report.metrics["signal_groups"][1] == pytest.approx(mean(alive)) and "cuts off" in report.note


def test_a_longer_limit_frees_at_best_what_was_cut(trained: Trained) -> None:
    report = trained.replay(data__max_response_length=9)
    cut = mean([row["truncated"] for row in trained.rows()])
    assert report.metrics["truncated/at_best"] == pytest.approx((cut, 0.0)) and "not stored" in report.note
    before, after = report.metrics["outcome/mean"]
    assert before == after


def test_refills_are_the_binomial_sums(trained: Trained) -> None:
    """Expected batches and filled places of each step, term by term from its share of groups with both outcomes."""
    on: dict[str, Any] = {"algorithm__filter_groups": {"enable": True, "max_num_gen_batches": 1}}
    more: dict[str, Any] = {"algorithm__filter_groups": {"enable": True, "max_num_gen_batches": 3}}
    report = replay(trained.directories, trained.harness(**on), trained.harness("candidate", **more))
    filled: list[float] = []
    batches: list[float] = []
    per_step = Counter((g[0]["seed"], g[0]["step"]) for g in trained.groups())
    alive = Counter((g[0]["seed"], g[0]["step"]) for g in trained.groups() if len(set(outcomes(g))) > 1)
    for step, count in per_step.items():
        p = alive[step] / count

        def chance(k: int, n: int, p: float = p) -> float:
            return math.comb(n, k) * p**k * (1 - p) ** (n - k)

        filled.append(sum(min(k, 8) * chance(k, 24) for k in range(25)) / 8)
        batches.append(1 + sum(chance(k, n) for n in (8, 16) for k in range(8)))
    assert report.metrics["filled_batch"][1] == pytest.approx(mean(filled))
    assert report.metrics["refills"] == pytest.approx((0.0, mean(batches) - 1))
    assert report.metrics["kept_groups"][1] == pytest.approx(mean(filled) / mean(batches))
    # Without a filter there is nothing to refill.
    assert trained.replay(algorithm__filter_groups__max_num_gen_batches=9).metrics["refills"] == (0.0, 0.0)


def test_smaller_batches_are_oftener_without_any_signal(trained: Trained) -> None:
    metrics = trained.replay(data__train_batch_size=1).metrics
    alive = mean([len(set(outcomes(g))) > 1 for g in trained.groups()])
    assert metrics["dead_steps"][1] == pytest.approx(1 - alive)  # steps of one group
    assert metrics["steps_per_1000_rollouts"] == pytest.approx((1000 / 64, 1000 / 8))


def test_order_is_judged_by_the_gate_suite_too(trained: Trained, tmp_path: Path) -> None:
    """Episodes of the gate suite, written by the evaluation: the outcome orders them rightly, its opposite never."""
    domain = CopyDomain()
    protocol = EvalProtocol(
        domain="copy", k=4, temperature=1.0, max_response_length=6, sampling_seed=0, validation=16, sealed=1
    )
    episodes = tmp_path / "gate.parquet"
    evaluate(
        copy_policy(1), domain.tasks("validation", 16), protocol, "gate", "v0000", 0, "h", domain, episodes=episodes
    )

    def order(weights: dict[str, float]) -> tuple[float, float]:
        candidate = trained.harness("candidate", reward__weights=weights)
        report = replay(trained.directories, trained.harness(), candidate, episodes=[episodes])
        return report.metrics["gate_order_agreement"]

    assert order({"outcome": 2.0}) == (1.0, 1.0) and order({"outcome": -1.0}) == (1.0, 0.0)
    groups: dict[str, Rows] = {}
    for row in pq.read_table(episodes).to_pylist():
        groups.setdefault(row["task_id"], []).append(row)
    pairs = [(a, b) for g in groups.values() for a in g for b in g if a["outcome"] > b["outcome"]]
    shorter = [
        (
            1.0
            if a["response_length"] < b["response_length"]
            else 0.5
            if a["response_length"] == b["response_length"]
            else 0.0
        )
        for a, b in pairs
    ]
    assert order({"outcome": 0.0, "brevity": 1.0})[1] == pytest.approx(mean(shorter)) and pairs
