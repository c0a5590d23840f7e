"""The health report of one version, as a person or a program reads it: four layers of evidence, each value against its
lines, its course over the training and the parent. Read-only."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from agents.types import Intervention
from graph.lineage import stand
from graph.record import RunRecord
from graph.report import effect, held, num, pp, visible
from graph.report_types import Change, Course, Estimate, Health, Reading, SolveRates
from graph.summary import AVERAGE
from graph.versions import Version, evaluations, realised, seeds_of
from trainer.evaluation import score_array
from trainer.harness import HarnessRepo
from trainer.types import HealthReport, InputError, Layer

QUESTIONS: Mapping[Layer, str] = {
    "score": "did it get better?",
    "signal": "can it learn from its groups?",
    "behaviour": "what does the policy do?",
    "version": "what changed, and what became of such changes before?",
}
COURSES: Mapping[Layer, Sequence[str]] = {
    "score": ("outcome/mean", "critic/score/mean"),
    "signal": (
        "signal/dead_groups_all_fail",
        "signal/dead_groups_all_pass",
        "signal/kept_groups",
        "actor/entropy",
        "rollout/mean_logprob",
        "actor/grad_norm",
        "actor/pg_clipfrac",
        "actor/kl_loss",
        "actor/kl_to_base",
    ),
    "behaviour": ("response_length/mean", "response_length/clip_ratio", "num_turns/mean"),
}
WORST_FIRST = ("critical", "warn", "info", "ok")
BARS = "▁▂▃▄▅▆▇█"
SOLVED_RATE = 0.5
"""A task counts as solved by a version that solves it in at least half of its samples."""


def print_health(root: Path, version: str | None, as_json: bool) -> None:
    """Print the report of ``version`` (default: the champion) of the run in ``root``. Raises InputError."""
    health = health_of(root, version)
    print(health.model_dump_json() if as_json else markdown(health))


# ------------------------------------------------------------------------------ reading


def health_of(root: Path, version: str | None = None) -> Health:
    """The health of a version, from the files of its run; InputError where it has none, or a file is damaged."""
    record = RunRecord(root)
    judged = sorted(p.parent.name for p in (root / "versions").glob("*/health.json"))
    version = version or champion_of(record)
    if version not in judged:
        known = ", ".join(judged) or "none yet, the baseline comes first"
        raise InputError(f"{root.name}: version {version}: no health report; versions that have one: {known}")
    own = record.load(version, "version", Version)
    report = record.load(version, "health", HealthReport)
    parent = record.load(own.parent, "health", HealthReport) if own.parent in judged else None
    diagnostics = HarnessRepo.open(root / "harness").load(own.harness_commit).diagnostics
    before = {f.diagnostic: f.value for f in parent.findings} if parent else {}
    readings = [
        Reading(finding=f, warn=d.warn, critical=d.critical, above=d.above, parent=before.get(f.diagnostic))
        if (d := diagnostics.get(f.diagnostic))
        else Reading(finding=f, warn=f.line, critical=f.line, parent=before.get(f.diagnostic))
        for f in report.findings
    ]
    return Health(
        run=str(root),
        version=version,
        scores={name: (v, parent.scores.get(name) if parent else None) for name, v in report.scores.items()},
        readings=tuple(sorted(readings, key=lambda r: WORST_FIRST.index(r.finding.severity))),
        courses={
            layer: tuple(
                Course(metric=m, values=report.trends[m], parent=parent.trends.get(m, ()) if parent else ())
                for m in metrics
                if m in report.trends
            )
            for layer, metrics in COURSES.items()
        },
        change=change_of(record, own, report, parent) if parent else None,
    )


def champion_of(record: RunRecord) -> str:
    """The version that main holds."""
    return stand(record.entries("ledger")).champion


def change_of(record: RunRecord, own: Version, report: HealthReport, parent: HealthReport) -> Change:
    entries = [e for e in record.entries("ledger") if e["kind"] == "verdict"]
    entry = next((e for e in entries if e["version"] == own.id), {})
    gate = entry.get("gate") or {}
    p = record.load(own.id, "intervention", Intervention).prediction
    moved = realised(p.metric, report, parent)
    rates = solve_rates(record, [own.parent, own.id])[-1]
    return Change(
        parent=own.parent,
        factor=own.factor,
        title=own.title,
        prediction=p,
        realised=moved,
        verdict=entry.get("verdict", "open"),
        delta=gate.get("delta"),
        ci_low=gate.get("ci_low"),
        ci_high=gate.get("ci_high"),
        gained=rates.gained,
        lost=rates.lost,
        earlier=tuple(
            f"{e['version']}: {e['title']}: {e['verdict']}"
            for e in entries
            if e["factor"] == own.factor and e["version"] < own.id
        ),
    )


def solve_rates(record: RunRecord, names: Sequence[str]) -> list[SolveRates]:
    """Each version's solve rates on the validation tasks, all in one order: those that are solved most first."""
    means = {}
    for name in names:
        scores = score_array(evaluations(record, name, seeds_of(record, name), "validation"))
        means[name] = scores.mean(axis=(0, 2))
    if not means:
        return []
    order = (-sum(means.values())).argsort(kind="stable")
    rows = []
    for name in names:
        parent = means.get(record.load(name, "version", Version).parent, means[name])
        now, before = means[name] >= SOLVED_RATE, parent >= SOLVED_RATE
        gained, lost = int((now & ~before).sum()), int((before & ~now).sum())
        rows.append(SolveRates(version=name, rates=tuple(means[name][order].tolist()), gained=gained, lost=lost))
    return rows


