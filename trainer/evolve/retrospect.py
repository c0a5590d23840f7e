"""From labelled versions to a new diagnostic, and the retrospective check that it must pass before it is registered.

The rule is searched on one half of the tasks. On the other half it has to separate bad from good rollouts, with the
interval's lower end, and as a metric it has to raise its line on bad versions and stay below it on healthy ones.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from trainer.diagnose import run_diagnostic
from trainer.evolve.labels import (
    SAMPLE,
    Connection,
    Source,
    by_failure,
    by_version,
    cohorts,
    expressions,
    open_version,
    opened,
)
from trainer.evolve.rules import COMPLEXITY, Labelled, Rule, interval, search, separation
from trainer.evolve.types import Reading, Retrospect
from trainer.sql import QueryError, select
from trainer.types import Diagnostic, DiagnosticKind

NAME = r"[a-z][a-z0-9_]{0,40}"
LEAST = 0.25
"""Separation on the held-out half that the interval's lower end has to reach."""
FALSE_ALARMS = 0.05
"""Share of healthy (version, seed) units on which a new metric may raise its line."""
COHORTS = 2
"""Cohorts that are searched beside all rollouts: each is another look at the same data."""
MARGIN = 0.25, 0.6
"""Where warn and critical lie between the highest healthy reading and the lowest bad one."""


def discover(
    kind: DiagnosticKind,
    gap: str,
    sources: Sequence[Source],
    covered: Sequence[str] | None = None,
    taken: Mapping[str, Diagnostic] = MappingProxyType({}),
) -> tuple[Diagnostic | None, Retrospect]:
    """Search and check. ``sources`` are labelled versions; with ``covered`` the only bad one is read by its failures and the
    others by whether they are healthy. ``taken`` are the diagnostics that there are, or were, by name."""
    labels = tuple(f"{s.version}: {'bad' if s.bad else 'good'} ({s.why})" for s in sources)
    tip = next((s for s in sources if s.bad), None)
    if tip is None:
        return None, Retrospect(labels=labels, reasons=("no version is known to be bad",))
    with opened(sources if covered is None else [tip]) as at:
        con = at[tip.version]
        named = expressions(con)
        looked = [("", by_version(sources, at) if covered is None else by_failure(con, covered))]
        looked += (
            [(c, by_failure(con, covered, c)) for c in cohorts(con, covered)[:COHORTS]] if covered is not None else []
        )
    tried = [
        (rule.model_copy(update={"cohort": where}), held)
        for where, data in looked
        if (rule := _search(data))
        for held in [data.half(True)]
    ]
    if not tried:
        return None, Retrospect(labels=labels, reasons=("there are not enough rollouts of both kinds to search",))
    # A cohort's own rule has to find there what the one for all does not, by as much as a second condition must add.
    rule, held = max(tried, key=lambda t: t[0].separation - (COMPLEXITY if t[0].cohort else 0.0))
    low, high = interval(rule, held)
    found = Retrospect(
        rule=str(rule), searched=rule.separation, held_out=separation(rule, held), low=low, high=high, labels=labels
    )
    if low < LEAST:
        return None, found.model_copy(update={"reasons": (too_weak(found),)})
    probe = _diagnostic(name_of(rule, kind, taken), kind, gap, rule, named)
    same = name_of(rule, kind)
    # What may block is another check with another line; a habit that is told by the same features is the same habit.
    if same in taken and (kind == "pathology" or taken[same].metric == probe.metric):
        return None, found.model_copy(update={"reasons": (f"it is there already, as {same}",)})
    return checked(probe, found, sources, by_failures=covered is not None)


PREFIX: Mapping[DiagnosticKind, str] = {"pathology": "evolved", "validity": "exploit"}


def name_of(rule: Rule, kind: DiagnosticKind, taken: Collection[str] = ()) -> str:
    """``evolved_<features>``, or ``exploit_<features>`` where it may block; shortened and numbered where that is no name of a
    diagnostic or one of another."""
    family = re.findall(r"family = '(\w+)'", rule.cohort)
    name = "_".join((PREFIX[kind], *family, *(c.feature for c in rule.conditions)))
    if not re.fullmatch(NAME, name):
        plain = re.sub(r"[^a-z0-9_]", "_", name.lower())[:30]
        name = f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    free = (name, *(f"{name[:38]}_{number}" for number in range(2, 99)))
    return next(n for n in free if n not in taken)


def _search(data: Labelled) -> Rule | None:
    return search(data.half(False)) if data.half(False).both and data.half(True).both else None


def too_weak(found: Retrospect) -> str:
    """What is said of a rule that does not separate tasks it was not searched on."""
    return f"on held-out tasks it separates by {found.held_out:.2f} ({found.low:.2f} to {found.high:.2f}), asked for {LEAST:g}"


