"""Facts by name: what conditions and sentences of the playbook may speak of.

Names are flat: ``domain``; recipe options as in ``optim.lr`` and ``reward.weights.brevity``;
``updates_per_batch`` and ``shaping_terms`` (derived from the recipe); ``faulty_terms`` (names, where paid terms did not run); ``findings.<diagnostic>`` (its
value), ``severity.<diagnostic>`` (0 ok, 1 info, 2 warn, 3 critical), ``count.warn`` (warn or worse)
and ``count.critical``; ``scores.<name>`` and ``scores.gap`` (pass@k − mean on validation);
``delta.<name>`` (score minus the parent's); ``trends.<metric>.first|last|rise|fall`` where ``fall`` is
peak minus last.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from trainer.types import Finding, Recipe, Record

Scalar = bool | int | float | str
Fact = Scalar | tuple[int, ...] | tuple[str, ...]
Facts = Mapping[str, Fact]
Op = Literal["==", "!=", "<", "<=", ">", ">=", "in", "not in"]

SEVERITY_RANK: Mapping[str, int] = {"ok": 0, "info": 1, "warn": 2, "critical": 3}
DERIVED = ("domain", "updates_per_batch", "shaping_terms", "faulty_terms", "count.warn", "count.critical")
NAMESPACES = ("reward.weights.", "findings.", "severity.", "scores.", "delta.", "trends.")

_OPS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
_PLACEHOLDER = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")


class Condition(Record):
    """``left op right`` where ``left`` names a fact. An unknown fact satisfies nothing; a diagnostic
    that the report does not have is not alarming (``severity.<it>`` is 0)."""

    left: str
    op: Op
    right: Scalar | tuple[Scalar, ...]

    def holds(self, facts: Facts) -> bool:
        present = facts.get(self.left, 0 if self.left.startswith("severity.") else None)
        if present is None:
            return False
        try:
            return _OPS[self.op](present, self.right)
        except TypeError:  # a number against a word: not comparable, hence not satisfied
            return False

    def __str__(self) -> str:
        return f"{self.left} {self.op} {json.dumps(self.right)}"


def parse_condition(text: str) -> Condition | None:
    """Inverse of ``str(condition)``; None for free text."""
    match = re.fullmatch(r"(\S+) (==|!=|<=|>=|<|>|not in|in) (.+)", text.strip())
    if match is None:
        return None
    left, op, right = match.groups()
    try:
        return Condition.model_validate({"left": left, "op": op, "right": json.loads(right)})
    except ValueError:
        return None


def unmet(conditions: Iterable[Condition], facts: Facts) -> str:
    """The first condition that fails, with the present value; empty if all hold."""
    for condition in conditions:
        if not condition.holds(facts):
            return f"{condition} is not met (it is {show(facts.get(condition.left, 'unknown'))})"
    return ""


def gather(
    domain: str,
    recipe: Recipe,
    findings: Sequence[Finding],
    scores: Mapping[str, float],
    *,
    terms: Sequence[str] = (),
    parent_scores: Mapping[str, float] | None = None,
    trends: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, Fact]:
    """All facts of one situation; see the module's docstring for the names."""
    # A term without a weight weighs nothing, so conditions may compare every term's weight.
    facts: dict[str, Fact] = {f"reward.weights.{term}": 0.0 for term in ("outcome", *terms)}
    facts |= recipe.options()
    facts["domain"] = domain
    batch, mini = recipe.data.train_batch_size, recipe.actor.ppo_mini_batch_size
    facts["updates_per_batch"] = recipe.actor.ppo_epochs * (math.ceil(batch / mini) if mini else 1)
    facts["shaping_terms"] = sum(1 for term, w in recipe.reward.weights.items() if term != "outcome" and w)
    for finding in findings:
        facts[f"severity.{finding.diagnostic}"] = SEVERITY_RANK[finding.severity]
        if finding.value is not None:
            facts[f"findings.{finding.diagnostic}"] = finding.value
    alarms = [f.diagnostic for f in findings if SEVERITY_RANK[f.severity] >= SEVERITY_RANK["warn"]]
    if faulty := tuple(name.removeprefix("reward/") for name in alarms if name.startswith("reward/")):
        facts["faulty_terms"] = faulty
    for name in ("warn", "critical"):
        facts[f"count.{name}"] = sum(1 for f in findings if SEVERITY_RANK[f.severity] >= SEVERITY_RANK[name])
    facts |= {f"scores.{name}": value for name, value in scores.items()}
    ceiling = next((value for name, value in sorted(scores.items()) if name.startswith("validation/pass@")), None)
    if ceiling is not None and "validation/mean" in scores:
        facts["scores.gap"] = ceiling - scores["validation/mean"]
    for name, value in (parent_scores or {}).items():
        if name in scores:
            facts[f"delta.{name}"] = scores[name] - value
    for metric, series in (trends or {}).items():
        if series:
            first, last = series[0], series[-1]
            facts |= {f"trends.{metric}.first": first, f"trends.{metric}.last": last}
            facts |= {f"trends.{metric}.rise": last - first, f"trends.{metric}.fall": max(series) - last}
    return facts


def show(value: object) -> str:
    """A value as a person writes it: ``3e-4``, ``0.28``, ``on``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        if value and abs(value) < 1e-2:
            mantissa, exponent = f"{value:.3e}".split("e")
            return f"{float(mantissa):g}e{int(exponent)}"
        return f"{value:.4g}"
    if isinstance(value, tuple | list):
        return "+".join(str(v) for v in value) or "all"
    return str(value)


def fill(template: str, facts: Mapping[str, Fact]) -> str:
    """Replace ``{name}`` and ``{name:spec}`` by facts (formatted with ``spec``); unknown ones read ``unknown``."""

    def one(match: re.Match[str]) -> str:
        name, spec = match.group(1), match.group(2)
        if name not in facts:
            return "unknown"
        value = facts[name]
        return format(value, spec) if spec and not isinstance(value, tuple | str) else show(value)

    return _PLACEHOLDER.sub(one, template)


def placeholders(template: str) -> tuple[tuple[str, str], ...]:
    """(name, format spec) of every placeholder."""
    return tuple((m.group(1), m.group(2) or "") for m in _PLACEHOLDER.finditer(template))
