"""Rollouts that a real training of the toy policy wrote, and the quantities of a replay computed once more by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.trainer.embedded.toy import BREVITY, OUTCOME, CopyDomain, copy_policy, copy_spec
from trainer.embedded.files import ROLLOUTS
from trainer.embedded.grpo import train
from trainer.embedded.metrics import read_metrics
from trainer.replay import replay
from trainer.types import Harness, Recipe, ReplayReport, RewardTerm

Rows = list[dict[str, Any]]
TERMS = {"outcome": OUTCOME, "brevity": BREVITY}


class Trained:
    """One finished training: its recipe, its rollouts and what it logged."""

    def __init__(self, folder: Path, recipe: Recipe, seeds: Sequence[int] = (1,), **spec: Any) -> None:
        self.recipe = recipe
        self.directories: list[Path] = []
        self.metrics: list[Mapping[str, float]] = []
        for seed in seeds:
            out = folder / f"seed-{seed}"
            result = train(
                copy_spec(out, recipe, seed=seed, **spec), copy_policy(seed), CopyDomain(), lambda progress: None
            )
            assert result.status == "completed" and result.metrics_file and result.cost.steps > 4
            self.directories.append(out / ROLLOUTS)
            self.metrics += [data for _, data in read_metrics(result.metrics_file)]

    def harness(self, commit: str = "parent", terms: Mapping[str, RewardTerm] = TERMS, **options: Any) -> Harness:
        """The training's harness with other options (``rollout__n=2``)."""
        return Harness(commit=commit, recipe=changed(self.recipe, options), terms=terms, diagnostics={})

    def replay(self, **options: Any) -> ReplayReport:
        """The replay of one other option, or several."""
        return replay(self.directories, self.harness(), self.harness("candidate", **options))

    def rows(self) -> Rows:
        files = [file for directory in self.directories for file in sorted(directory.glob("*.parquet"))]
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def groups(self, wanted: Callable[[dict[str, Any]], bool] = lambda row: row["hint_length"] == 0) -> list[Rows]:
        """The rows of each group whose first one is ``wanted``, in order."""
        found: dict[tuple[Any, ...], Rows] = {}
        for row in self.rows():
            found.setdefault((row["seed"], row["step"], row["group_id"]), []).append(row)
        return [group for group in found.values() if wanted(group[0])]


def changed(recipe: Recipe, options: Mapping[str, Any]) -> Recipe:
    """The recipe with dotted options, their dots written as ``__``, changed."""
    tree = recipe.model_dump()
    for name, value in options.items():
        *parents, leaf = name.split("__")
        node = tree
        for parent in parents:
            node = node[parent]
        node[leaf] = value
    return Recipe.model_validate(tree)


def mean(values: Sequence[float | bool]) -> float:
    return sum(values) / len(values)


def outcomes(group: Rows) -> list[float]:
    return [row["outcome"] for row in group]
