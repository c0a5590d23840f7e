"""The files a new run's harness repository starts from: recipe, procedure, reward terms, diagnostics."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parent


def load_seed_files() -> dict[str, str]:
    """Path inside the harness repository (POSIX, relative) to file text, sorted by path."""
    files = sorted(_ROOT.rglob("*.toml"))
    return {file.relative_to(_ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}
