"""What can be tuned about the math domain, as data: levels, demonstration styles, wordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from trainer.types import Record


class Level(Record):
    """One difficulty of one family.

    ``options`` go to the generator's own config class in reasoning_gym, and ``largest`` is the largest
    operand they allow (for perturbed problems); ``must_contain`` drops problems whose question lacks that text;
    ``share`` is the level's share of all tasks (relative weight).
    """

    family: str
    level: int
    options: Mapping[str, Any]
    largest: int = 9
    must_contain: str = ""
    share: Annotated[float, Field(gt=0)] = 1.0


def _terms(terms: int) -> dict[str, int]:
    return {"min_terms": terms, "max_terms": terms, "min_digits": 1, "max_digits": 1}


def _brackets(terms: int, operators: str) -> dict[str, Any]:
    # No "/": the generator answers it with Python's floor division, which its question does not say.
    return {**_terms(terms), "operators": list(operators), "allow_negation": False, "whitespace": "no_space"}


def _complex(low: int, high: int, operators: str) -> dict[str, Any]:
    bounds = {"min_real": low, "max_real": high, "min_imag": low, "max_imag": high}
    return {**bounds, "operations": tuple(operators), "operations_weights": [1 / len(operators)] * len(operators)}


def _animals(kinds: int, most: int) -> dict[str, int]:
    return {"min_animals": kinds, "max_animals": kinds, "min_instances": 1, "max_instances": most}


# Sized for a policy of 100k parameters after a warm start of a minute: it works out about half of
# these and has a try in eight at nearly all. Left out: gcd, because most of its answers are tiny
# (guessable); products, because few small ones exist; simple_equations, because sympy makes it 20
# times slower than the rest.
LEVELS: tuple[Level, ...] = (
    Level(family="chain_sum", level=0, options=_terms(3)),
    Level(family="chain_sum", level=1, options=_terms(4)),
    Level(family="chain_sum", level=2, options=_terms(5), share=0.125),
    Level(family="basic_arithmetic", level=0, options=_brackets(3, "+-"), must_contain="(", share=0.125),
    Level(family="basic_arithmetic", level=1, options=_brackets(4, "+-"), must_contain="(", share=0.0625),
    Level(family="complex_arithmetic", level=0, options=_complex(0, 7, "+-"), largest=7, share=0.25),
    Level(family="complex_arithmetic", level=1, options=_complex(0, 9, "+-"), share=0.25),
    Level(family="complex_arithmetic", level=2, options=_complex(-9, 9, "+-"), share=0.0625),
    Level(family="leg_counting", level=0, options=_animals(2, 3), largest=3, share=0.25),
    Level(family="leg_counting", level=1, options=_animals(2, 5), largest=5, share=0.125),
    Level(family="leg_counting", level=2, options=_animals(2, 9), share=0.0625),
)

MAX_ANSWER_SHARE = 0.04
"""No answer makes up more than this share of a level's tasks (plus one task): guessing does not pay."""

STYLES: Mapping[str, float] = {"direct": 0.4, "steps": 0.6}
"""Share of demonstrations that answer at once, and that work step by step. RL elicits the accurate
style, so the shares set the room above the warm start."""
WORKED = "steps"
"""The style whose share a recipe may set (``warm_start.worked``)."""


class Wordings(Record):
    """Prompt texts around an expression ``{e}``. ``gate`` wordings occur in warm-start
    demonstrations, so that the policy knows the words, and never in tasks to train on."""

    tasks: tuple[str, ...]
    gate: tuple[str, ...]


_GATE = ("find {e}", "{e} is what?")
WORDINGS: Mapping[str, Wordings] = {
    "chain_sum": Wordings(tasks=("{e}=", "compute {e}", "sum {e}"), gate=_GATE),
    "basic_arithmetic": Wordings(tasks=("{e}=", "compute {e}", "simplify {e}"), gate=_GATE),
    "complex_arithmetic": Wordings(tasks=("{e}=", "compute {e}", "complex {e}"), gate=_GATE),
    "leg_counting": Wordings(tasks=("legs of {e}", "count legs {e}", "{e} legs?"), gate=("{e} have how many legs?",)),
}
