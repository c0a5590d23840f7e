"""The synthetic trainings of the health benchmark are ones that every diagnostic can read."""

from __future__ import annotations

from pathlib import Path

from benchmarks.health import SEEDS, TASKS, N, measure, write_training


def test_the_report_reads_what_the_benchmark_writes(tmp_path: Path) -> None:
    write_training(tmp_path, 2 * SEEDS * TASKS * N)
    row = measure(tmp_path)  # raises where a diagnostic fails
    assert (row.files, row.rollouts) == (2 * SEEDS, 2 * SEEDS * TASKS * N)
