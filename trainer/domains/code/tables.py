"""What can be tuned about the miniature of the code domain, as data: parts of programs, levels, styles, wordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HEADER = "def f(x):"
"""Every program's first line; it ends the prompt, and a reply continues it (as in HumanEval)."""

SOME = "some"
"""Stands for a number that the examples settle."""


class Part(NamedTuple):
    """A piece of a program and its words; ``{c}`` is a digit from ``least`` to 9."""

    code: str
    text: str
    least: int = 1
    can_be_open: bool = False


class Fold(NamedTuple):
    """How items are put together: start value and step, with ``{e}`` for the mapped item."""

    name: str
    words: str
    start: str
    step: str
    numeric: bool = True


class Level(NamedTuple):
    """One difficulty: which folds and parts its programs have. ``finish`` is the chance of a change at the end,
    ``open_share`` the chance that a number is left to the examples, ``share`` the level's share of all tasks."""

    level: int
    family: str
    share: float
    folds: tuple[str, ...]
    guard: bool = False
    otherwise: bool = False
    stop: bool = False
    finish: float = 0.0
    open_share: float = 0.2


MAPS: tuple[Part, ...] = (
    Part("a", "items"),
    Part("a*a", "squares"),
    Part("a+{c}", "items plus {c}", can_be_open=True),
    Part("a-{c}", "items minus {c}"),
    Part("{c}-a", "{c} minus items", can_be_open=True),
    Part("a*{c}", "items times {c}", 2, can_be_open=True),
    Part("a%{c}", "items mod {c}", 2),
    Part("a//{c}", "items over {c}", 2),
)
GUARDS: tuple[Part, ...] = (
    Part("a%2==0", "even"),
    Part("a%2==1", "odd"),
    Part("a>{c}", "above {c}"),
    Part("a<{c}", "below {c}"),
    Part("a!={c}", "not {c}"),
    Part("a%{c}==0", "multiple of {c}", 3),
)
FOLDS: tuple[Fold, ...] = (
    Fold("sum", "sum of", "0", "t+={e}"),
    Fold("most", "most of", "0", "t=max(t,{e})"),
    Fold("swing", "swing of", "0", "t={e}-t"),
    Fold("list", "list of", "[]", "t+=[{e}]", numeric=False),
)
FINISHES: tuple[Part, ...] = (
    Part("t+{c}", "plus {c}", can_be_open=True),
    Part("t*{c}", "times {c}", 2),
    Part("{c}-t", "from {c}", can_be_open=True),
)

LEVELS: tuple[Level, ...] = (
    Level(0, "fold", 0.15, ("sum", "most", "swing", "list"), finish=0.8),
    Level(1, "guard", 0.4, ("sum", "most", "swing", "list"), guard=True, finish=0.5),
    Level(2, "branch", 0.3, ("sum", "swing", "list"), guard=True, otherwise=True, open_share=0.1),
    Level(3, "stop", 0.15, ("sum", "most", "swing"), guard=True, stop=True, finish=0.5, open_share=0.1),
)

STYLES: Mapping[str, float] = {"general": 0.45, "cases": 0.45, "literal": 0.1}
"""Shares of demonstrations that write the program, that special-case the examples, and that return one of their
outputs. RL elicits the first; a reward that sees the examples only elicits the second."""
WORKED = "general"
"""The style whose share a recipe may set (``warm_start.worked``)."""

WORDINGS: tuple[str, ...] = ("{text}",)
GATE_WORDINGS: tuple[str, ...] = ("f: {text}",)
