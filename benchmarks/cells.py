"""A grid of whole runs, start points by seeds: what the claims about domains are measured with.

Each cell is a plain ``python -m graph.run``. A finished cell is not run again, so a benchmark resumes.
Prints sealed results of warm start, reference and champion per seed, the bottleneck that was named first, and paired
differences over seeds with a t interval.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from graph.record import write_atomic
from graph.run import EXIT_LOCKED
from graph.summary import AVERAGE

Starts = Mapping[str, Sequence[str]]
"""Start point to the options of ``graph.run`` that make it."""

DAMAGED = ("--set", "recipe.optim.lr=2e-3")
INDEPENDENT = ("--set", "designer.use_history=false", "--set", "gate.use_calibration=false")
"""Runs that learned from one another would be no sample to take an interval over."""
WAIT_S = 20.0


def cell(out: Path, start: str, options: Sequence[str], seed: int, budget: Sequence[str]) -> dict[str, Any]:
    """The ``--json`` object of one run, from disk if it is there, with ``first_bottleneck`` added."""
    file = out / f"{start}-{seed}.json"
    if not file.exists():
        name = f"{start}-{seed}"
        begin = ["--resume", str(out / name)] if (out / name / "manifest.json").exists() else [
            "--runs-dir", str(out), "--name", name, "--seed", str(seed), *INDEPENDENT, *options
        ]  # fmt: skip
        print(f"running {name}", file=sys.stderr, flush=True)
        write_atomic(file, run([sys.executable, "-m", "graph.run", *begin, *budget, "--json"]))
    value: dict[str, Any] = json.loads(file.read_text())
    diagnosis = out / f"{start}-{seed}" / "versions" / "v0001" / "diagnosis.json"
    named = json.loads(diagnosis.read_text())["bottleneck"] if diagnosis.exists() else "none"
    return {**value, "first_bottleneck": named}


def run(command: Sequence[str]) -> str:
    """What the command prints. Where the run of a benchmark that was killed is still at work, waits for its end."""
    while True:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode != EXIT_LOCKED:
            break
        time.sleep(WAIT_S)
    if done.returncode:
        raise SystemExit(
            f"{shlex.join(command)}: exit code {done.returncode}; start the benchmark again once that works"
        )
    return done.stdout


def rows(cells: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One table row per run: sealed scores with intervals, verdicts, time."""

    def show(score: dict[str, float]) -> str:
        return f"{score['mean']:.3f} [{score['ci_low']:.3f}, {score['ci_high']:.3f}]"

    table = []
    for c in cells:
        promoted = [f"{v['title']} ({v['delta']:+.3f})" for v in c["versions"] if v["verdict"] == "promoted"]
        tested = [t for t in c.get("certifications", ()) if t["verdict"] == "promoted"]  # runs of before have none
        promoted += [f"{' → '.join(t['chain'])} certified ({t['delta']:+.3f})" for t in tested]
        verdicts = ", ".join(f"{v['factor']} {v['verdict']}" for v in c["versions"])
        sealed = [show(c[who]["sealed"]) for who in ("warm_start", "baseline", "champion")]
        best = f"{c['baseline']['sealed_pass_at_k']:.3f}"
        cost = f"{c['wall_s']:.0f} s, {100 * c['orchestration_share']:.1f} %, {c['peak_rss_mb']:.0f} MB"
        table.append(
            [
                str(c["seed"]),
                *sealed,
                best,
                show(c["gain"]),
                c["first_bottleneck"],
                "; ".join(promoted) or "none",
                verdicts,
                cost,
            ]
        )
    return table


HEAD = ["seed", "warm start", "reference", "champion", "reference pass@k", "champion − reference", "named first", "promoted",
        "all verdicts", "wall, orchestration, peak"]  # fmt: skip


def markdown(cells: Sequence[dict[str, Any]]) -> str:
    from trainer.evaluation import paired_over_runs

    lines = ["| " + " | ".join(r) + " |" for r in [HEAD, ["---"] * len(HEAD), *rows(cells)]]
    if len(cells) > 1:
        for name, first, second in (
            ("reference − warm start", "baseline", "warm_start"),
            ("champion − reference", "champion", "baseline"),
        ):
            deltas = [c[first]["sealed"]["mean"] - c[second]["sealed"]["mean"] for c in cells]
            i = paired_over_runs(deltas)
            lines.append(
                f"\n{name} over {len(cells)} seeds: {i.mean:+.3f}, 95 % interval {i.ci_low:+.3f} to {i.ci_high:+.3f}"
            )
    return "\n".join(lines)


def read_budget(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], list[str]]:
    """Add the options of a cell's budget; returns what reads them as options of ``graph.run``."""
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--versions", type=int, help="candidate versions at most (default: what the time allows)")
    return lambda args: [
        *("--minutes", str(args.minutes)),
        *(("--versions", str(args.versions)) if args.versions else ()),
    ]


def chosen(parser: argparse.ArgumentParser, option: str, text: str, known: Collection[str]) -> Sequence[str]:
    """The names of a comma list; one that is not known ends the program and says which are."""
    names = text.split(",")
    for name in names:
        if name not in known:
            parser.error(f"{option}: unknown {option.strip('-').rstrip('s')} {name!r}; known: {', '.join(known)}")
    return names


def main(name: str, starts: Starts, purpose: str) -> int:
    """The command line of ``python -m benchmarks.<name>``."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=purpose)
    parser.add_argument("--seeds", type=int, default=5)
    budget = read_budget(parser)
    parser.add_argument("--starts", default=",".join(starts), help="comma list of: " + ", ".join(starts))
    parser.add_argument("--out", type=Path, default=Path(f"runs/benchmark-{name}"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for start in chosen(parser, "--starts", args.starts, starts):
        cells = [cell(args.out, start, starts[start], seed, budget(args)) for seed in range(args.seeds)]
        print(f"\n## {start} start, {args.minutes:g} min\n\n{AVERAGE.capitalize()}.\n\n{markdown(cells)}")
    return 0
