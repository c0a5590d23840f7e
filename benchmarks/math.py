"""The claims about math, measured: ``python -m benchmarks.math [--seeds 5] [--minutes 5]``.

For each seed one run from the human reference and one from a damaged start (learning rate 2e-3),
each a plain ``python -m graph.run``. A finished cell is not run again, so the benchmark resumes.
Prints sealed results of warm start, reference and champion per seed, and paired differences over
seeds with a t interval.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STARTS: dict[str, Sequence[str]] = {"reference": (), "damaged": ("--set", "recipe.optim.lr=2e-3")}


def cell(out: Path, start: str, seed: int, minutes: float, versions: int | None) -> dict[str, Any]:
    """The ``--json`` object of one run, from disk if it is there."""
    file = out / f"{start}-{seed}.json"
    if not file.exists():
        name = f"{start}-{seed}"
        begin = ["--resume", str(out / name)] if (out / name / "manifest.json").exists() else [
            "--runs-dir", str(out), "--name", name, "--seed", str(seed), *STARTS[start]
        ]  # fmt: skip
        budget = ["--minutes", str(minutes)] + (["--versions", str(versions)] if versions else [])
        command = [sys.executable, "-m", "graph.run", *begin, *budget, "--json"]
        print(f"running {name}", file=sys.stderr, flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        file.write_text(done.stdout)
    value: dict[str, Any] = json.loads(file.read_text())
    return value


def rows(cells: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One table row per run: sealed scores with intervals, verdicts, time."""

    def show(score: dict[str, float]) -> str:
        return f"{score['mean']:.3f} [{score['ci_low']:.3f}, {score['ci_high']:.3f}]"

    table = []
    for c in cells:
        promoted = [f"{v['title']} ({v['delta']:+.3f})" for v in c["versions"] if v["verdict"] == "promoted"]
        verdicts = ", ".join(f"{v['factor']} {v['verdict']}" for v in c["versions"])
        sealed = [show(c[who]["sealed"]) for who in ("warm_start", "baseline", "champion")]
        best = f"{c['baseline']['sealed_pass_at_k']:.3f}"
        cost = f"{c['wall_s']:.0f} s, {100 * c['orchestration_share']:.1f} %, {c['peak_rss_mb']:.0f} MB"
        table.append([str(c["seed"]), *sealed, best, show(c["gain"]), "; ".join(promoted) or "none", verdicts, cost])
    return table


HEAD = ["seed", "warm start", "reference", "champion", "reference pass@k", "champion − reference", "promoted",
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.math", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--versions", type=int, help="candidate versions at most (default: what the time allows)")
    parser.add_argument("--starts", default=",".join(STARTS), help="comma list of: " + ", ".join(STARTS))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-math"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for start in args.starts.split(","):
        cells = [cell(args.out, start, seed, args.minutes, args.versions) for seed in range(args.seeds)]
        print(f"\n## {start} start, {args.minutes:g} min\n\n{markdown(cells)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
