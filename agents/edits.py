"""Changes of a recipe as values: build, apply, compare and spell them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from agents.facts import show
from agents.types import Case
from trainer.types import (
    Change,
    DropDiagnostic,
    HarnessEdit,
    JsonDict,
    PutDiagnostic,
    PutTerm,
    Recipe,
    RewardTerm,
    SetOption,
    SetProcedure,
    SetWeight,
)

WEIGHT, TERM = "reward.weights.", "reward.term."
OPTIONS: frozenset[str] = frozenset(name for name in Recipe().options() if not name.startswith(WEIGHT))
"""Dotted paths of all recipe options."""

# A case with one of these verdicts is no evidence against its value.
_NOT_FAILED = ("promoted", "provisional")


def make_change(factor: str, value: Any) -> Change:
    """The change that gives ``factor`` the ``value`` (as decoded from JSON or TOML).

    A term's value is ``{"term": {name, description, sql}, "weight": w}``. Raises ValueError with a
    short reason for an unknown factor or a value of the wrong shape.
    """
    try:
        if factor.startswith(WEIGHT):
            return SetWeight(term=factor.removeprefix(WEIGHT), value=value)
        if factor.startswith(TERM):
            return PutTerm(term=RewardTerm.model_validate(value["term"]), weight=value["weight"])
        if factor in OPTIONS:
            return SetOption(path=factor, value=tuple(value) if isinstance(value, list) else value)
    except (ValidationError, KeyError, TypeError):
        raise ValueError(f"{factor} does not take {value!r}") from None
    raise ValueError(f"{factor} is not a factor of the recipe")


def apply_change(recipe: Recipe, change: Change) -> Recipe:
    """The recipe after the change, validated. Raises ValueError with a short reason."""
    tree: JsonDict = recipe.model_dump()
    match change:
        case SetOption(path=path, value=value):
            *parents, leaf = path.split(".")
            node = tree
            for key in parents:
                node = node[key]
            node[leaf] = value
        case SetWeight(term=name, value=weight):
            tree["reward"]["weights"] = {**tree["reward"]["weights"], name: weight}
        case PutTerm(term=term, weight=weight):
            tree["reward"]["weights"] = {**tree["reward"]["weights"], term.name: weight}
        case PutDiagnostic() | DropDiagnostic() | SetProcedure():
            pass
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"].lower()) from None


def normalise(recipe: Recipe, change: Change) -> Change:
    """The change with its value in the option's own type, so that equal values are spelled equally."""
    after = apply_change(recipe, change)
    if isinstance(change, SetOption):
        value: Any = after.options()[change.path]
        return SetOption(path=change.path, value=value)
    return change


def value_text(change: Change) -> str:
    """Canonical JSON of the value: the key under which cases, skills and refusals remember it."""
    value: Any
    match change:
        case SetOption(value=value) | SetWeight(value=value):
            pass
        case PutTerm(term=term, weight=weight):
            text = {"python": term.python} if term.python else {"sql": term.sql}
            value = {"term": {"name": term.name, "description": term.description, **text}, "weight": weight}
        case PutDiagnostic(diagnostic=diagnostic):
            value = diagnostic.model_dump()
        case DropDiagnostic():
            value = None
        case SetProcedure(order=order):
            value = list(order)
    return json.dumps(value, sort_keys=True)


def value_words(change: Change) -> str:
    """The value for a reader: ``3e-4``, ``off``; for a term its weight."""
    match change:
        case SetOption(value=value) | SetWeight(value=value):
            return show(value)
        case PutTerm(weight=weight):
            return show(weight)
        case PutDiagnostic(diagnostic=diagnostic):
            return f"warn {show(diagnostic.warn)}, critical {show(diagnostic.critical)}"
        case DropDiagnostic():
            return "none"
        case SetProcedure(order=order):
            return ", ".join(order)


def is_noop(recipe: Recipe, terms: Sequence[str], change: Change) -> bool:
    """True if the recipe would not change. A term that the harness already has at this weight counts as present."""
    if isinstance(change, PutTerm) and change.term.name not in terms:
        return False
    if isinstance(change, SetWeight):
        return recipe.reward.weights.get(change.term, 0.0) == change.value
    return apply_change(recipe, change) == recipe


def rollback(recipe: Recipe, edit: HarnessEdit) -> str:
    """How the edit is undone, one line."""
    match edit.change:
        case SetOption(path=path):
            return f"set {path} back to {show(recipe.options()[path])}; the parent's harness commit stays the champion"
        case SetWeight(term=term):
            return f"set the weight of {term} back to {show(recipe.reward.weights.get(term, 0.0))}"
        case PutTerm(term=term):
            return f"remove reward/{term.name}.toml and its weight"
        case PutDiagnostic(diagnostic=diagnostic):
            return f"remove diagnostics/{diagnostic.name}.toml; no training depends on it"
        case DropDiagnostic(name=name):
            return f"restore diagnostics/{name}.toml; no training depends on it"
        case SetProcedure():
            return "restore procedure.toml; no training depends on it"


def failed_before(cases: Sequence[Case], signature: str, change: HarnessEdit) -> Case | None:
    """The case in which the same value failed in the same situation, if any."""
    text = value_text(change.change)
    return next(
        (c for c in cases if is_failed(c) and (c.signature, c.factor, c.value) == (signature, change.factor, text)),
        None,
    )


def failures_in_a_row(cases: Sequence[Case]) -> int:
    """How many versions were trained, or could not be, since the last step. A design that the backtest refused cost nothing and
    shows nothing."""
    count = 0
    for case in reversed(cases):
        if not is_failed(case):
            break
        count += case.verdict != "refused"
    return count


def subtracts(recipe: Recipe, change: Change) -> bool:
    """Whether the change takes something out of the recipe: a part switched off, a weight or coefficient to 0, a limit lifted."""
    if isinstance(change, SetWeight):
        return change.value == 0
    if isinstance(change, SetOption):
        return bool(recipe.options()[change.path]) and change.value in (False, 0, "off", ())
    return isinstance(change, DropDiagnostic)


def family(factor: str) -> str:
    """The part of the recipe that a factor belongs to: ``optim`` of ``optim.lr``."""
    return factor.partition(".")[0]


def is_failed(case: Case) -> bool:
    """Whether the case speaks against its value: every end but a promotion, a provisional one included."""
    return case.verdict not in _NOT_FAILED