def checked(
    probe: Diagnostic, found: Retrospect, sources: Sequence[Source], *, by_failures: bool
) -> tuple[Diagnostic | None, Retrospect]:
    """The diagnostic with its lines if it reads as it must on all ``sources``, and what it reads."""
    readings = tuple(r for s in sources for r in readings_of(probe, s))
    again = tuple(r for s in sources[:1] for r in readings_of(probe, s.model_copy(update={"rollouts": s.rollouts[:1]})))
    healthy, bad = ([r.value for r in readings if r.bad == kind] for kind in (False, True))
    top, bottom = max(healthy, default=0.0), min(bad, default=1.0)
    if by_failures:  # a pathology that healthy versions have too: its line is what none of them reached
        top, bottom = max([*healthy, *bad]), 1.0
    warn, critical = (round(top + part * (bottom - top), 4) for part in MARGIN)
    alarms = sum(value >= warn for value in healthy)
    reasons = []
    if again != readings[: len(again)]:
        reasons.append("it gives another value when it is computed again")
    if not by_failures and bottom - top < LEAST:
        reasons.append(
            f"it reads up to {top:.2f} on healthy versions and from {bottom:.2f} on bad ones: no room for a line"
        )
    if healthy and alarms / len(healthy) > FALSE_ALARMS:
        reasons.append(f"it raises its line on {alarms} of {len(healthy)} healthy trainings")
    done = found.model_copy(update={"readings": readings, "false_alarms": alarms, "reasons": tuple(reasons)})
    if reasons:
        return None, done
    return probe.model_copy(update={"warn": warn, "critical": critical}), done


def readings_of(diagnostic: Diagnostic, source: Source) -> Sequence[Reading]:
    """The metric on each seed of a version."""
    found = []
    for seed, folder in enumerate(source.rollouts):
        with open_version(Source(version=source.version, rollouts=(folder,), bad=source.bad, why=source.why)) as con:
            value = run_diagnostic(con, diagnostic).value
        if value is not None:
            found.append(Reading(version=source.version, seed=seed, bad=source.bad, value=value))
    return found


def _diagnostic(name: str, kind: DiagnosticKind, gap: str, rule: Rule, named: Mapping[str, str]) -> Diagnostic:
    """The rule as a file of the harness; its lines are not drawn yet."""
    parts = ", ".join(f'({named[c.feature]}) AS "f_{c.feature}"' for c in rule.conditions)
    holds = " AND ".join(f'"f_{c.feature}" {c.side} {c.threshold!r}' for c in rule.conditions)
    # Windows are over all late rollouts, in a cohort too, as in the search.
    return diagnostic_of(
        name, kind, gap, f"Share of late rollouts with {rule}.", f"(SELECT *, {parts} FROM late)", holds, rule.cohort
    )


def diagnostic_of(
    name: str, kind: DiagnosticKind, gap: str, description: str, table: str, holds: str, cohort: str = ""
) -> Diagnostic:
    """The share of the rows of ``table`` (of those in ``cohort``) for which ``holds`` is true, without lines yet, and some of them
    as evidence."""
    within = f" WHERE {cohort}" if cohort else ""
    both = f"{cohort} AND {holds}" if cohort else holds
    return Diagnostic(
        name=name,
        kind=kind,
        layer="behaviour",
        description=description,
        metric=f"SELECT avg(({holds})::INT) FROM {table}{within}",
        warn=0.5,
        critical=1.0,
        evidence=f"SELECT rollout_id FROM {table} WHERE {both} ORDER BY score DESC, step DESC, rollout_id LIMIT 5",
        source=f"evolved: {gap}",
    )


def covered_share(
    con: Connection, alarmed: Sequence[Diagnostic], failing: Sequence[str]
) -> tuple[float, tuple[str, ...]]:
    """Share of the failing late rollouts that no alarmed diagnostic points to, and those that one does: what its evidence
    query gives when it is not cut off. A query that points to everything, whether it fails or not, or that does not run,
    explains nothing."""
    ids: set[str] = set()
    for diagnostic in alarmed:
        ids |= _pointed_at(con, diagnostic.evidence, len(failing))
    covered = tuple(sorted(ids.intersection(failing)))
    return (1 - len(covered) / len(failing) if failing else 0.0), covered


def _pointed_at(con: Connection, evidence: str, failing: int) -> set[str]:
    late = f"SELECT rollout_id, outcome FROM late ORDER BY md5(rollout_id), rollout_id LIMIT {SAMPLE}"
    query = f"SELECT rollout_id, outcome < 0.5 AS failed FROM ({late}) WHERE rollout_id IN (SELECT * FROM ({uncut(evidence)}))"
    try:
        rows = select(con, query)
        looked_at, failed = rows.num_rows, rows["rollout_id"].filter(rows["failed"])
    except QueryError:
        return set()
    every = len(failed) == failing  # "those that fail" names them and says nothing
    return set() if every or looked_at > 2 * max(1, len(failed)) else {str(i) for i in failed.to_pylist()}


def uncut(query: str) -> str:
    """The query without a LIMIT at its end."""
    return re.sub(r"\s+LIMIT\s+\d+\s*$", "", query.strip(), flags=re.IGNORECASE)
