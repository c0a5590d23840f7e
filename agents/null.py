"""Null candidates: edits that cannot matter, to measure how often a run claims something where there is nothing.

Each changes an option that is idle under the recipe. They bypass the backtest, which would refuse them, and train on seeds
of their own, so that they differ from their parent by chance alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agents.edits import make_change, rollback, value_words
from agents.given import StandIn, bypassed
from agents.types import (
    BacktestInput,
    BacktestReport,
    DesignInput,
    Intervention,
    Prediction,
)
from trainer.types import HarnessEdit, Recipe

IDLE: Mapping[str, Callable[[Recipe], float | None]] = {
    "algorithm.filter_groups.max_num_gen_batches": lambda r: (
        None if r.algorithm.filter_groups.enable else r.algorithm.filter_groups.max_num_gen_batches + 1
    ),
    "algorithm.kl_ctrl.horizon": lambda r: None if r.algorithm.use_kl_in_reward else r.algorithm.kl_ctrl.horizon + 1,
}
"""Option to its next value, None where the recipe makes use of it."""


@dataclass
class NullCandidates(StandIn):
    """The specialists of a null run: they diagnose and remember as ``others`` do."""

    name: str = "null candidates"

    def design(self, inp: DesignInput) -> Intervention | None:
        idle = ((option, following(inp.recipe)) for option, following in IDLE.items())
        option, value = next(((o, v) for o, v in idle if v is not None), ("", 0.0))
        if not option:
            return None
        edit = HarnessEdit(change=make_change(option, value))
        return Intervention(
            title=f"null candidate: set {option} = {value_words(edit.change)}",
            edit=edit,
            rationale="The option is idle under this recipe: whatever changes, changes by chance.",
            hypothesis="Nothing changes.",
            prediction=Prediction(metric="validation/mean", direction="up", min_effect=0.01),
            success="the gate promotes nothing",
            rollback=rollback(inp.recipe, edit),
            rule="null",
        )

    def backtest(self, inp: BacktestInput) -> BacktestReport:
        return bypassed(inp, "a null candidate")
