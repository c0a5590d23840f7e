"""The report of a run: one self-contained HTML file that needs no network and runs no script.

Rollouts, diagnoses and diffs are untrusted text. Templates escape everything, and the page carries a content security
policy that forbids scripts and every outside resource, so that a mistake in a template stays harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from agents.types import Prediction
from graph import svg
from graph.curves import read_curves
from graph.record import write_atomic
from graph.report_types import Estimate, ReportData, VersionRow

__all__ = ["read_curves", "render_report"]

MARKS: Mapping[str, str] = {
    "promoted": "✓", "provisional": "◐", "rejected": "✗", "undecided": "?", "invalid": "!", "unconfirmed": "≈",
    "no_information": "∅", "baseline": "●", "refused": "⊘", "failed": "✗", "open": "…",
}  # fmt: skip
# Metric, title, whether it is a share, what to look for.
CHARTS: Sequence[tuple[str, str, bool, str]] = (
    ("outcome/mean", "Outcome", True, "tasks solved by the fixed verifier"),
    ("critic/score/mean", "Training reward", False, "what the policy is paid; far from the outcome, it is being gamed"),
    ("response_length/mean", "Response length", False, "tokens"),
    ("actor/entropy", "Entropy", False, "nats per token; near zero, exploration has collapsed"),
    ("signal/dead_groups", "Dead groups", True, "groups without reward spread teach GRPO nothing"),
)
PALETTE = 7
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
MAX_TEXT = 4000


def render_report(data: ReportData, out: Path) -> None:
    """Write ``data`` as one HTML page to ``out``, replacing it as a whole; raises OSError where that cannot be done."""
    write_atomic(out, UNPRINTABLE.sub("\ufffd", environment().get_template("report.html").render(context(data))))


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
        "css": css,
        "headline": headline(data),
        "trained": sum(row.delta is not None for row in data.versions),
        "promoted": sum(row.verdict == "promoted" for row in data.versions),
        "comparison": comparison(data),
        "lineage": lineage(data, css),
        "charts": charts(data, css),
        "forests": {r.version: svg.interval_row([(r.delta, r.verdict)], forest, 26, True) for r in data.versions if r.delta},
        "forest_axis": svg.axis_row(forest, [pp(t, 0) if t else "0" for t in forest.ticks]) if deltas else "",
    }  # fmt: skip


# ------------------------------------------------------------------------------ parts


def headline(data: ReportData) -> str:
    """The run in one sentence."""
    if not data.champion:
        return "No version has been evaluated yet."
    if data.champion == data.baseline:
        return f"No candidate was promoted: the baseline {data.baseline} is still the champion."
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


def lineage(data: ReportData, css: Mapping[str, str]) -> Markup | None:
    def caption(row: VersionRow) -> tuple[str, ...]:
        name = row.factor.rpartition(".")[2]
        return tuple(line for line in (row.version, clip(name, 17), pp(row.delta.mean) if row.delta else "") if line)

    nodes = [svg.Node(r.version, r.parent, r.verdict, caption(r)) for r in data.versions]
    return svg.lineage(nodes, data.champion) if nodes else None


def held(prediction: Prediction, realised: float) -> bool:
    """Whether the metric moved as predicted, by at least the least effect."""
    return (realised if prediction.direction == "up" else -realised) >= prediction.min_effect


# ------------------------------------------------------------------------------- text


def pct(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f} % ({100 * estimate.ci_low:.1f} to {100 * estimate.ci_high:.1f})"


def pp(value: float | Estimate, digits: int = 1) -> str:
    """Percentage points, with the interval where there is one: ``+6.1 pp (+3.2 to +9.0)``."""
    if isinstance(value, Estimate):
        return f"{pp(value.mean)} ({signed(100 * value.ci_low)} to {signed(100 * value.ci_high)})"
    return f"{signed(100 * value, digits)} pp"


def signed(value: float, digits: int = 1) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def num(value: float) -> str:
    """Four significant digits, or all of a whole number."""
    text = f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
    return text.replace("-", "−")


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
