"""Python parts of a harness run in these tests as they do in a run: in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from sandboxes.types import Executor, SandboxUnavailable


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    """Warm workers on the backend that works here, or the test's skip with the remedy."""
    from sandboxes.backends import open_backend
    from trainer.execution import IsolatedPrograms

    try:
        backend = open_backend("auto")
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with closing(IsolatedPrograms(backend.name, "tests")) as programs:
        yield programs
