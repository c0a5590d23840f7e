"""A version's way through training and evaluation: which job runs on which files of the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from graph.bases import base_of, make_start, start_of
from graph.record import RunRecord, read_record, write_atomic
from graph.registry import registered
from graph.seals import seal, sealed
from graph.state import Deps
from trainer.embedded.files import CHECKPOINT, ROLLOUTS, EvalSpec, Suite, episodes_file, result_file
from trainer.evaluation import Interval, paired_interval, pass_at_k
from trainer.gate_types import GateReport
from trainer.types import (
    Cost,
    EarlyStop,
    EvalProtocol,
    Evaluation,
    Harness,
    HealthReport,
    Record,
    Task,
    TrainResult,
    TrainSpec,
)

BASELINE = "v0000"
BASE = "base"
"""The policy before RL: the warm start, or the user's ``--policy``."""


class Version(Record):
    """A point in the search: which harness commit it trains with and where it came from."""

    id: str
    parent: str
    harness_commit: str
    factor: str = ""
    title: str = ""


EARLY: Mapping[EarlyStop, str] = {
    "nan": "NaN or infinity",
    "no_signal": "no learning signal",
    "collapse": "the outcome collapsed",
    "deadline": "its deadline",
}
"""Why a training ended before its tokens were used, in words."""


class Suites(Record):
    """The frozen protocol of the run and its hash; task files lie beside it."""

    protocol: EvalProtocol
    protocol_hash: str


class Results(Record):
    """Training results of one version, by seed 0, 1, …"""

    results: tuple[TrainResult, ...]

    @property
    def failure(self) -> str:
        """Why the version cannot be judged, or an empty string."""
        bad = [r for r in self.results if r.status != "completed"]
        if bad:
            return f"training {bad[0].status}: {bad[0].error.strip().splitlines()[-1] if bad[0].error else ''}"
        if not any(r.cost.rollouts for r in self.results):
            return f"training ended before its first step ({self.results[0].early_stop}): there is nothing to judge"
        return ""


class Unjudged(Record):
    """Why a trained version could not be evaluated."""

    reason: str


def failure_of(record: RunRecord, version: str) -> str:
    """Why a version cannot be judged, its training or its evaluation, or an empty string."""
    if failure := record.load(version, "training", Results).failure:
        return failure
    return record.load(version, "unjudged", Unjudged).reason if record.saved(version, "unjudged") else ""


Seeds = int | range
"""Training seeds of a version: the first so many, or these."""


def span(seeds: Seeds) -> range:
    return seeds if isinstance(seeds, range) else range(seeds)


NULL_SEEDS = 16
"""Training seeds set apart for each null candidate: its parent, of the same recipe in effect, must not share one."""
NULL_VERSIONS = 1000 // NULL_SEEDS - 1


def version_id(number: int) -> str:
    return f"v{number:04d}"


def suites_of(record: RunRecord) -> Suites:
    return read_record(record.root / "protocol.json", Suites)


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """A suite's file: one JSON Task per line."""
    write_atomic(path, "".join(task.model_dump_json() + "\n" for task in tasks))


