"""Jobs as child processes: they train, fail, end and are found again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer.embedded.toy import copy_policy, copy_recipe, copy_spec
from trainer.embedded.launcher import EmbeddedTrainer
from trainer.embedded.policy import save_policy
from trainer.embedded.process import Child
from trainer.types import InputError, RewardTerm, StepProgress, TrainSpec

PATIENCE_S = 120
"""How long to wait for what must happen; only a failing test ever waits that long."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_policy(copy_policy(), folder)
    return folder


@pytest.fixture
def trainer() -> Iterator[EmbeddedTrainer]:
    with EmbeddedTrainer(max_parallel=1) as trainer:
        yield trainer


def math_spec(out_dir: Path, base: Path, **changes: Any) -> TrainSpec:
    return copy_spec(out_dir, domain="math", base_policy=base, **({"token_budget": 300} | changes))


def endless(out_dir: Path, base: Path, **changes: Any) -> TrainSpec:
    """A job that never runs out of budget, nor of signal: it hardly learns what it is rewarded for."""
    term = RewardTerm(name="one", description="replies with a 1", sql="CAST(contains(response, '1') AS DOUBLE)")
    recipe = copy_recipe(optim={"lr": 1e-9}, reward={"weights": {"one": 1.0}})
    return math_spec(out_dir, base, token_budget=10**9, recipe=recipe, terms={"one": term}, **changes)


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def processes_of(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def gone(processes: list[psutil.Process]) -> bool:
    return all(not p.is_running() or p.status() == psutil.STATUS_ZOMBIE for p in processes)


def test_a_job_trains_and_is_answered_from_disk_afterwards(
    tmp_path: Path, base: Path, trainer: EmbeddedTrainer
) -> None:
    spec = math_spec(tmp_path / "with space", base)
    seen: list[tuple[int, int, list[StepProgress]]] = []
    [result] = trainer.run_all([spec], lambda done, total, running: seen.append((done, total, list(running))))
    assert result.status == "completed", result.error
    assert result.checkpoint is not None
    assert (result.checkpoint / "model.safetensors").exists()
    assert seen[0][:2] == (0, 1)
    assert seen[-1][:2] == (1, 1)
    before = (spec.out_dir / "job.log").stat().st_mtime_ns
    job = trainer.launch(spec.model_copy(update={"rollout_workers": 2, "deadline_s": 5.0}))
    assert trainer.wait(job) == result
    progress = job.progress()
    assert progress is not None
    assert progress.version == spec.version
    assert (spec.out_dir / "job.log").stat().st_mtime_ns == before


def test_another_spec_in_the_same_directory_trains_anew(tmp_path: Path, base: Path, trainer: EmbeddedTrainer) -> None:
    specs = [math_spec(tmp_path, base), math_spec(tmp_path, base, seed=9)]
    first, second = (trainer.run_all([spec])[0] for spec in specs)
    assert first.metrics_file == tmp_path / "metrics-1.jsonl"
    assert second.metrics_file == tmp_path / "metrics-2.jsonl"


def test_a_damaged_result_is_named_with_the_remedy(tmp_path: Path, base: Path, trainer: EmbeddedTrainer) -> None:
    (tmp_path / "result.json").write_text('{"status": "comp')
    with pytest.raises(InputError, match=r"result\.json.*delete it") as raised:
        trainer.launch(math_spec(tmp_path, base))
    assert "\n" not in str(raised.value)


def test_a_job_that_cannot_load_its_policy_is_crashed_with_the_reason(tmp_path: Path, trainer: EmbeddedTrainer) -> None:
    result = trainer.wait(trainer.launch(math_spec(tmp_path, tmp_path / "nowhere")))
    assert result.status == "crashed"
    assert "nowhere" in result.error
    assert "Traceback" not in result.error  # bad input is one line
    assert not (tmp_path / "result.json").exists()


def test_a_killed_job_is_crashed_and_runs_again(tmp_path: Path, base: Path, trainer: EmbeddedTrainer) -> None:
    job = trainer.launch(endless(tmp_path, base))
    wait_until(lambda: list(tmp_path.glob("rollouts/*.parquet")))
    assert job.work.child is not None
    os.kill(job.work.child.pid, signal.SIGKILL)
    result = trainer.wait(job)
    assert result.status == "crashed"
    assert "exit code -9" in result.error
    again = trainer.wait(trainer.launch(math_spec(tmp_path, base)))
    assert again.status == "completed"
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics-2.jsonl").read_text().splitlines()]
    assert len(list(tmp_path.glob("rollouts/*.parquet"))) == len(steps)  # nothing of the killed attempt is left


def test_cancel_leaves_no_process_workers_included(tmp_path: Path, base: Path, trainer: EmbeddedTrainer) -> None:
    job = trainer.launch(endless(tmp_path / "a", base, rollout_workers=2))
    queued = trainer.launch(endless(tmp_path / "b", base))
    wait_until(lambda: job.progress() is not None)
    assert job.work.child is not None
    processes = processes_of(job.work.child.pid)
    assert len(processes) == 3
    trainer.cancel(job)
    assert gone(processes[:1])
    wait_until(lambda: gone(processes))
    assert trainer.wait(job).status == "cancelled"
    trainer.cancel(queued)
    assert trainer.wait(queued).status == "cancelled"
    assert not (tmp_path / "b" / "spec.json").exists()


def test_a_job_beyond_deadline_and_grace_is_killed(tmp_path: Path, base: Path) -> None:
    with EmbeddedTrainer(max_parallel=1, grace_s=0.0) as trainer:
        job = trainer.launch(endless(tmp_path, base, deadline_s=1e-3))
        result = trainer.wait(job)
    assert result.status == "timed_out"
    assert job.work.child is not None
    assert job.work.child.exit_code is not None


def test_no_more_jobs_run_than_allowed(tmp_path: Path, base: Path) -> None:
    running: list[int] = []
    specs = [math_spec(tmp_path / str(seed), base, seed=seed) for seed in range(4)]
    with EmbeddedTrainer(max_parallel=2) as trainer:

        def count(done: int, total: int, reports: object) -> None:
            running.append(len(trainer._queue._running))

        results = trainer.run_all(specs, count)
    assert [result.status for result in results] == ["completed"] * 4
    assert max(running) == 2
    assert len({result.checkpoint for result in results}) == 4


def test_an_interrupted_batch_ends_its_jobs(tmp_path: Path, base: Path, trainer: EmbeddedTrainer) -> None:
    pids: list[int] = []

    def interrupt(done: int, total: int, reports: object) -> None:
        pids.extend(job.child.pid for job in trainer._queue._running if job.child)
        if pids:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.run_all([endless(tmp_path, base)], interrupt)
    assert gone([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)])


