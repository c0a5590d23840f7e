"""Programs of these tests run as untrusted ones do: in a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxes.types import Executor, SandboxUnavailable


@pytest.fixture(scope="session")
def executor() -> Iterator[Executor]:
    """Warm workers on the backend that works here, or the test's skip with the remedy."""
    from sandboxes.backends import open_backend
    from sandboxes.owners import this_process
    from sandboxes.pool import Pool

    try:
        pool = Pool(open_backend("auto"), this_process("tests", lifetime_s=1800.0), workers=2)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield pool
    pool.close()
