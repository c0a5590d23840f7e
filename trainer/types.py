"""The vocabulary of training: what goes into a job and what comes out of it.

Every record is frozen and refuses unknown keys, so that a typo in a file is an error with a name
instead of a silent default. Records that are written to disk carry ``schema_version``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1

Layer = Literal["score", "signal", "behaviour", "version"]
Severity = Literal["ok", "info", "warn", "critical"]
DiagnosticKind = Literal["pathology", "validity"]
Verdict = Literal["promoted", "provisional", "rejected", "undecided", "invalid", "unconfirmed", "no_information"]


class Record(BaseModel):
    """Base of all records: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def flatten(tree: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and leaf values of nested tables."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{head}{key}.")
        else:
            yield head + key, value


class InputError(Exception):
    """Bad input from outside (config, task file, checkpoint, run directory).

    The message is one line that names the file, the field and the remedy; the command line prints
    it and exits with 2. Nothing in the project catches it to go on.
    """


# --------------------------------------------------------------------------------------- tasks


class Message(Record):
    """One chat message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Case(Record):
    """One test of a program. ``given``: a JSON array of arguments (mode ``call``) or the text of standard input;
    ``expected``: the value as JSON (tagged as in sandboxes.types.CaseResult) or the output."""

    given: str
    expected: str


class Tests(Record):
    """How a program is tested. Expected outputs never enter the process that runs it.

    ``visible`` cases may be shown and rewarded; ``hidden`` ones decide the outcome. ``prelude`` is put before the
    program. ``checker`` is Python source with ``accept(cases)`` for problems with several right answers: it gets a
    list of [given, expected, output] and returns a list of bool; it runs in a sandboxed process of its own, and only
    for cases that are not equal. ``tolerance`` is the relative and absolute difference forgiven between floats.
    """

    __test__: ClassVar[bool] = False  # pytest would take the name for a test's

    mode: Literal["call", "stdin"] = "call"
    entry: str = ""
    visible: tuple[Case, ...] = ()
    hidden: tuple[Case, ...]
    prelude: str = ""
    checker: str = ""
    tolerance: Annotated[float, Field(ge=0)] = 0.0
    time_s: Annotated[float, Field(gt=0)] = 2.0
    memory_mb: Annotated[int, Field(gt=0)] = 256


class Task(Record):
    """One problem with a checkable answer.

    ``id`` is a content hash (domain, family, canonical problem), stable over rendering; ``family``
    and ``level`` name the generator and its difficulty; ``tag`` is free text from a task file.
    """

    id: str
    domain: str
    family: str
    level: int = 0
    messages: tuple[Message, ...]
    answer: str
    tag: str = ""
    tests: Tests | None = None


class Demonstration(Record):
    """A prompt with the reply that supervised warm start imitates; ``style`` names how it is written."""

    messages: tuple[Message, ...]
    reply: str
    style: str


class Judged(Record):
    """What the domain's fixed verifier says of one reply.

    ``outcome`` is 1.0 only for an exact, strictly extracted answer. ``features`` are named numbers
    that reward terms and diagnostics may use as columns (for instance ``format_ok``). ``visible`` is what a weaker
    verifier, the visible tests alone, would say (equal to ``outcome`` where a domain has none). ``valid`` is False
    where our own machinery failed: such a rollout is masked from rewards and never scored.
    """

    outcome: float
    answer: str | None
    visible: float | None = None
    valid: bool = True
    features: Mapping[str, float] = Field(default_factory=dict)


class Domain(Protocol):
    """A family of tasks with its verifier. Pure and deterministic: no clock, no global state."""

    name: str
    feature_names: tuple[str, ...]
    """Keys of ``Judged.features``, the same for every reply."""
    prompt_length_hint: int
    """Upper bound of prompt tokens with the default policy's tokenizer."""
    note: str
    """One line about what was read (rows skipped, say), or empty."""

    def tasks(self, split: Literal["train", "validation", "sealed"], count: int, shard: int = 0) -> list[Task]:
        """``count`` distinct tasks of a split; splits are disjoint by content hash and a task of
        one split never appears in another. ``shard`` selects disjoint slices of a split."""
        ...

    def gate_tasks(self, validation: Sequence[Task]) -> list[Task]:
        """One perturbed, re-rendered task per validation task (same order): the gate scorer's
        suite. Never a reward and never trained on."""
        ...

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        """Warm-start demonstrations on train tasks, in mixed styles."""
        ...

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        """Score finished replies, one task each, in order; never raises on any text."""
        ...

    def observe(self, task: Task, turns: Sequence[str]) -> str | None:
        """The environment's next observation after the given assistant turns, or None when the
        episode is over. Single-turn domains always return None."""
        ...

    def close(self) -> None:
        """End what the domain runs (sandboxes); the domain is not used afterwards."""
        ...


