"""Made-up versions for the tests of the gate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainer.gate import Arm, GateInput, GatePolicy, GateReport, VersionSpread, judge
from trainer.types import Evaluation

TASKS, SAMPLES = 24, 2
POLICY = GatePolicy()
DIFFICULTY = np.random.default_rng(0).normal(0, 0.3, TASKS)


def tolerance(p: float, n: int) -> float:
    """Monte Carlo bound on the share of n runs: beyond it by chance in fewer than 4 of a million."""
    return p + 4.5 * math.sqrt(p * (1 - p) / n)


def evaluated(version: str, seed: int, rows: np.ndarray, suite: str = "validation") -> Evaluation:
    return Evaluation.model_validate(
        {
            "suite": suite,
            "version": version,
            "seed": seed,
            "protocol_hash": "h",
            "task_ids": tuple(f"t{i}" for i in range(len(rows))),
            "scores": tuple(map(tuple, rows.tolist())),
        }
    )


def scored(rng: np.random.Generator, mean: float, tasks: int = TASKS) -> np.ndarray:
    """Scores around ``mean``; the sampling noise of a seed's mean is .01/√48, small against all seed noise here."""
    difficulty = np.resize(DIFFICULTY - DIFFICULTY.mean(), tasks)
    return mean + difficulty[:, None] + 0.01 * rng.standard_normal((tasks, SAMPLES))


def arm(
    rng: np.random.Generator,
    version: str,
    means: Sequence[float] | np.ndarray,
    gate: Sequence[float] | None = None,
    proxy: Sequence[float] = (),
    first_seed: int = 0,
    tasks: int = TASKS,
) -> Arm:
    """A version whose seeds score ``means`` on validation and ``gate`` (the same if None) on the gate suite."""
    seeds = range(first_seed, first_seed + len(means))
    return Arm(
        version=version,
        validation=tuple(evaluated(version, s, scored(rng, m, tasks)) for s, m in zip(seeds, means, strict=True)),
        gate=tuple(
            evaluated(version, s, scored(rng, m, tasks), "gate")
            for s, m in zip(seeds, means if gate is None else gate, strict=True)
        ),
        proxy=tuple(proxy),
    )


def first(version: Arm, n: int) -> Arm:
    return Arm(
        version=version.version, validation=version.validation[:n], gate=version.gate[:n], proxy=version.proxy[:n]
    )


def run_of(
    parent: Arm, candidates: Sequence[Arm], policy: GatePolicy = POLICY, parent_seeds: int = 3
) -> list[GateReport]:
    """Judge candidates one after the other as a run does, seeds on request, until one is promoted."""
    reports: list[GateReport] = []
    spent: tuple[float, ...] = ()
    pool: tuple[VersionSpread, ...] = ()
    for index, candidate in enumerate(candidates):
        seeds = 2
        while True:
            inp = GateInput(
                parent=first(parent, parent_seeds),
                candidate=first(candidate, seeds),
                index=index,
                spent=spent,
                pool=pool,
            )
            report = judge(inp, policy)
            if report.status == "final" or not report.need_seeds:
                break
            seeds += report.need_seeds
            parent_seeds = min(len(parent.validation), parent_seeds + report.need_parent_seeds)
        reports.append(report)
        spent, pool = (*spent, report.spent), (*pool, report.parent_spread, report.spread)
        if report.verdict == "promoted":
            break
    return reports


RNG = np.random.default_rng(1)
PARENT = arm(RNG, "v0001", (0.40, 0.42, 0.38))
BETTER = arm(RNG, "v0002", (0.70, 0.72, 0.71), first_seed=10)
SAME = arm(RNG, "v0003", (0.41, 0.38, 0.42), first_seed=20)
WORSE = arm(RNG, "v0004", (0.10, 0.11, 0.12), first_seed=30)


def judged(candidate: Arm, parent: Arm = PARENT, policy: GatePolicy = POLICY) -> GateReport:
    return judge(GateInput(parent=parent, candidate=candidate), policy)
