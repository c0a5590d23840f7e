"""The stored rollouts that a replay looks at: whole groups of evenly spaced steps, and one harness's view of them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.evidence import damaged, rollout_files
from trainer.groups import group_advantages, groups_with_spread, top_variance_groups
from trainer.python_parts import PythonScorer
from trainer.reward import reward_view, score_rollouts
from trainer.shaping import shape_scores
from trainer.types import REWARD_COLUMNS, ROLLOUT_COLUMNS, Harness

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_PLACE = ("seed", "step", "group_id", "hint_length")
"""Columns that a replay needs beside those a reward may see."""


@dataclass(frozen=True)
class Stored:
    """N rollouts in G groups; ``group`` (N,) numbers groups from 0 in order of appearance, ``breaks`` are the rows at which
    another step, or another seed's training, begins."""

    rows: pa.Table
    group: Ints
    breaks: tuple[int, ...]

    @cached_property
    def sizes(self) -> Ints:
        """Rollouts of each group (G,)."""
        return np.bincount(self.group)

    @cached_property
    def first(self) -> Ints:
        """The first row of each group (G,)."""
        return np.unique(self.group, return_index=True)[1]

    @cached_property
    def hinted(self) -> Flags:
        """Groups whose replies were begun for them (G,)."""
        return np.asarray(self.column("hint_length")[self.first] > 0)

    @cached_property
    def step(self) -> Ints:
        """Number of each group's step (G,), from 0, every seed's steps apart."""
        return np.searchsorted(np.array(self.breaks), self.first, side="right")

    def column(self, name: str) -> NDArray[Any]:
        return np.asarray(self.rows[name].to_numpy())

    def of_groups(self, name: str) -> list[Hashable]:
        """A column's value on the first rollout of each group."""
        return list(self.rows[name].take(pa.array(self.first)).to_pylist())

    def with_rows(self, rows: pa.Table) -> Stored:
        """The same groups with other columns."""
        return replace(self, rows=rows)


@dataclass(frozen=True)
class Rescored:
    """The rollouts as a harness scores them: terms and weights (shaping options included), score, outcome as the training
    reward's verifier sees it and advantage (N,); groups with spread and groups that the filter keeps (G,)."""

    terms: Mapping[str, Floats]
    weights: Mapping[str, float]
    score: Floats
    verified: Floats
    advantage: Floats
    spread: Flags
    kept: Flags


def stored_rollouts(directories: Sequence[Path], max_rollouts: int) -> Stored:
    """About ``max_rollouts`` rollouts: whole steps, evenly spaced over the training; a file holds whole groups, so that a
    group is never cut. Raises InputError for damaged files."""
    files = rollout_files(directories)
    total = sum(pq.read_metadata(file).num_rows for file in files)
    rows = pa.concat_tables([_read(file) for file in files[:: math.ceil(max(total, 1) / max_rollouts)]])
    keys = list(zip(*(rows[c].to_pylist() for c in ("seed", "step", "group_id")), strict=True))
    steps = [key[:2] for key in keys]
    return Stored(rows, _numbered(keys), tuple(row for row in range(1, len(keys)) if steps[row] != steps[row - 1]))


def stored_episodes(files: Sequence[Path], max_rollouts: int) -> Stored | None:
    """Evaluated episodes (one file per seed, of which each gives an equal share), a task's samples of one seed as a group;
    None where there are none. Raises InputError for damaged files."""
    tables = []
    for file in files:
        try:
            tables.append(pq.read_table(file, use_threads=False).slice(0, max_rollouts // len(files)))
        except (pa.ArrowException, OSError) as error:
            raise damaged(file) from error
    if not tables:
        return None
    keys = [(number, task) for number, table in enumerate(tables) for task in table["task_id"].to_pylist()]
    breaks = np.cumsum([table.num_rows for table in tables])[:-1].tolist()
    return Stored(pa.concat_tables(tables), _numbered(keys), tuple(breaks))


def rescore(stored: Stored, harness: Harness, python: PythonScorer) -> Rescored:
    """Score, filter and advantages by the code that training runs. Raises InputError for a term without numbers."""
    reward, algorithm = harness.recipe.reward, harness.recipe.algorithm
    group = stored.group
    rows = reward_view(stored.rows.drop_columns([c for c in _PLACE if c in stored.rows.column_names]), reward.tests)
    terms, score = score_rollouts(rows, harness.terms, dict(reward.weights), python)
    added, score = shape_scores(rows, score, group, reward)
    verified: Floats = rows["outcome"].to_numpy().astype(np.float64)
    spread = groups_with_spread(score, group)
    kept = np.ones_like(spread)
    if algorithm.filter_groups.enable:
        kept = spread if algorithm.filter_groups.metric == "score" else groups_with_spread(verified, group)
    elif algorithm.variance_filter.enable:
        metric = score if algorithm.variance_filter.metric == "score" else verified
        kept = _kept_by_variance(metric, stored, algorithm.variance_filter.top_p)
    return Rescored(
        terms=terms | added,
        weights=dict(reward.weights) | dict.fromkeys(added, 1.0),
        score=score,
        verified=verified,
        advantage=group_advantages(score, group, algorithm.adv_estimator, algorithm.norm_adv_by_std_in_grpo),
        spread=spread,
        kept=kept,
    )


def capped(stored: Stored, limit: int) -> Stored:
    """The same rollouts under another limit of tokens, a hint's counted: one that is longer is cut off, holds no answer and
    earns no outcome. Those that the stored limit cut off stay so, and the domain's features stand as they were.
    """
    rows = stored.rows
    room = limit - stored.column("hint_length")
    cut = stored.column("response_length") > room
    changed = {
        "response_length": np.minimum(stored.column("response_length"), np.maximum(room, 0)),
        "max_response_length": np.full(len(cut), limit),
        "truncated": stored.column("truncated") | cut,
        "outcome": np.where(cut, 0.0, stored.column("outcome")),
        "visible": np.where(cut, 0.0, stored.column("visible")),
        "extracted": pc.if_else(pa.array(cut), pa.scalar(None, pa.string()), rows["extracted"]),
        "stop_reason": pc.if_else(pa.array(cut), pa.scalar("length"), rows["stop_reason"]),
    }
    for name, values in changed.items():
        column = values if isinstance(values, pa.ChunkedArray) else pa.array(values)
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return stored.with_rows(rows)


def share(part: Flags | Floats) -> float:
    """The mean, 0 of nothing."""
    return float(part.mean()) if part.size else 0.0


def _numbered(keys: Sequence[Hashable]) -> Ints:
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _read(file: Path) -> pa.Table:
    try:
        columns = pq.read_schema(file).names
        features = [c for c in columns if c not in ROLLOUT_COLUMNS and not c.startswith("term_")]
        return pq.read_table(file, columns=[*_PLACE, "visible", *REWARD_COLUMNS, *features], use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise damaged(file) from error


def _kept_by_variance(metric: Floats, stored: Stored, top_p: float) -> Flags:
    """What the variance filter keeps of each step, whose groups have numbers in a row: bool (G,)."""
    steps = zip(np.split(metric, stored.breaks), np.split(stored.group, stored.breaks), strict=True)
    return np.concatenate([top_variance_groups(values, members - members[0], top_p) for values, members in steps])
