"""How far predictions and replays of a run and of earlier ones could be relied on, as the report shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from agents.types import BacktestRecord, Score
from graph import svg
from graph.report_types import Estimate


def reliability(record: BacktestRecord | None) -> dict[str, Any] | None:
    """Rows of (name, score, picture of its rate) on one axis from 0 to 1, how many of the predictions are of how many
    earlier runs, and what this run foretold against what came; None where nothing of it was trained and scored."""
    if record is None or all(p.run for p in record.past):
        return None
    scores = {"predictions": record.predictions, "replays": record.replays}
    scores |= {f"replays of {name} factors": score for name, score in record.families.items()}
    scale = svg.Scale.over([0.0, 1.0])
    earlier = [p for p in record.past if p.run]
    return {
        "earlier": (len(earlier), len({p.run for p in earlier})),
        "rows": [(name, score, _rate(score, scale)) for name, score in scores.items() if score.n],
        "axis": svg.axis_row(scale, [f"{100 * tick:.0f} %" for tick in scale.ticks]),
        "picture": svg.scatter(
            _dots(record), "Foretold and realised changes of predicted metrics", "foretold", "realised"
        ),
    }


def _rate(score: Score, scale: svg.Scale) -> Markup:
    css = "good" if score.low > 0.5 else "bad" if score.high < 0.5 else ""
    return svg.interval_row(
        [(Estimate(mean=score.hits / score.n, ci_low=score.low, ci_high=score.high, n=score.n), css)], scale, 26
    )


def _dots(record: BacktestRecord) -> Sequence[svg.Dot]:
    """Each of this run's versions: its least predicted change, and its replayed one where there is one, against the
    realised."""
    dots = []
    for past in (p for p in record.past if not p.run):
        p = past.prediction
        told = [("predicted", "s-baseline", p.signed(p.min_effect))]
        if past.replayed is not None:
            told.append(("replayed", "s-champion", past.replayed))
        for word, css, value in told:
            title = f"{past.version}: {p.metric} {word} {value:+.3g}, realised {past.realised:+.3g}"
            dots.append(svg.Dot(value, past.realised, css, title))
    return dots
