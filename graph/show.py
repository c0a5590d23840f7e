"""Parts of a run for the eye: a version's story, a rollout, a finding with the rollouts that show it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graph.lineage import stand
from graph.prune import pruned
from graph.record import RunRecord
from trainer.evidence import find_rollout
from trainer.harness import HarnessRepo
from trainer.types import HealthReport, InputError

SHOWN = ("rollout_id", "prompt", "response", "answer", "extracted", "outcome", "score", "advantage", "stop_reason")
"""Columns of a rollout that a finding shows, besides its reward terms."""


def version_story(root: Path, version: str) -> dict[str, Any]:
    """Everything decided about one version, and the diff of its harness."""
    record = RunRecord(root)
    folder = record.version_dir(version)
    if version != Path(version).name or not folder.is_dir():
        known = sorted(p.name for p in (root / "versions").glob("v*"))
        raise InputError(f"--version {version}: no such version in {root.name}; known: {', '.join(known) or 'none'}")
    out: dict[str, Any] = {}
    for name in ("version", "diagnosis", "upgrade", "intervention", "backtest", "gate", "curation", "health"):
        path = folder / f"{name}.json"
        if path.exists():
            try:
                out[name] = json.loads(path.read_bytes())
            except ValueError as err:
                raise InputError(f"{path}: damaged ({err}); remove it and --resume to make it again") from err
    parent = (out.get("version") or {}).get("parent", "")
    if (folder / "proposal.json").exists() and record.saved(parent, "version"):
        base = json.loads((record.version_dir(parent) / "version.json").read_bytes())["harness_commit"]
        if commit := out["version"]["harness_commit"]:
            out["diff"] = HarnessRepo.open(root / "harness").diff(base, commit).patch
    return out


def rollout(root: Path, rollout_id: str) -> dict[str, Any]:
    """One training rollout of any version, with prompt, reply and every reward term."""
    found = find_rollout(rollout_folders(root), rollout_id)
    if found is None:
        raise InputError(
            f"--rollout {rollout_id}: no such rollout in {root.name}{_dropped(root)}; health findings list rollout ids"
        )
    return found


def finding(root: Path, name: str) -> dict[str, Any]:
    """A finding of a health report, named ``VERSION/DIAGNOSTIC`` or by its diagnostic alone (the champion's), with the
    rollouts that are its evidence."""
    record = RunRecord(root)
    champion = stand(record.entries("ledger")).champion
    version, slash, diagnostic = name.rpartition("/")
    version = version if slash else champion
    if version != Path(version).name or not record.saved(version, "health"):
        known = ", ".join(sorted(p.parent.name for p in (root / "versions").glob("*/health.json")))
        raise InputError(f"--finding {name}: {version} has no health report; those that have: {known or 'none'}")
    report = record.load(version, "health", HealthReport)
    found = next((f for f in report.findings if f.diagnostic == diagnostic), None)
    if found is None:
        known = ", ".join(f.diagnostic for f in report.findings)
        raise InputError(f"--finding {name}: no such finding of {version}; known: {known}")
    folders = rollout_folders(root, version)
    rollouts = (find_rollout(folders, rollout_id) for rollout_id in found.evidence) if folders else ()
    evidence = [_shown(row) for row in rollouts if row]
    story: dict[str, Any] = {"version": version, **found.model_dump(mode="json"), "rollouts": evidence}
    if missing := len(found.evidence) - len(evidence):
        story["note"] = f"{missing} of the rollouts are not there{_dropped(root)}"
    return story


def rollout_folders(root: Path, version: str = "v*") -> list[Path]:
    return sorted(p for p in (root / "versions").glob(f"{version}/seed-*/train/rollouts") if any(p.glob("*.parquet")))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k in SHOWN or k.startswith("term_")}


def _dropped(root: Path) -> str:
    return " (some were dropped by graph.runs prune)" if pruned(root) else ""