PARENT = """
import sys, time
from pathlib import Path
from trainer.embedded.launcher import EmbeddedTrainer
from trainer.types import TrainSpec

if __name__ == "__main__":
    trainer = EmbeddedTrainer(max_parallel=2)
    specs = [TrainSpec.model_validate_json(Path(arg).read_text()) for arg in sys.argv[1:]]
    trainer.run_all(specs)
"""


def test_no_process_outlives_a_launcher_that_is_killed(tmp_path: Path, base: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    files = []
    for name in ("a", "b"):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(endless(tmp_path / name, base, rollout_workers=1).model_dump_json())
    parent = subprocess.Popen(
        [sys.executable, str(script), *map(str, files)], env=os.environ | {"PYTHONPATH": str(Path.cwd())}
    )
    try:
        wait_until(lambda: all((tmp_path / name / "progress.json").exists() for name in ("a", "b")))
        processes = processes_of(parent.pid)[1:]
        # fork server, resource tracker, two jobs and a rollout worker each
        assert len(processes) == 6
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: gone(processes))


def fail_with_a_bug() -> None:
    print("about to fail")
    raise ZeroDivisionError("a bug")


def test_the_log_of_a_child_holds_its_output_and_traceback(tmp_path: Path) -> None:
    child = Child(fail_with_a_bug, (), tmp_path / "child.log")
    wait_until(lambda: child.exit_code is not None)
    assert child.exit_code == 1
    assert child.log_tail().startswith("about to fail")
    assert child.log_tail().endswith("ZeroDivisionError: a bug")
    child.kill()  # of one that has ended: nothing happens


def test_importing_the_launcher_loads_no_torch() -> None:
    code = "import sys, trainer.embedded.launcher; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
