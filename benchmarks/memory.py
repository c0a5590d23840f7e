"""Does a second run start wiser? ``python -m benchmarks.memory [--seeds 3] [--starts reference,damaged]``.

Per seed three whole runs: a *teacher*, and with another seed one run that has the teacher's memory and one that has none. The memory
holds the teacher's run alone. Counted is how many candidates were trained until the last step of the chain that was certified, and
what its end scores on sealed tasks. Resumes run by run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cells import DAMAGED, Starts, cell, chosen, read_budget
from trainer.evaluation import paired_over_runs

STARTS: Starts = {"reference": (), "damaged": DAMAGED}
OTHER = 1000
"""Added to the teacher's seed: another warm start, other tasks in another order."""

Trio = Mapping[str, dict[str, Any]]


def trio(out: Path, start: str, seed: int, budget: Sequence[str]) -> Trio:
    """Teacher, and the same start with another seed with and without the teacher's memory."""
    library = str(out / f"{start}-memory-{seed}")
    remembering = (*STARTS[start], "--memory", library)
    teacher = cell(out, f"{start}-teacher", remembering, seed, budget)
    # What the learner leaves there has the learner's seed, which it would leave out itself.
    return {
        "teacher": teacher,
        "with": cell(out, f"{start}-with", remembering, seed + OTHER, budget),
        "without": cell(out, f"{start}-without", STARTS[start], seed + OTHER, budget),
    }


def effort(summary: Mapping[str, Any]) -> int | None:
    """Candidates that were trained until the last step of the certified chain; None where nothing was certified."""
    chains = [c["chain"] for c in summary["certifications"] if c["verdict"] == "promoted"]
    if not chains:
        return None
    trained = [v["version"] for v in summary["versions"] if v["verdict"] != "refused"]
    return trained.index(chains[-1][-1]) + 1


def table(start: str, trios: Sequence[Trio]) -> str:
    """One row per seed, then the paired differences over seeds."""
    head = [
        "seed",
        "teacher certified after",
        "without memory after",
        "with memory after",
        "sealed, without",
        "sealed, with",
    ]
    rows = []
    for t in trios:
        score = [f"{100 * t[who]['champion']['sealed']['mean']:.1f} %" for who in ("without", "with")]
        tries = [str(effort(t[who]) or "never") for who in ("teacher", "without", "with")]
        rows.append([str(t["with"]["seed"]), *tries, *score])
    lines = [f"## {start} start", "", *("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])]
    pairs = [(effort(t["with"]), effort(t["without"])) for t in trios]
    fewer = [a - b for a, b in pairs if a is not None and b is not None]
    if len(fewer) > 1:
        i = paired_over_runs([float(d) for d in fewer])
        lines.append(f"\nversions, with − without: {i.mean:+.1f} (95 % interval {i.ci_low:+.1f} to {i.ci_high:+.1f})")
    gains = [t["with"]["champion"]["sealed"]["mean"] - t["without"]["champion"]["sealed"]["mean"] for t in trios]
    if len(gains) > 1:
        i = paired_over_runs(gains)
        lines.append(
            f"\nsealed, with − without: {100 * i.mean:+.1f} pp (95 % interval {100 * i.ci_low:+.1f} to {100 * i.ci_high:+.1f})"
        )
    return "\n".join(lines)


def main() -> int:
    """Run what is missing, print the table so far after every seed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--starts", default=",".join(STARTS), help="comma list of: " + ", ".join(STARTS))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-memory"))
    budget = read_budget(parser)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for start in chosen(parser, "--starts", args.starts, STARTS):
        trios: list[Trio] = []
        for seed in range(args.seeds):
            trios.append(trio(args.out, start, seed, budget(args)))
            print(f"\n{table(start, trios)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
