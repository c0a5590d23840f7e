"""Training curves from metrics files in verl's ``file`` logger shape."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from graph.report_types import Curve

TOKENS = "tokens/total"
METRICS = ("outcome/mean", "critic/score/mean", "response_length/mean", "actor/entropy", "signal/dead_groups")
MAX_POINTS = 32


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


def read_curves(metrics_files_by_version: Mapping[str, Sequence[Path]]) -> tuple[Curve, ...]:
    """Curves of every version and metric of ``METRICS`` that its files (one per seed) have; x is ``tokens/total``."""
    curves = []
    for version, paths in metrics_files_by_version.items():
        seeds = [[row for row in read_metrics(path) if TOKENS in row] for path in paths]
        for metric in METRICS:
            series = [[(row[TOKENS], row[metric]) for row in rows if metric in row] for rows in seeds]
            if curve := average(version, metric, [points for points in series if points]):
                curves.append(curve)
    return tuple(curves)


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
