"""The outer loop: where the diagnostics do not suffice, a new one is searched, checked on earlier versions, and registered.

An upgrade is decided once per coming version (graph.decide) and kept in its folder; git and the search trace follow from that
file, so that a step that is killed is finished by its next call. A registered diagnostic reads every version from that one on, and the tip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from agents.facts import SEVERITY_RANK
from agents.gaps import gaps
from agents.types import Diagnosis, Gap, GapInput, Judged
from graph.record import RunRecord
from graph.registry import UPGRADE, Upgrade, registered, upgrades
from graph.reordering import in_vain, reorder
from graph.situations import seen, source_of
from graph.state import Deps
from graph.versions import BASELINE, Version
from trainer.evolve.labels import Source
from trainer.evolve.types import Retrospect
from trainer.gate_types import GateReport
from trainer.types import DropDiagnostic, HarnessEdit, HealthReport, PutDiagnostic, SetProcedure

MOST = 4
"""Metrics of behaviour that a run has at a time: a harness that only grows is not read any more."""
OTHERS = 3
"""Sound versions, the latest, that a metric of behaviour is read on: reading one takes a second or two."""
FALSE_BLOCKS = 1
"""Blocks against the gate scorer's word after which a validity diagnostic is retired."""


def enter(deps: Deps, candidate: str, found: Upgrade) -> None:
    """What was decided, in git and in the search trace. Doing it again changes nothing."""
    _retire(deps, candidate, found)
    if found.diagnostic:
        _register(deps, candidate, found)
        there = deps.harness.load(found.harness_commit).diagnostics if found.folded else {}
        for name in (n for n in found.folded if n in there):
            why = f"{found.diagnostic.name} points to what it points to."
            change = HarnessEdit(change=DropDiagnostic(name=name))
            _merge(deps, candidate, found.harness_commit, change, f"fold: {name}", why, {})
    elif found.procedure and not found.procedure.reasons:
        order = found.procedure.order
        change = HarnessEdit(change=SetProcedure(order=order))
        _merge(deps, candidate, found.harness_commit, change, f"reorder: {', '.join(order)}", found.line, {})
    elif found.procedure:
        _dropped(deps, candidate, "procedure", ", ".join(found.procedure.order), found.line)
    elif found.retrospect:
        _dropped(deps, candidate, "diagnostics", found.retrospect.rule, found.line)


def _dropped(deps: Deps, candidate: str, factor: str, value: str, reason: str) -> None:
    entry = {"version": candidate, "factor": factor, "value": value, "reason": reason}
    deps.record.append("search", f"{candidate}.{UPGRADE}", entry)


def judged(record: RunRecord, version: str) -> Judged:
    """What the gate scorer and the verdict say of a trained version. A block is a metric's word and makes no label."""
    reports = [record.load(version, n, GateReport) for n in ("gate", "certificate") if record.saved(version, n)]
    states = {r.validity.state for r in reports} | {r.unblocked or r.verdict for r in reports}
    state = "invalid" if "invalid" in states else "open" if "unconfirmed" in states else "sound"
    health = record.load(version, "health", HealthReport)
    alarms = (f for f in health.findings if f.kind == "validity" and SEVERITY_RANK[f.severity] >= SEVERITY_RANK["warn"])
    return Judged.model_validate({"version": version, "state": state, "named": tuple(f.diagnostic for f in alarms)})


def decided(deps: Deps, candidate: str, tip: str) -> Upgrade:
    """Which gap to close and how, if one is open and this run evolves its diagnostics. A version that was designed already gets
    no more: what is registered now would have been fitted to it."""
    config, record = deps.config.designer, deps.record
    if not config.evolve or config.candidates == "null" or record.saved(candidate, "intervention"):
        return Upgrade()
    trained = [BASELINE, *(e["version"] for e in record.verdicts() if e["gate"] and e["version"] < candidate)]
    known = [judged(record, v) for v in trained]
    report = seen(deps, record.load(tip, "health", HealthReport), candidate)
    diagnosis = record.load(candidate, "diagnosis", Diagnosis) if record.saved(candidate, "diagnosis") else None
    before = [found for name, found in upgrades(record) if name < candidate]
    closed = tuple(u.gap.key for u in before if u.gap)
    enough = sum(1 for d in registered(record, candidate).values() if d.kind == "pathology") >= MOST
    looked = enough or any(
        key == f"behaviour_unexplained:{tip}" for key in closed
    )  # once is enough, and it reads a lot
    failing, uncovered, covered = (0.0, 0.0, ()) if looked else _unexplained(deps, report, tip, candidate)
    open_gaps = gaps(
        GapInput(
            report=report,
            versions=tuple(known),
            diagnosis=diagnosis,
            in_vain=in_vain(deps, candidate, diagnosis.bottleneck) if diagnosis else 0,
            failing=failing,
            uncovered=uncovered,
            closed=closed,
        )
    )
    retired = _too_loud(record, candidate)
    if not open_gaps:
        fold = _folded(deps, candidate, tip, known, closed) if not retired else Upgrade()
        return fold.model_copy(update={"retired": retired, "harness_commit": deps.harness.head()})
    return _searched(deps, candidate, tip, open_gaps[0], known, covered).model_copy(
        update={"retired": retired, "harness_commit": deps.harness.head()}
    )