# ------------------------------------------------------------------------------ writing


def markdown(health: Health) -> str:
    """The report as Markdown; text of harness files and rollouts cannot leave its table cell."""
    return visible("\n".join(_lines(health)))


def _lines(health: Health) -> Iterator[str]:
    count = {s: sum(r.finding.severity == s for r in health.readings) for s in WORST_FIRST}
    yield f"# Health of {health.version}"
    yield ""
    yield f"run {health.run}: " + ", ".join(f"{n} {s}" for s, n in count.items() if n)
    for layer, question in QUESTIONS.items():
        yield ""
        yield f"## {layer.capitalize()}: {question}"
        if layer == "score":
            yield from ("", f"{AVERAGE.capitalize()}.")
            rows = ((f"{name}", percent(v), percent(p), points(v, p)) for name, (v, p) in health.scores.items())
            yield from _table(("score", "value", "parent", "change"), rows)
        if layer == "version":
            yield from _change(health.change)
        readings = [r for r in health.readings if r.finding.layer == layer]
        yield from _table(
            ("", "diagnostic", "value", "warn, critical", "parent", "what it says"), (_reading(r) for r in readings)
        )
        courses = ((c.metric, *course(c.values), *course(c.parent)) for c in health.courses.get(layer, ()))
        yield from _table(("course of the training", "first to last", "", "parent", ""), courses)
        evidence = [
            f"- {r.finding.diagnostic}: {', '.join(r.finding.evidence)}" for r in readings if r.finding.evidence
        ]
        yield from ["", "Rollouts to look at:", "", *evidence] if evidence else []
    shown = next((r.finding.evidence[0] for r in health.readings if r.finding.evidence), None)
    if shown:
        yield ""
        yield f"One of these rollouts: `python -m graph.runs show {shlex.quote(health.run)} --rollout {shown}`"


def _reading(r: Reading) -> tuple[str, ...]:
    side = ">" if r.above else "<"
    f = r.finding
    lines = f"{side} {num(r.warn)}, {num(r.critical)}"
    return f.severity, f.diagnostic, maybe(f.value), lines, maybe(r.parent), f.error or f.description


def _change(change: Change | None) -> Iterator[str]:
    yield ""
    if change is None:
        yield "The reference: nothing was changed yet."
        return
    yield f"- against {change.parent}: {change.title} (`{change.factor}`): {change.verdict}"
    if change.delta is not None and change.ci_low is not None and change.ci_high is not None:
        yield f"- gate: {pp(Estimate(mean=change.delta, ci_low=change.ci_low, ci_high=change.ci_high))}"
    p, moved = change.prediction, change.realised
    least = effect(p.min_effect, p.metric).removeprefix("+")
    came = "not measured" if moved is None else f"{effect(moved, p.metric)}, {'held' if held(p, moved) else 'missed'}"
    yield f"- predicted {p.metric} {p.direction} by at least {least}: {came}"
    yield f"- validation tasks solved at least half the time: {change.gained} gained, {change.lost} lost"
    yield f"- earlier tries of this factor: {'; '.join(change.earlier) or 'none'}"


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        if number == 0:
            yield ""
            yield _row(head)
            yield _row(["---"] * len(head))
        yield _row(row)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def course(values: Sequence[float]) -> tuple[str, str]:
    """A bar per part, from the lowest to the highest of them, and the first and last value."""
    if not values:
        return "", ""
    low, span = min(values), max(values) - min(values)
    bars = (BARS[round((v - low) / span * (len(BARS) - 1))] if span else BARS[0] for v in values)
    return "".join(bars), f"{num(values[0])} → {num(values[-1])}"


def maybe(value: float | None) -> str:
    return "–" if value is None else num(value)


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def points(value: float, parent: float | None) -> str:
    return "–" if parent is None else pp(value - parent)
