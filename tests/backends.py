"""A sandbox for a test: the one skip of all tests that need one, and none where a sandbox is demanded."""

from __future__ import annotations

import os

import pytest

from sandboxes.backends import open_backend
from sandboxes.types import Backend, SandboxUnavailable

REQUIRED = frozenset(filter(None, os.environ.get("TEST_SANDBOXES", "").split(",")))
"""Backends that must work (continuous integration sets it): there a missing one fails instead of skipping."""


def backend_or_skip(name: str = "auto") -> Backend:
    """The backend; without it the test is skipped with the remedy, since a laptop need not have one."""
    try:
        return open_backend(name)
    except SandboxUnavailable as error:
        if name in REQUIRED or (name == "auto" and REQUIRED):
            raise
        pytest.skip(str(error))
