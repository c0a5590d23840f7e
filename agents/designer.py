"""Designer: from a diagnosis to one single-factor intervention, or none when nothing is untried.

Every candidate has a cost in places of a ranked list: its rank in the playbook, plus what cases and
skills say for or against it. The lowest cost wins; all others are recorded with their reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agents.candidates import Candidate, from_idea, from_note, from_skill
from agents.edits import failed_before, failures_in_a_row, family, is_failed, rollback, subtracts
from agents.facts import Facts, fill, gather
from agents.rules import Rules
from agents.types import DesignInput, Dropped, Intervention, SkillRef

SHARP = ("rejected", "invalid")
"""Verdicts of other runs that speak against a value; an undecided or crashed one says little about another policy."""
OTHERS = 2
"""Cases of other runs that count, for and against."""
ASK, SWITCH_LAYER, SUBTRACT = 2, 3, 4
"""Failures in a row after which a person's notes come first, the search looks at another layer, and prefers to take away."""


def design(inp: DesignInput, rules: Rules) -> Intervention | None:
    """The cheapest candidate that is valid, changes something and has not failed here.

    "Here" is the diagnosis' signature. Deterministic: equal inputs give equal interventions.
    """
    facts = gather(inp.domain, inp.recipe, inp.diagnosis.findings, inp.diagnosis.scores, terms=inp.terms)
    dropped: list[Dropped] = []
    best: dict[tuple[str, str], Candidate] = {}
    for item in _proposals(inp, rules, facts):
        if isinstance(item, Dropped):
            dropped.append(item)
        elif reason := _barred(item, inp):
            dropped.append(Dropped(factor=item.edit.factor, value=item.value, reason=reason))
        else:
            key = (item.edit.factor, item.value)
            if key not in best or item.place < best[key].place:
                best[key] = item
    ranked = sorted(
        ((_cost(c, inp, rules), c) for c in best.values()),
        key=lambda pair: (pair[0], pair[1].edit.factor, pair[1].value),
    )
    if not ranked:
        return None
    cost, chosen = ranked[0]
    dropped += [
        Dropped(
            factor=c.edit.factor, value=c.value, reason=f"ranks behind for {c.tier}: cost {each:.1f} against {cost:.1f}"
        )
        for each, c in ranked[1:]
    ]
    return _intervention(chosen, inp, rules, facts, _unique(dropped))


def tiers(inp: DesignInput, rules: Rules) -> Mapping[str, float]:
    """Bottleneck key to the cost at which its ideas start, in the order they are considered."""
    alternatives = [text.partition(":")[0] for text in inp.diagnosis.alternatives]
    named = [key for key in alternatives if key in rules.bottlenecks and key not in rules.healthy]
    order = dict.fromkeys((inp.diagnosis.bottleneck, *named, *rules.fallbacks))
    severity = inp.diagnosis.severity
    first = rules.ranking.tier_step["critical" if severity == "critical" else "warn" if severity == "warn" else "ok"]
    return {key: 0.0 if i == 0 else first + i - 1 for i, key in enumerate(order)}


def _proposals(inp: DesignInput, rules: Rules, facts: Facts) -> Iterator[Candidate | Dropped]:
    for tier, start in tiers(inp, rules).items():
        if tier in rules.bottlenecks:
            bottleneck = rules.bottlenecks[tier]
            for place, name in enumerate(bottleneck.ideas):
                step = rules.ranking.value_step
                yield from from_idea(name, rules.ideas[name], tier, bottleneck, start + place, inp, facts, step)
        for skill in inp.skills:
            # A skill that lost more than it won is a warning, not a proposal.
            if skill.trigger == tier and skill.wins >= skill.losses:
                foreign = 0.0 if _own(skill, inp.domain) else rules.ranking.foreign_skill
                yield from_skill(skill, tier, start + foreign, inp, facts, rules)
    steered = inp.escalate and failures_in_a_row(inp.cases) >= ASK
    for place, note in enumerate(inp.notes):
        start = -rules.ranking.outside if steered else rules.ranking.outside
        yield from_note(note, inp.diagnosis.bottleneck, start + place, inp, rules)


def _barred(candidate: Candidate, inp: DesignInput) -> str:
    if why := inp.fixed.get(candidate.edit.factor):
        return why
    if case := failed_before(inp.cases, inp.diagnosis.signature, candidate.edit):
        return f"failed here before: {case.verdict}{f' in {case.version}' if case.version else ''}"
    for refused in inp.refused:
        if (refused.factor, refused.value) == (candidate.edit.factor, candidate.value):
            return f"refused by the backtest: {refused.reason}"
    return ""


