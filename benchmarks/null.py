"""Whole runs in which there is nothing to find: ``python -m benchmarks.null [--seeds 10] [--domain math]``.

Every candidate is a no-op edit (``designer.candidates=null``) that bypasses the backtest and trains on seeds of its own, so
each step and promotion is a false one. All trainings of such a run are repetitions of one another (A/A): their scores
measure σ, the standard deviation of a training seed's validation score, which docs/gate.md takes as its unit. Resumes run by
run; about four minutes each.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import chi2

from agents.backtest_score import wilson
from benchmarks.cells import cell, read_budget
from graph.record import RunRecord
from graph.versions import BASELINE, evaluations, seeds_of
from trainer.statistics import moments

NULL = ("--set", "designer.candidates=null")


class Spread(NamedTuple):
    """Validation scores of the trainings of one run: their variance over seeds with its degrees of freedom, the part of it
    that sampling the evaluation's replies explains, and their mean."""

    variance: float
    df: int
    sampling: float
    mean: float


class Tested(NamedTuple):
    """What one null run did: candidates trained, times the gate looked, pairs with identical outputs, and claims."""

    seed: int
    trained: int
    looks: int
    identical: int
    provisional: int
    certifications: int
    promoted: int
    spread: Spread
    wall_s: float


def tested(run: Path, summary: dict[str, Any]) -> Tested:
    """Read a finished null run."""
    record = RunRecord(run)
    verdicts = [v for v in summary["versions"] if v["verdict"] != "refused"]
    claims = [*summary["versions"], *summary["certifications"]]
    return Tested(
        seed=summary["seed"],
        trained=len(verdicts),
        looks=sum(len(list((run / "versions" / v["version"]).glob("gate-*-seeds.json"))) for v in verdicts)
        + len(summary["certifications"]),
        identical=sum("identical outputs" in reason for v in verdicts for reason in v["reasons"]),
        provisional=sum(v["verdict"] == "provisional" for v in verdicts),
        certifications=len(summary["certifications"]),
        promoted=sum(c["verdict"] == "promoted" for c in claims),
        spread=spread(record, [BASELINE, *(v["version"] for v in verdicts)]),
        wall_s=summary["wall_s"],
    )


def spread(record: RunRecord, versions: Sequence[str]) -> Spread:
    """All evaluated trainings of a null run as one version: which of them was called a candidate makes no difference."""
    arms = [(v, len(list((record.root / "versions" / v).glob("seed-*/validation.json")))) for v in versions]
    scores = np.concatenate(
        [[e.scores for e in evaluations(record, v, min(n, seeds_of(record, v)), "validation")] for v, n in arms]
    )
    whole = moments(np.asarray(scores, dtype=np.float64))
    return Spread(whole.spread.variance, whole.n - 1, whole.spread.noise / len(whole.task_means), float(scores.mean()))


def pooled(spreads: Sequence[Spread]) -> tuple[float, float, float, int, float]:
    """σ over runs with its 95 % interval (chi-square), degrees of freedom, and σ without the sampling of the evaluation."""
    df = sum(s.df for s in spreads)
    variance = sum(s.df * s.variance for s in spreads) / df
    sampling = sum(s.df * s.sampling for s in spreads) / df
    low, high = (math.sqrt(df * variance / float(chi2.ppf(p, df))) for p in (0.975, 0.025))
    return math.sqrt(variance), low, high, df, math.sqrt(max(0.0, variance - sampling))


def markdown(runs: Sequence[Tested]) -> str:
    """One row per run, then what they say together."""
    head = ["seed", "candidates trained", "gate looks", "identical outputs", "provisional", "certifications", "promoted",
            "trainings", "mean score", "σ of a seed", "wall s"]  # fmt: skip
    rows: list[Sequence[object]] = [
        [r.seed, r.trained, r.looks, r.identical, r.provisional, r.certifications, r.promoted, r.spread.df + 1,
         f"{100 * r.spread.mean:.1f} %", f"{100 * math.sqrt(r.spread.variance):.2f} pp", f"{r.wall_s:.0f}"]
        for r in runs
    ]  # fmt: skip
    rows = [head, ["---"] * len(head), *rows]
    lines = ["| " + " | ".join(str(value) for value in row) + " |" for row in rows]
    wrong = sum(r.promoted > 0 for r in runs)
    low, high = wilson(wrong, len(runs))
    sigma, down, up, df, training = pooled([r.spread for r in runs])
    lines += [
        f"\nfalse promotions in {wrong} of {len(runs)} runs (95 % interval {100 * low:.0f} to {100 * high:.0f} %), "
        f"over {sum(r.trained for r in runs)} candidates, {sum(r.looks for r in runs)} gate looks and "
        f"{sum(r.certifications for r in runs)} certifications",
        f"σ of a training seed: {100 * sigma:.2f} pp ({100 * down:.2f} to {100 * up:.2f}; {df} degrees of freedom), of it "
        f"{100 * training:.2f} pp from training, the rest from sampling the evaluation's replies",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.null", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--domain", default="math")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-null"))
    budget = read_budget(parser)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start, options = args.domain, ("--domain", args.domain, *NULL)
    runs = []
    for seed in range(args.seeds):
        summary = cell(args.out, start, options, seed, budget(args))
        runs.append(tested(args.out / f"{start}-{seed}", summary))
        print(f"\n## null runs, {args.domain}, {len(runs)} of {args.seeds}\n\n{markdown(runs)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
