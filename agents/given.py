"""Candidates that a person gives: their own edits, in their order, through the same stations as everybody's."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass

from agents.edits import is_noop, make_change, normalise, rollback, value_text, value_words
from agents.types import (
    BacktestInput,
    BacktestReport,
    Check,
    CurateInput,
    CurateOutput,
    DesignInput,
    DiagnoseInput,
    Diagnosis,
    Dropped,
    Intervention,
    Prediction,
    Specialists,
)
from trainer.types import Change, HarnessEdit, Recipe

EFFECT = 0.01
"""What a given candidate is taken to promise: this much of the validation score."""


def parse_given(text: str) -> Change:
    """The change that ``FACTOR=VALUE`` asks for, the value as in TOML, or a plain word: ``optim.lr=3e-4``,
    ``reward.weights.format=1``, ``reward.term.short={term={name="short", description="…", sql="…"}, weight=1}``.

    Raises ValueError with a short reason.
    """
    factor, sign, value = (part.strip() for part in text.partition("="))
    if not sign:
        raise ValueError(f"'{text}' is not FACTOR=VALUE")
    try:
        table = tomllib.loads(f"v = {value}")
        parsed = table["v"] if len(table) == 1 else value
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = value
    if isinstance(parsed, float) and not math.isfinite(parsed):
        raise ValueError(f"{factor}: {value} is no finite number")
    change = make_change(factor, parsed)
    if HarnessEdit(change=change).factor != factor:
        raise ValueError(f"{factor} names another term than {HarnessEdit(change=change).factor}")
    return normalise(Recipe(), change)


def bypassed(inp: BacktestInput, why: str) -> BacktestReport:
    """The report on a candidate that is not screened; one that could not be committed is refused all the same."""
    if inp.config_error:
        check = Check(name="config_valid", passed=False, detail=inp.config_error)
        return BacktestReport(verdict="refuse", checks=(check,), reasons=(inp.config_error,))
    checks = (Check(name="single_factor", passed=True, detail=f"{why}: the backtest is bypassed"),)
    return BacktestReport(verdict="pass", checks=checks, replay=inp.replay)


@dataclass
class StandIn:
    """Who takes some of the roles of ``others``, and leaves the rest to them."""

    others: Specialists
    name: str = "stand-in"

    def diagnose(self, inp: DiagnoseInput) -> Diagnosis:
        return self.others.diagnose(inp)

    def design(self, inp: DesignInput) -> Intervention | None:
        return self.others.design(inp)

    def backtest(self, inp: BacktestInput) -> BacktestReport:
        return self.others.backtest(inp)

    def curate(self, inp: CurateInput) -> CurateOutput:
        return self.others.curate(inp)


@dataclass
class Unscreened(StandIn):
    """``others``, whose candidates all go to training: what a backtest saves is measured against this."""

    name: str = "unscreened"

    def backtest(self, inp: BacktestInput) -> BacktestReport:
        return bypassed(inp, "designer.backtest is off")


@dataclass
class GivenCandidates(StandIn):
    """``others``, but for the designer, who takes ``changes`` in order, and, where ``screen`` is false, the backtester."""

    name: str = "given candidates"
    changes: Sequence[Change] = ()
    screen: bool = True

    def design(self, inp: DesignInput) -> Intervention | None:
        """The first change that was not tried yet and would change something."""
        tried = {(case.factor, case.value) for case in inp.cases} | {(r.factor, r.value) for r in inp.refused}
        dropped = []
        for change in self.changes:
            edit, value = HarnessEdit(change=change), value_text(change)
            if (edit.factor, value) in tried:
                continue
            if reason := _idle(inp, change):
                dropped.append(Dropped(factor=edit.factor, value=value, reason=reason))
                continue
            return Intervention(
                title=f"given: set {edit.factor} = {value_words(change)}",
                edit=edit,
                rationale="Given by whoever started the run.",
                hypothesis=f"{edit.factor} raises the validation score.",
                prediction=Prediction(metric="validation/mean", direction="up", min_effect=EFFECT),
                success="the gate promotes it",
                rollback=rollback(inp.recipe, edit),
                rule="given",
                dropped=tuple(dropped),
            )
        return None

    def backtest(self, inp: BacktestInput) -> BacktestReport:
        return (
            self.others.backtest(inp) if self.screen else bypassed(inp, "a given candidate, designer.backtest is off")
        )


def _idle(inp: DesignInput, change: Change) -> str:
    """Why the change cannot be tried on this recipe, or an empty string."""
    try:
        return "changes nothing" if is_noop(inp.recipe, inp.terms, change) else ""
    except ValueError as err:
        return str(err)
