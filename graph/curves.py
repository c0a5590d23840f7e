"""Training curves, from metrics files in verl's ``file`` logger shape and from stored rollouts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from graph.report_types import Curve
from trainer.evidence import open_rollouts
from trainer.sql import select

TOKENS = "tokens/total"
METRICS = (
    "outcome/mean",
    "critic/score/mean",
    "signal/dead_groups",
    "signal/dead_groups_all_fail",
    "signal/dead_groups_all_pass",
    "actor/entropy",
    "rollout/mean_logprob",
    "response_length/mean",
    "response_length/clip_ratio",
)
MAX_POINTS = 32
K = 4
"""Samples of the pass@k curve: fewer than any usual group has, so that versions with other group sizes compare."""
PASS_AT_K = f"outcome/pass@{K}"


def read_metrics(path: Path) -> Iterator[dict[str, float]]:
    """The ``data`` of every readable line ``{"step": n, "data": {…}}``; a missing file has none.

    A job killed while writing leaves a torn last line, and a reader of a running job sees one: such lines are skipped,
    as are values that are no finite numbers.
    """
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            data = json.loads(line)["data"]
            yield {key: float(v) for key, v in data.items() if isinstance(v, int | float) and math.isfinite(v)}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue


def read_curves(
    metrics_files: Mapping[str, Sequence[Path]], rollouts: Mapping[str, Sequence[Path]] | None = None
) -> tuple[Curve, ...]:
    """Curves of every version (both arguments map a version to one path per seed) and metric of ``METRICS`` that its
    files have, and pass@k from its rollout directories; x is ``tokens/total``. Raises InputError for damaged rollouts."""
    curves = []
    for version, paths in metrics_files.items():
        seeds = [[row for row in read_metrics(path) if TOKENS in row] for path in paths]
        series = {m: [[(row[TOKENS], row[m]) for row in rows if m in row] for rows in seeds] for m in METRICS}
        series[PASS_AT_K] = pass_at_k_series((rollouts or {}).get(version, ()))
        for metric, by_seed in series.items():
            if curve := average(version, metric, [points for points in by_seed if points]):
                curves.append(curve)
    return tuple(curves)


def pass_at_k_series(directories: Sequence[Path]) -> list[list[tuple[float, float]]]:
    """Per seed, (tokens sampled so far, pass@k over the step's groups of at least ``K``) of every step.

    pass@k is the unbiased 1 − C(n−c, k)/C(n, k) for c of n solved (Chen et al. 2021, arXiv 2107.03374, equation 1).
    """
    if not directories:
        return []
    unsolved = " * ".join(f"(n - solved - {i}) / (n - {i})" for i in range(K))
    query = f"""
        WITH groups AS (SELECT seed, step, count(*) AS n, sum((outcome = 1)::INT) AS solved, sum(response_length) AS tokens
                FROM rollouts GROUP BY seed, step, group_id),
            steps AS (SELECT seed, step, sum(tokens) AS tokens,
                avg(CASE WHEN n - solved < {K} THEN 1.0 ELSE 1 - {unsolved} END) FILTER (n >= {K}) AS reach
                FROM groups GROUP BY seed, step)
        SELECT seed, sum(tokens) OVER (PARTITION BY seed ORDER BY step)::DOUBLE AS total, reach FROM steps ORDER BY seed, step"""
    with open_rollouts(directories) as connection:
        rows = select(connection, query, max_rows=10**7).to_pylist()
    series: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if row["reach"] is not None:
            series.setdefault(row["seed"], []).append((row["total"], row["reach"]))
    return list(series.values())


def average(version: str, metric: str, seeds: Sequence[Sequence[tuple[float, float]]]) -> Curve | None:
    """Mean, lowest and highest seed in equal bins of tokens; None without points.

    Seeds take different steps, so each is first averaged within a bin. There are as many bins as the shortest series
    has points (``MAX_POINTS`` at most), and a bin counts the seeds that reached it.
    """
    if not seeds:
        return None
    bins = min(MAX_POINTS, *(len(points) for points in seeds))
    top = max(x for points in seeds for x, _ in points) or 1.0
    table = np.full((len(seeds), bins), np.nan)
    for row, points in zip(table, seeds, strict=True):
        x, y = np.array(points).T
        index = np.clip((x / top * bins).astype(int), 0, bins - 1)
        counts = np.bincount(index, minlength=bins)
        sums = np.bincount(index, weights=y, minlength=bins)
        row[counts > 0] = sums[counts > 0] / counts[counts > 0]
    seen = ~np.isnan(table).all(axis=0)
    reached = table[:, seen]
    centres = (np.arange(bins)[seen] + 0.5) * top / bins
    return Curve(
        version=version,
        metric=metric,
        seeds=len(seeds),
        x=tuple(centres.tolist()),
        mean=tuple(np.nanmean(reached, axis=0).tolist()),
        low=tuple(np.nanmin(reached, axis=0).tolist()),
        high=tuple(np.nanmax(reached, axis=0).tolist()),
    )
