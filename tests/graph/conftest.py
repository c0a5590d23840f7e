"""One real run for the tests that look into a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs import LEAST, Runner, arguments, copy_run


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def whole(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be read only."""
    runs_dir = tmp_path_factory.mktemp("runs of a user")
    done = runner.run(*arguments(runs_dir, "whole", LEAST, versions=1))
    assert done.returncode == 0, done.stderr
    return runs_dir / "whole"


@pytest.fixture
def broken(whole: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes copies of it, to be broken."""
    made = 0

    def make() -> Path:
        nonlocal made
        made += 1
        return copy_run(whole, tmp_path / f"run {made}")

    return make
