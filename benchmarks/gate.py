"""How often the gate errs, and what it finds: ``python -m benchmarks.gate [--quick] [--write docs/gate.md]``, minutes on one core.

Simulated runs through the gate's own arithmetic (benchmarks.gate_engine, which a test compares with trainer.gate), next to
the usual ways of calling a candidate better. Seeded: equal options give equal figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from agents.backtest_score import wilson
from benchmarks import gate_chains as chains
from benchmarks import gate_null as null
from benchmarks import gate_plain as plain
from benchmarks.trainer import markdown, put_into
from trainer.gate import LONG, GatePolicy
from trainer.types import Record

QUICK, RUNS = 100, 2000
PLAIN = 5
"""Simulations without tasks are that much cheaper: they get as many times the runs."""
CASE_COUNTS = (1, 8, 20)
LINES = (0.0, 0.5, 1.0, 1.5)


class Rate(Record):
    """``count`` of ``runs`` with Wilson's 95 % interval."""

    count: int
    runs: int

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.count, self.runs)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{_percent(self.count / self.runs)} ({_percent(low)}–{_percent(high)})"

    def data(self) -> dict[str, float]:
        low, high = self.interval
        return {"count": self.count, "runs": self.runs, "rate": self.count / self.runs, "low": low, "high": high}


class Mean(Record):
    """A mean over runs with its normal 95 % interval."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.half:.2f}"

    def data(self) -> dict[str, float]:
        return self.model_dump()


Cell = str | Rate | Mean


class Table(Record):
    """``head`` names the columns of ``rows``."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def page(self) -> str:
        body = markdown(list(self.head), [[str(cell) for cell in row] for row in self.rows])
        return "\n\n".join(part for part in (f"### {self.title}", body, self.note) if part)

    def data(self) -> dict[str, object]:
        rows = [[cell if isinstance(cell, str) else cell.data() for cell in row] for row in self.rows]
        return {"title": self.title, "head": self.head, "rows": rows, "note": self.note}


def _percent(share: float) -> str:
    return f"{100 * share:.2g}" if share < 0.1 else f"{100 * share:.0f}"


def rate(hits: np.ndarray) -> Rate:
    return Rate(count=int(hits.sum()), runs=len(hits))


def mean(values: np.ndarray) -> Mean:
    return Mean(mean=float(values.mean()), half=float(1.96 * values.std(ddof=1) / np.sqrt(len(values))))


# ------------------------------------------------------------------------------------------ tables


def null_runs(worlds: Sequence[null.World], runs: int) -> Iterator[Table]:
    """Any false promotion within so many candidates that all equal their baseline."""
    for number, world in enumerate(worlds):
        first = null.first_promotions(world, runs, max(null.COUNTS), seed=100 + number)
        known = world in null.WORLDS
        rows = [
            (
                rule,
                *(rate(at <= count) for count in null.COUNTS),
                *((null.DESIGN[rule][number] or "–",) if known else ()),
            )
            for rule, at in first.items()
        ]
        yield Table(
            title=f"Null runs with a false promotion, %: {world.name}",
            head=("rule", *(f"within {count}" for count in null.COUNTS), *(("design",) if known else ())),
            rows=tuple(rows),
            note="Columns: number of candidates. Live tasks are solved with probability .2 to .8; bootstraps in the limit of many "
            "resamples.",
        )


def power(runs: int) -> Table:
    rows = []
    for number, form in enumerate(plain.FORMS):
        found, deltas = plain.power(form, plain.TIMES, runs, seed=200 + number)
        effect = plain.effect_found(form)
        claims = [mean(d - m * effect) if len(d) > 1 else "–" for d, m in zip(deltas, plain.TIMES, strict=True)]
        rates = [Rate(count=count, runs=runs) for count in found]
        rows.append((form.name, f"{effect:.2f} σ", DESIGN_EFFECTS[number], *rates, claims[1]))
    return Table(
        title="Power: promoted, %, at multiples of the detectable effect that the gate prints",
        head=("gate", "detectable", "design", *(f"{m:g} ×" for m in plain.TIMES), "claim less truth at 1 ×, σ"),
        rows=tuple(rows),
        note="The design has .14 to .23, .80 and 1.0 at the three multiples, and claims that are .2 to .5 σ too high.",
    )


DESIGN_EFFECTS = ("5.3 σ", "4.0 σ", "–", "3.1 σ", "2.85 σ", "4.2 σ")