def task_ids(path: Path) -> frozenset[str]:
    """Ids of the tasks in a suite's file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(Task.model_validate_json(line).id for line in lines)


def train_spec(deps: Deps, version: Version, harness: Harness, seed: int) -> TrainSpec:
    """The training job of one seed. Run seed and training seed are mixed, so that two runs with
    different ``--seed`` share no random stream."""
    config, sandbox = deps.config, deps.sandbox
    number = int(version.id.removeprefix("v"))
    # A backend that came with a later version's Python must not change the specs of those that run without.
    python = any(term.python for term in harness.terms.values())
    return TrainSpec(
        run_id=deps.run_id,
        version=version.id,
        seed=config.run.seed * 1000 + (NULL_SEEDS * number if config.designer.candidates == "null" else 0) + seed,
        domain=config.run.domain,
        tasks_file=config.run.tasks or None,
        harness_commit=version.harness_commit,
        recipe=harness.recipe,
        terms=harness.terms,
        base_policy=start_of(deps, harness.recipe),
        token_budget=config.trainer.token_budget,
        deadline_s=config.trainer.deadline_s,
        rollout_workers=config.trainer.rollout_workers,
        save_interval_s=config.trainer.save_interval_s,
        sandbox=sandbox if sandbox != "none" or not python else deps.parts.backend,
        out_dir=deps.record.seed_dir(version.id, seed) / "train",
    )


def train_seeds(deps: Deps, wanted: Sequence[tuple[str, int]]) -> None:
    """Train every (version, number of seeds) in one batch, warm starts that they lack first; finished jobs are answered from
    disk.

    An infrastructure crash is run once more with the same seed. Results go to ``training.json``.
    """
    specs: list[TrainSpec] = []
    for version_name, seeds in wanted:
        version = deps.record.load(version_name, "version", Version)
        harness = deps.harness.load(version.harness_commit)
        make_start(deps, harness.recipe)
        specs += [train_spec(deps, version, harness, seed) for seed in range(seeds)]
    known = sealed(deps.record.root)
    fresh = [s.out_dir for s in specs if not _is_sealed(deps, result_file(s.out_dir), known)]
    results = deps.jobs.train(specs)
    crashed = [i for i, r in enumerate(results) if r.status == "crashed"]
    for i, again in zip(crashed, deps.jobs.train([specs[i] for i in crashed]), strict=True):
        results[i] = again
    for spec, result in zip(specs, results, strict=True):
        if result.early_stop and spec.out_dir in fresh:
            used = 100 * result.cost.tokens / spec.token_budget
            deps.say(
                "train",
                f"{spec.version}/seed {spec.seed} ended early after {used:.0f} % of its tokens: {EARLY[result.early_stop]}",
            )
    for folder in fresh:
        if result_file(folder).exists():
            seal(
                deps.record.root,
                [result_file(folder), folder / CHECKPOINT, folder / ROLLOUTS, *folder.glob("metrics-*")],
            )
    for version_name, _ in wanted:
        own = tuple(r for s, r in zip(specs, results, strict=True) if s.version == version_name)
        deps.record.save(version_name, "training", Results(results=own))


def results_of(deps: Deps, version: str) -> Results:
    return deps.record.load(version, "training", Results)


def stalled(record: RunRecord, version: str) -> bool:
    """Whether all its trainings ended for want of a learning signal."""
    return all(r.early_stop == "no_signal" for r in record.load(version, "training", Results).results)


def add_costs(costs: Sequence[Cost]) -> Cost:
    """Sums, and the largest peak."""
    return Cost(
        wall_s=sum(c.wall_s for c in costs),
        cpu_s=sum(c.cpu_s for c in costs),
        steps=sum(c.steps for c in costs),
        rollouts=sum(c.rollouts for c in costs),
        tokens=sum(c.tokens for c in costs),
        peak_rss_mb=max((c.peak_rss_mb for c in costs), default=0.0),
    )


def eval_file(record: RunRecord, version: str, seed: int, suite: str) -> Path:
    return record.seed_dir(version, seed) / f"{suite}.json"


def evaluate_seeds(deps: Deps, wanted: Sequence[tuple[str, Seeds]], suites: Sequence[Suite], shard: int = 0) -> None:
    """Evaluate every (version, seeds) on the suites; what is done is not done again.

    ``shard`` selects the sealed shard; the other suites have one.
    """
    names = [(suite, f"sealed-{shard}" if suite == "sealed" else suite) for suite in suites]
    specs = [
        eval_spec(deps, version, seed, suite, name, eval_file(deps.record, version, seed, name))
        for version, seeds in wanted
        for seed in span(seeds)
        for suite, name in names
    ]
    known = sealed(deps.record.root)
    fresh = [s for s in specs if not _is_sealed(deps, s.out_file, known)]
    deps.jobs.evaluate(specs)
    seal(deps.record.root, [path for s in fresh for path in (s.out_file, episodes_file(s))])


def eval_spec(deps: Deps, version: str, seed: int, suite: Suite, tasks: str, out_file: Path) -> EvalSpec:
    """The job that evaluates one seed of a version on a suite, whose tasks are ``tasks/<tasks>.jsonl``."""
    frozen = suites_of(deps.record)
    return EvalSpec(
        checkpoint=base_of(deps.record).path if version == BASE else _checkpoint(deps, version, seed),
        suite=suite,
        tasks_file=deps.record.root / "tasks" / f"{tasks}.jsonl",
        protocol=frozen.protocol,
        protocol_hash=frozen.protocol_hash,
        version=version,
        seed=seed,
        domain=deps.config.run.domain,
        user_tasks=deps.config.run.tasks or None,
        deadline_s=deps.config.trainer.deadline_s,
        sandbox=deps.sandbox,
        run_id=deps.run_id,
        out_file=out_file,
    )


def _is_sealed(deps: Deps, path: Path, known: Mapping[str, frozenset[str]]) -> bool:
    """Whether a job's result is there and noted, so that the job is not run again and needs no further note."""
    return path.exists() and bool(known.get(str(path.relative_to(deps.record.root))))


