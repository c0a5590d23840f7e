"""The frozen protocol, its scores, and the reports made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.types.base import SCHEMA_VERSION, DiagnosticKind, Layer, Record, Severity


class EvalProtocol(Record):
    """The frozen evaluation protocol of a run: suites, samples per task, temperature, seeds.

    ``hash`` (see trainer.evaluation.protocol_hash) also covers the evaluation code and task ids;
    evaluations with different hashes are never compared.
    """

    schema_version: int = SCHEMA_VERSION
    domain: str
    k: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(gt=0)]
    max_response_length: int
    sampling_seed: int
    validation: int
    sealed: int


class Evaluation(Record):
    """Scores of one policy on one suite: ``scores[i][j]`` is the outcome of sample j on task i."""

    schema_version: int = SCHEMA_VERSION
    suite: Literal["validation", "gate", "sealed"]
    version: str
    seed: int
    protocol_hash: str
    task_ids: tuple[str, ...]
    scores: tuple[tuple[float, ...], ...]
    wall_s: float = 0.0
    tokens: int = 0

    @property
    def mean(self) -> float:
        """Avg@k: mean over tasks of the mean over samples."""
        return sum(sum(row) / len(row) for row in self.scores) / len(self.scores)


class Finding(Record):
    """One diagnostic's reading of one version."""

    diagnostic: str
    kind: DiagnosticKind
    layer: Layer
    severity: Severity
    value: float | None
    line: float
    description: str
    evidence: tuple[str, ...] = ()
    """Rollout ids to look at."""
    error: str = ""


class HealthReport(Record):
    """All findings of one version and the scores they belong to."""

    version: str
    findings: tuple[Finding, ...]
    scores: Mapping[str, float]
    """Named scores: validation/mean, validation/pass@k, gate/mean, train/score/first, train/score/last …"""
    trends: Mapping[str, tuple[float, ...]] = Field(default_factory=dict)
    """Metric name (verl's) to its mean over seeds in ten equal parts of the training."""


class ReplayReport(Record):
    """What a candidate harness would have made of stored rollouts of its parent (no training).

    ``applicable`` is False where a replay cannot tell anything about the factor.
    """

    factor: str
    applicable: bool
    rollouts: int = 0
    groups: int = 0
    metrics: Mapping[str, tuple[float, float]] = Field(default_factory=dict)
    """Name to (parent, candidate): signal_groups (share of groups with spread), kept_tokens (share),
    order_agreement (within-group rank agreement of reward with outcome), score/mean, …"""
    findings: tuple[Finding, ...] = ()
    """What changed diagnostics read on the stored rollouts."""
    note: str = ""


JsonDict = dict[str, Any]
