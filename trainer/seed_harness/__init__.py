"""The files a new run's harness repository starts from: recipe, procedure, reward terms, diagnostics.

Those in this folder serve every domain; ``domains/<name>/`` adds terms and diagnostics of one domain, and its
``options.toml`` the recipe options in which it departs from the common recipe.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from trainer.types import InputError

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


def own_files(folder: Path) -> dict[str, str]:
    """A person's own reward terms and diagnostics, ``reward/*.toml`` and ``diagnostics/*.toml`` of a folder.

    Raises InputError where there are none, for a file that cannot be read, and for a recipe, which options are for.
    """
    for name in ("recipe.toml", "procedure.toml"):
        if (folder / name).exists():
            raise InputError(f"{folder / name}: not taken from a folder; set its options with --set recipe.… instead")
    try:
        files = {
            f"{part}/{name}": text for part in ("reward", "diagnostics") for name, text in _texts(folder / part).items()
        }
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{folder}: cannot be read ({error}); mend the file") from error
    if not files:
        raise InputError(f"{folder}: no reward/*.toml and no diagnostics/*.toml in it; name a folder that has some")
    return files


def without_validity(files: Mapping[str, str]) -> dict[str, str]:
    """The files less those of validity diagnostics, which is how it is measured what others find in their place."""
    validity = ("diagnostics/", 'kind = "validity"')
    return {name: text for name, text in files.items() if not (name.startswith(validity[0]) and validity[1] in text)}


def _texts(root: Path) -> dict[str, str]:
    return {file.relative_to(root).as_posix(): file.read_text("utf-8") for file in sorted(root.rglob("*.toml"))}
