"""Matched replay: what a candidate harness would have made of its parent's stored rollouts.

Nothing is sampled and nothing is trained, so a replay speaks only about factors that act on
rollouts after they were drawn: reward terms and weights, the group filter, the advantage
estimator. It scores the same rollouts under both harnesses, with the code that training runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sandboxes.types import Executor
from trainer.evidence import damaged, rollout_files
from trainer.groups import group_advantages, groups_with_spread, top_variance_groups
from trainer.harness_files import diff_factors
from trainer.python_parts import PythonScorer, scorer
from trainer.reward import reward_view, score_rollouts
from trainer.shaping import shape_scores
from trainer.types import REWARD_COLUMNS, ROLLOUT_COLUMNS, Harness, InputError, ReplayReport

MAX_ROLLOUTS = 16_384
CONSTANT_SHARE = 0.94
"""A term with one value on this share of rollouts is an offset: group normalisation removes it."""

# Prefixes of factors a replay says nothing about, and why; the rest (reward and algorithm) it can tell.
_SILENT: Mapping[str, str] = {
    "algorithm.filter_groups.max_num_gen_batches": "it changes how many groups are sampled, and a replay samples none",
    "optim.": "it changes the size of updates, and stored rollouts hold no updates",
    "algorithm.use_kl_in_reward": "it needs the base policy's probabilities, and stored rollouts hold none",
    "algorithm.kl_": "it needs the base policy's probabilities, and stored rollouts hold none",
    "actor.": "it changes the loss on a given batch, and a replay computes no loss",
    "rollout.": "it changes which rollouts are sampled, and a replay samples none",
    "data.": "it changes which tasks and lengths are sampled, and a replay samples none",
    "diagnostics.": "it changes no training: check it on the health reports of earlier versions",
    "procedure": "it changes no training, only the order of diagnosis",
}

Floats = NDArray[np.float64]


def replay(
    directories: Sequence[Path],
    parent: Harness,
    candidate: Harness,
    *,
    executor: Executor | None = None,
    max_rollouts: int = MAX_ROLLOUTS,
) -> ReplayReport:
    """Score the parent's rollouts (directories of step files) under both harnesses.

    Metrics are (parent, candidate) pairs, shares in 0..1 unless said otherwise:
    ``signal_groups`` groups with spread in the score; ``kept_groups`` and ``kept_tokens`` what the
    group filter keeps; ``signal_tokens`` response tokens that carry a gradient; ``kept_all_fail``
    kept groups no rollout of which is correct; ``order_agreement`` within-group pairs of unequal
    outcome that the score orders alike, a tie counting half (an AUC; absent without such pairs);
    ``score/mean``; ``score/std`` mean within-group std; ``advantage/abs_mean`` over kept rollouts;
    ``constant_offset`` part of the mean absolute score from terms with one value on 94 % of
    rollouts. Reads about ``max_rollouts`` rollouts, evenly spaced steps, so that memory does not grow.

    ``executor`` runs Python terms, in the batches of the training steps. A candidate term that gives no number on some
    rollout shows as ``scoring_errors`` (0, 1) and in ``note``; a Python term that the parent has too counts 0 where it
    does not run, as it did in training. Raises InputError for damaged rollout files, SandboxFailure.
    """
    factors = diff_factors(parent, candidate)
    factor = ", ".join(factors) or "none"
    silent = [f"{f}: {why}" for f in factors for prefix, why in _SILENT.items() if f.startswith(prefix)]
    if silent or not factors:
        return ReplayReport(factor=factor, applicable=False, note="; ".join(silent) or "the harnesses are equal")
    rows = _sample(directories, max_rollouts)
    keys = zip(*(rows[c].to_pylist() for c in ("seed", "step", "group_id")), strict=True)
    numbers: dict[tuple[object, ...], int] = {}
    group_index = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    breaks = _step_starts(rows)
    notes: list[str] = []
    before = _measure(rows, group_index, parent, scorer(executor, breaks=breaks, notes=notes))
    new = {name for name, term in candidate.terms.items() if parent.terms.get(name) != term}
    try:
        after = _measure(rows, group_index, candidate, scorer(executor, must_run=new, breaks=breaks, notes=notes))
        note = "; ".join(dict.fromkeys(notes))
    except InputError as error:
        before, after, note = {"scoring_errors": 0.0}, {"scoring_errors": 1.0}, str(error)
    return ReplayReport(
        factor=factor,
        applicable=True,
        rollouts=rows.num_rows,
        groups=len(numbers),
        metrics={name: (before[name], after[name]) for name in before if name in after},
        note=note,
    )


def _sample(directories: Sequence[Path], max_rollouts: int) -> pa.Table:
    """Whole steps, evenly spaced over the training: a file holds whole groups, so a group is never cut."""
    files = rollout_files(directories)
    total = sum(pq.read_metadata(file).num_rows for file in files)
    steps = [_read(file) for file in files[:: math.ceil(max(total, 1) / max_rollouts)]]
    return pa.concat_tables(steps)


def _read(file: Path) -> pa.Table:
    try:
        columns = pq.read_schema(file).names
        features = [c for c in columns if c not in ROLLOUT_COLUMNS and not c.startswith("term_")]
        return pq.read_table(
            file, columns=["seed", "step", "group_id", "visible", *REWARD_COLUMNS, *features], use_threads=False
        )
    except (pa.ArrowException, OSError) as error:
        raise damaged(file) from error


def _step_starts(rows: pa.Table) -> list[int]:
    """Rows at which another step, or another seed's training, begins."""
    keys = list(zip(rows["seed"].to_pylist(), rows["step"].to_pylist(), strict=True))
    return [row for row in range(1, len(keys)) if keys[row] != keys[row - 1]]


