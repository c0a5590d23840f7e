"""What goes wrong around a run: one line each with file and remedy, a non-zero exit, nothing lost, nothing left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from graph.config import dump, resolve
from graph.integrity.check import check_run
from graph.leftovers import leftovers
from graph.record import STORES, RunRecord
from graph.versions import BASELINE
from tests.backends import REQUIRED
from tests.e2e.sameness import trained, trees, without
from tests.graph.test_integrity import another_machine, append, cut
from tests.runs import LEAST, ROOT, Runner, arguments

pytestmark = pytest.mark.faults
DEAD = 4194305
"""A process id that no Linux gives: one more than the largest there can be."""


def isolated(*command: str) -> list[str]:
    """The command in user and mount namespaces of its own, where it may mount; without them the test is skipped."""
    prefix = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        # A tmpfs of our own is the only disk that can be filled without harm, and mounting it takes a namespace.
        assert not REQUIRED, "user namespaces must work where sandboxes are demanded"
        pytest.skip("no user namespaces here: sysctl kernel.unprivileged_userns_clone=1, or util-linux is missing")
    return [*prefix, *command]


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line a failed command says."""
    assert "Traceback" not in done.stderr
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
    return line


def assert_same_record(run: Path, other: Path) -> None:
    for store in STORES:
        got, wanted = (without(list(RunRecord(r).entries(store))) for r in (run, other))
        assert got == wanted, store
    assert trained(run) == trained(other)
    assert trees(run) == trees(other)


@pytest.mark.timeout(300)
def test_a_full_disk_stops_the_run_wherever_it_is_and_nothing_is_lost(
    runner: Runner, whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    paths = [str(p) for p in (runner.home, tmp_path / "disk", tmp_path / "copy")]
    command = isolated(sys.executable, "-m", "tests.e2e.full_disk", *paths)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *failed, last = json.loads(done.stdout)
    assert last["code"] == 0, last["err"]
    assert len(failed) >= 3  # the disk was full in several places: the parent's, a training's, git's
    for said in failed:
        assert said["code"] == 1
        (line,) = [text for text in said["err"].splitlines() if text.startswith("error: ")]
        assert "Traceback" not in said["err"]
        assert line.startswith(f"error: {tmp_path / 'disk'}")
        assert "No space left on device; free disk space, then --resume" in line
        assert said["left"] == []
    assert_same_record(tmp_path / "copy", whole)


def test_a_read_only_folder_is_named_and_can_still_be_looked_at(
    runner: Runner, broken: Callable[[], Path], tmp_path: Path
) -> None:
    run = broken()
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'

    def there(*args: str) -> subprocess.CompletedProcess[str]:
        command = isolated("sh", "-c", mount, str(tmp_path), sys.executable, "-m", *args)
        return subprocess.run(command, cwd=ROOT, env=runner.environment, capture_output=True, text=True, check=False)

    for args in (["--resume", str(run), "--versions", "2"], arguments(tmp_path, "new", LEAST, versions=1)):
        done = there("graph.run", *args)
        assert done.returncode == 1, done.stderr
        assert "Read-only file system; make the folder writable" in error_line(done)
    assert there("graph.runs", "check", str(run)).returncode == 0


TRUNCATED = {
    "Parquet": ("versions/v0000/seed-0/train/rollouts/step-000001.parquet", "damaged rollout file"),
    "SQLite": ("checkpoints.sqlite", "damaged"),
    "a record": ("versions/v0000/health.json", "field"),
    "a summary": ("protocol.json", "field"),
}


@pytest.mark.parametrize("name", TRUNCATED)
def test_a_truncated_file_is_named_when_the_run_goes_on(name: str, runner: Runner, broken: Callable[[], Path]) -> None:
    run, (file, word) = broken(), TRUNCATED[name]
    cut(run / file)
    done = runner.run("--resume", str(run), "--versions", "2")
    assert done.returncode == 2
    line = error_line(done)
    assert str(run / file) in line and word in line and "; " in line.replace(": restore", "; restore")
    assert leftovers(run) == []


def test_a_damaged_line_of_a_store_is_named_when_the_run_goes_on(runner: Runner, broken: Callable[[], Path]) -> None:
    run = broken()
    ledger = run / "record" / "ledger.jsonl"
    append(ledger, "garbage\n")
    done = runner.run("--resume", str(run), "--versions", "2")
    assert done.returncode == 2
    assert f"{ledger}: line {len(ledger.read_text().splitlines())} is damaged" in error_line(done)
    assert "--repair" in done.stderr


def test_a_run_of_another_machine_is_refused_and_can_be_taken_over(runner: Runner, broken: Callable[[], Path]) -> None:
    run = broken()
    another_machine(run / "manifest.json")
    before = (run / "checkpoints.sqlite").read_bytes()
    done = runner.run("--resume", str(run))
    assert done.returncode == 2
    assert "machine_hash" in error_line(done) and "check" in done.stderr and "--repair" in done.stderr
    assert (run / "checkpoints.sqlite").read_bytes() == before
    assert runner.runs("check", str(run), "--repair").returncode == 0
    assert runner.run("--resume", str(run)).returncode == 0
    assert check_run(run).sound


def test_what_a_dead_process_left_is_no_obstacle(runner: Runner, broken: Callable[[], Path]) -> None:
    run = broken()
    (run / "lock").write_text(f"{DEAD}\n")
    (run / "harness.lock").write_text("retire")
    (run / "status.json").write_text(json.dumps({"status": "running", "pid": DEAD, "message": ""}))
    (run / f".clock.json.{DEAD}.partial").touch()
    assert json.loads(runner.runs("list", "--runs-dir", str(run.parent), "--json").stdout)[0]["status"] == "killed"
    assert runner.run("--resume", str(run)).returncode == 0
    assert check_run(run).sound


@pytest.mark.timeout(120)
def test_of_two_starts_at_once_one_runs(runner: Runner, whole: Path, tmp_path: Path) -> None:
    two = [runner.start(*arguments(tmp_path, "same", LEAST, versions=1)) for _ in range(2)]
    said = [process.communicate()[1] for process in two]
    codes = [process.returncode for process in two]
    # The second found the lock taken, or came so late that the run was there already.
    assert sorted(codes) in ([0, 2], [0, 75]), said
    refused = said[codes.index(max(codes))]
    assert refused.count("\n") == 1
    assert "in use by process" in refused or "is there already" in refused
    assert_same_record(tmp_path / "same", whole)
    assert check_run(tmp_path / "same").sound


@pytest.mark.timeout(240)
def test_jobs_that_hang_end_at_their_deadline_and_the_loop_goes_on(runner: Runner, tmp_path: Path) -> None:
    """A training of the first candidate and an evaluation of the second."""
    hang = "v0001/seed-0/train/job.log,v0002/seed-1/validation.log"
    values = {**LEAST, "trainer.deadline_s": 12}
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "graph.run", str(tmp_path)])
    try:
        done = runner.run(hang, "--", *arguments(tmp_path, "hung", values, versions=2), module="tests.e2e.hanging_run")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    assert done.returncode == 0, done.stderr
    run = tmp_path / "hung"
    verdicts = RunRecord(run).verdicts()
    assert [(e["version"], e["verdict"], e["gate"]) for e in verdicts] == [
        ("v0001", "failed", None),
        ("v0002", "failed", None),
    ]
    assert "timed_out" in verdicts[0]["reasons"][0]
    assert "timed out" in verdicts[1]["reasons"][0]
    summary = json.loads((run / "summary.json").read_text())
    assert all(v["delta"] is None for v in summary["versions"])  # a failure is no score
    assert summary["champion"]["version"] == BASELINE
    assert check_run(run).sound
    assert not processes_with(str(run))


