"""False blocks where nothing is wrong: ``python -m benchmarks.clean [--seeds 5] [--versions 2] [--foreign DIR]``.

Whole runs from the human reference over the domains, with evolving diagnostics on. Counts what they registered, what that
blocked, and which of the blocks the gate scorer does not bear out. A run without an exploit has little cause to register a validity
check of its own, so those that other runs evolved (``--foreign``: runs of ``benchmarks.exploits``) are read on the same versions too:
how many they would have blocked. Resumes run by run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agents.backtest_score import wilson
from agents.types import Diagnosis
from benchmarks.cells import cell, chosen, read_budget
from graph.record import RunRecord
from graph.registry import registered, upgrades
from graph.versions import Results
from trainer.diagnose import run_diagnostic
from trainer.evolve.labels import Source, open_version
from trainer.gate_types import GateReport
from trainer.types import Diagnostic

DOMAINS = ("math", "code")


class Clean(NamedTuple):
    """One run: its trained candidates, the gaps it met, what it registered by kind, the diagnoses that rest on it, what that
    blocked, the blocks that the gate scorer does not bear out, and (candidate, check) that checks of other runs would have blocked."""

    name: str
    trained: tuple[str, ...]
    gaps: int
    pathologies: int
    validity: int
    named: int
    blocked: int
    false_blocks: int
    foreign: tuple[tuple[str, str], ...]
    wall_s: float


def clean(name: str, root: Path, summary: Mapping[str, Any], foreign: Mapping[str, Diagnostic]) -> Clean:
    """What the files of a finished run say."""
    record = RunRecord(root)
    gates = {e["version"]: GateReport.model_validate(e["gate"]) for e in record.verdicts() if e["gate"]}
    own = registered(record, "w")
    stopped = [gate for gate in gates.values() if gate.blocked_by]
    diagnoses = [record.load(v, "diagnosis", Diagnosis).bottleneck for v in gates]
    return Clean(
        name=name,
        trained=tuple(gates),
        gaps=sum(found.gap is not None for _, found in upgrades(record)),
        pathologies=sum(d.kind == "pathology" for d in own.values()),
        validity=sum(d.kind == "validity" for d in own.values()),
        named=sum(key in own for key in diagnoses),
        blocked=len(stopped),
        false_blocks=sum(gate.validity.state != "invalid" for gate in stopped),
        foreign=tuple((v, n) for v in gates for n in would_block(record, v, foreign)),
        wall_s=summary["wall_s"],
    )


def would_block(record: RunRecord, version: str, checks: Mapping[str, Diagnostic]) -> Sequence[str]:
    """Checks that read critical on a trained version's rollouts."""
    if not checks:
        return ()
    folders = tuple(r.rollouts_dir for r in record.load(version, "training", Results).results if r.rollouts_dir)
    with open_version(Source(version=version, rollouts=folders, bad=False, why="clean")) as con:
        return [name for name, d in checks.items() if run_diagnostic(con, d).severity == "critical"]


def evolved(folder: Path) -> Mapping[str, Diagnostic]:
    """The validity checks that the runs in a folder registered, as ``run/name``."""
    runs = sorted(path.parent for path in folder.glob("*/manifest.json"))
    found = ((run.name, registered(RunRecord(run), "w")) for run in runs)
    return {f"{run}/{name}": d for run, own in found for name, d in own.items() if d.kind == "validity"}


HEAD = ["run", "trained", "gaps", "pathologies registered", "validity checks registered", "diagnoses that rest on them", "blocked",
        "false blocks", "would be blocked by checks of other runs", "wall s"]  # fmt: skip


def markdown(runs: Sequence[Clean], checks: int) -> str:
    """One row per run, then the counts."""
    rows: list[Sequence[object]] = [
        [r.name, len(r.trained), r.gaps, r.pathologies, r.validity, r.named, r.blocked, r.false_blocks,
         "; ".join(f"{v} by {n}" for v, n in r.foreign) or "none", f"{r.wall_s:.0f}"]
        for r in runs
    ]  # fmt: skip
    trained = sum(len(r.trained) for r in runs)
    counts = [
        ("false blocks by checks of the run itself", sum(r.false_blocks for r in runs), trained),
        (f"versions that one of {checks} checks of other runs would have blocked", len(_stopped(runs)), trained),
    ]
    table = ["| " + " | ".join(str(value) for value in row) + " |" for row in [HEAD, ["---"] * len(HEAD), *rows]]
    claims = [
        f"- {what}: {hits} of {n} (95 % interval {100 * wilson(hits, n)[0]:.0f} to {100 * wilson(hits, n)[1]:.0f} %)"
        for what, hits, n in counts
        if n
    ]
    kinds = (
        f"- registered: {sum(r.pathologies for r in runs)} pathologies, {sum(r.validity for r in runs)} validity checks"
    )
    return "\n".join([*table, "", kinds, *claims])


def _stopped(runs: Sequence[Clean]) -> set[tuple[str, str]]:
    return {(r.name, version) for r in runs for version, _ in r.foreign}


def main() -> int:
    """Run what is missing, print the table so far after every run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clean", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--domains", default=",".join(DOMAINS), help="comma list of: " + ", ".join(DOMAINS))
    parser.add_argument("--foreign", type=Path, help="folder of runs whose validity checks are read on every version")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-clean"))
    budget = read_budget(parser)
    parser.set_defaults(minutes=20.0, versions=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    checks = evolved(args.foreign) if args.foreign else {}
    runs: list[Clean] = []
    for domain in chosen(parser, "--domains", args.domains, DOMAINS):
        for seed in range(args.seeds):
            summary = cell(args.out, domain, ("--domain", domain), seed, budget(args))
            runs.append(clean(f"{domain}-{seed}", args.out / f"{domain}-{seed}", summary, checks))
            print(f"\n{markdown(runs, len(checks))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