def false_blocks(record: RunRecord, before: str) -> Mapping[str, int]:
    """How often each evolved validity diagnostic blocked a candidate whose gain the gate scorer confirmed."""
    counts: Counter[str] = Counter()
    for entry in record.verdicts():
        if entry["gate"] and entry["version"] < before:
            gate = GateReport.model_validate(entry["gate"])
            if gate.blocked_by and gate.validity.state == "clean" and (gate.validity.gate_delta or 0) > 0:
                counts[gate.blocked_by] += 1
    return counts


def _too_loud(record: RunRecord, candidate: str) -> tuple[str, ...]:
    now = registered(record, candidate)
    return tuple(n for n, count in sorted(false_blocks(record, candidate).items()) if count > FALSE_BLOCKS and n in now)


def _searched(
    deps: Deps, candidate: str, tip: str, gap: Gap, known: Sequence[Judged], covered: Sequence[str]
) -> Upgrade:
    from trainer.evolve.retrospect import discover

    head = deps.harness.head()
    if gap.kind == "signal_ambiguous":
        return Upgrade(gap=gap, procedure=reorder(deps, candidate, tip), harness_commit=head)
    before = {u.diagnostic.name: u.diagnostic for _, u in upgrades(deps.record) if u.diagnostic}
    taken = {**before, **deps.harness.load(head).diagnostics}
    if gap.kind == "score_insufficient":
        versions = [
            source_of(deps, v.version, bad=v.state == "invalid", why=SAID[v.state]) for v in known if v.state != "open"
        ]
        diagnostic, retrospect = discover("validity", gap.why, [s for s in versions if s], taken=taken)
    else:
        sources = _by_failures(deps, tip, known)
        if not sources:
            return Upgrade(gap=gap, retrospect=Retrospect(reasons=(f"the rollouts of {tip} were pruned",)))
        diagnostic, retrospect = discover("pathology", gap.why, sources, covered, taken)
    return Upgrade(gap=gap, diagnostic=diagnostic, retrospect=retrospect, harness_commit=head)


SAID = {"invalid": "gate scorer: the reward rose and it did not follow", "sound": "gate scorer and verdict"}


def _by_failures(deps: Deps, tip: str, known: Sequence[Judged]) -> Sequence[Source]:
    """The tip, to be read by its failures, and the latest other sound versions; nothing where the tip's rollouts are gone."""
    first = source_of(deps, tip, bad=True, why="outcome of each rollout")
    others = [v for v in known if v.state == "sound" and v.version != tip][-OTHERS:]
    found = [source_of(deps, v.version, bad=False, why=SAID["sound"]) for v in others]
    return [first, *(s for s in found if s)] if first else ()


def _folded(deps: Deps, candidate: str, tip: str, known: Sequence[Judged], closed: Sequence[str]) -> Upgrade:
    """Where nothing else is open: the first two metrics of behaviour that point to the same rollouts, folded into one."""
    from itertools import combinations

    from trainer.evolve.fold import OVERLAP, folded, overlap
    from trainer.evolve.labels import open_version

    own = [d for d in registered(deps.record, candidate).values() if d.kind == "pathology" and d.evidence]
    pairs = [(a, b) for a, b in combinations(own, 2) if f"diagnostics_overlap:{a.name}:{b.name}" not in closed]
    sources = _by_failures(deps, tip, known) if pairs else ()
    if not sources:
        return Upgrade()
    with open_version(sources[0]) as con:
        shared = [(overlap(con, a, b), a, b) for a, b in pairs]
    share, one, other = max(shared, key=lambda s: s[0])
    if share < OVERLAP:
        return Upgrade()
    gap = Gap(
        kind="diagnostics_overlap",
        key=f"diagnostics_overlap:{one.name}:{other.name}",
        why=f"{one.name} and {other.name} both point to {share:.0%} of what either points to",
    )
    diagnostic, retrospect = folded(one, other, gap.why, sources)
    gone = (one.name, other.name) if diagnostic else ()
    return Upgrade(gap=gap, diagnostic=diagnostic, retrospect=retrospect, folded=gone)


