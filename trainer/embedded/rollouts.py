"""Episodes judged by the domain and scored by the harness, as columns of the rollout table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sandboxes.types import SandboxFailure
from trainer.embedded.collect import concatenate, reply_of, select, token_means
from trainer.embedded.sampler import Samples
from trainer.python_parts import PythonScorer
from trainer.reward import reward_view, score_rollouts
from trainer.shaping import shape_scores, term_columns
from trainer.types import REWARD_COLUMNS, ROLLOUT_COLUMNS, Domain, Judged, Task, TrainSpec

Floats = NDArray[np.float64]

_ARROW_TYPES = {"BIGINT": pa.int64(), "VARCHAR": pa.string(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_()}


@dataclass(frozen=True)
class Scored:
    """N rollouts with what is known of them before advantages: ``columns`` holds the rollout table's
    columns that do not depend on the step, the domain's features, and ``term_<name>``."""

    samples: Samples
    columns: pa.Table
    outcome: Floats
    verified: Floats
    """The outcome as the training reward's verifier sees it (recipe ``reward.tests``)."""
    score: Floats

    def with_term(self, name: str, values: Floats) -> Scored:
        """The same with a further column ``term_<name>``; the score stays."""
        ((column, array),) = term_columns({name: values}).items()
        return replace(self, columns=self.columns.append_column(column, array))


def episode_columns(
    domain: Domain,
    tasks: Sequence[Task],
    samples: Samples,
    verdicts: Sequence[Judged],
    max_response_length: int,
    sandbox: str,
) -> pa.Table:
    """The verifier's and the sampler's view of each episode, with the domain's features; ``tasks`` and
    ``verdicts`` have one entry per episode."""
    replies = [reply_of(turns) for turns in samples.turns]
    columns = {
        "task_id": [task.id for task in tasks],
        "family": [task.family for task in tasks],
        "level": [task.level for task in tasks],
        "prompt": ["\n".join(message.content for message in task.messages) for task in tasks],
        "response": replies,
        "answer": [task.answer for task in tasks],
        "extracted": [verdict.answer for verdict in verdicts],
        "outcome": [verdict.outcome for verdict in verdicts],
        "response_length": samples.response_lengths,
        "hint_length": samples.hint_lengths,
        "max_response_length": [max_response_length] * len(tasks),
        "turns": [len(turns) for turns in samples.turns],
        "truncated": [reason == "length" for reason in samples.stop_reasons],
        "stop_reason": samples.stop_reasons,
        "visible": [v.outcome if v.visible is None else v.visible for v in verdicts],
        "sandbox": [sandbox] * len(tasks),
        "mean_logprob": token_means(samples.logprobs, samples.response_mask),
        "entropy": token_means(samples.entropy, samples.response_mask),
    }
    features = {name: [verdict.features[name] for verdict in verdicts] for name in domain.feature_names}
    return pa.table(
        {name: pa.array(values, _ARROW_TYPES[ROLLOUT_COLUMNS[name]]) for name, values in columns.items()}
        | {name: pa.array(values, pa.float64()) for name, values in features.items()}
    )


def judge(domain: Domain, tasks: Sequence[Task], samples: Samples) -> list[Judged]:
    """One verdict per episode; those that our own machinery failed to give are asked for once more."""
    replies = [reply_of(turns) for turns in samples.turns]
    verdicts = list(domain.judge(tasks, replies))
    failed = [i for i, verdict in enumerate(verdicts) if not verdict.valid]
    if failed:
        again = domain.judge([tasks[i] for i in failed], [replies[i] for i in failed])
        for i, verdict in zip(failed, again, strict=True):
            verdicts[i] = verdict
    return verdicts


def judge_rollouts(
    domain: Domain, tasks: Sequence[Task], samples: Samples, spec: TrainSpec, python: PythonScorer | None = None
) -> Scored:
    """Judge and score one batch of whole groups; ``tasks`` has one entry per rollout, ``python`` scores Python terms.

    A group with a rollout that could not be judged is left out, because its advantages would be wrong. Raises
    SandboxFailure if that leaves none or Python terms cannot be run, InputError for a reward term that cannot be
    evaluated.
    """
    recipe = spec.recipe
    verdicts = judge(domain, tasks, samples)
    valid = np.array([verdict.valid for verdict in verdicts]).reshape(-1, recipe.rollout.n).all(axis=1)
    if not valid.any():
        raise SandboxFailure(f"sandbox {spec.sandbox}: no program of a batch could be run; see the log above")
    if not valid.all():
        print(f"{int((~valid).sum())} groups are masked: their programs could not be run", flush=True)
        rows = np.flatnonzero(np.repeat(valid, recipe.rollout.n)).tolist()
        tasks, verdicts, samples = [tasks[i] for i in rows], [verdicts[i] for i in rows], select(samples, rows)
    table = episode_columns(domain, tasks, samples, verdicts, recipe.data.max_response_length, spec.sandbox)
    rewarded = reward_view(table.select([*REWARD_COLUMNS, "visible", *domain.feature_names]), recipe.reward.tests)
    values, score = score_rollouts(rewarded, spec.terms, recipe.reward.weights, python)
    group_index = np.arange(table.num_rows) // recipe.rollout.n
    added, score = shape_scores(rewarded, score, group_index, recipe.reward)
    for name, column in term_columns(values | added).items():
        table = table.append_column(name, column)
    return Scored(samples, table, table["outcome"].to_numpy(), rewarded["outcome"].to_numpy(), score)


def merge(parts: Sequence[Scored]) -> Scored:
    """The rollouts of several batches, in order."""
    if len(parts) == 1:
        return parts[0]
    return Scored(
        concatenate([part.samples for part in parts]),
        pa.concat_tables([part.columns for part in parts]),
        np.concatenate([part.outcome for part in parts]),
        np.concatenate([part.verified for part in parts]),
        np.concatenate([part.score for part in parts]),
    )


def rollout_table(
    scored: Scored,
    *,
    version: str,
    seed: int,
    step: int,
    group_index: NDArray[np.int64],
    advantages: Floats,
    kept: NDArray[np.bool_],
) -> pa.Table:
    """The full rollout table of one step; ids are unique within a run: version, seed, step, row."""
    rows = len(scored.score)
    prefix = f"{version}-s{seed}-{step:05d}"
    added = {
        "step": pa.array([step] * rows, pa.int64()),
        "seed": pa.array([seed] * rows, pa.int64()),
        "group_id": pa.array([f"{prefix}-g{group:04d}" for group in group_index]),
        "rollout_id": pa.array([f"{prefix}-{row:05d}" for row in range(rows)]),
        "score": pa.array(scored.score),
        "advantage": pa.array(advantages),
        "kept": pa.array(kept),
    }
    table = scored.columns
    for name, column in added.items():
        table = table.append_column(name, column)
    return table