def strategies(runs: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for effects, draw in chains.EFFECTS.items():
        for name, strategy in chains.STRATEGIES.items():
            cells: list[Cell] = []
            for budget in chains.BUDGETS:
                outcome = strategy(budget, draw, runs, 300 + budget)
                cells += [mean(outcome.gain), rate(outcome.certified), rate(outcome.false)]
            rows.append((effects, name, *cells))
    columns = [f"{what}, {budget}" for budget in chains.BUDGETS for what in ("gain σ", "any %", "false %")]
    return Table(
        title="Certifying a chain against gating each candidate, at 15 and 41 trainings",
        head=("true gains of candidates, σ", "strategy", *columns),
        rows=tuple(rows),
        note="Gain: true gain of what was certified, nothing counting 0. Any: runs with a certificate or a promotion. False: a "
        "chain without a true gain was certified, or a candidate promoted that was no better than its parent. The design has "
        "4.0 against 1.3 σ at 15 trainings, 13.4 against 4.3 at 41, false 3.0 to 4.5 %, for gains that it does not name.",
    )


def lines(runs: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for effects, draw in chains.EFFECTS.items():
        for line in LINES:
            policy = GatePolicy(provisional_se=line)
            found = [chains.certified(policy, budget, draw, runs, 400 + budget) for budget in chains.BUDGETS]
            idle = found[1].idle.sum() / max(1.0, found[1].steps.sum())
            gains = (cell for o in found for cell in (mean(o.gain), rate(o.false)))
            rows.append((effects, f"{line:g} SE", *gains, f"{found[1].steps.mean():.1f}", f"{100 * idle:.0f}"))
    return Table(
        title="How much a provisional step takes",
        head=("true gains of candidates, σ", "line", "gain σ, 15", "false %, 15", "gain σ, 41", "false %, 41",
              "steps, 41", "of them without gain %"),
        rows=tuple(rows),
    )  # fmt: skip


def validity(runs: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for number, gain in enumerate(plain.GAINS):
        counts = plain.validity(gain, GatePolicy(), runs, seed=500 + number)
        rows.append((gain.name, *(Rate(count=count, runs=runs) for count in counts.values()), DESIGN_VALIDITY[number]))
    return Table(
        title="Validity: called invalid at the latest with so many seeds, %",
        head=("true gains", "2 seeds", "3 seeds", "4 seeds", "unconfirmed at 4", "usual rule, 3 seeds", "design"),
        rows=tuple(rows),
        note=f"Reward and gate scorer correlate by {plain.CORRELATION:g} within a seed; the parent has three seeds. The usual "
        "rule: reward up by 2 standard errors while the 95 % interval of the gate scorer contains 0.",
    )


DESIGN_VALIDITY = ("≤ .1", "≤ .1", "≤ .6", "≤ .6", "85–96", "“beyond”")


def unequal(runs: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for number, case in enumerate(plain.CASES):
        cells: list[Cell] = []
        for policy in (GatePolicy(), LONG):
            first = plain.false_promotions(case, policy, runs, max(CASE_COUNTS), seed=600 + number)
            cells += [rate(first <= count) for count in CASE_COUNTS]
        rows.append((case.name, *cells))
    return Table(
        title="Null runs with a false promotion, %, when seeds differ otherwise than assumed",
        head=("noise", *(f"{form}, {count}" for form in ("short", "long") for count in CASE_COUNTS)),
        rows=tuple(rows),
        note="Columns: form of the gate, number of candidates.",
    )


def tables(runs: int, worlds: Sequence[null.World]) -> Iterator[Table]:
    yield from null_runs(worlds, runs)
    parts: Sequence[Callable[[int], Table]] = (power, strategies, lines, validity, unequal)
    for part in parts:
        yield part(PLAIN * runs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--runs", type=int, default=RUNS, help=f"runs per task by task table; the others get {PLAIN} times"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} runs: half a minute, wide intervals")
    parser.add_argument("--sigma-seed", type=float, help="null runs of a noise of your own: sd of a score over seeds")
    parser.add_argument("--tasks", type=int, default=256, help="with --sigma-seed: validation tasks")
    parser.add_argument("--k", type=int, default=8, help="with --sigma-seed: samples per task, at least 2")
    parser.add_argument("--json", action="store_true", help="one JSON object per table")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the marks of this page")
    args = parser.parse_args()
    if args.runs < 2 or args.k < 2 or args.tasks < 20:
        parser.error("--runs and --k: at least 2, --tasks: at least 20")
    if args.sigma_seed is not None and not 0 <= args.sigma_seed <= MAX_SIGMA:
        parser.error(f"--sigma-seed: between 0 and {MAX_SIGMA}; beyond, scores would leave 0 to 1")
    runs = QUICK if args.quick else args.runs
    made = null_runs([own_world(args)], runs) if args.sigma_seed is not None else tables(runs, null.WORLDS)
    pages = []
    for table in made:
        print(table.title, file=sys.stderr, flush=True)
        print(json.dumps(table.data(), ensure_ascii=False) if args.json else table.page() + "\n", flush=True)
        pages.append(table.page())
    if args.write:
        foot = f"{runs} runs for each table that goes task by task, {PLAIN * runs} for the others. In parentheses: 95 % intervals."
        args.write.write_text(put_into(args.write.read_text("utf-8"), "\n\n".join([*pages, foot])), "utf-8")
    return 0


MAX_SIGMA = 0.05
"""Difficulties lie between .2 and .8: four standard deviations of a seed stay within 0 and 1."""


def own_world(args: argparse.Namespace) -> null.World:
    name = f"{args.tasks} tasks × {args.k}, σ_seed {args.sigma_seed:g}"
    return null.World(name=name, tasks=args.tasks, k=args.k, dead=0.0, sigma_seed=args.sigma_seed)


if __name__ == "__main__":
    sys.exit(main())