def _unexplained(deps: Deps, report: HealthReport, tip: str, candidate: str) -> tuple[float, float, Sequence[str]]:
    """Share of the tip's late rollouts that fail, share of those that no alarmed diagnostic points to, and those it does."""
    from trainer.evolve.labels import failing_ids, open_version
    from trainer.evolve.retrospect import covered_share

    source = source_of(deps, tip, bad=True, why="")
    if not source:
        return 0.0, 0.0, ()
    harness = deps.harness.load(deps.record.load(tip, "version", Version).harness_commit)
    known = {**harness.diagnostics, **registered(deps.record, candidate)}
    alarmed = [
        known[f.diagnostic]
        for f in report.findings
        if SEVERITY_RANK[f.severity] >= SEVERITY_RANK["warn"] and f.diagnostic in known and known[f.diagnostic].evidence
    ]
    with open_version(source) as con:
        failing, looked_at = failing_ids(con)
        uncovered, covered = covered_share(con, [d for d in alarmed if d.layer != "signal"], failing)
    return len(failing) / max(1, looked_at), uncovered, covered


def _retire(deps: Deps, candidate: str, found: Upgrade) -> None:
    there = deps.harness.load(found.harness_commit).diagnostics if found.retired else {}
    for name in (n for n in found.retired if n in there):
        why = f"It blocked more than {FALSE_BLOCKS} candidates whose gain the gate scorer confirmed."
        _merge(
            deps,
            candidate,
            found.harness_commit,
            HarnessEdit(change=DropDiagnostic(name=name)),
            f"retire: {name}",
            why,
            {},
        )


def _register(deps: Deps, candidate: str, found: Upgrade) -> None:
    """A commit on ``diag/<slug>``, merged into main: it changes no training. Both are done once."""
    diagnostic, gap, r = found.diagnostic, found.gap, found.retrospect
    if not (diagnostic and gap and r):
        return
    edit = HarnessEdit(change=PutDiagnostic(diagnostic=diagnostic))
    body = "\n\n".join(
        (
            f"Gap: {gap.why}.",
            f"Rule: {r.rule}. Separates held-out tasks by {r.held_out:.2f} ({r.low:.2f} to {r.high:.2f}); {r.false_alarms} false "
            f"alarms on {sum(not x.bad for x in r.readings)} healthy trainings.",
            "Labels: " + "; ".join(r.labels) + ".",
        )
    )
    metrics = {"held_out": r.held_out, "interval": [r.low, r.high], "false_alarms": r.false_alarms}
    _merge(deps, candidate, found.harness_commit, edit, f"register: {diagnostic.name} ({r.rule})", body, metrics)


def _merge(
    deps: Deps, candidate: str, parent: str, edit: HarnessEdit, subject: str, body: str, metrics: Mapping[str, object]
) -> None:
    """One edit of diagnostics on ``diag/<slug>`` and into main. Proposing and merging it again changes nothing."""
    factor = edit.factor.removeprefix("diagnostics.")
    trailers = {"Version": candidate, "Factor": edit.factor, "Agent": "diagnostician", "Model": deps.specialists.name,
                "Evidence": f"versions/{candidate}/{UPGRADE}.json", "Run-Id": deps.run_id}  # fmt: skip
    verb = subject.partition(":")[0]
    commit = deps.harness.propose(
        version=candidate,
        parent=parent,
        edit=edit,
        slug=f"{candidate.removeprefix('v')}-{verb}-{factor.replace('_', '-')}"[:60],
        subject=f"diag: {verb} {factor}",
        body=body,
        trailers=trailers,
        author="diagnostician",
    )
    deps.harness.promote(
        version=candidate,
        commit=commit,
        subject=subject,
        body=body.partition("\n")[0],
        trailers={"Version": candidate, "Verdict": verb, "Approved-By": "retrospective check"},
        metrics=metrics,
    )
