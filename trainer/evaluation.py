"""The fixed evaluation protocol: when two evaluations may be compared, and how sure their means are."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from trainer.domains import entry_of
from trainer.statistics import Array, compare, moments, satterthwaite, student_quantile
from trainer.types import EvalProtocol, Evaluation, InputError, Record, Task

PACKAGE = Path(__file__).parent


class Interval(Record):
    """A mean with its two-sided interval.

    ``n`` tasks, ``seeds`` training seeds. ``covers`` says which variation the interval knows: one
    seed can tell about the sampling of tasks, never about training again.
    """

    mean: float
    ci_low: float
    ci_high: float
    n: int
    seeds: int
    covers: Literal["seeds and tasks", "tasks only", "runs"] = "seeds and tasks"


# ---------------------------------------------------------------------------------- comparability


def protocol_hash(protocol: EvalProtocol, suites: Mapping[str, Sequence[Task]]) -> str:
    """SHA-256 over the protocol, the content of every suite's tasks (in order) and the source of the
    code that samples and scores; evaluations with different hashes are never compared."""
    digest = hashlib.sha256()

    def add(name: str, content: bytes) -> None:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)

    add("protocol", protocol.model_dump_json().encode())
    for suite in sorted(suites):
        add(f"suite {suite}", "\n".join(task.model_dump_json() for task in suites[suite]).encode())
    for path in _sources(protocol.domain):
        add(path.relative_to(PACKAGE.parent).as_posix(), path.read_bytes())
    return digest.hexdigest()


def _sources(domain: str) -> list[Path]:
    """The files whose change makes scores incomparable: evaluation, sampling, the domain, and what executes programs."""
    names = ("evaluate", "collect", "rollouts", "sampler")
    code = [Path(__file__), *(PACKAGE / "embedded" / f"{name}.py" for name in names)]
    entry = entry_of(domain)
    for pattern in entry.sources:
        code += sorted((PACKAGE / "domains").glob(pattern))
    if entry.executes:
        code += sorted((PACKAGE.parent / "sandboxes" / "guest").rglob("*.py"))
    return [path for path in code if path.is_file()]


def require_same(a: Evaluation, b: Evaluation) -> None:
    """InputError unless both come from the same protocol, suite and tasks."""
    who = f"{a.version} seed {a.seed} and {b.version} seed {b.seed}"
    if a.protocol_hash != b.protocol_hash:
        raise InputError(
            f"evaluations of {who}: protocol_hash {a.protocol_hash[:12]} != {b.protocol_hash[:12]}; "
            "evaluate both again under one protocol"
        )
    if a.suite != b.suite:
        raise InputError(f"evaluations of {who}: suite {a.suite!r} != {b.suite!r}; compare within one suite")
    if a.task_ids != b.task_ids:
        missing = len(set(a.task_ids) ^ set(b.task_ids))
        raise InputError(
            f"evaluations of {who}: task_ids differ ({missing} not in both, order counts); evaluate both on the same tasks"
        )


def score_array(evals: Sequence[Evaluation]) -> Array:
    """Scores of one version, shape (seeds, tasks, samples).

    InputError for no evaluation, evaluations that may not be compared, the same training seed twice,
    a missing task or sample, or a score that is not finite.
    """
    if not evals:
        raise InputError("evaluations: none given; evaluate at least one training seed")
    for a, b in pairwise(evals):
        require_same(a, b)
    first = evals[0]
    if len({e.seed for e in evals}) < len(evals):
        raise InputError(
            f"evaluations of {first.version}: seed occurs twice on {first.suite}; give each training seed once"
        )
    samples = len(first.scores[0]) if first.scores else 0
    for e in evals:
        where = f"evaluation of {e.version} seed {e.seed} on {e.suite}"
        if not samples or len(e.scores) != len(e.task_ids) or any(len(row) != samples for row in e.scores):
            raise InputError(
                f"{where}: scores must hold {samples or 'some'} samples for each of {len(e.task_ids)} tasks; "
                "evaluate again, no task may be dropped"
            )
    scores = np.array([e.scores for e in evals], dtype=np.float64)
    if not np.isfinite(scores).all():
        raise InputError(f"evaluations of {first.version} on {first.suite}: scores contain NaN or inf; evaluate again")
    return scores


# -------------------------------------------------------------------------------------- intervals


def mean_interval(evals: Sequence[Evaluation], level: float = 0.95) -> Interval:
    """Avg@k of one version over its training seeds, for a new seed on new tasks.

    V = max(s², r/T)/S + max(0, var_t(M) − r/S)/T for S seeds and T tasks, Student's t with
    Satterthwaite's df. Limits are cut to [0, 1] where the mean lies there, as outcomes do.
    """
    version = moments(score_array(evals))
    tasks, seeds, noise = len(version.task_means), version.n, version.spread.noise
    over_seeds = max(version.spread.variance, noise / tasks) / seeds
    over_tasks = 0.0
    if tasks > 1:
        over_tasks = max(0.0, float(version.task_means.var(ddof=1)) - noise / seeds) / tasks
    df = satterthwaite((over_seeds, seeds - 1), (over_tasks, tasks - 1))
    half = student_quantile(0.5 + level / 2, df) * math.sqrt(over_seeds + over_tasks)
    low, high = max(version.mean - half, min(0.0, version.mean)), min(version.mean + half, max(1.0, version.mean))
    covers: Literal["seeds and tasks", "tasks only"] = "seeds and tasks" if seeds > 1 else "tasks only"
    return Interval(mean=version.mean, ci_low=low, ci_high=high, n=tasks, seeds=seeds, covers=covers)


def paired_interval(candidate: Sequence[Evaluation], baseline: Sequence[Evaluation], level: float = 0.95) -> Interval:
    """Candidate minus baseline, paired by task (the variance is trainer.statistics.compare's).

    ``seeds`` is the smaller number of training seeds of the two. With one seed each the interval
    covers the tasks only.
    """
    ours, theirs = score_array(candidate), score_array(baseline)
    require_same(candidate[0], baseline[0])
    comparison = compare(moments(ours), moments(theirs))
    low, high = comparison.interval(level)
    return Interval(
        mean=comparison.delta,
        ci_low=low,
        ci_high=high,
        n=ours.shape[1],
        seeds=min(len(ours), len(theirs)),
        covers="seeds and tasks" if comparison.pool.df else "tasks only",
    )


def paired_over_runs(deltas: Sequence[float], level: float = 0.95) -> Interval:
    """Mean of one delta per independent run, with its t interval; InputError below two runs."""
    if len(deltas) < 2 or not all(math.isfinite(d) for d in deltas):
        raise InputError(f"deltas: {len(deltas)} given; an interval over runs needs at least two, all finite")
    values = np.array(deltas, dtype=np.float64)
    half = student_quantile(0.5 + level / 2, len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    mean = float(values.mean())
    return Interval(mean=mean, ci_low=mean - half, ci_high=mean + half, n=len(values), seeds=len(values), covers="runs")


def pass_at_k(scores: Sequence[Sequence[float]], k: int) -> float:
    """Unbiased pass@k: mean over tasks of 1 − C(n−c, k)/C(n, k) with c of n samples solved, outcome 1.0
    (Chen et al. 2021, arXiv 2107.03374, equation 1). InputError when a task has fewer than k samples."""
    if not scores or k < 1 or any(len(row) < k for row in scores):
        raise InputError(f"pass_at_k: k = {k} needs at least one task and {k} samples of each; lower k or sample more")
    total = 0.0
    for row in scores:
        failed = sum(score < 1.0 for score in row)
        total += 1.0 - math.comb(failed, k) / math.comb(len(row), k)
    return total / len(scores)