def processes_with(word: str) -> Sequence[str]:
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if word in line]


def test_a_policy_that_only_says_nan_is_refused_in_one_line(runner: Runner, whole: Path, tmp_path: Path) -> None:
    """Weights that are finite and logits that are not: nothing can be sampled, so there is nothing to learn from."""
    policy = tmp_path / "policy"
    shutil.copytree(whole / "base", policy)
    tensors = load_file(policy / "model.safetensors")
    tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], np.finfo(np.float32).max)
    save_file(tensors, policy / "model.safetensors")
    done = runner.run("--policy", str(policy), *arguments(tmp_path, "nan", LEAST, versions=1))
    assert done.returncode == 1
    assert "ended before its first step (nan)" in error_line(done)
    results = list((tmp_path / "nan").glob("versions/v0000/seed-*/train/result.json"))
    assert {json.loads(path.read_text())["early_stop"] for path in results} == {"nan"}
    assert leftovers(tmp_path / "nan") == []


def test_a_name_that_is_taken_is_refused(runner: Runner, whole: Path) -> None:
    done = runner.run(*arguments(whole.parent, whole.name, LEAST, versions=1))
    assert done.returncode == 2
    assert "is there already" in error_line(done)
    assert f"--resume {whole}" in done.stderr or f"--resume '{whole}'" in done.stderr


def test_the_resolved_configuration_lies_beside_the_run(whole: Path) -> None:
    saved = resolve(whole / "config.toml", {}, {}, {})
    assert saved.config.trainer.token_budget == LEAST["trainer.token_budget"]
    assert saved.config.run.name == whole.name
    assert dump(saved)
    origins = json.loads((whole / "config.origins.json").read_text())
    assert origins["trainer.token_budget"] == "--set"


def test_only_what_was_promoted_has_children(whole: Path) -> None:
    verdicts = RunRecord(whole).verdicts()
    promoted = {BASELINE} | {e["version"] for e in verdicts if e["verdict"] == "promoted"}
    assert {e["parent"] for e in verdicts} <= promoted


def test_a_finished_run_leaves_no_process(whole: Path) -> None:
    assert not processes_with(str(whole))
    assert not list(whole.glob("worktrees/*"))
