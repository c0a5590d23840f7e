"""What a run has once: manifest, configuration, protocol, base policy, the machine's state, summary, leftovers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graph import memory
from graph.bases import FOLDER, BasePolicy
from graph.build import NODES, build
from graph.calibrating import Floor
from graph.clock import Times
from graph.config import resolve
from graph.integrity.jobs import checkpoint_fault
from graph.integrity.types import MISSING, Mend, Problem, Run, fault, said
from graph.isolation import Isolated
from graph.leftovers import leftovers
from graph.seals import sealed
from graph.session import Manifest, StatusFile, checkpoints
from graph.state import schema_hash
from graph.summary import Summary
from graph.track import Earlier
from graph.versions import Suites
from trainer.types import InputError, Record, Task

FILES: Mapping[str, tuple[type[Record], Mend]] = {
    "manifest.json": (Manifest, ""),
    "status.json": (StatusFile, "sweep"),
    "clock.json": (Times, ""),
    "isolation.json": (Isolated, ""),
    "protocol.json": (Suites, ""),
    "base.json": (BasePolicy, "remake"),
    "calibration.json": (Floor, "rewind"),
    "earlier.json": (Earlier, "rewind"),
    memory.FILE: (memory.Memory, "rewind"),
}


def machine_problems(run: Run) -> Iterator[Problem]:
    root, written = run.root, sealed(run.root)
    for name, (kind, mend) in FILES.items():
        path = root / name
        if path.exists() and (what := fault(path, kind)):
            yield run.problem(path, what, mend)
        elif not path.exists() and run.ledger and (not mend or written[name]):
            yield run.problem(path, MISSING, "remake" if mend else "")
    yield from _manifest(run)
    yield from _configuration(run)
    yield from _suites(run)
    yield from _base_policy(run)
    yield from _checkpoints(run)
    yield from _summary(run)
    for path in leftovers(root):
        yield run.problem(path, "left by a process that was killed", "sweep")


def _manifest(run: Run) -> Iterator[Problem]:
    path = run.root / "manifest.json"
    if fault(path, Manifest):
        return
    manifest = Manifest.model_validate_json(path.read_bytes())
    if manifest.machine_hash != schema_hash(tuple(NODES)):
        yield run.problem(path, "machine_hash: another version of EvoTrainer wrote this run", "adopt")


def _configuration(run: Run) -> Iterator[Problem]:
    path = run.root / "config.toml"
    try:
        resolve(path, {}, {}, {})
    except InputError as error:
        yield run.problem(path, said(error, path))
    path = run.root / "config.origins.json"
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        yield run.problem(path, f"damaged ({error})")


def _suites(run: Run) -> Iterator[Problem]:
    for path in sorted((run.root / "tasks").glob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                Task.model_validate_json(line)
            except ValueError:
                yield run.problem(path, f"line {number} is no task")
                break


def _base_policy(run: Run) -> Iterator[Problem]:
    path = run.root / "base.json"
    if path.exists() and not fault(path, BasePolicy):
        base = BasePolicy.model_validate_json(path.read_bytes())
        folder = run.root / "base" if base.warm_start else base.path
        if what := checkpoint_fault(folder):
            yield run.problem(path, f"{folder.name}: {what}", "remake" if base.warm_start else "")
    for folder in sorted((run.root / FOLDER).glob("[!.]*")):
        if what := checkpoint_fault(folder):
            yield run.problem(folder, what, "remake")


def _checkpoints(run: Run) -> Iterator[Problem]:
    path = run.root / "checkpoints.sqlite"
    if not path.exists():
        return  # the machine's state follows from the ledger
    try:
        state = read_state(run.root)
    except InputError as error:
        yield run.problem(path, said(error, path), "rewind")
        return
    champion = state.get("champion", "")
    if run.ledger and champion and champion not in run.settled:
        yield run.problem(path, f"its champion {champion} is not in the ledger", "rewind")


def read_state(root: Path) -> Mapping[str, Any]:
    """The machine's newest state; empty before the first node ended. Raises InputError where the file is damaged."""
    path = root / "checkpoints.sqlite"
    where: Any = {"configurable": {"thread_id": "run"}}
    with checkpoints(root, writable=False) as saver:
        try:
            return dict(build(saver).get_state(where).values)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}: damaged ({' '.join(str(error).split())}); restore it from a copy") from error


def _summary(run: Run) -> Iterator[Problem]:
    path = run.root / "summary.json"
    if not path.exists():
        return
    if what := fault(path, Summary):
        yield run.problem(path, what, "rewind")
        return
    summary = Summary.model_validate_json(path.read_bytes())
    known = {e["version"]: (e["verdict"], e["harness_commit"]) for e in run.ledger if e["kind"] == "verdict"}
    for v in summary.versions:
        if known.get(v.version, (v.verdict, v.harness_commit)) != (v.verdict, v.harness_commit):
            yield run.problem(path, f"{v.version} is {v.verdict} here, the ledger has another verdict", "rewind")
            return
    named = {summary.baseline.version, *(v.version for v in summary.versions if v.verdict == "promoted")}
    named |= {c.version for c in summary.certifications if c.verdict == "promoted"}
    if summary.champion.version not in named:
        yield run.problem(path, f"champion {summary.champion.version} was never promoted", "rewind")
