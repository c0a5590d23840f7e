"""Candidates: what the playbook and the skills propose in a situation, before they are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from agents.edits import TERM, WEIGHT, is_noop, make_change, normalise, value_text, value_words
from agents.facts import Condition, Facts, fill, parse_condition, unmet
from agents.given import parse_given
from agents.rules import Bottleneck, Idea, Rules
from agents.types import DesignInput, Dropped, Note, Prediction, SkillRef
from trainer.types import Change, HarnessEdit, Record, SetWeight

DEFAULT_PREDICTION = Prediction(metric="validation/mean", direction="up", min_effect=0.02)


class Candidate(Record):
    """A change that is valid, new to the recipe and whose preconditions hold."""

    rule: str
    """Idea of the playbook, or ``skill:<name>``."""
    tier: str
    """Bottleneck it addresses."""
    place: float
    """Cost before cases and skills have their say; lower is better."""
    title: str
    edit: HarnessEdit
    because: str
    source: str
    prediction: Prediction
    skills: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        return value_text(self.edit.change)


def from_idea(
    name: str, idea: Idea, tier: str, bottleneck: Bottleneck, place: float, inp: DesignInput, facts: Facts, step: float
) -> Iterator[Candidate | Dropped]:
    """One candidate per value of the idea (and per term for ``reward.weights.*`` and ``?``), or why not."""
    if idea.domains and inp.domain not in idea.domains:
        yield Dropped(factor=idea.factor, value="", reason=f"{name} is not meant for {inp.domain}")
        return
    if missing := unmet(idea.when, facts):
        yield Dropped(factor=idea.factor, value="", reason=f"precondition {missing}")
        return
    for index, (factor, value) in enumerate(_values(idea, inp, facts)):
        checked = _checked(factor, value, idea, inp)
        if isinstance(checked, Dropped):
            yield checked
            continue
        words = {"value": value_words(checked), "factor": factor.removeprefix(WEIGHT).removeprefix(TERM)}
        yield Candidate(
            rule=name,
            tier=tier,
            place=place + index * step,
            title=fill(idea.title, words),
            edit=HarnessEdit(change=checked),
            because=idea.because,
            source=idea.source,
            prediction=idea.predict or bottleneck.predict,
        )


def from_skill(
    skill: SkillRef, tier: str, place: float, inp: DesignInput, facts: Facts, rules: Rules
) -> Candidate | Dropped:
    """The skill's value as a candidate, or why not. Free-text preconditions only advise."""
    conditions: list[Condition] = [c for text in skill.preconditions if (c := parse_condition(text))]
    if missing := unmet(conditions, facts):
        return Dropped(factor=skill.factor, value=skill.value, reason=f"skill {skill.name}: precondition {missing}")
    try:
        value = json.loads(skill.value)
    except json.JSONDecodeError:
        return Dropped(factor=skill.factor, value=skill.value, reason=f"skill {skill.name} only advises")
    checked = _checked(skill.factor, value, None, inp)
    if isinstance(checked, Dropped):
        return checked
    return Candidate(
        rule=f"skill:{skill.name}",
        tier=tier,
        place=place,
        title=f"set {skill.factor.removeprefix(TERM)} to {value_words(checked)}",
        edit=HarnessEdit(change=checked),
        because=skill.description,
        source=f"skill {skill.name}, {skill.wins} won and {skill.losses} lost",
        prediction=rules.bottlenecks[tier].predict if tier in rules.bottlenecks else DEFAULT_PREDICTION,
    )


def from_note(note: Note, tier: str, place: float, inp: DesignInput, rules: Rules) -> Candidate | Dropped:
    """A person's idea as a candidate, or why not."""
    factor = note.text.partition("=")[0].strip()
    try:
        if factor.startswith(WEIGHT) and factor.removeprefix(WEIGHT) not in inp.terms:
            return Dropped(factor=factor, value="", reason=f"{note.source}: the harness has no such reward term")
        change = _present_term(parse_given(note.text), inp.terms)
        if is_noop(inp.recipe, inp.terms, normalise(inp.recipe, change)):
            return Dropped(factor=factor, value="", reason=f"{note.source}: no change: this is the present value")
    except ValueError as error:
        return Dropped(factor=factor, value="", reason=f"{note.source}: {error}")
    return Candidate(
        rule=f"note:{note.source}",
        tier=tier,
        place=place,
        title=f"as noted: set {factor} to {value_words(change)}",
        edit=HarnessEdit(change=change),
        because="Somebody left this idea in the run.",
        source=note.source,
        prediction=rules.bottlenecks[tier].predict if tier in rules.bottlenecks else DEFAULT_PREDICTION,
    )


def _values(idea: Idea, inp: DesignInput, facts: Facts) -> list[tuple[str, Any]]:
    factors = [idea.factor]
    if idea.factor in (f"{WEIGHT}*", f"{WEIGHT}?"):
        weights = inp.recipe.reward.weights
        shaping = [term for term, weight in weights.items() if term != "outcome" and weight]
        if idea.factor.endswith("?"):
            faulty = facts.get("faulty_terms")
            shaping = [term for term in shaping if isinstance(faulty, tuple) and term in faulty]
        factors = [WEIGHT + term for term in sorted(shaping, key=lambda term: (-abs(weights[term]), term))]
    if idea.term:
        return [(idea.factor, {"term": idea.term, "weight": weight}) for weight in idea.values]
    return [(factor, _computed(idea, value, facts.get(factor, 0.0))) for value in idea.values for factor in factors]


def _computed(idea: Idea, value: Any, present: Any) -> Any:
    if idea.how == "set":
        return value
    result = present * value if idea.how == "multiply" else present + value
    return round(result) if isinstance(present, int) else float(f"{result:.{idea.digits}g}")


def _checked(factor: str, value: Any, idea: Idea | None, inp: DesignInput) -> Change | Dropped:
    text = str(value["weight"]) if isinstance(value, dict) and "weight" in value else json.dumps(value)
    if idea and isinstance(value, int | float) and not isinstance(value, bool):
        low, high = idea.low, idea.high
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = f"{'' if low is None else f'{low:g}'}..{'' if high is None else f'{high:g}'}"
            return Dropped(factor=factor, value=text, reason=f"outside {bounds}")
    try:
        if factor.startswith(WEIGHT) and factor.removeprefix(WEIGHT) not in inp.terms:
            return Dropped(factor=factor, value=text, reason="the harness has no such reward term")
        change = normalise(inp.recipe, _present_term(make_change(factor, value), inp.terms))
        if is_noop(inp.recipe, inp.terms, change):
            return Dropped(factor=factor, value=text, reason="no change: this is the present value")
    except ValueError as error:
        return Dropped(factor=factor, value=text, reason=f"not valid: {error}")
    return change


def _present_term(change: Change, terms: Sequence[str]) -> Change:
    """A term file that the harness already has needs a weight only."""
    if change.kind == "term" and change.term.name in terms:
        return SetWeight(term=change.term.name, value=change.weight)
    return change
