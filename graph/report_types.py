"""What a report shows, as plain data: the graph fills these records in, ``graph.report`` draws them.

Scores and deltas are shares (0 to 1) of tasks solved; the report shows them in percent and percentage points.
Every text may come from a rollout or a model and is escaped when it is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from agents.types import BacktestRecord, BacktestReport, Diagnosis, Intervention, Prediction, SkillRef
from trainer.gate_types import GateReport
from trainer.types import SCHEMA_VERSION, Cost, Finding, Layer, Record, Verdict

RowVerdict = Verdict | Literal["baseline", "refused", "failed", "open"]


class Estimate(Record):
    """A mean with its 95 % interval over ``n`` observations (tasks, or paired tasks of a delta)."""

    mean: float
    ci_low: float
    ci_high: float
    n: int = 0


class Floor(Record):
    """The noise floor, measured before the first candidate: the standard deviation of one training seed's score over ``seeds``
    of the baseline and ``borrowed`` degrees of freedom of earlier runs; ``mde`` is the effect that a test finds."""

    sigma: float
    mde: float
    seeds: int
    borrowed: float = 0.0


class PolicyRow(Record):
    """One policy of the headline comparison, say ``champion`` or ``warm start``."""

    role: str
    version: str = ""
    sealed: Estimate | None = None
    validation: Estimate | None = None
    checkpoint: str = ""


class VersionRow(Record):
    """One version: the line of the table, and the story behind it.

    ``factor``, ``old`` and ``new`` are empty for the baseline; ``realised`` is the measured change of the predicted
    metric, in its own unit; ``gate`` holds the figures behind a verdict, None before one or for an old record;
    ``early`` has a line for each training that ended before its tokens were used; ``diff`` is the unified git diff of harness
    parent and candidate.
    """

    version: str
    parent: str | None = None
    verdict: RowVerdict
    reasons: tuple[str, ...] = ()
    factor: str = ""
    old: str = ""
    new: str = ""
    realised: float | None = None
    delta: Estimate | None = None
    seeds: int = 0
    early: tuple[str, ...] = ()
    harness_commit: str = ""
    diagnosis: Diagnosis | None = None
    intervention: Intervention | None = None
    backtest: BacktestReport | None = None
    gate: GateReport | None = None
    diff: str = ""


class ChainRow(Record):
    """A chain of provisional steps and its test: ``steps`` begins with what main held. ``selected`` is the gain on the seeds
    that chose the tip, ``fresh`` the one on seeds that chose nothing; ``sigma`` is the noise floor, ``mde`` what the test
    could find."""

    steps: tuple[str, ...]
    verdict: RowVerdict
    selected: Estimate
    fresh: Estimate | None = None
    seeds: int = 0
    sigma: float | None = None
    mde: float | None = None
    reasons: tuple[str, ...] = ()


class Reading(Record):
    """One finding with both lines of its diagnostic and what the parent reads; ``above`` says where trouble lies."""

    finding: Finding
    warn: float
    critical: float
    above: bool = True
    parent: float | None = None


class Course(Record):
    """One training metric in ten equal parts of the training, and the parent's."""

    metric: str
    values: tuple[float, ...]
    parent: tuple[float, ...] = ()


class Change(Record):
    """The version layer: what changed against the parent, what it did to tasks, and how earlier tries of the factor ended.

    ``gained`` and ``lost`` as in SolveRates; ``earlier`` has one line per version.
    """

    parent: str
    factor: str
    title: str
    prediction: Prediction
    realised: float | None
    verdict: str
    delta: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    gained: int = 0
    lost: int = 0
    earlier: tuple[str, ...] = ()


class Health(Record):
    """The health report of one version: four layers of evidence, each against its lines, its course and its parent.

    ``courses`` are by layer; ``scores`` are pairs of the version's and the parent's. ``run`` is the run's folder.
    """

    schema_version: int = SCHEMA_VERSION
    run: str
    version: str
    scores: Mapping[str, tuple[float, float | None]]
    readings: tuple[Reading, ...]
    courses: Mapping[Layer, tuple[Course, ...]]
    change: Change | None = None


