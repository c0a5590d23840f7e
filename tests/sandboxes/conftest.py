"""One suite, every backend: a test that takes ``backend`` runs on each that works here."""

from __future__ import annotations

import os

import pytest

from sandboxes.backends import BACKENDS, open_backend
from sandboxes.owners import this_process
from sandboxes.types import Backend, Owner, SandboxUnavailable

REQUIRED = frozenset(filter(None, os.environ.get("EVOTRAINER_TEST_SANDBOXES", "").split(",")))
"""Backends that must work (set by `make test-docker`): there a missing one fails instead of skipping."""


def opened(name: str) -> Backend:
    """The backend, or the test's skip with the remedy."""
    try:
        return open_backend(name)
    except SandboxUnavailable as error:
        if name in REQUIRED:
            raise
        pytest.skip(str(error))


@pytest.fixture(
    scope="session", params=[pytest.param(n, marks=[pytest.mark.docker] if n == "docker" else []) for n in BACKENDS]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    return opened(request.param)


@pytest.fixture
def owner() -> Owner:
    return this_process("tests", lifetime_s=600.0)