# -------------------------------------------------------------------------------------- recipe


class OptimRecipe(Record):
    """AdamW options (verl: ``actor_rollout_ref.actor.optim``)."""

    lr: Annotated[float, Field(gt=0, le=1)] = 3e-4
    lr_warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01


class FilterGroups(Record):
    """DAPO's dynamic sampling (verl: ``algorithm.filter_groups``): drop groups without spread in
    ``metric`` and refill at most ``max_num_gen_batches`` times."""

    enable: bool = False
    metric: Literal["outcome", "score"] = "outcome"
    max_num_gen_batches: Annotated[int, Field(ge=1, le=20)] = 3


class AlgorithmRecipe(Record):
    """verl: ``algorithm``."""

    adv_estimator: Literal["grpo", "rloo"] = "grpo"
    norm_adv_by_std_in_grpo: bool = True
    filter_groups: FilterGroups = FilterGroups()


LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KlKind = Literal["kl", "abs", "mse", "low_var_kl"]


class ActorRecipe(Record):
    """verl: ``actor_rollout_ref.actor``. ``ppo_mini_batch_size`` counts prompts; 0 means the whole batch."""

    clip_ratio_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_ratio_high: Annotated[float, Field(gt=0, lt=10)] = 0.2
    clip_ratio_c: Annotated[float, Field(gt=1)] = 3.0
    loss_agg_mode: LossAggMode = "token-mean"
    entropy_coeff: Annotated[float, Field(ge=0, le=1)] = 0.0
    use_kl_loss: bool = True
    kl_loss_coef: Annotated[float, Field(ge=0, le=10)] = 0.001
    kl_loss_type: KlKind = "low_var_kl"
    ppo_epochs: Annotated[int, Field(ge=1, le=16)] = 1
    ppo_mini_batch_size: Annotated[int, Field(ge=0)] = 0
    grad_clip: Annotated[float, Field(gt=0)] = 1.0


class RolloutRecipe(Record):
    """verl: ``actor_rollout_ref.rollout``."""

    n: Annotated[int, Field(ge=2, le=256)] = 8
    temperature: Annotated[float, Field(gt=0, le=5)] = 1.0


class DataRecipe(Record):
    """verl: ``data``. ``train_batch_size`` counts prompts; ``levels`` empty means all levels."""

    train_batch_size: Annotated[int, Field(ge=1, le=4096)] = 32
    max_response_length: Annotated[int, Field(ge=4, le=4096)] = 64
    levels: tuple[int, ...] = ()


class RewardRecipe(Record):
    """The training reward: the weighted sum of the harness's terms (files ``reward/<term>.toml``).

    ``tests`` says which verifier the terms see: ``visible`` pays for the tests a task shows, a weak verifier that can be
    gamed; the outcome that selects and reports stays with the hidden ones.
    """

    tests: Literal["hidden", "visible"] = "hidden"
    weights: Mapping[str, float] = Field(default_factory=lambda: {"outcome": 1.0})


class Recipe(Record):
    """All options of one training, as in the harness's ``recipe.toml``."""

    optim: OptimRecipe = OptimRecipe()
    algorithm: AlgorithmRecipe = AlgorithmRecipe()
    actor: ActorRecipe = ActorRecipe()
    rollout: RolloutRecipe = RolloutRecipe()
    data: DataRecipe = DataRecipe()
    reward: RewardRecipe = RewardRecipe()

    def options(self) -> dict[str, Any]:
        """All options by dotted path, reward weights included."""
        return dict(flatten(self.model_dump()))


