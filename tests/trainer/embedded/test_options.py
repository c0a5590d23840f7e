"""Every option of the recipe, in real trainings of the copy task: on the quantity it acts on, not on the final score."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from tests.trainer.embedded.toy import CopyDomain, copy_policy, copy_recipe, copy_spec
from trainer.embedded import grpo
from trainer.embedded.collect import LocalSampler
from trainer.embedded.curriculum import TaskChooser
from trainer.embedded.gather import Gatherer, StepBatch, train_tasks
from trainer.embedded.metrics import read_metrics
from trainer.embedded.policy import Policy
from trainer.groups import group_advantages
from trainer.types import Domain, Imitation, InputError, Judged, Recipe, Task, TrainResult, TrainSpec

Metrics = list[dict[str, float]]


def run(spec: TrainSpec, domain: Domain | None = None) -> tuple[TrainResult, pa.Table, Metrics]:
    torch.set_num_threads(1)
    result = grpo.train(spec, copy_policy(), domain or CopyDomain(), lambda progress: None)
    assert result.rollouts_dir and result.metrics_file
    table = pa.concat_tables([pq.read_table(file) for file in sorted(result.rollouts_dir.glob("*.parquet"))])
    return result, table, [data for _, data in read_metrics(result.metrics_file)]


@cache
def practised() -> Policy:
    """A policy that solves some tasks and fails others."""
    with tempfile.TemporaryDirectory() as folder:
        policy = copy_policy()
        grpo.train(copy_spec(Path(folder), token_budget=5000), policy, CopyDomain(), lambda progress: None)
        return policy


def gathered(recipe: Recipe, tmp_path: Path, fraction: float = 0.0, domain: Domain | None = None) -> StepBatch:
    """One step's batch, without an update."""
    domain = domain or CopyDomain()
    spec, tasks = copy_spec(tmp_path, recipe), train_tasks(domain, ())
    local = LocalSampler(practised(), domain, tasks, max_response_length=recipe.data.max_response_length)
    chooser = TaskChooser(tasks, 1, recipe.data.curriculum)
    return Gatherer(spec, domain, tasks, local, chooser).gather(1, fraction)


OPTIONS: list[dict[str, Any]] = [
    {"algorithm": {"adv_estimator": "rloo"}},
    {"algorithm": {"norm_adv_by_std_in_grpo": False}, "actor": {"loss_agg_mode": "seq-mean-token-sum-norm"}},
    {"algorithm": {"use_kl_in_reward": True, "kl_penalty": "low_var_kl"}},
    {"algorithm": {"variance_filter": {"enable": True}}},
    {"actor": {"policy_loss": {"loss_mode": "gspo"}, "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}},
    {"actor": {"use_kl_loss": True, "kl_loss_type": "k3+"}},
    {"actor": {"ppo_epochs": 2, "ppo_mini_batch_size": 4, "mask_truncated": True}},
    {"actor": {"imitation": {"coef": 0.1}}},
    {"rollout": {"temperature_end": 0.5}},
    {"data": {"curriculum": {"mode": "solve_rate"}}},
    {"data": {"curriculum": {"mode": "range"}}},
    {"data": {"hints": {"enable": True}}, "actor": {"imitation": {"coef": 0.1, "on": "hinted"}}},
    {"reward": {"diversity": True, "overlong_buffer": {"enable": True, "len": 2}}},
]


@pytest.mark.parametrize("sections", OPTIONS, ids=lambda s: "+".join(f"{k}.{key}" for k in s for key in s[k]))
def test_every_option_trains_and_changes_what_is_learned(sections: dict[str, Any], tmp_path: Path) -> None:
    def weights(recipe: Recipe, name: str) -> bytes:
        result, _, metrics = run(copy_spec(tmp_path / name, recipe, token_budget=600))
        assert (result.status, result.early_stop) == ("completed", None)
        assert all(np.isfinite(value) for data in metrics for value in data.values())
        assert result.checkpoint
        return (result.checkpoint / "model.safetensors").read_bytes()

    assert weights(copy_recipe(**sections), "with") != weights(copy_recipe(), "without")


def test_kl_in_the_reward_is_taken_off_before_advantages(tmp_path: Path) -> None:
    algorithm = {"use_kl_in_reward": True, "kl_penalty": "mse", "kl_ctrl": {"kl_coef": 0.5}}
    _, table, metrics = run(copy_spec(tmp_path, copy_recipe(algorithm=algorithm)))
    assert metrics[0]["actor/reward_kl_penalty"] == pytest.approx(0, abs=1e-9)  # the policy is the base policy
    assert metrics[-1]["actor/reward_kl_penalty"] > 0
    for data in metrics:
        assert data["critic/rewards/mean"] <= data["critic/score/mean"]
    last = table.filter(pc.equal(table["step"], len(metrics)))
    rewards = last["score"].to_numpy() + last["term_kl"].to_numpy()
    assert rewards.mean() == pytest.approx(metrics[-1]["critic/rewards/mean"])
    _, index = np.unique(last["group_id"].to_pylist(), return_inverse=True)
    np.testing.assert_allclose(last["advantage"].to_numpy(), group_advantages(rewards, index), atol=1e-12)


@pytest.mark.parametrize(("target", "rises"), [(1e-9, True), (1e3, False)])
def test_the_adaptive_coefficient_follows_its_target(tmp_path: Path, target: float, rises: bool) -> None:
    ctrl = {"type": "adaptive", "kl_coef": 0.01, "target_kl": target, "horizon": 100}
    recipe = copy_recipe(algorithm={"use_kl_in_reward": True, "kl_penalty": "mse", "kl_ctrl": ctrl})
    _, _, metrics = run(copy_spec(tmp_path, recipe))
    coefs = [data["actor/reward_kl_penalty_coeff"] for data in metrics]
    assert coefs[0] == 0.01
    assert (coefs[-1] > coefs[1]) is rises
    # One step of 32 rollouts corrects at most .2 · 32 / 100.
    assert all(abs(b / a - 1) <= 0.064 + 1e-12 for a, b in itertools.pairwise(coefs))


def test_a_rollout_without_an_end_is_out_of_the_loss_and_in_its_group(tmp_path: Path) -> None:
    batch = gathered(copy_recipe(data={"max_response_length": 4}), tmp_path)
    cut = np.array([reason == "length" for reason in batch.scored.samples.stop_reasons])
    assert 0 < cut.sum() < len(cut)
    plain, masked = (grpo.train_batch(batch, mask, Imitation()) for mask in (False, True))
    assert not masked.response_mask[torch.from_numpy(cut)].any()
    assert torch.equal(masked.response_mask[~torch.from_numpy(cut)], plain.response_mask[~torch.from_numpy(cut)])
    assert torch.equal(masked.advantages, plain.advantages)


def test_long_rollouts_pay_the_overlong_penalty(tmp_path: Path) -> None:
    buffer = {"enable": True, "len": 3, "penalty_factor": 0.7}
    batch = gathered(copy_recipe(reward={"overlong_buffer": buffer}), tmp_path)  # max_response_length 6
    columns = batch.scored.columns
    expected = [-0.7 * max(0, length - 3) / 3 for length in columns["response_length"].to_pylist()]
    np.testing.assert_allclose(columns["term_overlong_buffer"].to_numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(batch.scored.score, batch.scored.outcome + np.array(expected), atol=1e-12)


def test_the_temperature_moves_in_a_straight_line(tmp_path: Path) -> None:
    result, _, metrics = run(copy_spec(tmp_path, copy_recipe(rollout={"temperature": 1.2, "temperature_end": 0.4})))
    used = [0.0, *(min(1.0, data["tokens/total"] / 2000) for data in metrics)]
    expected = [1.2 - 0.8 * fraction for fraction in used[:-1]]
    assert [data["rollout/temperature"] for data in metrics] == pytest.approx(expected)
    assert result.cost.steps > 5


def test_sampling_uses_the_temperature_of_the_moment(tmp_path: Path) -> None:
    recipe = copy_recipe(rollout={"temperature": 1.5, "temperature_end": 0.1})
    entropies = [gathered(recipe, tmp_path, at).scored.columns["entropy"].to_numpy().mean() for at in (0.0, 0.5, 1.0)]
    assert entropies[0] > entropies[1] > entropies[2]


def test_the_variance_filter_drops_groups_without_and_with_little_spread(tmp_path: Path) -> None:
    recipe = copy_recipe(algorithm={"variance_filter": {"enable": True, "top_p": 0.5}})
    batch = gathered(recipe, tmp_path)
    variance = batch.scored.outcome.reshape(-1, 4).var(axis=1)
    kept = batch.kept.reshape(-1, 4)[:, 0]
    assert 0 < kept.sum() < (variance > 0).sum()
    assert variance[kept].min() >= variance[~kept].max()
    assert variance[kept].sum() >= 0.5 * variance.sum()


class Hopeless(CopyDomain):
    """Right is only what begins as no policy would begin by itself."""

    def hint(self, task: Task) -> str:
        return "31415"

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        features = {"digits": 0.0}
        return [Judged(outcome=float(r.startswith("314")), answer=r, features=features) for r in replies]


def test_a_group_that_failed_is_sampled_again_after_a_hint(tmp_path: Path) -> None:
    recipe = copy_recipe(data={"hints": {"enable": True, "ratio": 0.4, "decay": False}})
    batch = gathered(recipe, tmp_path)
    outcome, hinted = batch.scored.outcome.reshape(-1, 4), batch.hinted.reshape(-1, 4)
    kept, ids = batch.kept.reshape(-1, 4), np.array(batch.scored.columns["task_id"].to_pylist()).reshape(-1, 4)[:, 0]
    failed = ~hinted[:, 0] & (outcome.sum(axis=1) == 0)
    assert 0 < failed.sum() < 8
    assert (hinted == hinted[:, :1]).all()
    assert sorted(ids[failed]) == sorted(ids[hinted[:, 0]])
    assert not kept[failed].any()
    assert kept[~failed].all()
    assert kept[:, 0].sum() == 8


def test_a_hint_begins_the_reply_and_is_not_in_the_loss(tmp_path: Path) -> None:
    recipe = copy_recipe(data={"hints": {"enable": True, "ratio": 0.4, "decay": False}})
    batch = gathered(recipe, tmp_path)
    policy, domain = copy_policy(), CopyDomain()
    hinted = np.flatnonzero(batch.hinted)
    tasks = {task.id: task for task in train_tasks(domain, ())}
    ids, replies = (batch.scored.columns[name].to_pylist() for name in ("task_id", "response"))
    samples = batch.scored.samples
    trained = grpo.train_batch(replace(batch, kept=np.ones_like(batch.kept)), False, Imitation(coef=1, on="hinted"))
    for row in hinted:
        hint = policy.tokenizer.encode(domain.hint(tasks[ids[row]]))[: samples.hint_lengths[row]]
        assert samples.hint_lengths[row] == 1
        start = samples.prompt_lengths[row]
        assert samples.tokens[row, start : start + len(hint)].tolist() == hint
        assert replies[row].startswith(domain.hint(tasks[ids[row]])[0])
        assert not samples.response_mask[row, : start + len(hint)].any()
        assert samples.response_lengths[row] == int(samples.response_mask[row].sum())
        # Imitated are the hint and what followed, where that was right.
        right = batch.scored.verified[row] == 1.0
        expected = samples.response_mask[row].clone()
        expected[start : start + len(hint)] = True
        assert torch.equal(trained.imitation_mask[row], expected & bool(right))
    assert not trained.imitation_mask[torch.from_numpy(~batch.hinted)].any()


def test_hints_give_signal_where_there_was_none_and_fade(tmp_path: Path) -> None:
    hints = {"enable": True, "ratio": 0.7}
    assert not gathered(copy_recipe(), tmp_path, domain=Hopeless()).has_signal
    given = [
        max(gathered(copy_recipe(data={"hints": hints}), tmp_path, at, Hopeless()).scored.samples.hint_lengths)
        for at in (0.0, 0.4, 1.0)
    ]
    assert given == [3, 2, 0]  # of five tokens: .7, .42 and 0
    assert gathered(copy_recipe(data={"hints": hints}), tmp_path, domain=Hopeless()).scored.outcome.any()


class Unhelpful(CopyDomain):
    def hint(self, task: Task) -> str:
        return ""


def test_hints_are_refused_where_the_domain_has_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.hints\.enable: domain copy has no worked replies"):
        run(copy_spec(tmp_path, copy_recipe(data={"hints": {"enable": True}})), Unhelpful())


def test_own_successes_are_imitated_and_nothing_else(tmp_path: Path) -> None:
    batch = gathered(copy_recipe(), tmp_path)
    trained = grpo.train_batch(batch, False, Imitation(coef=1.0))
    right = torch.from_numpy(batch.scored.verified == 1.0)
    assert 0 < int(right.sum()) < len(right)
    assert torch.equal(trained.imitation_mask, trained.response_mask & right[:, None])
    _, _, metrics = run(copy_spec(tmp_path, copy_recipe(actor={"imitation": {"coef": 0.5}}), token_budget=400))
    losses = [data["actor/imitation_loss"] for data in metrics if data["outcome/mean"] > 0]
    assert losses
    assert min(losses) > 0
    assert not any("actor/imitation_loss" in data for data in metrics if data["outcome/mean"] == 0)


class Fading(CopyDomain):
    """From the 20th batch on nothing is right any more."""

    batches = 0

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        self.batches += 1
        verdicts = super().judge(tasks, replies)
        return [v.model_copy(update={"outcome": v.outcome * (self.batches < 20)}) for v in verdicts]


def test_a_collapse_ends_the_training_by_name(tmp_path: Path) -> None:
    # Brevity keeps a spread in the reward, so that the end is not one without signal.
    recipe = copy_recipe(reward={"weights": {"outcome": 1.0, "brevity": 0.1}})
    result, _, metrics = run(copy_spec(tmp_path, recipe, token_budget=10**6), Fading())
    assert (result.status, result.early_stop) == ("completed", "collapse")
    assert result.checkpoint
    outcome = [data["outcome/mean"] for data in metrics]
    assert outcome[18] > 0
    assert outcome[19:] == [0.0] * (len(outcome) - 19)
    # Seven of the eight last steps have to be at zero before their mean is below a quarter of the best.
    assert 19 + 5 <= len(outcome) <= 19 + 8


def test_a_low_start_and_a_slow_rise_are_no_collapse() -> None:
    assert not grpo.has_collapsed([0.02] * 20 + [0.0] * 20)
    assert not grpo.has_collapsed(np.linspace(0.1, 0.9, 40).tolist())
    assert not grpo.has_collapsed([0.9] * 10 + [0.3] * 20)
    assert grpo.has_collapsed([0.9] * 10 + [0.2] * 8)
    assert not grpo.has_collapsed([0.9] * 8 + [0.0] * 7), "sixteen steps at least"


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"algorithm": {"filter_groups": {"enable": True}, "variance_filter": {"enable": True}}}, "both choose groups"),
        ({"actor": {"ppo_mini_batch_size": 9}}, "ppo_mini_batch_size = 9 exceeds data.train_batch_size = 8"),
        ({"reward": {"overlong_buffer": {"enable": True, "len": 6}}}, "leaves nothing of data.max_response_length = 6"),
        ({"actor": {"imitation": {"coef": 0.1, "on": "hinted"}}}, "data.hints.enable is false"),
        ({"data": {"levels": [1], "curriculum": {"mode": "range"}}}, "levels names a single one"),
        ({"actor": {"clip_ratio_c": 1.0}}, "greater than 1"),
    ],
)
def test_impossible_combinations_are_refused_with_the_reason(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        copy_recipe(**sections)