def _cost(candidate: Candidate, inp: DesignInput, rules: Rules) -> float:
    """Place in the playbook, then cases here and elsewhere, strategy lock-in, hints and skills."""
    weigh, factor, value = rules.ranking, candidate.edit.factor, candidate.value
    here = [case for case in inp.cases if case.signature == inp.diagnosis.signature and is_failed(case)]
    elsewhere = [case for case in inp.cases if case.signature != inp.diagnosis.signature]
    same = [case for case in elsewhere if (case.factor, case.value) == (factor, value)]
    # Other runs had another policy and budget: what they saw weighs, however often they saw it, and bars nothing.
    others = [case for case in inp.memory if case.domain == inp.domain and (case.factor, case.value) == (factor, value)]
    harm = [case for case in others if case.verdict in SHARP]
    wins = [case for case in others if case.verdict == "promoted"]
    cost = candidate.place
    cost += weigh.failed_factor * sum(1 for case in here if case.factor == factor)
    cost += weigh.failed_elsewhere * (sum(1 for case in same if is_failed(case)) + min(len(harm), OTHERS))
    cost -= weigh.won_elsewhere * (sum(1 for case in same if case.verdict == "promoted") + min(len(wins), OTHERS))
    if inp.escalate:
        cost += _elsewhere(candidate, inp, rules)
    if here and candidate.rule in _follow_ups(here[-1].factor, candidate.tier, rules):
        cost -= weigh.follow
    for skill in _about(candidate, inp):
        if skill.value == value:
            cost -= weigh.skill_win * min(skill.wins, 3) - weigh.skill_loss * skill.losses
        if value in skill.vetoes:
            cost += weigh.skill_loss
    return cost


def _elsewhere(candidate: Candidate, inp: DesignInput, rules: Rules) -> float:
    """What a candidate pays for more of the same: the family that failed twice in a row, the layer that was worked on three
    times in vain, and after four times an addition to the recipe."""
    weigh, factor, streak = rules.ranking, candidate.edit.factor, failures_in_a_row(inp.cases)
    last = inp.cases[-2:]
    same = len(last) == 2 and all(is_failed(case) and family(case.factor) == family(factor) for case in last)
    cost = weigh.family_streak if same else 0.0
    layer = _layer(candidate.tier, rules)
    worked_on = [_layer(case.bottleneck, rules) for case in inp.cases[-SWITCH_LAYER:]]
    if streak >= SWITCH_LAYER and layer and all(layer == each for each in worked_on):
        cost += weigh.layer_streak
    if streak >= SUBTRACT and not subtracts(inp.recipe, candidate.edit.change):
        cost += weigh.addition
    return cost


def _layer(bottleneck: str, rules: Rules) -> str:
    return rules.bottlenecks[bottleneck].layer if bottleneck in rules.bottlenecks else ""


def _follow_ups(factor: str, tier: str, rules: Rules) -> set[str]:
    if tier not in rules.bottlenecks:
        return set()
    ideas = (rules.ideas[name] for name in rules.bottlenecks[tier].ideas)
    return {name for idea in ideas if idea.factor == factor for name in idea.next}


def _own(skill: SkillRef, domain: str) -> bool:
    return domain in skill.domains or "*" in skill.domains


def _about(candidate: Candidate, inp: DesignInput) -> list[SkillRef]:
    """Own-domain skills on the candidate's factor in its situation."""
    return [
        s
        for s in inp.skills
        if s.factor == candidate.edit.factor and s.trigger == candidate.tier and _own(s, inp.domain)
    ]


def _cited(candidate: Candidate, inp: DesignInput) -> tuple[str, ...]:
    names = {s.name for s in _about(candidate, inp) if s.value == candidate.value}
    if candidate.rule.startswith("skill:"):
        names.add(candidate.rule.removeprefix("skill:"))
    return tuple(sorted(names))


def _unique(dropped: Sequence[Dropped]) -> tuple[Dropped, ...]:
    # Two bottlenecks may share an idea; one line about it is enough.
    return tuple(dict.fromkeys(dropped))


def _intervention(
    chosen: Candidate, inp: DesignInput, rules: Rules, facts: Facts, dropped: tuple[Dropped, ...]
) -> Intervention:
    own = chosen.tier == inp.diagnosis.bottleneck
    hypothesis = inp.diagnosis.hypothesis if own else fill(rules.bottlenecks[chosen.tier].statement, facts)
    prediction = chosen.prediction
    direction = "rises" if prediction.direction == "up" else "falls"
    return Intervention(
        title=chosen.title,
        edit=chosen.edit,
        rationale=f"{chosen.because} ({chosen.source})",
        hypothesis=hypothesis,
        prediction=prediction,
        success=f"{prediction.metric} {direction} by at least {prediction.min_effect:g} and the gate promotes on validation",
        rollback=rollback(inp.recipe, chosen.edit),
        rule=chosen.rule,
        bottleneck=chosen.tier,
        skills=_cited(chosen, inp),
        dropped=dropped,
    )
