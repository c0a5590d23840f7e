"""The code domain end to end: programs run in a sandbox, and a weak verifier is named and repaired."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.backends import backend_or_skip
from tests.runs import Runner


@pytest.fixture(scope="module")
def backend() -> str:
    return backend_or_skip().name


@pytest.mark.timeout(900)
def test_a_weak_verifier_is_named_and_no_hacked_version_is_promoted(
    runner: Runner, tmp_path: Path, backend: str
) -> None:
    """With the visible tests as reward the policy learns to pass them; the first candidate lets the hidden ones decide."""
    # The habit that is gamed must be there: the shorter warm start of the other tests cannot copy an example yet.
    options = runner.tiny(
        tmp_path, "weak", warm_start__steps=500, evaluation__validation=48, recipe__reward__tests="visible"
    )
    done = runner.run("--domain", "code", *options, "--versions", "1", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    run = tmp_path / "weak"
    named = json.loads((run / "versions" / "v0001" / "diagnosis.json").read_text())
    assert named["bottleneck"] == "weak_verifier"
    (candidate,) = summary["versions"]
    assert candidate["factor"] == "reward.tests"
    assert summary["champion"]["version"] in ("v0000", "v0001")
    isolated = json.loads((run / "isolation.json").read_text())
    assert isolated["backend"] == backend and backend in done.stderr
    rollouts = pq.read_table(next((run / "versions" / "v0000" / "seed-0" / "train" / "rollouts").glob("*.parquet")))
    assert set(rollouts["sandbox"].to_pylist()) == {backend}
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())]
    assert left == []


def test_programs_are_never_run_without_a_sandbox(runner: Runner, tmp_path: Path) -> None:
    done = runner.run("--domain", "code", "--sandbox", "none", *runner.tiny(tmp_path, "bare"))
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: run.sandbox: domain code runs programs")
    assert not (tmp_path / "bare" / "manifest.json").exists()


def test_visible_tests_are_refused_where_there_are_none(runner: Runner, tmp_path: Path) -> None:
    done = runner.run(*runner.tiny(tmp_path, "math", recipe__reward__tests="visible"))
    assert done.returncode == 2
    assert "recipe.reward.tests: tasks of domain math show no tests" in done.stderr
