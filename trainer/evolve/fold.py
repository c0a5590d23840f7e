"""Two metrics that point to the same rollouts become one: a harness that only grows is not read any more."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from trainer.evolve.labels import Connection, Source, by_pointing, open_version
from trainer.evolve.retrospect import checked, uncut
from trainer.evolve.rules import COMPLEXITY, Condition, Rule, interval, separation
from trainer.evolve.types import Retrospect
from trainer.sql import select
from trainer.types import Diagnostic

OVERLAP = 0.5
"""Share of the rollouts that either of two diagnostics points to which both must point to."""


def overlap(con: Connection, one: Diagnostic, other: Diagnostic) -> float:
    """Jaccard index of the late rollouts that two diagnostics point to."""
    a, b = ({str(i) for i in select(con, uncut(d.evidence))["rollout_id"].to_pylist()} for d in (one, other))
    return len(a & b) / len(a | b) if a | b else 0.0


def folded(
    one: Diagnostic, other: Diagnostic, gap: str, sources: Sequence[Source]
) -> tuple[Diagnostic | None, Retrospect]:
    """A diagnostic of the rollouts that either points to, if it passes the retrospective check again. The first source is read
    by its failures: on its held-out tasks the fold must separate as well as the better one, less what a condition is worth."""
    probe = _either(one, other, gap)
    labels = tuple(f"{s.version}: {'bad' if s.bad else 'good'} ({s.why})" for s in sources)
    with open_version(sources[0]) as con:
        data = by_pointing(con, {d.name: uncut(d.evidence) for d in (probe, one, other)})
    rules = [
        Rule(conditions=(Condition(feature=d.name, side=">=", threshold=0.5),), separation=0.0)
        for d in (probe, one, other)
    ]
    held = data.half(True)
    both, *alone = (separation(rule, held) for rule in rules)
    low, high = interval(rules[0], held)
    found = Retrospect(
        rule=f"{one.name} or {other.name}",
        searched=separation(rules[0], data.half(False)),
        held_out=both,
        low=low,
        high=high,
        labels=labels,
    )
    if both < max(alone) - COMPLEXITY:
        why = f"folded they separate held-out tasks by {both:.2f}, the better one alone by {max(alone):.2f}"
        return None, found.model_copy(update={"reasons": (why,)})
    return checked(probe, found, sources, by_failures=True)


def _either(one: Diagnostic, other: Diagnostic, gap: str) -> Diagnostic:
    pointed = " UNION ".join(f"SELECT rollout_id FROM ({uncut(d.evidence)})" for d in (one, other))
    tag = hashlib.sha256(f"{one.metric}\0{other.metric}".encode()).hexdigest()[:8]
    where = f"rollout_id IN ({pointed})"
    return Diagnostic(
        name=f"evolved_folded_{tag}",
        kind="pathology",
        layer="behaviour",
        description=f"{one.description.rstrip('.')}, or {other.description[:1].lower()}{other.description[1:]}",
        metric=f"SELECT avg(({where})::INT) FROM late",
        warn=0.5,
        critical=1.0,
        evidence=f"SELECT rollout_id FROM late WHERE {where} ORDER BY score DESC, step DESC, rollout_id LIMIT 5",
        source=f"evolved: {gap}",
    )
