"""Two metrics that point to the same rollouts become one: a harness that only grows is not read any more."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from trainer.evolve.labels import Connection, Source, by_pointing, open_version
from trainer.evolve.retrospect import LEAST, checked, diagnostic_of, too_weak, uncut
from trainer.evolve.rules import COMPLEXITY, Condition, Rule, interval, separation
from trainer.evolve.types import Retrospect
from trainer.sql import QueryError, select
from trainer.types import Diagnostic

OVERLAP = 0.5
"""Share of the rollouts that either of two diagnostics points to which both must point to."""


def overlap(con: Connection, one: Diagnostic, other: Diagnostic) -> float:
    """Jaccard index of the late rollouts that two diagnostics point to; 0 where a query cannot be run."""
    pointed = (f"rollout_id IN (SELECT rollout_id FROM ({uncut(d.evidence)}))" for d in (one, other))
    query = "SELECT count(*) FILTER (a AND b) AS both, count(*) FILTER (a OR b) AS some FROM (SELECT {} AS a, {} AS b FROM late)"
    try:
        (row,) = select(con, query.format(*pointed)).to_pylist()
    except QueryError:
        return 0.0
    return float(row["both"]) / row["some"] if row["some"] else 0.0


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
    if not (data.half(False).both and data.half(True).both):
        return None, Retrospect(labels=labels, reasons=("there are not enough rollouts of both kinds to check it",))
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
    if low < LEAST:
        return None, found.model_copy(update={"reasons": (too_weak(found),)})
    if both < max(alone) - COMPLEXITY:
        why = f"folded they separate held-out tasks by {both:.2f}, the better one alone by {max(alone):.2f}"
        return None, found.model_copy(update={"reasons": (why,)})
    return checked(probe, found, sources, by_failures=True)


def _either(one: Diagnostic, other: Diagnostic, gap: str) -> Diagnostic:
    pointed = " UNION ".join(f"SELECT rollout_id FROM ({uncut(d.evidence)})" for d in (one, other))
    tag = hashlib.sha256(f"{one.metric}\0{other.metric}".encode()).hexdigest()[:8]
    where = f"rollout_id IN ({pointed})"
    description = f"{one.description.rstrip('.')}, or {other.description[:1].lower()}{other.description[1:]}"
    return diagnostic_of(f"evolved_folded_{tag}", "pathology", gap, description, "late", where)
