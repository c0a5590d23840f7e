"""Which tasks come next: in random order, or by how well the policy solves each family and level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trainer.types import Curriculum, Record, Task

MEMORY = 0.9
"""Share of earlier evidence that is kept with each new batch: solve rates move as the policy learns."""
SEEN = 32.0
"""Rollouts of a level before ``range`` may call it solved."""
PRIOR = 4.0
"""Rollouts, half of them solved, that stand for a level nobody has tried yet."""


class CurriculumState(Record):
    """Where a chooser stands, for an exact resume: draws per bucket, tries and successes per bucket, draws in all, and
    the highest open level's place."""

    drawn: tuple[int, ...]
    tried: tuple[float, ...]
    solved: tuple[float, ...]
    draws: int
    opened: int


class TaskChooser:
    """Draws positions of ``tasks``. A bucket is a family and level (without a curriculum: everything); each is gone
    through in epochs, every one a permutation of its own by (seed, bucket, epoch)."""

    def __init__(self, tasks: Sequence[Task], seed: int, curriculum: Curriculum) -> None:
        self._curriculum = curriculum
        self._seed = seed
        keys = [("", 0) if curriculum.mode == "off" else (task.family, task.level) for task in tasks]
        self._keys = sorted(set(keys))
        number = {key: i for i, key in enumerate(self._keys)}
        self._bucket = np.array([number[key] for key in keys])
        self._members = [np.flatnonzero(self._bucket == i) for i in range(len(self._keys))]
        self._levels = sorted({level for _, level in self._keys})
        self.restore(CurriculumState(drawn=(0,) * len(self._keys), tried=(0.0,) * len(self._keys),
                                     solved=(0.0,) * len(self._keys), draws=0, opened=0))  # fmt: skip

    def draw(self, count: int) -> list[int]:
        """The next ``count`` positions."""
        if len(self._keys) == 1:
            return [next(self._orders[0]) for _ in range(count)]
        random = np.random.default_rng([self._seed, 1, self._draws])
        self._draws += 1
        weights = self.weights()
        chosen = random.choice(len(weights), size=count, p=weights / weights.sum())
        return [next(self._orders[bucket]) for bucket in chosen]

    def observe(self, positions: Sequence[int], solved: NDArray[np.float64], rollouts: int) -> None:
        """Take in that of ``rollouts`` replies to each position the share ``solved`` was right."""
        self._tried *= MEMORY
        self._solved *= MEMORY
        buckets = self._bucket[np.asarray(positions, dtype=np.int64)]
        np.add.at(self._tried, buckets, rollouts)
        np.add.at(self._solved, buckets, rollouts * solved)
        if self._curriculum.mode == "range" and self._opened < len(self._levels) - 1:
            top = np.array([level == self._levels[self._opened] for _, level in self._keys])
            tried, right = self._tried[top].sum(), self._solved[top].sum()
            self._opened += bool(tried >= SEEN and right >= self._curriculum.open_at * tried)

    def solve_rates(self) -> NDArray[np.float64]:
        """The solve rate of each bucket as far as it is known; one half where nothing is."""
        return (self._solved + PRIOR / 2) / (self._tried + PRIOR)

    def weights(self) -> NDArray[np.float64]:
        """How often each bucket is drawn, up to a factor. A bucket's size counts, so that the tasks of a small one are
        not repeated more than those of a large one."""
        sizes = np.array([len(members) for members in self._members], dtype=np.float64)
        wanted: NDArray[np.float64] = np.ones(len(sizes))
        if self._curriculum.mode == "solve_rate":
            edge = 1 - 2 * np.abs(self.solve_rates() - 0.5)
            wanted = np.maximum(edge, self._curriculum.floor * edge.max())
        elif self._curriculum.mode == "range":
            wanted = np.array([float(level <= self._levels[self._opened]) for _, level in self._keys])
        return sizes * wanted

    def metrics(self) -> dict[str, float]:
        """``curriculum/…``: the expected solve rate and level of the next batch; nothing without a curriculum."""
        if self._curriculum.mode == "off":
            return {}
        share = self.weights() / self.weights().sum()
        return {
            "curriculum/solve_rate": float(share @ self.solve_rates()),
            "curriculum/level": float(share @ np.array([level for _, level in self._keys])),
        }

    def state(self) -> CurriculumState:
        return CurriculumState(
            drawn=tuple(order.drawn for order in self._orders),
            tried=tuple(self._tried.tolist()),
            solved=tuple(self._solved.tolist()),
            draws=self._draws,
            opened=self._opened,
        )

    def restore(self, state: CurriculumState) -> None:
        """Go on from ``state``, which was taken from a chooser of the same tasks, seed and curriculum."""
        self._tried, self._solved = np.array(state.tried), np.array(state.solved)
        self._draws, self._opened = state.draws, state.opened
        self._orders = [
            _Order(members, (self._seed,) if len(self._keys) == 1 else (self._seed, 2, bucket), drawn)
            for bucket, (members, drawn) in enumerate(zip(self._members, state.drawn, strict=True))
        ]


class _Order(Iterator[int]):
    """Members without end, each epoch in an order of its own."""

    def __init__(self, members: NDArray[np.int64], key: Sequence[int], drawn: int) -> None:
        self._members, self._key, self.drawn = members, key, drawn
        self._epoch = -1
        self._order: list[int] = []

    def __next__(self) -> int:
        epoch, place = divmod(self.drawn, len(self._members))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = self._members[
                np.random.default_rng([*self._key, epoch]).permutation(len(self._members))
            ].tolist()
        self.drawn += 1
        return self._order[place]
