"""Rollout tables built by hand, for tests of everything that reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.evidence import write_step
from trainer.groups import group_advantages

Columns = dict[str, Any]
Change = Callable[[Columns], None]

STEPS, GROUPS, N = 16, 10, 8


def healthy() -> Columns:
    """One seed of 16 steps × 10 groups × 8 rollouts: the outcome rises from .5 to .75, every group has spread."""
    rows = STEPS * GROUPS * N
    step = np.arange(rows) // (GROUPS * N)
    group = np.arange(rows) // N
    member = np.arange(rows) % N
    c: Columns = {
        "step": step,
        "seed": np.zeros(rows, dtype=np.int64),
        "group_id": np.array([f"g{g:05d}" for g in group]),
        "rollout_id": np.array([f"r{i:06d}" for i in range(rows)]),
        "task_id": np.array([f"task{g}" for g in group]),
        "family": np.array(["chain"] * rows),
        "level": np.ones(rows, dtype=np.int64),
        "prompt": np.array([f"what is {g}?" for g in group]),
        "response": np.array([f"{g} by way {m} #{g}" for g, m in zip(group, member, strict=True)]),
        "answer": np.array([str(g) for g in group]),
        "extracted": np.array([str(g) for g in group], dtype=object),
        "outcome": (member < 4 + 2 * step / (STEPS - 1)).astype(float),
        "response_length": 18 + member % 3,
        "max_response_length": np.full(rows, 64),
        "turns": np.ones(rows, dtype=np.int64),
        "truncated": np.zeros(rows, dtype=bool),
        "stop_reason": np.array(["eos"] * rows),
        "mean_logprob": np.full(rows, -0.3),
        "entropy": np.full(rows, 0.4),
        "kept": np.ones(rows, dtype=bool),
        "format_ok": np.ones(rows),
        "repeats": np.zeros(rows),
    }
    c["score"] = c["outcome"].copy()
    return c


def late(c: Columns) -> Any:
    """Mask of the last quarter of steps."""
    return c["step"] >= STEPS - STEPS // 4


def group_number(c: Columns) -> Any:
    return np.arange(len(c["step"])) // N


def table(c: Columns) -> pa.Table:
    """The columns as a table; advantages follow from the scores unless given."""
    advantage = c.get("advantage")
    full = {
        "visible": c["outcome"],
        "sandbox": ["none"] * len(c["score"]),
        "hint_length": [0] * len(c["score"]),
        **c,
        "advantage": group_advantages(c["score"], group_number(c)) if advantage is None else advantage,
    }
    return pa.table({name: pa.array(list(values)) for name, values in full.items()})


def write(directory: Path, change: Change | None = None) -> Path:
    """Write the healthy table, changed by ``change``, as step files. ``score`` follows a changed ``outcome``
    unless ``change`` sets ``score`` itself (to a new array)."""
    c = healthy()
    score = c["score"]
    if change:
        change(c)
    if c["score"] is score:
        c["score"] = c["outcome"]
    rows = table(c)
    for step in range(STEPS):
        write_step(directory, step, rows.filter(pc.equal(rows["step"], step)))
    return directory
