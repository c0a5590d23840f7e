"""What becomes of groups, mini-batches and trainings in which there is little or nothing to learn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.trainer.embedded.test_grpo import metrics_of, rollouts_of, run
from tests.trainer.embedded.test_update import sampled_batch
from tests.trainer.embedded.toy import CopyDomain, copy_policy, copy_recipe, copy_spec
from trainer.embedded import grpo, update
from trainer.types import Judged, Task

BATCHES = 3


def filtering(metric: str) -> dict[str, dict[str, Any]]:
    return {"filter_groups": {"enable": True, "metric": metric, "max_num_gen_batches": BATCHES}}


class Unsolved(CopyDomain):
    """No reply is ever right."""

    def judge_one(self, task: Task, reply: str) -> Judged:
        return super().judge_one(task, reply).model_copy(update={"outcome": 0.0})


@pytest.mark.parametrize("metric", ["outcome", "score"])
def test_a_length_penalty_does_not_bring_a_group_that_fails_as_a_whole_past_the_outcome_filter(
    tmp_path: Path, metric: str
) -> None:
    """Short wrong replies score higher than long wrong ones: spread in the shaped score, none in the outcome."""
    recipe = copy_recipe(algorithm=filtering(metric), reward={"weights": {"outcome": 1.0, "brevity": 0.5}})
    table = rollouts_of(run(copy_spec(tmp_path, recipe, token_budget=600)))
    groups, index = np.unique(
        [f"{s}/{g}" for s, g in zip(table["step"].to_pylist(), table["group_id"].to_pylist(), strict=True)],
        return_inverse=True,
    )
    outcome, score = table["outcome"].to_numpy(), table["score"].to_numpy()
    kept = table["kept"].to_numpy(zero_copy_only=False)
    shaped = [g for g in range(len(groups)) if outcome[index == g].max() == 0 and np.ptp(score[index == g]) > 1e-3]
    assert shaped, "some group fails as a whole with replies of unequal length"
    assert any(kept[index == g].any() for g in shaped) == (metric == "score")


def test_refills_are_bounded_and_a_training_without_any_signal_ends_as_such(tmp_path: Path) -> None:
    spec = copy_spec(tmp_path, copy_recipe(algorithm=filtering("outcome")), token_budget=10**6)
    result = grpo.train(spec, copy_policy(), Unsolved(), lambda progress: None)
    assert (result.status, result.early_stop) == ("completed", "no_signal")
    assert result.cost.steps == grpo.MAX_STEPS_WITHOUT_SIGNAL
    table = rollouts_of(result)
    for step in range(1, result.cost.steps + 1):
        assert table.filter(pa.compute.equal(table["step"], step)).num_rows == BATCHES * 8 * 4
    assert not any(table["kept"].to_pylist())
    assert [data["signal/kept_groups"] for data in metrics_of(result)] == [0.0] * result.cost.steps


@pytest.mark.parametrize("prompts", [3, 7, 19, 20, 21, 40])
def test_mini_batches_that_do_not_divide_the_batch_use_every_row_once(
    prompts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 prompts with 4 rollouts each; a filter leaves any number of them, so that the last mini-batch is smaller."""
    policy, seen = copy_policy(), list[torch.Tensor]()
    optimise = update._optimise

    def watched(*arguments: Any) -> dict[str, float]:
        seen.append(arguments[4])
        return optimise(*arguments)

    monkeypatch.setattr(update, "_optimise", watched)
    recipe = copy_recipe(
        rollout={"n": 4},
        data={"train_batch_size": 40, "max_response_length": 8},
        actor={"ppo_mini_batch_size": prompts},
    )
    metrics = update.update_actor(policy, None, update.make_optimizer(policy, recipe), sampled_batch(policy), recipe)
    assert torch.cat(seen).tolist() == list(range(80))
    assert [len(mini) for mini in seen[:-1]] == [4 * prompts] * (len(seen) - 1)
    assert 0 < len(seen[-1]) <= 4 * prompts
    assert all(np.isfinite(value) for value in metrics.values())


def test_a_training_whose_filter_leaves_odd_batches_goes_on(tmp_path: Path) -> None:
    recipe = copy_recipe(
        algorithm=filtering("outcome"), actor={"ppo_mini_batch_size": 3}, data={"train_batch_size": 8, "levels": [1]}
    )
    result = run(copy_spec(tmp_path, recipe))
    assert (result.status, result.early_stop) == ("completed", None)
    table = rollouts_of(result)
    sizes = {
        sum(table.filter(pa.compute.equal(table["step"], step))["kept"].to_pylist()) // 4
        for step in range(1, result.cost.steps + 1)
    }
    assert any(size % 3 for size in sizes)
