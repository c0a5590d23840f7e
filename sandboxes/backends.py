"""Backends by short name, and the choice between them, which is said and never silently changed."""

from __future__ import annotations

from importlib import import_module

from sandboxes.types import Backend, SandboxUnavailable

BACKENDS: dict[str, str] = {
    "docker": "sandboxes.docker:DockerBackend",
    "bubblewrap": "sandboxes.bubblewrap:BubblewrapBackend",
}
"""Short name to ``module:class``, the strongest isolation first: ``auto`` takes the first that works."""


def open_backend(name: str) -> Backend:
    """The backend ``name``, or with ``auto`` the first that works here.

    Raises SandboxUnavailable with one line that names the remedy.
    """
    if name == "auto":
        reasons = []
        for candidate in BACKENDS:
            try:
                return open_backend(candidate)
            except SandboxUnavailable as error:
                reasons.append(str(error))
        raise SandboxUnavailable("no sandbox works here: " + "; ".join(reasons))
    if name not in BACKENDS:
        raise SandboxUnavailable(f"sandbox {name!r} is unknown: choose auto, {' or '.join(BACKENDS)}")
    module, attribute = BACKENDS[name].split(":")
    backend: Backend = getattr(import_module(module), attribute)()
    backend.isolation()
    return backend
