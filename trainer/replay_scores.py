"""What a change of the reward, the group filter or the advantages makes of stored rollouts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainer.replay_rows import Floats, Ints, Rescored, Stored, share

CONSTANT_SHARE = 0.94
"""A term with one value on this share of rollouts is an offset: group normalisation removes it."""
DIGITS = 6
"""Decimals to which amounts count as equal, as in the diagnostics."""


def score_metrics(stored: Stored, scored: Rescored) -> dict[str, float]:
    """The quantities that trainer.replay.replay lists for factors of scoring, of one harness."""
    outcome: Floats = stored.column("outcome").astype(np.float64)
    tokens: Floats = stored.column("response_length").astype(np.float64)
    group, size = stored.group, stored.sizes
    kept_rollouts = scored.kept[group]
    dead = ~scored.spread
    solved = np.bincount(group, weights=outcome) / size
    mean = np.bincount(group, weights=scored.score) / size
    deviation = scored.score - mean[group]
    std = np.sqrt(np.bincount(group, weights=deviation**2) / np.maximum(size - 1, 1))
    total = max(float(tokens.sum()), 1.0)
    high, low = np.full(len(size), -np.inf), np.full(len(size), np.inf)
    np.maximum.at(high, group, scored.score)
    np.minimum.at(low, group, scored.score)
    measured = {
        "signal_groups": share(scored.spread),
        "all_fail_groups": share(dead & (solved == 0)),
        "all_pass_groups": share(dead & (solved == 1)),
        "float_noise_groups": share(dead & (high > low)),
        "kept_groups": share(scored.kept),
        "kept_tokens": float(tokens[kept_rollouts].sum()) / total,
        "signal_tokens": float(tokens[kept_rollouts & (scored.advantage != 0)].sum()) / total,
        "kept_all_fail": share((solved == 0)[scored.kept]),
        "score/mean": float(scored.score.mean()),
        "score/std": float(std.mean()),
        "advantage/abs_mean": share(np.abs(scored.advantage[kept_rollouts])),
        "constant_offset": constant_offset(scored.terms, scored.weights),
        "collected_alike": collected_alike(scored.terms, scored.weights),
        "commonest_score": float(np.unique(np.round(scored.score, DIGITS), return_counts=True)[1].max() / len(outcome)),
        "length_correlation": within_group_correlation(tokens, scored.score, group),
    }
    agreement = order_agreement(scored.score, outcome, group)
    return measured if agreement is None else {**measured, "order_agreement": agreement}


def order_agreement(score: Floats, outcome: Floats, group: Ints) -> float | None:
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


def collected_alike(terms: Mapping[str, Floats], weights: Mapping[str, float]) -> float:
    """Largest share of rollouts that one paid term beside the outcome gives the same amount, not 0 (what the diagnostic
    ``reward_offset`` reads late in a training)."""
    largest = 0.0
    for name, weight in weights.items():
        if weight and name != "outcome":
            values, counts = np.unique(np.round(terms[name], DIGITS), return_counts=True)
            largest = max(largest, float(counts[values != 0].max(initial=0)) / len(terms[name]))
    return largest


def within_group_correlation(x: Floats, y: Floats, group: Ints) -> float:
    """Pearson's correlation of both after each group's mean is taken off; 0 where one of them never differs."""
    size = np.bincount(group)
    a, b = (v - (np.bincount(group, weights=v) / size)[group] for v in (x, y))
    norm = float(np.sqrt((a @ a) * (b @ b)))
    # Rounding of the group means is no variation.
    return float(a @ b) / norm if norm > 1e-9 * len(x) else 0.0
