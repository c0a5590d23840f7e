"""The machine's state from the ledger, and the files a repair set aside made again.

LangGraph's checkpoint says where the machine is; the ledger says what happened. Where the checkpoint is gone or of another
shape, the state follows from the ledger: the machine stands behind the gate of the last version that was settled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from graph import bases, calibrating, memory, track, versions
from graph.calibrating import calibration_of
from graph.integrity.folders import decided, kind_of
from graph.lineage import stand
from graph.record import RunRecord, read_record
from graph.seals import sealed
from graph.state import Deps, LoopState
from graph.track import track_record
from graph.versions import BASE, BASELINE


class Standing(NamedTuple):
    """A state, and the node whose end it describes."""

    state: LoopState
    node: str


def standing(record: RunRecord) -> Standing | None:
    """Where the machine stands after what the ledger tells; None before the baseline is in it."""
    if not any(e["kind"] == "baseline" for e in record.entries("ledger")):
        return None
    verdicts = record.verdicts()
    reports = _reports(record.root, [e["version"] for e in verdicts])
    champion, tip = stand(record.entries("ledger"))
    state: LoopState = {
        "champion": champion,
        "tip": tip,
        "next_version": 1,
        "trained": 0,
        "refused": 0,
        "stop": "",
        "verdict": "",
        "reports": reports,
    }
    if not verdicts:
        return Standing(state, "baseline")
    # The last one's curation may be missing and is asked for once more; it counts its version itself.
    *before, last = verdicts
    trailing = next((i for i, e in enumerate(reversed(before)) if e["verdict"] != "refused"), len(before))
    state |= {
        "candidate": last["version"],
        "verdict": last["verdict"],
        "next_version": int(last["version"].removeprefix("v")),
        "trained": sum(e["verdict"] != "refused" for e in before),
        "refused": trailing,
    }
    return Standing(state, "gate")


def _reports(root: Path, settled: Sequence[str]) -> int:
    """Sealed shards that are used up. The last report is made again on its own shard if nothing was settled since."""
    opened = len(list((root / "tasks").glob("sealed-*.jsonl")))
    try:
        summary = json.loads((root / "summary.json").read_bytes())
        reported = [v["version"] for v in summary["versions"]]
    except (OSError, ValueError, KeyError):
        return max(0, opened - 1)
    return max(0, opened - 1) if reported == list(settled) else opened


def require_records(record: RunRecord) -> None:
    """What the run has decided and measured parses, and what the ledger speaks of is there. Raises InputError, with file
    and remedy: the report would find out, but hours of training later."""
    for folder in sorted((record.root / "versions").glob("v*/")):
        for path in sorted(folder.glob("*.json")):
            if kind := kind_of(path.stem):
                read_record(path, kind)
    for entry in record.entries("ledger"):
        for name in decided(entry):
            if kind := kind_of(name):
                record.load(entry["version"], name, kind)
    calibration_of(record)
    track_record(record)


def remake(deps: Deps) -> None:
    """Do again what settled versions lack: trainings, evaluations, health reports. What is there is answered from disk."""
    record = deps.record
    entries: list[dict[str, Any]] = [
        e for e in record.entries("ledger") if e["kind"] == "baseline" or (e["kind"] == "verdict" and e["gate"])
    ]
    if not entries:
        return
    bases.make_base(deps)
    known = sealed(record.root)
    for file, take in ((calibrating.FILE, calibrating.take), (track.FILE, track.recall), (memory.FILE, memory.take)):
        if known[file]:  # a run of before there were such stores took nothing
            take(deps)
    seeds = {e["version"]: _seeds(record, e) for e in entries}
    lacking = [v for v, n in seeds.items() if not _complete(record, v, n)]
    if not lacking:
        return
    deps.say("run", f"making again what is missing of {', '.join(lacking)}")
    wanted = [(v, seeds[v]) for v in lacking]
    versions.train_seeds(deps, wanted)
    versions.evaluate_seeds(deps, [(BASE, 1)], ["validation"])
    versions.evaluate_seeds(deps, wanted, ["validation", "gate"])
    parents = {e["version"]: e["parent"] for e in entries}
    for version in lacking:
        if not record.saved(version, "health"):
            versions.health_of(deps, version, None if version == BASELINE else parents[version])


def _seeds(record: RunRecord, entry: dict[str, Any]) -> int:
    """Training seeds of a settled version: as many as it has folders, since the champion's may have grown."""
    known: int = entry["seeds"] if entry["kind"] == "baseline" else entry["gate"]["n_seeds"]
    return max(known, len(list(record.version_dir(entry["version"]).glob("seed-*/"))))


def _complete(record: RunRecord, version: str, seeds: int) -> bool:
    names = ("train/result.json", "validation.json", "gate.json")
    return (
        record.saved(version, "training")
        and record.saved(version, "health")
        and all((record.seed_dir(version, seed) / name).exists() for seed in range(seeds) for name in names)
    )
