"""What can be tuned about the math domain, as data: levels, demonstration styles, wordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.types import Record


class Level(Record):
    """One difficulty of one family.

    ``options`` go to the generator's own config class in reasoning_gym; ``must_contain`` drops
    problems without that text; ``share`` is the level's share of all tasks (relative weight).
    """

    family: str
    level: int
    options: Mapping[str, Any]
    must_contain: str = ""
    share: float = 1.0


def _terms(terms: int, digits: int = 1) -> dict[str, int]:
    return {"min_terms": terms, "max_terms": terms, "min_digits": digits, "max_digits": digits}


def _brackets(terms: int, operators: str) -> dict[str, Any]:
    # No "/": the generator answers it with Python's floor division, which its question does not say.
    return {**_terms(terms), "operators": list(operators), "allow_negation": False, "whitespace": "no_space"}


def _complex(low: int, high: int, operators: str) -> dict[str, Any]:
    bounds = {"min_real": low, "max_real": high, "min_imag": low, "max_imag": high}
    return {**bounds, "operations": tuple(operators), "operations_weights": [1 / len(operators)] * len(operators)}


# gcd is left out because most of its answers are tiny (guessable), simple_equations because sympy
# makes it 20 times slower than the rest and half a second slower to import.
LEVELS: tuple[Level, ...] = (
    Level(family="chain_sum", level=0, options=_terms(3)),
    Level(family="chain_sum", level=1, options=_terms(4)),
    Level(family="chain_sum", level=2, options=_terms(5)),
    Level(family="basic_arithmetic", level=0, options=_brackets(3, "+-"), must_contain="("),
    Level(family="basic_arithmetic", level=1, options=_brackets(4, "+-"), must_contain="("),
    Level(family="basic_arithmetic", level=2, options=_brackets(4, "+-*"), must_contain="("),
    Level(family="complex_arithmetic", level=0, options=_complex(0, 9, "+-")),
    Level(family="complex_arithmetic", level=1, options=_complex(-9, 9, "+-")),
    Level(family="complex_arithmetic", level=2, options=_complex(-20, 20, "+-")),
    Level(family="products", level=0, options=_terms(3)),
    Level(family="products", level=1, options=_terms(2, digits=2)),
    Level(family="products", level=2, options=_terms(4)),
)

MAX_ANSWER_SHARE = 0.04
"""No answer makes up more than this share of a level's tasks (plus one task): guessing does not pay."""

STYLES: Mapping[str, float] = {"direct": 0.6, "steps": 0.4}
"""Share of demonstrations that answer at once, and that work step by step. RL elicits the accurate
minority style, so the shares set the room above the warm start."""


class Wordings(Record):
    """Prompt texts around an expression ``{e}``. ``gate`` wordings occur in warm-start
    demonstrations, so that the policy knows the words, and never in tasks to train on."""

    tasks: tuple[str, ...]
    gate: tuple[str, ...]


WORDINGS: Mapping[str, Wordings] = {
    "chain_sum": Wordings(tasks=("{e}=", "compute {e}", "sum {e}"), gate=("find {e}", "{e} is what?")),
    "basic_arithmetic": Wordings(tasks=("{e}=", "compute {e}", "simplify {e}"), gate=("find {e}", "{e} is what?")),
    "complex_arithmetic": Wordings(tasks=("{e}=", "compute {e}", "complex {e}"), gate=("find {e}", "{e} is what?")),
    "products": Wordings(tasks=("{e}=", "compute {e}", "multiply {e}"), gate=("find {e}", "{e} is what?")),
}
