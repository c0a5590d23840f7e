"""What two runs must have in common to be the same run: stores without times, harness trees, trained versions."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOLATILE = {"harness_commit", "merge_commit", "duration_s", "run_id", "inputs"}


def without(value: Any) -> Any:
    """A record without times, costs and commit ids."""
    if isinstance(value, dict):
        return {k: without(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [without(v) for v in value]
    return value


def trees(run: Path) -> Mapping[str, str]:
    """Ref of the harness to the tree it leads to."""

    def git(*args: str) -> str:
        return subprocess.run(["git", "-C", run / "harness", *args], check=True, capture_output=True, text=True).stdout

    refs = [r for r in git("for-each-ref", "--format=%(refname)").split() if not r.startswith("refs/notes/")]
    return {ref: git("rev-parse", f"{ref}^{{tree}}").strip() for ref in refs}


def trained(run: Path) -> set[str]:
    return {str(p.parent.relative_to(run)) for p in run.glob("versions/*/seed-*/train/result.json")}