def _measure(rows: pa.Table, group: NDArray[np.int64], harness: Harness, python: PythonScorer) -> dict[str, float]:
    reward_rows = reward_view(rows.drop_columns(["seed", "step", "group_id"]), harness.recipe.reward.tests)
    weights = dict(harness.recipe.reward.weights)
    terms, score = score_rollouts(reward_rows, harness.terms, weights, python)
    added, score = shape_scores(reward_rows, score, group, harness.recipe.reward)
    terms, weights = terms | added, weights | dict.fromkeys(added, 1.0)
    outcome: Floats = rows["outcome"].to_numpy().astype(np.float64)
    tokens: Floats = rows["response_length"].to_numpy().astype(np.float64)
    algorithm = harness.recipe.algorithm
    spread = groups_with_spread(score, group)
    kept = np.ones_like(spread)
    if algorithm.filter_groups.enable:
        verified = reward_rows["outcome"].to_numpy()
        kept = spread if algorithm.filter_groups.metric == "score" else groups_with_spread(verified, group)
    elif algorithm.variance_filter.enable:
        metric = score if algorithm.variance_filter.metric == "score" else reward_rows["outcome"].to_numpy()
        kept = _kept_by_variance(metric, group, _step_starts(rows), algorithm.variance_filter.top_p)
    advantage = group_advantages(score, group, algorithm.adv_estimator, algorithm.norm_adv_by_std_in_grpo)
    kept_rollouts = kept[group]
    size = np.bincount(group)
    all_fail = np.bincount(group, weights=outcome > 0) == 0
    mean = np.bincount(group, weights=score) / size
    std = np.sqrt(np.bincount(group, weights=(score - mean[group]) ** 2) / np.maximum(size - 1, 1))
    total = max(float(tokens.sum()), 1.0)
    measured = {
        "signal_groups": float(spread.mean()),
        "kept_groups": float(kept.mean()),
        "kept_tokens": float(tokens[kept_rollouts].sum()) / total,
        "signal_tokens": float(tokens[kept_rollouts & (advantage != 0)].sum()) / total,
        "kept_all_fail": float(all_fail[kept].mean()) if kept.any() else 0.0,
        "score/mean": float(score.mean()),
        "score/std": float(std.mean()),
        "advantage/abs_mean": float(np.abs(advantage[kept_rollouts]).mean()) if kept_rollouts.any() else 0.0,
        "constant_offset": constant_offset(terms, weights),
    }
    agreement = order_agreement(score, outcome, group)
    return measured if agreement is None else {**measured, "order_agreement": agreement}


def _kept_by_variance(metric: Floats, group: NDArray[np.int64], breaks: list[int], top_p: float) -> NDArray[np.bool_]:
    """What the variance filter keeps of each step, whose groups have numbers in a row: bool (G,)."""
    steps = zip(np.split(metric, breaks), np.split(group, breaks), strict=True)
    return np.concatenate([top_variance_groups(values, members - members[0], top_p) for values, members in steps])


def order_agreement(score: Floats, outcome: Floats, group: NDArray[np.int64]) -> float | None:
    """Share of within-group pairs with unequal outcome that ``score`` orders like ``outcome``; ties count half."""
    agreed = pairs = 0.0
    order = np.argsort(group, kind="stable")
    for members in np.split(order, np.cumsum(np.bincount(group))[:-1]):
        by_outcome = np.sign(outcome[members][:, None] - outcome[members][None, :])
        by_score = np.sign(score[members][:, None] - score[members][None, :])
        better = by_outcome > 0
        pairs += float(better.sum())
        agreed += float(((by_score[better] + 1) / 2).sum())
    return agreed / pairs if pairs else None


def constant_offset(terms: Mapping[str, Floats], weights: Mapping[str, float]) -> float:
    """Part of the mean absolute weighted score that comes from terms with one value on CONSTANT_SHARE of rollouts."""
    constant = total = 0.0
    for name, weight in weights.items():
        values, counts = np.unique(np.round(terms[name], 9), return_counts=True)
        part = abs(weight) * float(np.abs(terms[name]).mean())
        total += part
        if counts.max() >= CONSTANT_SHARE * counts.sum():
            constant += abs(weight * float(values[counts.argmax()])) * float(counts.max() / counts.sum())
    return constant / total if total else 0.0
