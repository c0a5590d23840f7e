"""The files a new run's harness repository starts from: recipe, procedure, reward terms, diagnostics.

Those in this folder serve every domain; ``domains/<name>/`` adds terms and diagnostics of one domain, and its
``options.toml`` the recipe options in which it departs from the common recipe.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

_ROOT = Path(__file__).parent
_OPTIONS = "options.toml"


def load_seed_files(domain: str = "") -> dict[str, str]:
    """Path inside the harness repository (POSIX, relative) to file text, sorted by path."""
    from trainer.harness_files import set_options

    own = _ROOT / "domains" / domain if domain else None
    files = {name: text for name, text in _texts(_ROOT).items() if not name.startswith("domains/")}
    if own is None or not own.is_dir():
        return files
    added = _texts(own)
    options = tomllib.loads(added.pop(_OPTIONS, ""))
    return dict(sorted(set_options(files | added, options).items()))


def _texts(root: Path) -> dict[str, str]:
    return {file.relative_to(root).as_posix(): file.read_text("utf-8") for file in sorted(root.rglob("*.toml"))}
