"""Real runs on a tiny budget: every part is the one a user has, only the numbers are small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TINY = {
    "trainer.token_budget": 30_000,
    "warm_start.steps": 150,
    "evaluation.validation": 24,
    "evaluation.sealed": 24,
    "evaluation.k": 4,
}


@dataclass(frozen=True)
class Runner:
    """Starts ``python -m graph.run`` the way a user does, with caches of its own."""

    home: Path

    @property
    def environment(self) -> Mapping[str, str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith("EVOTRAINER_")}
        return {**keep, "HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / "cache"), "OMP_NUM_THREADS": "1"}

    def start(self, *args: str, module: str = "graph.run") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str, module: str = "graph.run") -> subprocess.CompletedProcess[str]:
        with self.start(*args, module=module) as process:
            out, err = process.communicate()
            return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def tiny(self, runs_dir: Path, name: str, **options: Any) -> list[str]:
        """Arguments of a run of seconds; ``options`` replace keys (dots as double underscores)."""
        values = {**TINY, **{k.replace("__", "."): v for k, v in options.items()}}
        sets: Sequence[str] = [part for k, v in values.items() for part in ("--set", f"{k}={v}")]
        return ["--runs-dir", str(runs_dir), "--name", name, "--versions", "2", "--minutes", "60", *sets]


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("empty home"))


@pytest.fixture(scope="session")
def undisturbed(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One whole run, shared by the tests that look at its results: folder and ``--json`` object."""
    runs_dir = tmp_path_factory.mktemp("runs with a space")
    done = runner.run(*runner.tiny(runs_dir, "calm"), "--json")
    assert done.returncode == 0, done.stderr
    return runs_dir / "calm", json.loads(done.stdout)