# ------------------------------------------------------------------------------- harness parts

# Columns every rollout table has; reward terms and diagnostics may use them, next to the domain's
# feature columns and one column ``term_<name>`` per reward term.
ROLLOUT_COLUMNS: Mapping[str, str] = {
    "step": "BIGINT", "seed": "BIGINT", "group_id": "VARCHAR", "rollout_id": "VARCHAR",
    "task_id": "VARCHAR", "family": "VARCHAR", "level": "BIGINT", "prompt": "VARCHAR",
    "response": "VARCHAR", "answer": "VARCHAR", "extracted": "VARCHAR", "outcome": "DOUBLE",
    "score": "DOUBLE", "advantage": "DOUBLE", "kept": "BOOLEAN", "response_length": "BIGINT",
    "max_response_length": "BIGINT", "turns": "BIGINT", "truncated": "BOOLEAN", "stop_reason": "VARCHAR",
    "mean_logprob": "DOUBLE", "entropy": "DOUBLE", "visible": "DOUBLE", "sandbox": "VARCHAR",
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


Change = Annotated[SetOption | SetWeight | PutTerm | PutDiagnostic, Field(discriminator="kind")]


class HarnessEdit(Record):
    """One change of the harness. ``factor`` is derived: ``optim.lr``, ``reward.weights.brevity``,
    ``reward.term.brevity``, ``diagnostics.dead_groups``; the declared factor must equal the diff."""

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


# ---------------------------------------------------------------------------------------- jobs


class TrainSpec(Record):
    """Everything one training job depends on; equal specs give equal results.

    ``token_budget`` counts sampled tokens. ``out_dir`` receives metrics, rollouts, checkpoint and
    ``result.json``; a job whose ``result.json`` exists is done and is not run again.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    version: str
    seed: int
    domain: str
    tasks_file: str | None = None
    harness_commit: str
    recipe: Recipe
    terms: Mapping[str, RewardTerm]
    base_policy: Path
    token_budget: Annotated[int, Field(gt=0)]
    deadline_s: Annotated[float, Field(gt=0)] = 3600.0
    sandbox: str = "none"
    """Backend that isolates what the job executes; ``none`` executes nothing."""
    rollout_workers: Annotated[int, Field(ge=0)] = 0
    """Rollout worker processes; 0 samples in the job's own process. Results do not depend on it."""
    out_dir: Path


TrainStatus = Literal["completed", "crashed", "timed_out", "cancelled"]
EarlyStop = Literal["nan", "no_signal", "collapse", "deadline"]


class Cost(Record):
    """What a job used: wall and process seconds, steps, rollouts, sampled tokens, peak memory."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    steps: int = 0
    rollouts: int = 0
    tokens: int = 0
    peak_rss_mb: float = 0.0


class TrainResult(Record):
    """The outcome of a job. A failed job has a status and the tail of its log, never an exception."""

    schema_version: int = SCHEMA_VERSION
    status: TrainStatus
    early_stop: EarlyStop | None = None
    checkpoint: Path | None = None
    metrics_file: Path | None = None
    rollouts_dir: Path | None = None
    cost: Cost = Cost()
    error: str = ""


class TrainJob(Protocol):
    """A launched job."""

    spec: TrainSpec

    def progress(self) -> StepProgress | None:
        """The newest step, or None before the first."""
        ...


class StepProgress(Record):
    """One line of progress of a running job; ``fraction`` of the token budget used, 0 to 1."""

    version: str
    seed: int
    step: int
    fraction: float
    score: float
    outcome: float


class Trainer(Protocol):
    """Turns specs into results. ``wait`` returns status ``crashed`` for a failed job and raises only
    if the job never started; a spec whose result exists is answered from disk."""

    name: str

    def launch(self, spec: TrainSpec) -> TrainJob: ...

    def wait(self, job: TrainJob) -> TrainResult: ...

    def cancel(self, job: TrainJob) -> None: ...


# ---------------------------------------------------------------------------------- evaluation


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
    note: str = ""


JsonDict = dict[str, Any]
