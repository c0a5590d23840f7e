"""A real run of seconds for tests that look at one, break one or resume one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graph.seals import seal, sealed

ROOT = Path(__file__).parents[1]
CHAIN: Mapping[str, Any] = {"trainer.seeds": 3, "gate.certify_seeds": 3, "gate.provisional_se": -100}
"""Steps are taken whatever the scores of so small a run say, so that there is a chain to certify."""
TINY: Mapping[str, Any] = {
    **CHAIN,
    "trainer.token_budget": 20_000,
    "warm_start.steps": 150,
    "evaluation.validation": 24,
    "evaluation.sealed": 24,
    "evaluation.k": 4,
}
LEAST: Mapping[str, Any] = {
    **CHAIN,
    "trainer.token_budget": 6_000,
    "warm_start.steps": 40,
    "evaluation.validation": 20,
    "evaluation.sealed": 16,
    "evaluation.k": 2,
}
"""As TINY, for what does not depend on a policy that has learned something."""


@dataclass(frozen=True)
class Runner:
    """Starts ``python -m graph.run`` the way a user does, with caches of its own."""

    home: Path
    tmp: Path | None = None
    """Where its temporary files go; None: where everybody's do."""

    @property
    def environment(self) -> Mapping[str, str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith("EVOTRAINER_")}
        own = {"HOME": str(self.home), "XDG_CACHE_HOME": str(self.home / "cache"), "OMP_NUM_THREADS": "1"}
        return {**keep, **own, **({"TMPDIR": str(self.tmp)} if self.tmp else {})}

    def start(self, *args: str, module: str = "graph.run", **popen: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )

    def run(self, *args: str, module: str = "graph.run", **popen: Any) -> subprocess.CompletedProcess[str]:
        with self.start(*args, module=module, **popen) as process:
            out, err = process.communicate()
            return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def runs(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.run(*args, module="graph.runs")

    def tiny(self, runs_dir: Path, name: str, **options: Any) -> list[str]:
        """Arguments of a run of seconds; ``options`` replace keys (dots as double underscores)."""
        return arguments(runs_dir, name, {**TINY, **{k.replace("__", "."): v for k, v in options.items()}}, versions=2)


def arguments(runs_dir: Path, name: str, values: Mapping[str, Any], versions: int) -> list[str]:
    sets: Sequence[str] = [part for k, v in values.items() for part in ("--set", f"{k}={v}")]
    return ["--runs-dir", str(runs_dir), "--name", name, "--versions", str(versions), "--minutes", "60", *sets]


def copy_run(run: Path, target: Path) -> Path:
    """A copy whose records speak of the copy's own files."""
    shutil.copytree(run, target, symlinks=True)
    for path in target.rglob("*.json"):
        path.write_text(path.read_text(encoding="utf-8").replace(str(run), str(target)), encoding="utf-8")
    seal(target, [target / file for file in sealed(target)])
    return target
