"""Evaluations: paired draws, honest zeros, and jobs that are answered from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.trainer.embedded.toy import BREVITY, OUTCOME, CopyDomain, copy_policy
from trainer.domains import load_domain
from trainer.embedded.evaluate import evaluate, read_tasks
from trainer.embedded.files import EvalSpec, episodes_file
from trainer.embedded.launcher import EmbeddedTrainer
from trainer.embedded.policy import Policy, save_policy
from trainer.reward import score_rollouts
from trainer.types import EvalProtocol, Evaluation, InputError, StepProgress, Task

PROTOCOL = EvalProtocol(
    domain="copy", k=3, temperature=1.0, max_response_length=6, sampling_seed=7, validation=20, sealed=20
)
TASKS = CopyDomain().tasks("validation", 20)


def run(policy: Policy | None = None, tasks: list[Task] = TASKS, **changes: Any) -> Evaluation:
    fields: dict[str, Any] = {"suite": "validation", "version": "v0000", "seed": 0, "protocol_hash": "h"}
    return evaluate(policy or copy_policy(), tasks, PROTOCOL, domain=CopyDomain(), **(fields | changes))


def test_scores_have_one_row_per_task_and_agree_with_the_episodes(tmp_path: Path) -> None:
    reports: list[StepProgress] = []
    evaluation = run(episodes=tmp_path / "e.parquet", report=reports.append)
    table = pq.read_table(tmp_path / "e.parquet")
    assert evaluation.task_ids == tuple(task.id for task in TASKS)
    scores = np.array(evaluation.scores)
    assert scores.shape == (20, 3)
    assert set(scores.flatten()) == {0.0, 1.0}
    assert table["outcome"].to_pylist() == scores.flatten().tolist()
    assert table["sample"].to_pylist() == [0, 1, 2] * 20
    assert table["task_id"].to_pylist()[::3] == list(evaluation.task_ids)
    judged = [
        CopyDomain().judge_one(t, r).outcome
        for t, r in zip(np.repeat(np.array(TASKS, object), 3), table["response"].to_pylist(), strict=True)
    ]
    assert judged == table["outcome"].to_pylist()
    assert evaluation.tokens == sum(table["response_length"].to_pylist())
    assert reports[-1].fraction == 1.0
    assert reports[-1].score == pytest.approx(evaluation.mean)


def test_episodes_can_be_scored_by_any_harness(tmp_path: Path) -> None:
    run(episodes=tmp_path / "e.parquet")
    table = pq.read_table(tmp_path / "e.parquet")
    terms, score = score_rollouts(table, {"outcome": OUTCOME, "brevity": BREVITY}, {"outcome": 1.0, "brevity": 0.5})
    np.testing.assert_allclose(score, terms["outcome"] + 0.5 / (1 + table["response_length"].to_numpy()))


def test_all_versions_draw_with_the_same_random_numbers_and_suites_with_others() -> None:
    """An equal policy under another name scores the same on every sample; another suite does not."""
    assert run(version="v0001", seed=5).scores == run().scores
    assert run(suite="sealed").scores != run().scores


def test_a_diverged_policy_scores_zero_and_leaves_complete_files(tmp_path: Path) -> None:
    policy = copy_policy()
    with torch.no_grad():
        next(policy.module.parameters()).fill_(float("nan"))
    evaluation = run(policy, episodes=tmp_path / "e.parquet")
    table = pq.read_table(tmp_path / "e.parquet")
    assert evaluation.mean == 0.0
    assert table.num_rows == 60
    assert set(table["stop_reason"].to_pylist()) == {"nan"}
    assert set(table["response_length"].to_pylist()) == {0}


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("", "no tasks"), (TASKS[0].model_dump_json() + "\n{}\n", "line 2")],
)
def test_a_damaged_suite_is_named_with_its_line(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "validation.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=rf"validation\.jsonl.*{message}"):
        read_tasks(file)


def spec_of(folder: Path, **changes: Any) -> EvalSpec:
    """A job on three tasks of the math domain, with an untrained policy."""
    tasks = load_domain("math").tasks("validation", 3)
    (folder / "validation.jsonl").write_text("".join(task.model_dump_json() + "\n" for task in tasks))
    save_policy(copy_policy(), folder / "policy")
    fields: dict[str, Any] = {
        "checkpoint": folder / "policy",
        "suite": "validation",
        "tasks_file": folder / "validation.jsonl",
        "protocol": PROTOCOL.model_copy(update={"domain": "math"}),
        "protocol_hash": "h",
        "version": "v0000",
        "seed": 0,
        "domain": "math",
        "out_file": folder / "out" / "validation.json",
    }
    return EvalSpec(**(fields | changes))


def test_a_job_writes_its_files_and_is_answered_from_disk(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    counts: list[tuple[int, int]] = []
    with EmbeddedTrainer(max_parallel=1) as trainer:
        [evaluation] = trainer.evaluate_all([spec], lambda done, total, running: counts.append((done, total)))
        assert counts[0] == (0, 1)
        assert counts[-1] == (1, 1)
        assert evaluation.task_ids == tuple(task.id for task in read_tasks(spec.tasks_file))
        assert pq.read_metadata(episodes_file(spec)).num_rows == 9
        written = spec.out_file.stat().st_mtime_ns
        assert trainer.evaluate_all([spec]) == [evaluation]
        assert spec.out_file.stat().st_mtime_ns == written
        [other] = trainer.evaluate_all([spec.model_copy(update={"protocol_hash": "other"})])
        assert other.protocol_hash == "other"
        assert other.scores == evaluation.scores


def test_a_failed_evaluation_raises_with_the_reason(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, checkpoint=tmp_path / "nowhere")
    with EmbeddedTrainer(max_parallel=1) as trainer, pytest.raises(RuntimeError, match=r"v0000 seed 0.*nowhere"):
        trainer.evaluate_all([spec])


def test_a_damaged_evaluation_is_named_with_the_remedy(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    spec.out_file.parent.mkdir()
    spec.out_file.write_text("{")
    with EmbeddedTrainer(max_parallel=1) as trainer, pytest.raises(InputError, match=r"validation\.json.*delete it"):
        trainer.evaluate_all([spec])
