"""Pictures of the report: axes enclose the data, rows cover it, text stays text."""

from __future__ import annotations

import math
import re

from hypothesis import example, given
from hypothesis import strategies as st

from graph import svg


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.integers(2, 8))
@example(0.0, 5e-324, 2)
@example(1e6, 1e-10, 4)
def test_ticks_enclose_the_data(low: float, span: float, count: int) -> None:
    marks = svg.ticks(low, low + span, count)
    slack = 1e-6 * (marks[1] - marks[0])
    assert marks[0] <= low + slack and marks[-1] >= low + span - slack
    assert 2 <= len(marks) <= count + 3


def test_elements_escape_text_but_not_elements() -> None:
    inner = svg.element("title", "a<b")
    assert svg.element("g", inner, class_='"x"') == '<g class="&#34;x&#34;"><title>a&lt;b</title></g>'


@given(st.lists(st.floats(0, 1), min_size=1, max_size=1500))
def test_a_heat_row_covers_every_column_once(rates: list[float]) -> None:
    row = svg.heat_row(rates, "x")
    columns = int(re.search(r'viewBox="0 0 (\d+) 1"', row).group(1))  # type: ignore[union-attr]
    assert columns == math.ceil(len(rates) / math.ceil(len(rates) / svg.HEAT_COLUMNS)) <= svg.HEAT_COLUMNS
    cells = [(int(x), int(width)) for x, width in re.findall(r"M(\d+) 0h(\d+)v1", row)]
    covered = [x + i for x, width in cells for i in range(width)]
    assert len(covered) == len({*covered}) and {*covered} <= {*range(columns)}
    if len(rates) == columns:
        assert {*range(columns)} - {*covered} == {
            i for i, rate in enumerate(rates) if round(rate * svg.HEAT_LEVELS) == 0
        }


def test_lineage_survives_unknown_and_circular_parents() -> None:
    nodes = [
        svg.Node("a", "b", "promoted", ("a",)),
        svg.Node("b", "a", "rejected", ("b",)),
        svg.Node("c", "gone", "open", ()),
    ]
    assert svg.lineage(nodes, "a", "a").count("<circle") == 4  # three dots and the champion's ring


def test_an_uncertified_chain_is_the_upper_line_and_the_ring_stays_at_the_champion() -> None:
    nodes = [
        svg.Node("a", None, "baseline", ()),
        svg.Node("b", "a", "provisional", ()),
        svg.Node("c", "b", "rejected", ()),
        svg.Node("d", "b", "provisional", ()),
    ]
    drawn = svg.lineage(nodes, "a", "d")
    assert drawn.count("edge trunk") == 2
    ring = re.search(r'cx="([\d.]+)"[^>]*class="ring"', drawn)
    dots = re.findall(r'<circle[^>]*cx="([\d.]+)" cy="([\d.]+)"', drawn)
    assert ring and ring.group(1) == min(dots, key=lambda dot: float(dot[0]))[0]
    upper = min({y for _, y in dots}, key=float)
    assert len({x for x, y in dots if y == upper}) == 3
