"""One suite, every backend: a test that takes ``backend`` runs on each that works here."""

from __future__ import annotations

import pytest

from sandboxes.backends import BACKENDS
from sandboxes.owners import this_process
from sandboxes.types import Backend, Owner
from tests.backends import backend_or_skip


@pytest.fixture(
    scope="session", params=[pytest.param(n, marks=[pytest.mark.docker] if n == "docker" else []) for n in BACKENDS]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    return backend_or_skip(request.param)


@pytest.fixture
def owner() -> Owner:
    return this_process("tests", lifetime_s=600.0)