def _checkpoint(deps: Deps, version: str, seed: int) -> Path:
    result = results_of(deps, version).results[seed]
    if result.checkpoint is None:
        raise RuntimeError(f"{version} seed {seed} has no checkpoint: training {result.status}")
    return result.checkpoint


def evaluations(record: RunRecord, version: str, seeds: Seeds, suite: str) -> tuple[Evaluation, ...]:
    return tuple(read_record(eval_file(record, version, seed, suite), Evaluation) for seed in span(seeds))


def seeds_of(record: RunRecord, version: str) -> int:
    """How many training seeds of a version are done."""
    return len(record.load(version, "training", Results).results)


def unselected(record: RunRecord, version: str) -> range:
    """The seeds of a version that had no part in choosing it: those of its certification, or all where there was none."""
    if not record.saved(version, "certificate"):
        return range(seeds_of(record, version))
    first = record.load(version, "gate", GateReport).n_seeds
    return range(first, first + record.load(version, "certificate", GateReport).n_seeds)


def proxy_scores(deps: Deps, version: str, seeds: Seeds, harness: Harness) -> tuple[float, ...]:
    """Mean training reward of ``harness`` on the version's validation rollouts, one value per seed.

    A Python term counts 0 where it does not run, as in training. Raises SandboxFailure.
    """
    import pyarrow.parquet as pq

    from trainer.python_parts import scorer
    from trainer.reward import reward_view, score_rollouts

    out = []
    for seed in span(seeds):
        table = pq.read_table(eval_file(deps.record, version, seed, "validation").with_suffix(".parquet"))
        rows = reward_view(table.drop_columns(["sample"]), harness.recipe.reward.tests)
        _, total = score_rollouts(rows, harness.terms, harness.recipe.reward.weights, scorer(deps.parts.executor))
        out.append(float(total.mean()))
    return tuple(out)


def paired(record: RunRecord, candidate: tuple[str, Seeds], parent: tuple[str, Seeds]) -> Interval:
    """Candidate minus parent on validation, for these seeds of each."""
    ours, theirs = (evaluations(record, *arm, "validation") for arm in (candidate, parent))
    return paired_interval(ours, theirs)


def health_of(deps: Deps, version_name: str, parent: str | None) -> HealthReport:
    """The health report of a trained and evaluated version, computed from its files and saved."""
    from trainer.diagnose import health_report
    from trainer.python_parts import TERM_FAULTS

    record = deps.record
    version = record.load(version_name, "version", Version)
    results = results_of(deps, version_name).results
    scores = named_scores(record, version_name, len(results))
    parent_scores = dict(record.load(parent, "health", HealthReport).scores) if parent else None
    harness = deps.harness.load(version.harness_commit)
    report = health_report(
        version_name,
        [r.rollouts_dir for r in results if r.rollouts_dir],
        {**harness.diagnostics, **registered(record, version_name)},
        scores,
        [r.metrics_file for r in results if r.metrics_file],
        parent_scores=parent_scores,
        weights=harness.recipe.reward.weights,
        executor=deps.parts.executor,
        fault_files=[r.rollouts_dir.with_name(TERM_FAULTS) for r in results if r.rollouts_dir],
    )
    record.save(version_name, "health", report)
    return report


def named_scores(record: RunRecord, version: str, seeds: int) -> dict[str, float]:
    """Scores by name, means over the training seeds."""
    validation = evaluations(record, version, seeds, "validation")
    gate = evaluations(record, version, seeds, "gate")
    k = len(validation[0].scores[0])
    scores = {
        "validation/mean": _mean(e.mean for e in validation),
        f"validation/pass@{k}": _mean(pass_at_k(e.scores, k) for e in validation),
        "gate/mean": _mean(e.mean for e in gate),
    }
    if eval_file(record, BASE, 0, "validation").exists():
        scores["base/mean"] = evaluations(record, BASE, 1, "validation")[0].mean
    return scores


def _mean(values: Iterable[float]) -> float:
    items = list(values)
    return sum(items) / len(items)


def realised(metric: str, candidate: HealthReport, parent: HealthReport) -> float | None:
    """Measured change of a predicted metric (a score or a diagnostic's value), candidate − parent."""

    def value(report: HealthReport) -> float | None:
        if metric in report.scores:
            return report.scores[metric]
        return next((f.value for f in report.findings if f.diagnostic == metric), None)

    new, old = value(candidate), value(parent)
    return None if new is None or old is None else new - old
