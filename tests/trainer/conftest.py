"""Python parts of a harness run in these tests as they do in a run: in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from sandboxes.types import Executor
from tests.backends import backend_or_skip


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    """Warm workers on the backend that works here, or the test's skip with the remedy."""
    from trainer.execution import IsolatedPrograms

    with closing(IsolatedPrograms(backend_or_skip().name, "tests")) as programs:
        yield programs
