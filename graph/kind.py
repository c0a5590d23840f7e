"""Of which kind a run is: what it may take from earlier runs, and leave for later ones, in the user's cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

from graph.bases import base_of, mix
from graph.seals import digest
from graph.state import Deps
from graph.versions import suites_of
from trainer.shelf import Fingerprint


def shelf_folder(name: str) -> Path:
    """Where runs leave things of this name for one another."""
    import platformdirs

    return platformdirs.user_cache_path("evotrainer") / name


def fingerprint_of(deps: Deps) -> Fingerprint:
    """Domain, protocol, token budget and base policy."""
    config, base = deps.config, base_of(deps.record)
    start = _content(base.path)
    if base.warm_start:
        worked = config.recipe.warm_start.worked
        start = f"warm start of {config.warm_start.steps} steps" + (f", {mix(worked)}" if worked else "")
    return Fingerprint(
        domain=config.run.domain,
        protocol_hash=suites_of(deps.record).protocol_hash,
        token_budget=config.trainer.token_budget,
        base_policy=start,
    )


def recipe_of(deps: Deps) -> str:
    """Hash of the recipe that the run starts with, and of the reward terms where some are one's own."""
    content = deps.config.recipe.model_dump_json()
    if deps.config.run.harness:
        content += deps.harness.git("rev-parse", f"{deps.harness.beginning()}:reward")
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def _content(folder: Path) -> str:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    listed = "".join(f"{path.relative_to(folder)}\0{digest(path)}\n" for path in files)
    return hashlib.sha256(listed.encode()).hexdigest()
