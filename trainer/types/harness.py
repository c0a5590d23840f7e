"""The parts of a harness and its edits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from trainer.types.base import DiagnosticKind, Layer, Record
from trainer.types.recipe import Recipe

# Columns every rollout table has; reward terms and diagnostics may use them, next to the domain's
# feature columns and one column ``term_<name>`` per reward term.
ROLLOUT_COLUMNS: Mapping[str, str] = {
    "step": "BIGINT", "seed": "BIGINT", "group_id": "VARCHAR", "rollout_id": "VARCHAR",
    "task_id": "VARCHAR", "family": "VARCHAR", "level": "BIGINT", "prompt": "VARCHAR",
    "response": "VARCHAR", "answer": "VARCHAR", "extracted": "VARCHAR", "outcome": "DOUBLE",
    "score": "DOUBLE", "advantage": "DOUBLE", "kept": "BOOLEAN", "response_length": "BIGINT",
    "max_response_length": "BIGINT", "turns": "BIGINT", "truncated": "BOOLEAN", "stop_reason": "VARCHAR",
    "mean_logprob": "DOUBLE", "entropy": "DOUBLE", "visible": "DOUBLE", "sandbox": "VARCHAR",
    "hint_length": "BIGINT",
}  # fmt: skip
# The columns a reward term may read: what is known about a rollout before it is scored.
REWARD_COLUMNS: tuple[str, ...] = (
    "task_id", "family", "level", "response", "extracted", "outcome", "response_length",
    "max_response_length", "turns", "truncated", "stop_reason",
)  # fmt: skip


class RewardTerm(Record):
    """One named reward term over REWARD_COLUMNS and the domain's features: either ``sql``, a DuckDB expression of one
    rollout's columns, or ``python``, the text of a module that defines ``reward(rows)``: one finite number per row, each
    row a dict of those columns. Rows come in batches of whole groups; see trainer.python_parts."""

    name: str
    description: str
    sql: str = ""
    python: str = ""
    source: str = ""


class Diagnostic(Record):
    """One diagnostic of the health report.

    ``metric`` is one SELECT over the view ``rollouts`` (all training rollouts of one version) that
    yields a single number; ``evidence`` is one SELECT that yields the rollouts (or groups) to look
    at. In place of both, ``python`` is the text of a module that defines ``metric(rollouts)`` over an iterator of
    dicts, a number, and perhaps ``evidence(rollouts)``, rollout ids. ``warn`` and ``critical`` are lines; ``above``
    says on which side trouble lies.
    """

    name: str
    kind: DiagnosticKind = "pathology"
    layer: Layer
    description: str
    metric: str = ""
    above: bool = True
    warn: float
    critical: float
    evidence: str = ""
    python: str = ""
    source: str = ""


class SetOption(Record):
    """Set one recipe option, ``path`` dotted as in ``optim.lr``."""

    kind: Literal["option"] = "option"
    path: str
    value: bool | int | float | str | tuple[int, ...]


class SetWeight(Record):
    """Set the weight of one reward term (0 removes it from the sum)."""

    kind: Literal["weight"] = "weight"
    term: str
    value: float


class PutTerm(Record):
    """Add or replace one reward term file together with its weight."""

    kind: Literal["term"] = "term"
    term: RewardTerm
    weight: float


class PutDiagnostic(Record):
    """Add or replace one diagnostic file; changes no training."""

    kind: Literal["diagnostic"] = "diagnostic"
    diagnostic: Diagnostic


class DropDiagnostic(Record):
    """Remove one diagnostic file; changes no training."""

    kind: Literal["drop"] = "drop"
    name: str


class SetProcedure(Record):
    """The order in which the diagnostician looks at the layers of evidence; changes no training."""

    kind: Literal["procedure"] = "procedure"
    order: tuple[Layer, ...]


Change = Annotated[
    SetOption | SetWeight | PutTerm | PutDiagnostic | DropDiagnostic | SetProcedure, Field(discriminator="kind")
]


class HarnessEdit(Record):
    """One change of the harness. ``factor`` is derived: ``optim.lr``, ``reward.weights.brevity``,
    ``reward.term.brevity``, ``diagnostics.dead_groups``, ``procedure``; the declared factor must equal the diff."""

    change: Change

    @property
    def factor(self) -> str:
        c = self.change
        match c:
            case SetOption():
                return c.path
            case SetWeight():
                return f"reward.weights.{c.term}"
            case PutTerm():
                return f"reward.term.{c.term.name}"
            case PutDiagnostic():
                return f"diagnostics.{c.diagnostic.name}"
            case DropDiagnostic():
                return f"diagnostics.{c.name}"
            case SetProcedure():
                return "procedure"


class Harness(Record):
    """A harness commit, parsed: everything a training or a health report needs of it."""

    commit: str
    recipe: Recipe
    terms: Mapping[str, RewardTerm]
    diagnostics: Mapping[str, Diagnostic]
    procedure: tuple[Layer, ...] = ("score", "signal", "behaviour", "version")

    @property
    def python_parts(self) -> tuple[str, ...]:
        """Paths of the parts that are Python, which run in a sandbox only."""
        terms = (f"reward/{name}.toml" for name, term in self.terms.items() if term.python)
        diagnostics = (f"diagnostics/{name}.toml" for name, d in self.diagnostics.items() if d.python)
        return (*terms, *diagnostics)
