"""Small pure functions from numbers to inline SVG. Colours are CSS classes, so one style sheet serves light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup, escape

from graph.report_types import Curve, Estimate

Point = tuple[float, float]


def element(tag: str, *children: str, **attributes: object) -> Markup:
    """An SVG element; text and attribute values are escaped, ``Markup`` children are not.

    Attribute names take underscores for dashes; a trailing one is dropped (``class_``).
    """
    head = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(str(v))}"' for name, v in attributes.items())
    return Markup(f"<{tag}{head}>{''.join(escape(child) for child in children)}</{tag}>")


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About ``count`` round numbers (1, 2, 5 times a power of ten) from at or below ``low`` to at or above ``high``."""
    largest = max(abs(low), abs(high))
    # A span that is rounding error of its ends, or nothing beside zero, is no span.
    span = high - low if high - low > 1e-9 * max(largest, 1e-3) else max(largest, 1.0)
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def short(value: float) -> str:
    """A tick label: ``0.25``, ``40``, ``12k``, ``1.5M``."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{name}"
    return f"{value:.3g}"


class Scale(NamedTuple):
    """A linear axis with its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float], count: int = 4) -> Scale:
        marks = ticks(min(values), max(values), count)
        return cls(marks[0], marks[-1], tuple(marks))

    def share(self, value: float) -> float:
        """Position on the axis, 0 to 1."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def percent(self, value: float) -> str:
        return f"{100 * self.share(value):.2f}%"


# ------------------------------------------------------------------------ intervals
# Drawn in percent of the width and pixels of height, without a viewBox: they stretch with the page, text does not.


def interval_row(marks: Sequence[tuple[Estimate, str]], scale: Scale, height: int = 34, zero: bool = False) -> Markup:
    """Dots with 95 % intervals, one below the other; ``marks`` pairs an estimate with its CSS class."""
    grid = [
        element("line", x1=scale.percent(t), x2=scale.percent(t), y1=0, y2=height, class_="zero" if zero and t == 0 else "grid")
        for t in scale.ticks
    ]  # fmt: skip
    gap = height / (len(marks) + 1)
    drawn, labels = [], []
    for index, (estimate, css) in enumerate(marks, 1):
        y = round(gap * index, 1)
        labels.append(label := f"{estimate.mean:.4f} [{estimate.ci_low:.4f}, {estimate.ci_high:.4f}]")
        ends = {"x1": scale.percent(estimate.ci_low), "x2": scale.percent(estimate.ci_high), "y1": y, "y2": y}
        drawn.append(
            element(
                "g",
                element("title", label),
                element("line", **ends, class_="whisker"),
                element("circle", cx=scale.percent(estimate.mean), cy=y, r=5),
                class_=f"estimate {css}",
            )
        )
    text = "; ".join(labels)
    return element("svg", *grid, *drawn, class_="interval", width="100%", height=height, role="img", aria_label=text)


def axis_row(scale: Scale, labels: Sequence[str]) -> Markup:
    """Tick labels of a column of ``interval_row``; the outer ones are drawn inwards."""
    texts = []
    for tick, label in zip(scale.ticks, labels, strict=True):
        anchor = "start" if tick == scale.ticks[0] else "end" if tick == scale.ticks[-1] else "middle"
        texts.append(element("text", label, x=scale.percent(tick), y=13, text_anchor=anchor))
    return element("svg", *texts, class_="interval axis", width="100%", height=18, aria_hidden="true")


# ------------------------------------------------------------------------- heat map

HEAT_LEVELS = 10
HEAT_COLUMNS = 512


def heat_row(rates: Sequence[float], label: str) -> Markup:
    """One row of a heat map, a column per rate (0 to 1), darker for more; beyond ``HEAT_COLUMNS`` neighbours are averaged.

    Columns of one level share a path: a cell costs about ten bytes.
    """
    size = math.ceil(len(rates) / HEAT_COLUMNS)
    cells = [sum(part) / len(part) for part in (rates[i : i + size] for i in range(0, len(rates), size))]
    paths: dict[int, list[str]] = {}
    column = 0
    for level, run in groupby(round(HEAT_LEVELS * rate) for rate in cells):
        width = len(list(run))
        paths.setdefault(level, []).append(f"M{column} 0h{width}v1h-{width}z")
        column += width
    drawn = [
        element("path", d="".join(d), fill_opacity=level / HEAT_LEVELS) for level, d in sorted(paths.items()) if level
    ]
    box = f"0 0 {column} 1"
    return element("svg", *drawn, viewBox=box, preserveAspectRatio="none", class_="heat", role="img", aria_label=label)


# --------------------------------------------------------------------------- curves

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 8, 26


def line_chart(curves: Sequence[tuple[Curve, str]], label: str, share: bool = False) -> Markup:
    """Mean lines over bands from the lowest to the highest seed; ``curves`` pairs a curve with its CSS class.

    ``share`` labels the y axis in percent.
    """
    x_axis = Scale.over([0.0, *(x for curve, _ in curves for x in curve.x)])
    y_axis = Scale.over([y for curve, _ in curves for y in (*curve.low, *curve.high)])

    def place(x: float, y: float) -> Point:
        across, up = x_axis.share(x), y_axis.share(y)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    grid = []
    for tick in y_axis.ticks:
        x, y = place(0, tick)
        grid.append(element("line", x1=x, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        text = f"{100 * tick:.3g} %" if share else short(tick)
        grid.append(element("text", text, x=x - 6, y=round(y + 3.5, 1), text_anchor="end"))
    for tick in x_axis.ticks:
        x, _ = place(tick, 0)
        anchor = "end" if tick == x_axis.ticks[-1] else "middle"
        grid.append(element("text", short(tick), x=round(x, 1), y=HEIGHT - 8, text_anchor=anchor))
    bands = [
        element(
            "polygon",
            points=path(
                [place(*p) for p in (*zip(c.x, c.low, strict=True), *reversed([*zip(c.x, c.high, strict=True)]))]
            ),
            class_=f"band {css}",
        )
        for c, css in curves
        if c.seeds > 1
    ]
    lines = []
    for curve, css in curves:
        points = [place(*p) for p in zip(curve.x, curve.mean, strict=True)]
        title = element("title", f"{curve.version}: {curve.mean[0]:.4g} → {curve.mean[-1]:.4g}")
        x, y = points[-1]
        end = element("circle", title, cx=round(x, 1), cy=round(y, 1), r=3, class_=f"end {css}")
        lines += [element("polyline", title, points=path(points), class_=f"line {css}"), end]
    box = f"0 0 {WIDTH} {HEIGHT}"
    return element("svg", *grid, *bands, *lines, viewBox=box, class_="chart", role="img", aria_label=label)


class Dot(NamedTuple):
    """A point of a scatter plot with its CSS class and what it says of itself."""

    x: float
    y: float
    css: str
    title: str


def scatter(dots: Sequence[Dot], label: str, x_label: str, y_label: str) -> Markup:
    """Dots over one scale for both axes, with zero lines and the diagonal on which both values are equal."""
    axis = Scale.over([0.0, *(v for dot in dots for v in (dot.x, dot.y))])

    def place(x: float, y: float) -> Point:
        across, up = LEFT + axis.share(x) * (WIDTH - LEFT - RIGHT), axis.share(y) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(HEIGHT - BOTTOM - up, 1)

    grid = []
    for tick in axis.ticks:
        (x, bottom), (left, y) = place(tick, axis.low), place(axis.low, tick)
        css = "zero" if tick == 0 else "grid"
        grid.append(element("line", x1=x, x2=x, y1=TOP, y2=bottom, class_=css))
        grid.append(element("line", x1=left, x2=WIDTH - RIGHT, y1=y, y2=y, class_=css))
        grid.append(element("text", short(tick), x=x, y=HEIGHT - 12, text_anchor="middle"))
        grid.append(element("text", short(tick), x=left - 6, y=y + 3.5, text_anchor="end"))
    (x1, y1), (x2, y2) = place(axis.low, axis.low), place(axis.high, axis.high)
    grid.append(element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="zero"))
    grid.append(element("text", x_label, x=WIDTH - RIGHT, y=HEIGHT - 1, text_anchor="end"))
    grid.append(element("text", y_label, x=LEFT + 4, y=TOP + 8))
    marks = []
    for dot in dots:
        x, y = place(dot.x, dot.y)
        marks.append(element("circle", element("title", dot.title), cx=x, cy=y, r=4, class_=f"end {dot.css}"))
    return element(
        "svg", *grid, *marks, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="chart scatter", role="img", aria_label=label
    )


def path(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


# -------------------------------------------------------------------------- lineage


class Node(NamedTuple):
    """One version of the lineage; ``captions`` are short lines of text under (or above) its dot."""

    name: str
    parent: str | None
    css: str
    captions: tuple[str, ...]


COLUMN, MAIN_Y, SIDE_Y = 112, 74, 142


def lineage(nodes: Sequence[Node], champion: str, tip: str) -> Markup:
    """Versions from left to right; the tip and its ancestors, the champion among them, form the upper line, the others branch
    off it.

    A candidate leaves the line just before its own column: there its parent was still the tip.
    """
    parents = {node.name: node.parent for node in nodes}
    trunk: list[str] = []
    ancestor: str | None = tip
    while ancestor in parents and ancestor not in trunk:
        trunk.append(ancestor)
        ancestor = parents[ancestor]
    at = {
        node.name: (COLUMN * i + COLUMN / 2, MAIN_Y if node.name in trunk else SIDE_Y) for i, node in enumerate(nodes)
    }
    edges, dots = [], []
    for node in nodes:
        x, y = at[node.name]
        if node.parent in at:
            px, py = at[node.parent]
            bend = max(px, x - COLUMN * 0.75)
            half = (bend + x) / 2
            d = f"M{px} {py}H{bend}C{half} {py} {half} {y} {x} {y}" if y != py else f"M{px} {py}H{x}"
            edges.append(element("path", d=d, class_=f"edge {'trunk' if node.name in trunk else ''}"))
        captions = [
            element(
                "text", line, x=x, y=caption_y(y, i, len(node.captions)), text_anchor="middle", class_=f"caption-{i}"
            )
            for i, line in enumerate(node.captions)
        ]
        ring = [element("circle", cx=x, cy=y, r=13, class_="ring")] if node.name == champion else []
        dot = element("circle", element("title", " · ".join(node.captions)), cx=x, cy=y, r=8, class_=f"node {node.css}")
        dots.append(element("g", *ring, dot, *captions))
    width, height = COLUMN * len(nodes), max(y + 62 if y == SIDE_Y else y + 26 for _, y in at.values())
    return element("svg", *edges, *dots, class_="lineage", width=width, height=height, role="img", aria_label="Lineage")


def caption_y(y: float, line: int, lines: int) -> float:
    """Baseline of one caption line: above the upper line, below the lower one."""
    return y - 21 - 15 * (lines - 1 - line) if y == MAIN_Y else y + 25 + 15 * line
