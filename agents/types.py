"""The vocabulary of judgement: what specialists read and what they return.

Specialists are functions from these records to these records, without side effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Protocol

from pydantic import Field

from trainer.types import Finding, HarnessEdit, HealthReport, Layer, Recipe, Record, ReplayReport, Verdict

Direction = Literal["up", "down"]


class Prediction(Record):
    """What an intervention should do: ``metric`` (a score or a diagnostic's name) moves in
    ``direction`` by at least ``min_effect`` (in the metric's own unit), with ``probability`` if one is given."""

    metric: str
    direction: Direction
    min_effect: float
    probability: Annotated[float, Field(ge=0, le=1)] | None = None

    def signed(self, change: float) -> float:
        """``change`` of the metric, counted in the predicted direction."""
        return change if self.direction == "up" else -change


class Hypothesis(Record):
    """A falsifiable statement and the bottleneck it explains."""

    bottleneck: str
    statement: str


class Diagnosis(Record):
    """ONE bottleneck, its layer and evidence, and the alternatives that were weighed.

    ``bottleneck`` is a key of the playbook (a diagnostic's name, or ``headroom`` when nothing is
    wrong but the score leaves room). ``signature`` identifies the situation: domain, bottleneck and
    the sorted (diagnostic, severity) pairs that are not ok; cases are keyed by it.
    """

    version: str
    bottleneck: str
    layer: Layer
    severity: str
    findings: tuple[Finding, ...]
    hypothesis: str
    alternatives: tuple[str, ...] = ()
    """``key: why not first``, best first; the key before the colon is a bottleneck of the playbook."""
    ties: tuple[str, ...] = ()
    """Other bottlenecks as severe as this one, at layers that the procedure looks at later: its order alone decided."""
    otherwise: str = ""
    """What the procedure that the run began with would have named, where that is another bottleneck."""
    signature: str
    scores: Mapping[str, float] = Field(default_factory=dict)
    """The report's scores, so that the designer's preconditions can name them."""


class Dropped(Record):
    """A considered intervention and why it was not taken."""

    factor: str
    value: str
    reason: str


class Intervention(Record):
    """A single-factor edit with its prediction, rollback and the reasons for it."""

    title: str
    """Short, imperative, fit for a commit subject: ``lower learning rate to 3e-4``."""
    edit: HarnessEdit
    rationale: str
    hypothesis: str
    prediction: Prediction
    success: str
    """The success criterion, one line."""
    rollback: str
    """How it is undone, one line."""
    rule: str
    """Which playbook rule (or skill) proposed it."""
    bottleneck: str = ""
    """What it addresses: the diagnosis' own, or one that ranked behind it."""
    skills: tuple[str, ...] = ()
    dropped: tuple[Dropped, ...] = ()


class Check(Record):
    """One backtest check: name, passed, and the numbers or words behind it."""

    name: str
    passed: bool
    detail: str


class BacktestReport(Record):
    """The backtester's verdict before any training.

    ``untold`` names the checks that had nothing to go by: they did not fail, and passing them says nothing. ``warnings``
    are what a replay holds against the candidate where its record is too bad to refuse.
    """

    verdict: Literal["pass", "refuse"]
    checks: tuple[Check, ...]
    reasons: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    replay: ReplayReport | None = None


class PastPrediction(Record):
    """One trained version: what was predicted, the change a replay foretold of the predicted metric (None where it could
    not tell), and the change that training brought, both in the metric's own unit. ``run`` names an earlier run, and is
    empty for the present one."""

    version: str
    run: str = ""
    factor: str
    prediction: Prediction
    replayed: float | None
    realised: float


class Score(Record):
    """How often of ``n`` forecasts the direction was right, with Wilson's 95 % interval; ``sizes`` are the quartiles of
    realised over foretold change, ``brier`` the mean squared error of stated probabilities."""

    n: int
    hits: int
    low: float
    high: float
    sizes: tuple[float, float, float] | None = None
    brier: float | None = None


class BacktestRecord(Record):
    """The score so far of the designer's predictions and of replays, the latter also by factor family (``reward``)."""

    past: tuple[PastPrediction, ...]
    predictions: Score
    replays: Score
    families: Mapping[str, Score]


class Case(Record):
    """Case memory: what was tried in which situation and how it ended."""

    signature: str
    domain: str
    bottleneck: str
    factor: str
    value: str
    verdict: Verdict | Literal["refused", "failed"]
    delta: float | None = None
    version: str = ""
    reason: str = ""
    minutes: float | None = None
    """Where the candidate was refused for lack of time: the run's budget then. With more minutes it was not tried yet."""
    blocked: bool = False
    """Whether an evolved diagnostic, and not the gate scorer, made it invalid: a metric's word, no lesson for others."""


class Judged(Record):
    """A trained version as the gate and the harness saw it. ``sound``: nothing speaks against it; ``invalid``: its reward rose
    and the gate scorer did not follow; ``open``: neither is shown."""

    version: str
    state: Literal["sound", "invalid", "open"]
    named: tuple[str, ...] = ()
    """Validity diagnostics of the harness that raised their line on it."""


class GapInput(Record):
    """What a diagnosis leaves open. ``failing`` is the share of the tip's late rollouts that fail, ``uncovered`` the share of
    those that no alarmed finding points to."""

    report: HealthReport
    versions: tuple[Judged, ...]
    diagnosis: Diagnosis | None = None
    in_vain: int = 0
    """Trainings since the last step that worked on the diagnosed bottleneck, and brought none."""
    failing: float = 0.0
    uncovered: float = 0.0
    closed: tuple[str, ...] = ()
    """Keys of gaps that an upgrade was tried for."""


class Gap(Record):
    """What the harness cannot see, and on which evidence; ``key`` is the same as long as that evidence is."""

    kind: Literal["score_insufficient", "behaviour_unexplained", "signal_ambiguous", "diagnostics_overlap"]
    key: str
    why: str


class SkillRef(Record):
    """What a specialist sees of a skill (a SKILL.md folder of skills_db)."""

    name: str
    description: str
    domains: tuple[str, ...]
    trigger: str
    """Bottleneck key it applies to."""
    factor: str
    value: str
    """JSON text of the factor's value, or empty where it only advises."""
    wins: int = 0
    losses: int = 0
    body: str = ""
    preconditions: tuple[str, ...] = ()
    """``name op value`` over recipe and findings, as in the playbook; free text is advice only."""
    vetoes: tuple[str, ...] = ()
    """JSON texts of other values of the factor that lost."""


class SkillDraft(Record):
    """What the curator wants written: a new skill, or evidence merged into ``merge_into``."""

    name: str
    description: str
    domain: str
    trigger: str
    factor: str
    value: str
    outcome: Literal["win", "loss"]
    evidence: str
    expected_effect: str
    body: str
    merge_into: str | None = None
    preconditions: tuple[str, ...] = ()


class DiagnoseInput(Record):
    """``parent_report`` is the health report of the version before the champion, if any."""

    domain: str
    report: HealthReport
    recipe: Recipe
    procedure: tuple[Layer, ...]
    parent_report: HealthReport | None = None
    cases: tuple[Case, ...] = ()


class Note(Record):
    """An idea that a person left in the run: ``FACTOR=VALUE``, and the file and line it stands in."""

    source: str
    text: str


class DesignInput(Record):
    domain: str
    diagnosis: Diagnosis
    recipe: Recipe
    terms: tuple[str, ...]
    """Names of reward terms the harness has."""
    cases: tuple[Case, ...] = ()
    skills: tuple[SkillRef, ...] = ()
    refused: tuple[Dropped, ...] = ()
    """Designs already refused by the backtest in this round."""
    fixed: Mapping[str, str] = Field(default_factory=dict)
    """Factors that cannot be changed in this run, and why."""
    memory: tuple[Case, ...] = ()
    """How candidates of other runs ended."""
    notes: tuple[Note, ...] = ()
    escalate: bool = True
    """Whether failures in a row and edits of one family send the search elsewhere."""


class BacktestInput(Record):
    """``declared`` is the intervention; ``actual_factors`` and ``paths`` come from the git diff of
    the candidate; ``config_error`` is the one-line validation error of the candidate, or empty;
    ``record`` says how good replays and predictions of this run have been."""

    domain: str
    intervention: Intervention
    signature: str
    actual_factors: tuple[str, ...]
    paths: tuple[str, ...]
    config_error: str
    replay: ReplayReport | None
    cases: tuple[Case, ...] = ()
    record: BacktestRecord | None = None


class CurateInput(Record):
    domain: str
    diagnosis: Diagnosis
    intervention: Intervention
    verdict: Verdict | Literal["refused", "failed"]
    delta: float | None
    ci: tuple[float, float] | None
    seeds: int
    blocked: bool = False
    """As in Case."""
    harmed: str = ""
    """What the trial measured of the skill it rests on, where that did clear harm and it was refused for it."""
    realised: float | None
    """Measured change of the predicted metric, candidate − parent."""
    skills: tuple[SkillRef, ...] = ()


class CurateOutput(Record):
    """The case to remember (its ``version`` is left to the caller) and the skill to write or merge, if
    it teaches one."""

    case: Case
    skill: SkillDraft | None
    note: str


class Specialists(Protocol):
    """The four roles. The embedded default is agents.playbook.Playbook."""

    name: str

    def diagnose(self, inp: DiagnoseInput) -> Diagnosis: ...

    def design(self, inp: DesignInput) -> Intervention | None:
        """The next intervention, or None when no untried idea is left for this situation."""
        ...

    def backtest(self, inp: BacktestInput) -> BacktestReport: ...

    def curate(self, inp: CurateInput) -> CurateOutput: ...


class Decision(Record):
    """One record per specialist call, append-only."""

    schema_version: int = 1
    id: str
    run_id: str
    version: str
    role: Literal["diagnostician", "designer", "backtester", "curator"]
    inputs: Mapping[str, str] = Field(default_factory=dict)
    """Name to reference (version, commit, file) of what was read."""
    output: Mapping[str, object] = Field(default_factory=dict)
    rationale: str = ""
    model: str = "playbook"
    tokens: int = 0
    cost_usd: float = 0.0
    duration_s: float = 0.0
