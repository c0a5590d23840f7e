"""The report of a run: one self-contained HTML file that needs no network and runs no script.

Rollouts, diagnoses and diffs are untrusted text. Templates escape everything, and the page carries a content security
policy that forbids scripts and every outside resource, so that a mistake in a template stays harmless.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from agents.types import Prediction
from graph import svg
from graph.curves import PASS_AT_K, K
from graph.record import write_atomic
from graph.reliability import reliability
from graph.report_types import Estimate, Reading, ReportData, VersionRow
from graph.summary import AVERAGE

MARKS: Mapping[str, str] = {
    "promoted": "✓", "provisional": "◐", "rejected": "✗", "undecided": "?", "invalid": "!", "unconfirmed": "≈",
    "no_information": "∅", "baseline": "●", "refused": "⊘", "failed": "✗", "open": "…",
}  # fmt: skip
# Metric, title, whether it is a share, what to look for.
CHARTS: Sequence[tuple[str, str, bool, str]] = (
    ("outcome/mean", "Outcome", True, "replies the fixed verifier accepts"),
    (PASS_AT_K, f"pass@{K}", True, f"tasks that one of {K} samples solves; falling, variety is spent"),
    ("critic/score/mean", "Training reward", False, "what is paid; rising without the outcome, it is gamed"),
    ("signal/dead_groups_all_fail", "Dead groups: all fail", True, "tasks out of reach teach nothing"),
    ("signal/dead_groups_all_pass", "Dead groups: all pass", True, "mastered tasks teach nothing either"),
    ("actor/entropy", "Entropy", False, "nats per token; near zero, exploration has ended"),
    ("rollout/mean_logprob", "Mean log-probability", False, "of sampled tokens; near zero, replies are certain"),
    ("response_length/mean", "Response length", False, "tokens; growth without outcome is padding"),
    ("response_length/clip_ratio", "Cut off", True, "replies that reach the length limit"),
)
STORY_CHARTS = frozenset({"outcome/mean", PASS_AT_K, "actor/entropy"})
PALETTE = 7
MAX_TEXT = 4000
FARTHEST = 6.0
"""Realised effects are drawn up to this multiple of the predicted one."""
HIDDEN = re.compile(r"[^\n\t -~]")


def render_report(data: ReportData, out: Path) -> None:
    """Write ``data`` as one HTML page to ``out``, replacing it as a whole; raises OSError where that cannot be done."""
    write_atomic(out, visible(environment().get_template("report.html").render(context(data))))


def visible(text: str) -> str:
    """``text`` with every character that would act or hide (controls, directions, joiners, lone surrogates) shown:
    ``␛`` for an escape, ``⟨U+202E⟩`` for a right-to-left override."""

    def shown(match: re.Match[str]) -> str:
        char = match.group()
        if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
            return char
        code = ord(char)
        return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"

    return HIDDEN.sub(shown, text)


@cache
def environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "pct": pct,
        "pp": pp,
        "num": num,
        "duration": duration,
        "clip": clip,
        "difflines": diff_lines,
        "dotted": dotted,
        "effect": effect,
        "bounds": bounds,
        "split_alarms": split_alarms,
    }
    env.globals |= {"marks": MARKS, "held": held, "arrow": {"up": "↑", "down": "↓"}}
    return env


def context(data: ReportData) -> dict[str, Any]:
    """Everything the templates name: the data and the pictures drawn from it."""
    css = series_css(data)
    deltas = [row.delta for row in data.versions if row.delta]
    reach = max((abs(v) for d in deltas for v in (d.ci_low, d.ci_high)), default=0.01)
    forest = svg.Scale.over([-reach, reach], 2)
    return {
        "data": data,
        "average": AVERAGE,
        "css": css,
        "headline": headline(data),
        "trained": sum(row.delta is not None for row in data.versions),
        "promoted": len(claimed(data)),
        "comparison": comparison(data),
        "lineage": lineage(data, css),
        "chains": chains(data),
        "charts": charts(data, css),
        "story_charts": {r.version: story_charts(data, r) for r in data.versions if r.parent},
        "predictions": predictions(data),
        "reliability": reliability(data.track),
        "heat": [(rates, svg.heat_row(rates.rates, f"Solve rates of {rates.version}")) for rates in data.rates],
        "forests": {r.version: svg.interval_row([(r.delta, r.verdict)], forest, 26, True) for r in data.versions if r.delta},
        "forest_axis": svg.axis_row(forest, [pp(t, 0) if t else "0" for t in forest.ticks]) if deltas else "",
    }  # fmt: skip


# ------------------------------------------------------------------------------ parts


def headline(data: ReportData) -> str:
    """The run in one sentence."""
    if not data.champion:
        return "No version has been evaluated yet."
    if data.champion == data.baseline:
        tried = sum(row.delta is not None for row in data.versions)
        return (
            f"{counted(tried, 'candidate')} trained, none promoted: the baseline {data.baseline} is still the champion."
        )
    if data.gain is None:
        return f"{data.champion} is the champion."
    way = "better than" if data.gain.ci_low > 0 else "worse than" if data.gain.ci_high < 0 else "not clearly apart from"
    return f"{data.champion} is the champion, on sealed tasks {way} the baseline: {pp(data.gain.mean)}."


def comparison(data: ReportData) -> dict[str, Any] | None:
    """Rows of the headline plot on one common axis; None without any estimate."""
    rows = [
        (p, [(e, css) for e, css in ((p.sealed, "sealed"), (p.validation, "validation")) if e]) for p in data.policies
    ]
    values = [v for _, marks in rows for e, _ in marks for v in (e.ci_low, e.ci_high)]
    if not values:
        return None
    scale = svg.Scale.over(values, 5)
    return {
        "rows": [(policy, svg.interval_row(marks, scale, 46) if marks else "") for policy, marks in rows],
        "axis": svg.axis_row(scale, [f"{100 * t:.3g} %" for t in scale.ticks]),
    }


def series_css(data: ReportData) -> dict[str, str]:
    """One CSS class per version: baseline and champion have colours of their own, the others share a palette."""
    others = [r.version for r in data.versions if r.version not in (data.champion, data.baseline)]
    classes = {version: f"s{i % PALETTE}" for i, version in enumerate(others)}
    return classes | {data.baseline: "s-baseline", data.champion: "s-champion"}


def charts(data: ReportData, css: Mapping[str, str]) -> list[tuple[str, str, Markup]]:
    """Title, note and picture of every metric with curves; baseline and champion are drawn last, on top."""
    ordered = sorted(data.curves, key=lambda c: (c.version == data.champion, c.version == data.baseline))
    drawn = []
    for metric, title, share, note in CHARTS:
        curves = [(c, css.get(c.version, "s0")) for c in ordered if c.metric == metric and c.x]
        if curves:
            drawn.append((title, note, svg.line_chart(curves, f"{title} over sampled tokens", share)))
    return drawn


def story_charts(data: ReportData, row: VersionRow) -> list[tuple[str, Markup]]:
    """Title and picture of a candidate's main curves, beside its parent's."""
    css = {row.parent: "s-baseline", row.version: "s-champion"}
    own = sorted((c for c in data.curves if c.version in css and c.x), key=lambda c: c.version == row.version)
    drawn = []
    for metric, title, share, _ in CHARTS:
        curves = [(c, css[c.version]) for c in own if c.metric == metric]
        if metric in STORY_CHARTS and len(curves) == len(css):
            drawn.append((title, svg.line_chart(curves, f"{title} of {row.version} and its parent", share)))
    return drawn


def predictions(data: ReportData) -> dict[str, Any] | None:
    """Realised effects in multiples of the predicted ones, on one axis; None without any."""
    rows = []
    for row in data.versions:
        if row.intervention and row.realised is not None:
            p = row.intervention.prediction
            unit = p.signed(p.min_effect)
            times = max(-FARTHEST, min(FARTHEST, row.realised / unit)) if unit else 0.0
            rows.append((row, p, row.realised, times))
    if not rows:
        return None
    scale = svg.Scale.over([0.0, 1.0, *(times for *_, times in rows)], 6)

    def dot(times: float, css: str) -> Markup:
        return svg.interval_row(
            [(Estimate(mean=times, ci_low=min(0, times), ci_high=max(0, times)), css)], scale, 26, True
        )

    return {
        "rows": [(row, p, value, dot(times, "good" if held(p, value) else "bad")) for row, p, value, times in rows],
        "axis": svg.axis_row(scale, [f"{signed(t, 0)} ×" if t else "0" for t in scale.ticks]),
        "held": sum(held(p, value) for _, p, value, _ in rows),
    }


def claimed(data: ReportData) -> set[str]:
    """Candidates that came into main: promoted by themselves, or as steps of a certified chain."""
    alone = {row.version for row in data.versions if row.verdict == "promoted"}
    return alone.union(*(chain.steps[1:] for chain in data.chains if chain.verdict == "promoted"))


def chains(data: ReportData) -> dict[str, Any] | None:
    """Every tested chain with its gain on the choosing and on the fresh seeds, on one axis; None without any."""
    rows = [(c, [(e, css) for e, css in ((c.fresh, "sealed"), (c.selected, "validation")) if e]) for c in data.chains]
    ends = [end for _, marks in rows for e, _ in marks for end in (e.ci_low, e.ci_high)]
    if not ends:
        return None
    scale = svg.Scale.over([0.0, *ends], 4)
    return {
        "rows": [(chain, svg.interval_row(marks, scale, 46, True)) for chain, marks in rows],
        "axis": svg.axis_row(scale, [pp(tick, 0) if tick else "0" for tick in scale.ticks]),
    }


def lineage(data: ReportData, css: Mapping[str, str]) -> Markup | None:
    def caption(row: VersionRow) -> tuple[str, ...]:
        name = row.factor.rpartition(".")[2]
        return tuple(line for line in (row.version, clip(name, 17), pp(row.delta.mean) if row.delta else "") if line)

    nodes = [svg.Node(r.version, r.parent, r.verdict, caption(r)) for r in data.versions]
    return svg.lineage(nodes, data.champion, data.tip or data.champion) if nodes else None


def split_alarms(readings: Sequence[Reading]) -> tuple[list[Reading], list[Reading]]:
    """Readings to be seen at once, and those within their lines."""
    quiet = [r for r in readings if r.finding.severity == "ok"]
    return [r for r in readings if r.finding.severity != "ok"], quiet


def held(prediction: Prediction, realised: float) -> bool:
    """Whether the metric moved as predicted, by at least the least effect."""
    return prediction.signed(realised) >= prediction.min_effect


# ------------------------------------------------------------------------------- text


def pct(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f} % ({100 * estimate.ci_low:.1f} to {100 * estimate.ci_high:.1f})"


def pp(value: float | Estimate, digits: int = 1) -> str:
    """Percentage points, with the interval where there is one: ``+6.1 pp (+3.2 to +9.0)``."""
    if isinstance(value, Estimate):
        return f"{pp(value.mean)} ({bounds(value)})"
    return f"{signed(100 * value, digits)} pp"


def bounds(estimate: Estimate) -> str:
    return f"{signed(100 * estimate.ci_low)} to {signed(100 * estimate.ci_high)}"


def signed(value: float, digits: int = 1) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def num(value: float) -> str:
    """Four significant digits, or all of a whole number."""
    text = f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
    return text.replace("-", "−")


def effect(value: float, metric: str) -> str:
    """A change of ``metric``: in percentage points for a score (they have a slash), else in its own unit."""
    return pp(value) if "/" in metric else f"{value:+.3g}".replace("-", "−")


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """At most ``limit`` characters, saying when something is left out."""
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…" if limit < 100 else f"{text[:limit]}\n… {len(text) - limit:,} more characters"


def dotted(name: str) -> Markup:
    """A dotted or slashed name that may break after its separators."""
    return Markup(re.sub(r"([./_])", r"\1<wbr>", str(escape(name))))


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """(CSS class, line) of a unified diff."""
    classes = {"+++": "meta", "---": "meta", "dif": "meta", "ind": "meta", "@@ ": "hunk"}
    signs = {"+": "add", "-": "del"}
    return [(classes.get(line[:3]) or signs.get(line[:1], ""), line) for line in clip(diff).rstrip("\n").split("\n")]
