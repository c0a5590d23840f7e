"""Programs of these tests run as untrusted ones do: in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxes.types import Executor
from tests.backends import backend_or_skip


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    """Warm workers on the backend that works here, or the test's skip with the remedy."""
    from sandboxes.owners import this_process
    from sandboxes.pool import Pool

    pool = Pool(backend_or_skip(), this_process("tests", lifetime_s=1800.0), workers=2)
    yield pool
    pool.close()
