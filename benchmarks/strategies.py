"""The gate's two strategies at equal budget: ``python -m benchmarks.strategies [--seeds 3] [--minutes 10]``.

Whole runs from the human reference and from a damaged start (learning rate 2e-3), each with ``gate.strategy`` certify and
each. The runs of one seed go side by side, on one core each (``trainer.parallel=1``), so that both have the same budget and
the same neighbour. Resumes run by run; ten minutes for each start and seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.cells import DAMAGED, Starts, cell, markdown, read_budget
from trainer.evaluation import paired_over_runs

STARTS: Starts = {"damaged": DAMAGED, "reference": ()}
STRATEGIES = ("certify", "each")
ONE_CORE = ("--set", "trainer.parallel=1")


def pair(out: Path, start: str, seed: int, budget: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Both strategies from one start with one seed, side by side."""

    def run(strategy: str) -> dict[str, Any]:
        options = (*STARTS[start], "--set", f"gate.strategy={strategy}", *ONE_CORE)
        return cell(out, f"{start}-{strategy}", options, seed, budget)

    with ThreadPoolExecutor(len(STRATEGIES)) as pool:
        return dict(zip(STRATEGIES, pool.map(run, STRATEGIES), strict=True))


def tables(start: str, pairs: Sequence[dict[str, dict[str, Any]]]) -> str:
    """The runs of each strategy, then their champions compared on sealed tasks, paired by seed."""
    text = [f"## {start} start, {s}\n\n{markdown([p[s] for p in pairs])}" for s in STRATEGIES]
    if len(pairs) > 1:
        certified, each = ([p[s]["champion"]["sealed"]["mean"] for p in pairs] for s in STRATEGIES)
        i = paired_over_runs([a - b for a, b in zip(certified, each, strict=True)])
        text.append(
            f"champion of certify − champion of each over {len(pairs)} seeds: {i.mean:+.3f}, "
            f"95 % interval {i.ci_low:+.3f} to {i.ci_high:+.3f}"
        )
    return "\n\n".join(text)


def main() -> int:
    """Run what is missing, print the tables so far after every seed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.strategies", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-strategies"))
    budget = read_budget(parser)
    parser.set_defaults(minutes=10.0, versions=20)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    done: dict[str, list[dict[str, dict[str, Any]]]] = {start: [] for start in STARTS}
    for seed in range(args.seeds):
        for start, pairs in done.items():
            pairs.append(pair(args.out, start, seed, budget(args)))
            print(f"\n{tables(start, pairs)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
