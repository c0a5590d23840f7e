"""Metrics of a training, in the names and the file shape of verl's ``file`` logger.

One JSON object per line, ``{"step": n, "data": {name: number}}``; every attempt of a job writes a file of its own. One
that goes on where an earlier attempt stopped begins with that one's lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from trainer.embedded.gather import StepBatch
from trainer.groups import groups_with_spread
from trainer.types import InputError


class MetricsLog:
    """Append-only metrics of one attempt, ``metrics-<attempt>.jsonl`` in ``directory``."""

    def __init__(self, directory: Path, done: int = 0) -> None:
        """``done`` steps were made by earlier attempts. Raises InputError where their metrics are gone."""
        directory.mkdir(parents=True, exist_ok=True)
        attempts = sorted(int(path.stem.removeprefix("metrics-")) for path in directory.glob("metrics-*.jsonl"))
        earlier = read_metrics(directory / f"metrics-{attempts[-1]}.jsonl")[:done] if attempts and done else []
        if len(earlier) < done:
            raise InputError(
                f"{directory}: the metrics of the first {done} steps are gone; delete state/ to train again"
            )
        self.path = directory / f"metrics-{attempts[-1] + 1 if attempts else 1}.jsonl"
        self._file = self.path.open("x", encoding="utf-8")
        for step, data in earlier:
            self.write(step, data)

    def write(self, step: int, data: Mapping[str, float]) -> None:
        self._file.write(json.dumps({"step": step, "data": data}) + "\n")
        self._file.flush()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[tuple[int, dict[str, float]]]:
    """``(step, data)`` per line; a last line cut off by a crash is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [(record["step"], record["data"]) for record in map(json.loads, lines)]


def rollout_metrics(batch: StepBatch, max_response_length: int) -> dict[str, float]:
    """What a step's rollouts say.

    verl's names where verl has one: ``critic/score`` is the training reward, ``critic/rewards`` the same less the
    penalty for KL. Ours: ``outcome/mean`` and ``outcome/hinted`` (rollouts without and with a hint),
    ``rollout/mean_logprob``, and ``signal/…``, shares of the groups that were generated. A group is
    dead when its score has no spread; ``all_fail`` and ``all_pass`` are the dead ones whose
    outcomes are all 0 or all 1.
    """
    scored, kept, group_index = batch.scored, batch.kept, batch.group_index
    samples = scored.samples
    lengths = np.asarray(samples.response_lengths)
    turns = np.array([len(turns) for turns in samples.turns])
    groups = int(group_index.max()) + 1
    sizes = np.bincount(group_index, minlength=groups)
    dead = ~groups_with_spread(scored.score, group_index)
    solved = np.bincount(group_index, weights=scored.outcome, minlength=groups) / sizes
    kept_groups = np.bincount(group_index, weights=kept, minlength=groups) > 0
    sampled = samples.response_mask
    tokens = int(lengths.sum())
    trained = batch.advantages[kept] if kept.any() else np.zeros(1)
    hinted = batch.hinted
    return {
        **_spread("critic/score", scored.score),
        **_spread("critic/rewards", batch.rewards),
        **_spread("critic/advantages", trained),
        **_spread("response_length", lengths),
        "response_length/clip_ratio": float((lengths >= max_response_length).mean()),
        **_spread("prompt_length", np.asarray(samples.prompt_lengths)),
        **_spread("num_turns", turns),
        "outcome/mean": float(scored.outcome[~hinted].mean()),
        **({"outcome/hinted": float(scored.outcome[hinted].mean())} if hinted.any() else {}),
        "rollout/mean_logprob": float((samples.logprobs * sampled).sum() / tokens),
        "rollout/temperature": batch.temperature,
        "actor/entropy": float((samples.entropy * sampled).sum() / tokens),
        "signal/dead_groups": float(dead.mean()),
        "signal/dead_groups_all_fail": float((dead & (solved == 0)).mean()),
        "signal/dead_groups_all_pass": float((dead & (solved == 1)).mean()),
        "signal/kept_groups": float(kept_groups.mean()),
        "signal/hinted_groups": float(np.bincount(group_index, weights=hinted, minlength=groups).astype(bool).mean()),
    }


def _spread(name: str, values: NDArray[np.float64] | NDArray[np.int64]) -> dict[str, float]:
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }
