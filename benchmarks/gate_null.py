"""Runs whose candidates all equal their baseline, task by task: who promotes one all the same?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks import gate_engine as engine
from benchmarks import gate_rules as rules
from trainer.gate import LONG, GatePolicy
from trainer.types import Record

COUNTS = (1, 8, 40)
CHECKPOINTS = 5
"""Evaluations along one training, of which the best counts in the practice that is compared with."""
CHUNK = 100
NEVER = np.iinfo(np.int64).max


class World(Record):
    """Noise of a training: tasks with their samples, the part of them that is always or never solved, and the sd of a
    training's mean score over seeds."""

    name: str
    tasks: int
    k: int
    dead: float
    sigma_seed: float


WORLDS = (
    World(name="500 tasks × 4, σ_seed .03", tasks=500, k=4, dead=0.0, sigma_seed=0.03),
    World(name="77 tasks × 8, half dead, no seed noise", tasks=77, k=8, dead=0.5, sigma_seed=0.0),
    World(name="77 tasks × 8, half dead, σ_seed .02", tasks=77, k=8, dead=0.5, sigma_seed=0.02),
)


class Trained(NamedTuple):
    seeds: engine.Seeds
    by_task: engine.Array
    """Task means of the first three seeds (runs, 3, tasks)."""
    checkpoints: engine.Array
    """Scores of the first seed's checkpoints (runs, CHECKPOINTS)."""


def difficulties(world: World, rng: np.random.Generator) -> np.ndarray:
    """Solve probabilities: live tasks between .2 and .8, so that a seed's shift is not cut off; dead ones alternate."""
    p = rng.uniform(0.2, 0.8, world.tasks)
    dead = round(world.tasks * world.dead)
    p[:dead] = np.arange(dead) % 2
    return p


def train(world: World, p: np.ndarray, runs: int, seeds: int, rng: np.random.Generator) -> Trained:
    """``runs`` versions with ``seeds`` seeds: a seed shifts its live tasks, samples are Bernoulli draws."""
    live = (p > 0) & (p < 1)
    shift = rng.normal(0, world.sigma_seed / live.mean(), (runs, seeds))
    # The other checkpoints of the first seed ride along as further rows.
    shift = np.concatenate([shift, np.repeat(shift[:, :1], CHECKPOINTS - 1, axis=1)], axis=1)
    solves = (p + shift[:, :, None] * live).astype(np.float32)
    counts = np.zeros(solves.shape, np.int16)
    for _ in range(world.k):
        counts += rng.random(solves.shape, np.float32) < solves
    means = counts / world.k
    noise = (means * (1 - means)).mean(axis=2) / (world.k - 1)
    scores, by_task = means.mean(axis=2), means[:, :seeds]
    checkpoints = np.concatenate([scores[:, :1], scores[:, seeds:]], axis=1)
    trained = engine.Seeds(scores[:, :seeds], noise[:, :seeds], by_task.cumsum(axis=1))
    return Trained(trained, by_task[:, :3], checkpoints)


def first_promotions(world: World, runs: int, candidates: int, seed: int) -> dict[str, np.ndarray]:
    """By rule, the number of the candidate that each run promoted first (NEVER if none)."""
    rng = np.random.default_rng(seed)
    chunks = [_chunk(world, min(CHUNK, runs - at), candidates, rng) for at in range(0, runs, CHUNK)]
    return {rule: np.concatenate([chunk[rule] for chunk in chunks]) for rule in chunks[0]}


def _chunk(world: World, runs: int, candidates: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    p = difficulties(world, rng)
    base = train(world, p, runs, 6, rng)
    short = engine.Gate(GatePolicy(), engine.first(base.seeds, 3))
    long = engine.Gate(LONG, engine.first(base.seeds, 6))
    usual = {name: np.full(runs, NEVER) for name in USUAL}
    for number in range(1, candidates + 1):
        new = train(world, p, runs, 6, rng)
        short.add(new.seeds)
        long.add(new.seeds)
        called = (
            rules.higher(new.checkpoints, base.checkpoints),
            rules.task_bootstrap(new.by_task[:, 0], base.by_task[:, 0]) < 0.05,
            rules.hierarchical_bootstrap(
                new.seeds.means[:, :3], base.seeds.means[:, :3], (new.by_task - base.by_task).mean(axis=1)
            )
            < 0.05,
        )
        for name, better in zip(USUAL, called, strict=True):
            usual[name][better] = np.minimum(usual[name][better], number)
    return usual | {"the gate, short form": short.first, "the gate, long form": long.first}


USUAL = (
    "single seed, best checkpoint, higher wins",
    "paired bootstrap over tasks, one seed, p < .05",
    "hierarchical bootstrap, 3 seeds, p < .05",
)
DESIGN: dict[str, tuple[str, str, str]] = {
    USUAL[0]: ("50 / 90 / 98", "45 / 84 / 97", "49 / 86 / 97"),
    USUAL[1]: ("32 / 77 / 94", "5 / 23 / 46", "19 / 55 / 80"),
    USUAL[2]: ("9 / 37 / 65", "1 / 8 / 16", "6 / 21 / 43"),
    "the gate, short form": ("", "", ""),
    "the gate, long form": (".2 / 1.4 / 1.6", "0 / 0 / 0", ".2 / 1 / 1"),
}
"""What an earlier simulation of the same rules found, in % at 1 / 8 / 40 candidates."""
