"""Damaged starts, named and repaired: ``python -m benchmarks.damages [--seeds 3] [--damages learning-rate,…]``.

Each run starts from a recipe that something is wrong with. Says what the diagnostician named first, whether that is the
damage, and how much of the way from the damaged reference to the human one the champion came, on sealed tasks. A constant bonus
teaches nothing and harms nothing: it is to be named, nothing is to be recovered. Resumes run by run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agents.backtest_score import wilson
from benchmarks.cells import DAMAGED, cell, chosen, read_budget
from graph.summary import AVERAGE

TERMS = Path(__file__).parent / "damaged_terms"
"""Reward terms that a person might write, and should not."""
RECOVERED = 0.8
"""Share of the gap to the human reference that counts as a repair."""


class Damage(NamedTuple):
    """``names``: bottlenecks that name it rightly. ``repair``: whether there is something to recover."""

    options: Sequence[str]
    names: Sequence[str]
    repair: bool = True


def paid(**weights: float) -> tuple[str, ...]:
    """The options that pay reward terms of TERMS and the seed's."""
    pairs = [("--set", f"recipe.reward.weights.{name}={weight}") for name, weight in weights.items()]
    return ("--harness", str(TERMS), *(word for pair in pairs for word in pair))


DAMAGES: Mapping[str, Damage] = {
    "learning-rate": Damage(DAMAGED, ("performance_collapse",)),
    "format-brevity": Damage(paid(tidy=4), ("reward_off_outcome", "reward_hacking")),
    "weak-verifier": Damage(paid(plausible=1), ("reward_hacking", "reward_off_outcome")),
    "constant-bonus": Damage(paid(bonus=1), ("reward_offset",), repair=False),
    "all-equal": Damage(
        (*paid(bonus=1, outcome=0), "--set", "recipe.algorithm.filter_groups.enable=true"),
        ("reward_off_outcome", "dead_training"),
    ),
}
REFERENCE = "reference"


def recovered(damaged: float, champion: float, reference: float) -> float | None:
    """Share of the gap that was closed; None where there is none to speak of."""
    gap = reference - damaged
    return (champion - damaged) / gap if gap > 0.01 else None


HEAD = ["damage", "seed", "named first", "rightly", "damaged", "champion", "human reference", "gap closed", "main holds",
        "seconds"]  # fmt: skip


def row(name: str, found: Mapping[str, Any], reference: float) -> list[str]:
    damage, first = DAMAGES[name], found["first_bottleneck"]
    before, after = found["baseline"]["sealed"]["mean"], found["champion"]["sealed"]["mean"]
    share = recovered(before, after, reference) if damage.repair else None
    steps = [" → ".join(t["chain"]) for t in found["certifications"] if t["verdict"] == "promoted"]
    factors = {v["version"]: v["factor"] for v in found["versions"]}
    chain = [", ".join(factors.get(v, v) for v in step.split(" → ")) for step in steps]
    return [
        name, str(found["seed"]), first, "yes" if first in damage.names else "no", f"{100 * before:.1f} %",
        f"{100 * after:.1f} %", f"{100 * reference:.1f} %", "" if share is None else f"{100 * share:.0f} %",
        "; ".join(chain) or "nothing new", f"{found['wall_s']:.0f}",
    ]  # fmt: skip


def claims(rows: Sequence[Sequence[str]]) -> str:
    """How often it was named and repaired."""
    named = sum(r[3] == "yes" for r in rows)
    asked = [r for r in rows if DAMAGES[r[0]].repair and r[7]]
    repaired = sum(float(r[7].rstrip(" %")) >= 100 * RECOVERED for r in asked)
    return "\n".join(
        f"- {what}: {hits} of {n} (95 % interval {100 * wilson(hits, n)[0]:.0f} to {100 * wilson(hits, n)[1]:.0f} %)"
        for what, hits, n in (
            ("named rightly", named, len(rows)),
            (f"at least {100 * RECOVERED:.0f} % of the gap closed", repaired, len(asked)),
        )
    )


def main() -> int:
    """Run what is missing, print the table so far after every run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.damages", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--damages", default=",".join(DAMAGES), help="comma list of: " + ", ".join(DAMAGES))
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-damages"))
    budget = read_budget(parser)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    damages = chosen(parser, "--damages", args.damages, DAMAGES)
    rows: list[list[str]] = []
    for seed in range(args.seeds):
        whole = cell(args.out, REFERENCE, ("--versions", "0"), seed, ("--minutes", "60"))
        for name in damages:
            found = cell(args.out, name, DAMAGES[name].options, seed, budget(args))
            rows.append(row(name, found, whole["baseline"]["sealed"]["mean"]))
            table = "\n".join("| " + " | ".join(r) + " |" for r in [HEAD, ["---"] * len(HEAD), *rows])
            print(f"\n{AVERAGE.capitalize()}.\n\n{table}\n\n{claims(rows)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
