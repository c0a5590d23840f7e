"""The state of a training between two steps, on disk: a job that was killed goes on with the losses it would have had.

``<out_dir>/state/`` is replaced as a whole, so that a kill leaves the old state or the new one. Everything else a step
depends on (tasks, seeds, the base policy) follows from the spec.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.embedded.curriculum import CurriculumState
from trainer.embedded.files import ROLLOUTS, STATE, read_record, write_record
from trainer.embedded.policy import Policy
from trainer.types import SCHEMA_VERSION, InputError, Record

TENSORS, LOOP = "tensors.safetensors", "loop.json"
REMEDY = "delete the folder to train from the start"


class LoopState(Record):
    """Where a training stands after ``step`` steps; ``solved`` is the mean verified outcome of each, ``faults`` the faults
    in a row of each Python term, ``wall_s`` and ``cpu_s`` what was used so far."""

    schema_version: int = SCHEMA_VERSION
    step: int
    rollouts: int
    tokens: int
    without_signal: int
    kl_coef: float
    solved: tuple[float, ...]
    faults: Mapping[str, int]
    curriculum: CurriculumState
    wall_s: float
    cpu_s: float


def save_state(
    out_dir: Path, state: LoopState, policy: Policy, finite: Sequence[Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """Write the state beside the old one and put it in its place. ``finite`` are the newest weights that sampled well."""
    folder, partial = out_dir / STATE, out_dir / f".{STATE}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    save_file(_tensors(policy, finite, optimizer), partial / TENSORS)
    write_record(partial / LOOP, state, durable=False)
    old = out_dir / f".{STATE}.old"
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)  # a kill between the two renames costs the training done so far, never its correctness
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load_state(
    out_dir: Path, policy: Policy, finite: Sequence[Tensor], optimizer: torch.optim.Optimizer
) -> LoopState | None:
    """Put weights and optimiser back where an earlier attempt left them, and drop what it wrote after; None where there is
    nothing to go on from. Raises InputError for a damaged state, with the remedy."""
    folder = out_dir / STATE
    state = read_record(folder / LOOP, LoopState, REMEDY)
    if state is None:
        return None
    try:
        stored = load_file(folder / TENSORS)
        _restore(policy, finite, optimizer, stored)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise InputError(f"{folder / TENSORS}: damaged ({' '.join(str(error).split())}); {REMEDY}") from error
    for file in (out_dir / ROLLOUTS).glob("*.parquet"):
        if int(file.stem.removeprefix("step-")) > state.step:
            file.unlink()
    return state


def drop_state(out_dir: Path) -> None:
    """Remove what only a training in progress needs."""
    for folder in out_dir.glob(f".{STATE}.*"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(out_dir / STATE, ignore_errors=True)


def _tensors(policy: Policy, finite: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    found = {f"weight.{i}": p.detach().contiguous() for i, p in enumerate(policy.module.parameters())}
    found |= {f"finite.{i}": weights.contiguous() for i, weights in enumerate(finite)}
    for i, values in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{i}.{name}": torch.as_tensor(value).contiguous() for name, value in values.items()}
    return found


def _restore(
    policy: Policy, finite: Sequence[Tensor], optimizer: torch.optim.Optimizer, stored: Mapping[str, Tensor]
) -> None:
    with torch.no_grad():
        for i, (parameter, weights) in enumerate(zip(policy.module.parameters(), finite, strict=True)):
            parameter.copy_(stored[f"weight.{i}"])
            weights.copy_(stored[f"finite.{i}"])
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in stored.items():
        kind, number, *name = key.split(".", 2)
        if kind == "optimizer":
            moments.setdefault(int(number), {})[name[0]] = value
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