class Curve(Record):
    """One metric of one version over sampled tokens: mean over seeds, and the lowest and highest seed."""

    version: str
    metric: str
    seeds: int
    x: tuple[float, ...]
    """Sampled tokens since the start of the training, increasing; the other fields have the same length."""
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class SolveRates(Record):
    """One version's share of solved samples on each validation task; all versions list the tasks in the same order.

    ``gained`` and ``lost`` count tasks that crossed one half against the parent, up and down.
    """

    version: str
    rates: tuple[float, ...]
    gained: int = 0
    lost: int = 0


class PaidTerm(Record):
    """One reward term's value on a rollout, and its weight in the reward (0: looked at, not paid)."""

    name: str
    value: float
    weight: float


class SampleRollout(Record):
    """One training rollout to look at, with every reward term."""

    rollout_id: str
    version: str
    step: int
    prompt: str
    response: str
    answer: str
    extracted: str | None
    outcome: float
    score: float
    advantage: float = 0.0
    response_length: int = 0
    truncated: bool = False
    terms: tuple[PaidTerm, ...] = ()


class HarnessCommit(Record):
    """One commit of the harness's first-parent history, newest first in a report."""

    commit: str
    subject: str
    body: str = ""


class CostRow(Record):
    """What one item (a version's trainings, evaluation, warm start …) used."""

    item: str
    cost: Cost


class Command(Record):
    """A command to go on with and what it is for."""

    purpose: str
    command: str


class Seen(Record):
    """A gap in what the harness measured, and what came of it before ``version`` was designed.

    ``name`` and the lines are those of the diagnostic that was registered, empty where nothing was; ``why_not`` says why.
    ``held_out`` is the rule's separation on tasks that were not searched. ``blocked`` are versions whose gain it made invalid,
    ``named`` those whose diagnosis it was; without it these would have differed. ``first_right`` and ``first_wrong`` are the
    first later versions on which it raised its line with the gate scorer's word for and against it.
    """

    version: str
    gap: str
    name: str = ""
    kind: str = ""
    rule: str = ""
    held_out: Estimate | None = None
    healthy: tuple[float, ...] = ()
    bad: tuple[float, ...] = ()
    warn: float = 0.0
    critical: float = 0.0
    labels: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    first_right: str = ""
    first_wrong: str = ""
    retired: str = ""


class ReportData(Record):
    """Everything one report shows; all parts but the header may be empty.

    On sealed tasks, ``learned`` is baseline minus warm start and ``gain`` champion minus baseline. ``status`` is the run's own word (``done``, ``interrupted`` …).
    """

    run: str
    domain: str
    seed: int
    status: str
    sandbox: str = "none"
    wall_s: float
    train_s: float = 0.0
    orchestration_share: float | None = None
    policy: str = ""
    protocol_hash: str = ""
    champion: str = ""
    tip: str = ""
    """Where the search stands: the champion, or the end of a chain that is not certified."""
    baseline: str = ""
    floor: Floor | None = None
    policies: tuple[PolicyRow, ...] = ()
    learned: Estimate | None = None
    gain: Estimate | None = None
    versions: tuple[VersionRow, ...] = ()
    chains: tuple[ChainRow, ...] = ()
    track: BacktestRecord | None = None
    rates: tuple[SolveRates, ...] = ()
    health: Health | None = None
    seen: tuple[Seen, ...] = ()
    curves: tuple[Curve, ...] = ()
    rollouts: tuple[SampleRollout, ...] = ()
    skills: tuple[SkillRef, ...] = ()
    history: tuple[HarnessCommit, ...] = ()
    costs: tuple[CostRow, ...] = ()
    commands: tuple[Command, ...] = ()
