"""The training loop on a task that an untrained policy learns within seconds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.trainer.embedded.toy import CopyDomain, copy_policy, copy_recipe, copy_spec
from trainer.embedded import grpo
from trainer.embedded.files import ROLLOUTS, STATE
from trainer.embedded.gather import train_tasks
from trainer.embedded.metrics import read_metrics
from trainer.embedded.policy import Policy, load_policy
from trainer.embedded.sampler import NonFinite
from trainer.groups import group_advantages
from trainer.types import ROLLOUT_COLUMNS, InputError, StepProgress, TrainResult, TrainSpec


def run(spec: TrainSpec, policy: Policy | None = None, report: Any = None) -> TrainResult:
    torch.set_num_threads(1)
    return grpo.train(spec, policy or copy_policy(), CopyDomain(), report or (lambda progress: None))


def rollouts_of(result: TrainResult) -> pa.Table:
    assert result.rollouts_dir is not None
    return pa.concat_tables([pq.read_table(file) for file in sorted(result.rollouts_dir.glob("*.parquet"))])


def metrics_of(result: TrainResult) -> list[dict[str, float]]:
    assert result.metrics_file is not None
    return [data for _, data in read_metrics(result.metrics_file)]


def digest(result: TrainResult) -> str:
    """Of everything learned and everything sampled."""
    assert result.checkpoint is not None
    weights = (result.checkpoint / "model.safetensors").read_bytes()
    return hashlib.sha256(weights + json.dumps(rollouts_of(result).to_pydict()).encode()).hexdigest()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, list[StepProgress]]:
    progress: list[StepProgress] = []
    result = run(copy_spec(tmp_path_factory.mktemp("trained"), token_budget=5000), report=progress.append)
    return result, progress


Trained = tuple[TrainResult, list[StepProgress]]


def test_reward_rises(trained: Trained) -> None:
    outcome = [line.outcome for line in trained[1]]
    # A mean of 320 rollouts has a standard error below .03: the rise is five of them.
    assert np.mean(outcome[-10:]) > np.mean(outcome[:10]) + 0.15


def test_budget_counts_sampled_tokens_and_the_last_step_may_exceed_it(trained: Trained) -> None:
    result, progress = trained
    lengths = np.bincount(rollouts_of(result)["step"].to_numpy(), rollouts_of(result)["response_length"].to_numpy())
    assert result.cost.tokens == lengths.sum() >= 5000 > lengths[:-1].sum()
    assert result.cost.steps == len(progress) == len(lengths) - 1
    assert progress[-1].fraction == 1.0
    assert result.status == "completed"
    assert result.early_stop is None
    assert result.cost.peak_rss_mb > 0


def test_the_checkpoint_is_the_trained_policy(trained: Trained) -> None:
    result, _ = trained
    assert result.checkpoint is not None
    weights, start = load_policy(result.checkpoint).module.state_dict(), copy_policy().module.state_dict()
    assert any(not torch.equal(weights[name], start[name]) for name in start)


def test_rollout_table_holds_every_column_and_the_advantages_of_its_scores(trained: Trained) -> None:
    table = rollouts_of(trained[0])
    assert {*ROLLOUT_COLUMNS, "digits", "term_outcome", "term_brevity"} <= set(table.column_names)
    assert len(set(table["rollout_id"].to_pylist())) == table.num_rows == trained[0].cost.rollouts
    first = table.filter(pa.compute.equal(table["step"], 1))
    groups, index = np.unique(first["group_id"].to_pylist(), return_inverse=True)
    assert len(groups) == 8
    assert all(len(set(first.filter(pa.array(index == g))["task_id"].to_pylist())) == 1 for g in range(8))
    np.testing.assert_allclose(
        first["advantage"].to_numpy(), group_advantages(first["score"].to_numpy(), index, "grpo", True), atol=1e-12
    )
    assert first["score"].to_pylist() == first["term_outcome"].to_pylist() == first["outcome"].to_pylist()


def test_metrics_carry_the_names_of_verl_and_agree_with_the_rollouts(trained: Trained) -> None:
    result, _ = trained
    metrics, table = metrics_of(result), rollouts_of(result)
    names = {"actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl", "actor/entropy", "actor/grad_norm", "actor/lr",
             "critic/score/mean", "critic/score/max", "critic/score/min", "critic/rewards/mean", "critic/advantages/mean",
             "response_length/mean", "response_length/clip_ratio", "prompt_length/mean", "num_turns/mean",
             "timing_s/gen", "timing_s/reward", "timing_s/update_actor", "timing_s/step", "perf/throughput",
             "signal/dead_groups", "signal/dead_groups_all_fail", "signal/dead_groups_all_pass", "signal/kept_groups",
             "outcome/mean", "rollout/mean_logprob", "perf/rollouts_per_s", "tokens/total"}  # fmt: skip
    assert names <= metrics[-1].keys()
    second = table.filter(pa.compute.equal(table["step"], 2))
    lengths = second["response_length"].to_numpy()
    weighted = float((second["mean_logprob"].to_numpy() * lengths).sum() / lengths.sum())
    assert metrics[1]["rollout/mean_logprob"] == pytest.approx(weighted, rel=1e-5)
    assert metrics[1]["response_length/mean"] == lengths.mean()
    assert metrics[1]["outcome/mean"] == second["outcome"].to_numpy().mean()


def test_equal_specs_give_equal_results_and_another_seed_does_not(tmp_path: Path) -> None:
    results = [run(copy_spec(tmp_path / str(i), seed=seed, token_budget=800)) for i, seed in enumerate((1, 1, 2))]
    first, again, other = map(digest, results)
    assert first == again
    assert first != other


def test_worker_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.embedded.collect.SHARD_ROWS", 8)  # several shards per step
    results = [run(copy_spec(tmp_path / str(n), rollout_workers=n, token_budget=800)) for n in (0, 1, 3)]
    assert len({digest(result) for result in results}) == 1


def test_every_attempt_has_metrics_of_its_own(tmp_path: Path) -> None:
    files = [run(copy_spec(tmp_path, token_budget=100)).metrics_file for _ in range(2)]
    assert files == [tmp_path / "metrics-1.jsonl", tmp_path / "metrics-2.jsonl"]


def test_dynamic_sampling_trains_on_groups_with_spread_alone(tmp_path: Path) -> None:
    filtering = {"filter_groups": {"enable": True, "metric": "outcome", "max_num_gen_batches": 4}}
    result = run(copy_spec(tmp_path, copy_recipe(algorithm=filtering)))
    table = rollouts_of(result)
    for step in range(1, result.cost.steps + 1):
        rows = table.filter(pa.compute.equal(table["step"], step))
        _, index = np.unique(rows["group_id"].to_pylist(), return_inverse=True)
        outcome, kept = rows["outcome"].to_numpy(), rows["kept"].to_numpy(zero_copy_only=False)
        spread = np.array([len(set(outcome[index == g])) > 1 for g in range(index.max() + 1)])
        trained = np.array([kept[index == g].all() for g in range(index.max() + 1)])
        assert (trained <= spread).all()
        assert trained.sum() == min(8, spread.sum())
        assert len(trained) in (8, 16, 24, 32)
        assert trained.sum() == 8 or len(trained) == 32  # a short batch only after the last refill
    assert metrics_of(result)[0]["signal/kept_groups"] < 1


@pytest.mark.parametrize("enable", [False, True])
def test_a_reward_without_spread_ends_as_no_signal(tmp_path: Path, enable: bool) -> None:
    recipe = copy_recipe(algorithm={"filter_groups": {"enable": enable, "metric": "score"}}, reward={"weights": {}})
    result = run(copy_spec(tmp_path, recipe, token_budget=10**6))
    assert (result.status, result.early_stop) == ("completed", "no_signal")
    assert result.cost.steps == grpo.MAX_STEPS_WITHOUT_SIGNAL
    assert metrics_of(result)[0]["signal/dead_groups"] == 1
    assert result.checkpoint is not None


def test_a_diverged_policy_ends_as_nan_with_the_last_weights_that_sampled_well(tmp_path: Path) -> None:
    policy = copy_policy()
    sampled_with: list[torch.Tensor] = []

    def poison(progress: StepProgress) -> None:
        if progress.step == 3:
            with torch.no_grad():
                next(policy.module.parameters()).fill_(float("nan"))
        elif progress.step == 2:
            sampled_with.append(next(policy.module.parameters()).detach().clone())

    result = run(copy_spec(tmp_path), policy, poison)
    assert (result.status, result.early_stop) == ("completed", "nan")
    assert result.checkpoint is not None
    assert torch.equal(next(load_policy(result.checkpoint).module.parameters()), sampled_with[0])


def test_a_policy_that_diverges_in_the_last_update_is_caught(tmp_path: Path) -> None:
    policy = copy_policy()

    def poison(progress: StepProgress) -> None:
        if progress.fraction == 1.0:
            with torch.no_grad():
                next(policy.module.parameters()).fill_(float("inf"))

    result = run(copy_spec(tmp_path), policy, poison)
    assert result.early_stop == "nan"
    assert result.checkpoint is not None
    load_policy(result.checkpoint)  # refuses weights that are not finite


def test_a_passed_deadline_keeps_what_was_learned(tmp_path: Path) -> None:
    result = run(copy_spec(tmp_path, deadline_s=1e-9))
    assert (result.status, result.early_stop, result.cost.steps) == ("completed", "deadline", 0)
    assert result.checkpoint is not None


def test_kl_loss_is_measured_against_the_start(tmp_path: Path) -> None:
    recipe = copy_recipe(actor={"use_kl_loss": True, "kl_loss_coef": 0.01})
    kl = [data["actor/kl_loss"] for data in metrics_of(run(copy_spec(tmp_path, recipe)))]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[-1] > 1e-4


def test_the_way_from_the_base_policy_is_logged_without_a_kl_loss(tmp_path: Path) -> None:
    kl = [data["actor/kl_to_base"] for data in metrics_of(run(copy_spec(tmp_path, copy_recipe())))]
    assert kl[0] == pytest.approx(0, abs=1e-6)  # two ways to compute the same log-probabilities
    assert kl[-1] > 1e-4


def test_levels_narrow_the_pool_and_an_unknown_level_is_named() -> None:
    assert {task.level for task in train_tasks(CopyDomain(), (1,))} == {1}
    with pytest.raises(InputError, match=r"data\.levels.*\[7\].*0, 1"):
        train_tasks(CopyDomain(), (7,))


def test_a_cut_off_last_line_of_metrics_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics-1.jsonl"
    file.write_text('{"step": 1, "data": {"actor/lr": 0.1}}\n{"step": 2, "da')
    assert read_metrics(file) == [(1, {"actor/lr": 0.1})]


def test_rollouts_that_cannot_be_written_end_the_training_before_the_step_counts(tmp_path: Path) -> None:
    (tmp_path / ROLLOUTS).write_text("a file where the folder should be")
    with pytest.raises(FileExistsError, match=ROLLOUTS):
        run(copy_spec(tmp_path, save_interval_s=0.0))
    assert not (tmp_path / STATE).exists()
    assert read_metrics(tmp_path / "metrics-1.jsonl") == []


@pytest.mark.parametrize("fails", ["work", "block", "both"])
def test_what_is_done_meanwhile_fails_no_more_silently_than_in_turn(fails: str) -> None:
    done: list[str] = []

    def work() -> None:
        if fails != "block":
            raise OSError("disk full")
        done.append("written")

    with pytest.raises(NonFinite if fails == "block" else OSError), grpo._meanwhile(work):
        if fails != "work":
            raise NonFinite("loss")
    assert done == (["written"] if fails == "block" else [])
