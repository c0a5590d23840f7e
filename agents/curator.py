"""Curator: what to remember of a finished version."""

from __future__ import annotations

import re
from typing import Literal

from agents.edits import value_text, value_words
from agents.facts import show
from agents.rules import Rules
from agents.types import Case, CurateInput, CurateOutput, SkillDraft, SkillRef

MAX_NAME = 64


def curate(inp: CurateInput, rules: Rules) -> CurateOutput:
    """A case always; a skill from a promotion, a significant loss, an invalid gain or a refuted prediction."""
    change, factor = inp.intervention.edit.change, inp.intervention.edit.factor
    reason = _reason(inp)
    case = Case(
        signature=inp.diagnosis.signature,
        domain=inp.domain,
        bottleneck=inp.diagnosis.bottleneck,
        factor=factor,
        value=value_text(change),
        verdict=inp.verdict,
        delta=inp.delta,
        reason=reason,
        blocked=inp.blocked,
    )
    lesson = _lesson(inp)
    if lesson is None:
        return CurateOutput(case=case, skill=None, note=f"case only: {reason}")
    known = _known(inp)
    skill = _draft(inp, rules, known, lesson)
    verb = f"merged into {known.name}" if known else f"new skill {skill.name}"
    return CurateOutput(case=case, skill=skill, note=f"{verb} ({skill.outcome}): {reason}")


Lesson = Literal["helped", "did harm", "gained nothing that counts", "gave less than predicted"]


def _lesson(inp: CurateInput) -> Lesson | None:
    """What the version taught, or None where there is nothing to generalise.

    A null teaches only where it is sharp: the whole interval lies below the effect that was predicted.
    """
    if inp.blocked:
        return None
    if inp.harmed:
        return "did harm"
    prediction = inp.intervention.prediction
    predicted = prediction.min_effect if (prediction.metric, prediction.direction) == ("validation/mean", "up") else 0.0
    match inp.verdict:
        case "promoted":
            return "helped"
        case "invalid":
            return "gained nothing that counts"
        case "rejected" if inp.ci is not None and inp.ci[1] < 0:
            return "did harm"
        case "rejected" if inp.ci is not None and inp.ci[1] < predicted:
            return "gave less than predicted"
    return None


def _known(inp: CurateInput) -> SkillRef | None:
    """The skill that was used, or the one on the same factor in the same situation: own domain first, then by name."""
    used = inp.intervention.rule.removeprefix("skill:")
    if found := next((s for s in inp.skills if inp.intervention.rule != used and s.name == used), None):
        return found
    trigger, factor = inp.diagnosis.bottleneck, inp.intervention.edit.factor
    same = [s for s in inp.skills if (s.trigger, s.factor) == (trigger, factor)]
    return min(same, key=lambda s: (inp.domain not in s.domains, s.name), default=None)


def _draft(inp: CurateInput, rules: Rules, known: SkillRef | None, lesson: Lesson) -> SkillDraft:
    change, factor = inp.intervention.edit.change, inp.intervention.edit.factor
    trigger = known.trigger if known else inp.diagnosis.bottleneck
    idea = rules.ideas.get(inp.intervention.rule)
    conditions = tuple(str(condition) for condition in idea.when) if idea else ()
    words = f"{factor} = {value_words(change)}"
    advice = f"{words} {lesson}"
    description = f"When the bottleneck is {trigger} in {inp.domain}: {advice}. Use it while designing an intervention for {trigger}."
    return SkillDraft(
        name=known.name if known else skill_name(trigger, factor),
        description=known.description if known else description,
        domain=inp.domain,
        trigger=trigger,
        factor=factor,
        value=value_text(change),
        outcome="win" if lesson == "helped" else "loss",
        evidence=f"{words}: {_reason(inp)}",
        expected_effect=f"validation/mean {_measured(inp)}",
        body=known.body if known else _body(inp, advice, conditions),
        merge_into=known.name if known else None,
        preconditions=conditions,
    )


def skill_name(trigger: str, factor: str) -> str:
    """``performance_collapse``, ``optim.lr`` → ``performance-collapse-optim-lr`` (a valid skill folder name)."""
    return re.sub(r"[^a-z0-9]+", "-", f"{trigger} {factor}".lower()).strip("-")[:MAX_NAME].rstrip("-")


def _body(inp: CurateInput, advice: str, conditions: tuple[str, ...]) -> str:
    item = inp.intervention
    lines = [
        "## Trigger",
        f"{inp.diagnosis.bottleneck} ({inp.diagnosis.layer} layer). First seen as: {inp.diagnosis.hypothesis}",
        "",
        "## Intervention",
        f"{item.title[0].upper()}{item.title[1:]}: {advice}. {item.rationale}",
        "",
        "## Preconditions",
        *([f"- {text}" for text in conditions] or ["- none known"]),
        "",
        "## Expected effect",
        f"validation/mean {_measured(inp)}; predicted: {item.prediction.metric} {item.prediction.direction} "
        f"by {item.prediction.min_effect:g}",
        "",
        "## Validation",
        f"{item.success[0].upper()}{item.success[1:]}. Undo: {item.rollback}.",
    ]
    return "\n".join(lines) + "\n"


def _reason(inp: CurateInput) -> str:
    if inp.harmed:
        return f"{inp.verdict}, {inp.harmed}"
    prediction = inp.intervention.prediction
    realised = "not measured" if inp.realised is None else f"{inp.realised:+.3g}"
    wanted = f"{'+' if prediction.direction == 'up' else '-'}{show(prediction.min_effect)}"
    return f"{inp.verdict}, {_measured(inp)}; {prediction.metric} predicted {wanted}, realised {realised}"


def _measured(inp: CurateInput) -> str:
    if inp.delta is None:
        return "not measured"
    interval = f" [{inp.ci[0]:+.3f}, {inp.ci[1]:+.3f}]" if inp.ci else ""
    return f"{inp.delta:+.3f}{interval} over {inp.seeds} seeds"
