"""python -m benchmarks.health: what the health report of a version takes, from ten thousand to a million rollouts.

Synthetic trainings of three seeds in the default batch of 32 tasks × 8 replies, written by the rollout store's own writer:
replies of 20 to 60 words that depend on their task, outcomes that rise, a reward of three terms. The report runs all seed
diagnostics in a process of its own, whose peak memory is measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.diagnose import health_report
from trainer.evidence import write_step
from trainer.groups import group_advantages
from trainer.harness_files import parse_harness
from trainer.seed_harness import load_seed_files
from trainer.types import Record

SEEDS, TASKS, N = 3, 32, 8
WORDS = np.array([f"word{i}" for i in range(2000)])
WEIGHTS = {"outcome": 1.0, "brevity": 0.1}


class Measured(Record):
    """One row of the table: the report over ``rollouts`` in ``files``; memory is the peak of its whole process."""

    rollouts: int
    files: int
    wall_s: float
    cpu_s: float
    peak_mb: float


def step_table(random: np.random.Generator, seed: int, step: int, progress: float) -> pa.Table:
    """The rollouts of one step; ``progress`` (0 to 1) raises the outcome from .4 to .7 and halves the entropy."""
    rows = TASKS * N
    group = np.arange(rows) // N
    task = random.integers(0, 10_000, TASKS)[group]
    solvable = random.beta(0.8, 0.8, TASKS)[group]
    outcome = (random.random(rows) < np.clip(solvable + 0.3 * progress - 0.1, 0, 1)).astype(float)
    words = random.integers(20, 60, rows)
    replies = [
        " ".join(WORDS[(t * 17 + random.integers(0, 200, n)) % len(WORDS)])
        for t, n in zip(task.tolist(), words.tolist(), strict=True)
    ]
    length = np.minimum(words + 4, 64)
    brevity = outcome * (1 - length / 64)
    score = outcome + WEIGHTS["brevity"] * brevity
    ids = [f"v0001-s{seed}-{step:05d}-{row:05d}" for row in range(rows)]
    columns: dict[str, Any] = {
        "step": np.full(rows, step),
        "seed": np.full(rows, seed),
        "group_id": [f"v0001-s{seed}-{step:05d}-g{g:04d}" for g in group],
        "rollout_id": ids,
        "task_id": [f"task{t:05d}" for t in task],
        "family": ["synthetic"] * rows,
        "level": task % 4,
        "prompt": [f"Solve problem number {t} and write the answer behind a hash." for t in task],
        "response": replies,
        "answer": [str(t) for t in task],
        "extracted": [str(t) if right else None for t, right in zip(task, random.random(rows) < 0.9, strict=True)],
        "outcome": outcome,
        "score": score,
        "advantage": group_advantages(score, group),
        "kept": np.ones(rows, dtype=bool),
        "response_length": length,
        "max_response_length": np.full(rows, 64),
        "turns": np.ones(rows, dtype=np.int64),
        "truncated": length >= 64,
        "stop_reason": np.where(length >= 64, "length", "eos"),
        "mean_logprob": -random.gamma(4.0, 0.1, rows) * (1 - 0.5 * progress),
        "entropy": random.gamma(4.0, 0.12, rows) * (1 - 0.5 * progress),
        "visible": outcome,
        "sandbox": ["none"] * rows,
        "hint_length": np.zeros(rows, dtype=np.int64),
        "repeats": random.beta(1, 20, rows),
        "term_outcome": outcome,
        "term_brevity": brevity,
        "term_format": np.ones(rows),
    }
    return pa.table({name: pa.array(list(values)) for name, values in columns.items()})


def write_training(root: Path, rollouts: int) -> None:
    """Step files and metrics of SEEDS trainings with about ``rollouts`` rollouts in all."""
    steps = max(1, round(rollouts / (SEEDS * TASKS * N)))
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        lines = []
        for step in range(1, steps + 1):
            table = step_table(random, seed, step, step / steps)
            write_step(root / f"seed-{seed}", step, table)
            data = {"outcome/mean": float(np.mean(table["outcome"])), "actor/kl_to_base": 0.1 * step / steps}
            lines.append(json.dumps({"step": step, "data": data}) + "\n")
        (root / f"metrics-{seed}.jsonl").write_text("".join(lines))


def measure(root: Path) -> Measured:
    """Run the report in this process, which must be a fresh one."""
    diagnostics = parse_harness(load_seed_files(), "seed").diagnostics
    directories = sorted(root.glob("seed-*"))
    files = sum(1 for d in directories for _ in d.glob("*.parquet"))
    wall, cpu = time.perf_counter(), time.process_time()
    scores = {"validation/mean": 0.6, "gate/mean": 0.58}
    report = health_report("v0001", directories, diagnostics, scores, sorted(root.glob("metrics-*")), weights=WEIGHTS)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if errors := [f"{f.diagnostic}: {f.error}" for f in report.findings if f.error]:
        raise RuntimeError("; ".join(errors))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)
    return Measured(rollouts=files * TASKS * N, files=files, wall_s=wall, cpu_s=cpu, peak_mb=peak)


def measured(sizes: Sequence[int]) -> Iterator[Measured]:
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="evotrainer-bench-") as folder:
            write_training(Path(folder), size)
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
                yield fresh.submit(measure, Path(folder)).result()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.health", description=__doc__)
    parser.add_argument("--sizes", default="10000,100000,1000000", help="rollouts, a comma list")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    args = parser.parse_args()
    if not args.json:
        print("| rollouts | files | wall s | CPU s | peak MB |\n| --- | --- | --- | --- | --- |")
    for row in measured([int(size) for size in args.sizes.split(",")]):
        table = f"| {row.rollouts:,} | {row.files:,} | {row.wall_s:.2f} | {row.cpu_s:.2f} | {row.peak_mb:.0f} |"
        print(row.model_dump_json() if args.json else table, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
