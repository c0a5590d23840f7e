"""The playbook's tables (``playbook.toml``) as validated records.

A *bottleneck* says which findings count as it, what else it explains, how the hypothesis reads and
which ideas to try in which order. An *idea* changes one factor. Ideas are named and shared.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from agents.edits import OPTIONS, TERM, WEIGHT, apply_change, make_change
from agents.facts import DERIVED, NAMESPACES, Condition, placeholders
from agents.types import Prediction
from trainer.types import InputError, Layer, Recipe, Record, RewardTerm

DEFAULT = Path(__file__).with_name("playbook.toml")


def _triple(value: Any) -> Any:
    if isinstance(value, list):
        if len(value) != 3:
            raise ValueError("a condition is [name, op, value]")
        return {"left": value[0], "op": value[1], "right": value[2]}
    return value


def _known(condition: Condition) -> Condition:
    left = condition.left
    if left not in OPTIONS and left not in DERIVED and not left.startswith(NAMESPACES):
        raise ValueError(f"condition names the unknown fact {left!r}")
    return condition


Triple = Annotated[Condition, BeforeValidator(_triple), Field()]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Idea(Record):
    """One single-factor intervention.

    ``factor`` is an option path, ``reward.weights.<term>`` (``*``: every shaping term, heaviest first; ``?``:
    of those the ones that did not run)
    or ``reward.term.<name>`` (then ``term`` is the file and ``values`` are weights). ``values`` are
    tried in order, each combined with the present value as ``how`` says; results outside
    ``low``..``high`` are dropped. ``next`` names ideas to favour after this one failed.
    """

    factor: str
    title: str
    """Imperative, fit for a commit subject; may hold ``{value}`` and ``{factor}``."""
    how: Literal["set", "multiply", "add"] = "set"
    values: Annotated[tuple[Any, ...], Field(min_length=1)]
    low: Number | None = None
    high: Number | None = None
    digits: Annotated[int, Field(ge=1, le=6)] = 2
    """Significant digits a computed value is rounded to."""
    when: tuple[Triple, ...] = ()
    domains: tuple[str, ...] = ()
    """Domains it is meant for; empty means all."""
    because: str
    """The mechanism, one sentence."""
    source: str
    predict: Prediction | None = None
    """Overrides the bottleneck's prediction."""
    next: tuple[str, ...] = ()
    term: RewardTerm | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Idea:
        for condition in self.when:
            _known(condition)
        _check_template(self.title, ("value", "factor"))
        if self.factor.startswith(TERM) != (self.term is not None):
            raise ValueError("a factor reward.term.<name> and a [term] table belong together")
        if self.term is not None and (self.factor != TERM + self.term.name or self.how != "set"):
            raise ValueError(f"factor must be {TERM}{self.term.name} with how = 'set'")
        if self.how == "set":
            for value in self.values:
                term = {"term": self.term, "weight": value} if self.term else value
                apply_change(Recipe(), make_change(self.factor, term))
        else:
            present = {**Recipe().model_dump(mode="json")}
            for key in () if self.factor.startswith(WEIGHT) else self.factor.split("."):
                if not isinstance(present, dict) or key not in present:
                    raise ValueError(f"{self.factor} is not a factor of the recipe")
                present = present[key]
            numbers = [*self.values] if self.factor.startswith(WEIGHT) else [*self.values, present]
            if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers):
                raise ValueError(f"how = {self.how!r} needs numbers")
        return self


class Bottleneck(Record):
    """One thing that may hold the score back.

    It is present when a diagnostic in ``diagnostics`` (default: its own name) is at warn or critical,
    or when all conditions of one row of ``signs`` hold (then its severity is critical). ``explains``
    lists bottlenecks that are its symptoms. A diagnostic's name may hold ``*``: ``reward/*`` is a faulty term.
    """

    layer: Layer
    diagnostics: tuple[str, ...] = ()
    signs: tuple[tuple[Triple, ...], ...] = ()
    explains: tuple[str, ...] = ()
    statement: str
    """The hypothesis with ``{fact}`` placeholders."""
    predict: Prediction
    ideas: Annotated[tuple[str, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Bottleneck:
        for row in self.signs:
            for condition in row:
                _known(condition)
        _check_template(self.statement, None)
        return self


class Ranking(Record):
    """Weights of the designer's cost, in places of a ranked list: 1.0 moves an idea down by one place."""

    value_step: float
    tier_step: Mapping[Literal["ok", "warn", "critical"], float]
    failed_factor: float
    failed_elsewhere: float
    won_elsewhere: float
    family_streak: float
    layer_streak: float
    addition: float
    follow: float
    skill_win: float
    skill_loss: float
    foreign_skill: float
    outside: float


class Rules(Record):
    """The whole playbook. The order of ``bottlenecks`` is their priority among equals."""

    schema_version: Literal[1]
    healthy: Annotated[tuple[str, ...], Field(min_length=1)]
    """Bottlenecks without diagnostics: the first whose signs hold, else the last, when nothing is wrong."""
    fallbacks: tuple[str, ...]
    """Where the designer looks when the bottleneck and its alternatives have no idea left."""
    ranking: Ranking
    ideas: Mapping[str, Idea]
    bottlenecks: Mapping[str, Bottleneck]

    @model_validator(mode="after")
    def _consistent(self) -> Rules:
        for name, idea in self.ideas.items():
            _refer(f"ideas.{name}.next", idea.next, self.ideas)
        for name, item in self.bottlenecks.items():
            _refer(f"bottlenecks.{name}.ideas", item.ideas, self.ideas)
            _refer(f"bottlenecks.{name}.explains", item.explains, self.bottlenecks)
        _refer("healthy", self.healthy, self.bottlenecks)
        _refer("fallbacks", self.fallbacks, self.bottlenecks)
        try:
            TopologicalSorter({name: item.explains for name, item in self.bottlenecks.items()}).prepare()
        except CycleError as error:
            raise ValueError(f"explains goes in a circle: {' → '.join(error.args[1])}") from None
        return self

    def keys_of(self, diagnostic: str) -> tuple[str, ...]:
        """Bottlenecks a diagnostic counts as; an unknown diagnostic stands for itself."""
        keys = tuple(k for k, b in self.bottlenecks.items() if _named(diagnostic, b.diagnostics or (k,)))
        return keys or (diagnostic,)


def _named(diagnostic: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(diagnostic, pattern) for pattern in patterns)


def _refer(field: str, names: tuple[str, ...], table: Mapping[str, object]) -> None:
    for name in names:
        if name not in table:
            raise ValueError(f"{field} names {name!r}, which is not defined")


def _check_template(template: str, allowed: tuple[str, ...] | None) -> None:
    for name, spec in placeholders(template):
        if allowed is not None and name not in allowed:
            raise ValueError(f"unknown placeholder {{{name}}}; known: {', '.join(allowed)}")
        try:
            format(1.0, spec)
        except ValueError:
            raise ValueError(f"placeholder {{{name}:{spec}}} has a bad format") from None


def load_rules(path: Path | None = None) -> Rules:
    """Read and validate a playbook. Raises InputError naming the file, the field and what to do."""
    path = path or DEFAULT
    try:
        return Rules.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name a playbook file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not TOML ({error}); correct the file") from None
    except ValidationError as error:
        # An unknown key is the better clue: the missing one beside it is usually the same key, misspelt.
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        field = ".".join(str(part) for part in first["loc"]) or "file"
        why = first["msg"].removeprefix("Value error, ").replace("\n", " ")
        raise InputError(f"{path}: {field}: {why}; see agents/playbook.toml for the form") from None
