"""Real runs on a tiny budget: every part is the one a user has, only the numbers are small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runs import Runner


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
