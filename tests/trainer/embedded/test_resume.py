"""A training that is killed between two steps and goes on equals the one that was not."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.trainer.embedded.toy import CopyDomain, copy_policy, copy_recipe, copy_spec
from trainer.embedded import grpo
from trainer.embedded.files import STATE, prepare_directory
from trainer.embedded.metrics import read_metrics
from trainer.types import InputError, Recipe, StepProgress, TrainResult, TrainSpec


class Killed(Exception):
    """Stands for the end of the process: nothing of the job's own runs after it."""


def attempt(spec: TrainSpec, die_after: int = 10**9) -> TrainResult:
    torch.set_num_threads(1)
    prepare_directory(spec)

    def report(progress: StepProgress) -> None:
        if progress.step == die_after:
            raise Killed

    return grpo.train(spec, copy_policy(), CopyDomain(), report)


def saving(tmp_path: Path, recipe: Recipe | None = None, **changes: Any) -> TrainSpec:
    """A training that saves its state after every step."""
    return copy_spec(tmp_path, recipe, save_interval_s=0.0, **changes)


def killed_after(spec: TrainSpec, step: int) -> TrainSpec:
    """The spec of a training that died in the report of ``step``: its state is that of the step before."""
    with pytest.raises(Killed):
        attempt(spec, die_after=step)
    return spec


def learned(result: TrainResult) -> tuple[str, pa.Table, list[tuple[int, dict[str, float]]]]:
    """Weights, rollouts and metrics, without the clock's."""
    assert result.checkpoint and result.rollouts_dir and result.metrics_file
    weights = hashlib.sha256((result.checkpoint / "model.safetensors").read_bytes()).hexdigest()
    table = pa.concat_tables([pq.read_table(file) for file in sorted(result.rollouts_dir.glob("*.parquet"))])
    metrics = [
        (step, {name: value for name, value in data.items() if not name.startswith(("timing", "perf"))})
        for step, data in read_metrics(result.metrics_file)
    ]
    return weights, table, metrics


STATEFUL: dict[str, dict[str, Any]] = {
    "plain": {},
    "kl": {
        "actor": {"use_kl_loss": True, "kl_loss_coef": 0.1, "ppo_epochs": 2, "ppo_mini_batch_size": 4},
        "algorithm": {"use_kl_in_reward": True, "kl_ctrl": {"type": "adaptive", "horizon": 100}},
    },
    "curriculum": {"data": {"curriculum": {"mode": "solve_rate"}, "hints": {"enable": True}}},
    "dynamic sampling": {"algorithm": {"filter_groups": {"enable": True}}, "rollout": {"temperature_end": 0.5}},
}


@pytest.mark.parametrize("sections", STATEFUL.values(), ids=STATEFUL)
def test_killed_twice_and_resumed_equals_undisturbed(sections: dict[str, Any], tmp_path: Path) -> None:
    recipe: Recipe = copy_recipe(**sections)
    whole = attempt(saving(tmp_path / "whole", recipe))
    spec = saving(tmp_path / "killed", recipe)
    for step in (2, 4):
        killed_after(spec, step)
    resumed = attempt(spec)
    for expected, found in zip(learned(whole), learned(resumed), strict=True):
        assert found == expected
    assert (resumed.cost.steps, resumed.cost.tokens, resumed.cost.rollouts) == (
        whole.cost.steps, whole.cost.tokens, whole.cost.rollouts,
    )  # fmt: skip
    assert not (spec.out_dir / STATE).exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from trainer.embedded import grpo
from trainer.types import TrainSpec
from tests.trainer.embedded.test_resume import attempt

class Fatal:
    # Dies in the middle of step 5, before its update and while its rollouts are being written.
    def __call__(self, *arguments):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

real, grpo.update_actor = grpo.update_actor, Fatal()
attempt(TrainSpec.model_validate_json(Path(sys.argv[1]).read_text()))
"""


def test_a_process_killed_within_a_step_loses_that_step_alone(tmp_path: Path) -> None:
    whole = attempt(saving(tmp_path / "whole"))
    spec = saving(tmp_path / "killed")
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "spec.json")], cwd=Path(__file__).parents[3], check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert len(read_metrics(spec.out_dir / "metrics-1.jsonl")) == 4
    for expected, found in zip(learned(whole), learned(attempt(spec)), strict=True):
        assert found == expected


def test_the_second_attempt_does_not_train_the_steps_of_the_first_again(tmp_path: Path) -> None:
    spec = killed_after(saving(tmp_path), 5)
    steps: list[int] = []
    prepare_directory(spec)
    grpo.train(spec, copy_policy(), CopyDomain(), lambda progress: steps.append(progress.step))
    assert steps[0] == 5


def test_another_training_in_the_folder_starts_from_the_beginning(tmp_path: Path) -> None:
    killed_after(saving(tmp_path), 4)
    other = attempt(saving(tmp_path, seed=2))
    assert learned(other)[0] == learned(attempt(saving(tmp_path / "fresh", seed=2)))[0]


def test_a_damaged_state_is_named_with_the_remedy(tmp_path: Path) -> None:
    spec = killed_after(saving(tmp_path), 4)
    tensors = tmp_path / STATE / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:100])
    with pytest.raises(InputError, match=r"state/tensors\.safetensors: damaged .*delete the folder to train from"):
        attempt(spec)
    (tmp_path / STATE / "loop.json").write_text("{")
    with pytest.raises(InputError, match=r"state/loop\.json: damaged at the whole file"):
        attempt(spec)


def test_without_metrics_of_the_first_steps_there_is_no_going_on(tmp_path: Path) -> None:
    spec = killed_after(saving(tmp_path), 4)
    (tmp_path / "metrics-1.jsonl").unlink()
    with pytest.raises(InputError, match="metrics of the first 3 steps are gone"):
        attempt(spec)
