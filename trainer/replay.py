"""Matched replay: what a candidate harness would have made of its parent's stored rollouts.

Nothing is sampled and nothing is trained. Factors of scoring (reward, filter, advantages) score the same rollouts under
both harnesses; factors of the loss weigh them again (trainer.replay_loss); factors of sampling draw their groups again
(trainer.replay_sampling). All of it runs the code that training runs, on a bounded sample. Where stored rollouts cannot
tell, the report says so and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from sandboxes.types import Executor
from trainer import replay_loss
from trainer import replay_sampling as sampling
from trainer.diagnose import health_report
from trainer.evidence import rollout_files
from trainer.harness_files import diff_factors
from trainer.python_parts import scorer
from trainer.replay_rows import Rescored, Stored, capped, rescore, share, stored_episodes, stored_rollouts
from trainer.replay_sampling import Untold
from trainer.replay_scores import order_agreement, score_metrics
from trainer.types import Harness, InputError, ReplayReport

MAX_ROLLOUTS = 16_384

Metrics = dict[str, float]

_UPDATES = "it changes the size of updates, and stored rollouts hold no updates"
_POLICY = "the policy would differ from one update to the next, and a replay has no policy"
_REFERENCE = "it needs the base policy's probabilities, and stored rollouts hold none"
_RATIOS = "a batch is used more than once, and the ratios of its later updates are not stored (see actor/pg_clipfrac)"
# Prefixes of factors that stored rollouts say nothing about, and why.
UNTOLD: Mapping[str, str] = {
    "optim.": _UPDATES,
    "actor.grad_clip": _UPDATES,
    "actor.ppo_": _UPDATES,
    "actor.entropy_coeff": _POLICY,
    "actor.use_kl_loss": _REFERENCE,
    "actor.kl_loss_": _REFERENCE,
    "algorithm.use_kl_in_reward": _REFERENCE,
    "algorithm.kl_": _REFERENCE,
    "rollout.temperature": "how the policy replies at another temperature is not stored",
    "warm_start.": "another warm start is another policy, and stored rollouts are those of this one",
    "procedure": "it changes no training, only the order of diagnosis",
}


class _Case(NamedTuple):
    """What a replay of one factor works with: ``score`` scores rollouts as a harness does, ``scored`` is what it gave for
    ``stored`` and the parent; ``episodes`` are the gate suite's."""

    stored: Stored
    scored: Rescored
    parent: Harness
    candidate: Harness
    score: Callable[[Stored, Harness], Rescored]
    episodes: Stored | None


class _Told(NamedTuple):
    before: Metrics
    after: Metrics
    note: str = ""


def replay(
    directories: Sequence[Path],
    parent: Harness,
    candidate: Harness,
    *,
    executor: Executor | None = None,
    episodes: Sequence[Path] = (),
    scores: Mapping[str, float] | None = None,
    max_rollouts: int = MAX_ROLLOUTS,
) -> ReplayReport:
    """Replay the parent's rollouts (directories of step files) under both harnesses.

    Metrics are (parent, candidate) pairs, shares in 0..1 unless said otherwise. For factors of scoring:
    ``signal_groups`` groups with spread in the score, ``float_noise_groups`` those whose scores differ by rounding alone;
    ``all_fail_groups`` and ``all_pass_groups`` the others with outcomes all 0 or 1; ``kept_groups`` and ``kept_tokens``
    what the group filter keeps; ``signal_tokens`` response tokens that carry a gradient; ``kept_all_fail`` kept groups no
    rollout of which is correct; ``order_agreement`` within-group pairs of unequal outcome that the score orders alike, a
    tie counting half (an AUC; absent without such pairs), ``gate_order_agreement`` the same on ``episodes`` (Parquet files
    of the gate suite, one per seed); ``score/mean``; ``score/std`` mean within-group std; ``length_correlation`` of length
    and score within groups; ``advantage/abs_mean`` over kept rollouts; ``constant_offset`` part of the mean absolute score
    from terms with one value on 94 % of rollouts; ``collected_alike`` largest share that one paid term gives the same;
    ``commonest_score`` share of the most common score. Other factors: see trainer.replay_loss and replay_sampling. A name
    that ends in ``/at_best`` is a bound on the candidate's side. A changed diagnostic is read on all stored rollouts
    (``findings``; ``scores`` are the parent's, for those that compare scores).

    Reads about ``max_rollouts`` rollouts, evenly spaced steps, so that memory does not grow.
    ``executor`` runs Python terms, in the batches of the training steps. A candidate term that gives no number on some
    rollout shows as ``scoring_errors`` (0, 1) and in ``note``; a Python term that the parent has too counts 0 where it
    does not run, as it did in training. Raises InputError for damaged rollout files, SandboxFailure.
    """
    factors = diff_factors(parent, candidate)
    factor = ", ".join(factors) or "none"
    untold = [f"{f}: {why}" for f in factors for prefix, why in UNTOLD.items() if f.startswith(prefix)]
    kinds = {_kind(f) for f in factors}
    if not untold and kinds == {"diagnostics."}:
        return _diagnostics(directories, parent, candidate, factor, executor, scores or {})
    if len(kinds) > 1:
        untold.append("the factors act at different places, and a replay changes one at a time")
    if untold or not factors:
        return ReplayReport(factor=factor, applicable=False, note="; ".join(untold) or "the harnesses are equal")
    stored = stored_rollouts(directories, max_rollouts)
    notes: list[str] = []
    new = {name for name, term in candidate.terms.items() if parent.terms.get(name) != term}

    def score(rollouts: Stored, harness: Harness) -> Rescored:
        must_run = new if harness is candidate else set()
        return rescore(rollouts, harness, scorer(executor, must_run=must_run, breaks=rollouts.breaks, notes=notes))

    gate = stored_episodes(episodes, max_rollouts)
    case = _Case(stored, score(stored, parent), parent, candidate, score, gate)
    try:
        told = _TOLD.get(kinds.pop(), _scoring)(case)
    except Untold as why:
        return ReplayReport(factor=factor, applicable=False, note=f"{factor}: {why}")
    except InputError as error:
        told = _Told({"scoring_errors": 0.0}, {"scoring_errors": 1.0}, str(error))
    return ReplayReport(
        factor=factor,
        applicable=True,
        rollouts=stored.rows.num_rows,
        groups=len(stored.sizes),
        metrics={name: (told.before[name], told.after[name]) for name in told.before if name in told.after},
        note="; ".join(dict.fromkeys((*notes, told.note) if told.note else notes)),
    )


def _kind(factor: str) -> str:
    """The key of _TOLD that says how the factor is replayed; empty for factors of scoring."""
    return next((prefix for prefix in (*_TOLD, "diagnostics.") if factor.startswith(prefix)), "")


# ------------------------------------------------------------------------ one kind of factor


def _scoring(case: _Case) -> _Told:
    before = score_metrics(case.stored, case.scored)
    after = score_metrics(case.stored, case.score(case.stored, case.candidate))
    if case.episodes:
        before |= _gate_order(case, case.episodes, case.parent)
        after |= _gate_order(case, case.episodes, case.candidate)
    return _Told(before, after)


def _gate_order(case: _Case, episodes: Stored, harness: Harness) -> Metrics:
    outcome = episodes.column("outcome").astype(np.float64)
    agreement = order_agreement(case.score(episodes, harness).score, outcome, episodes.group)
    return {} if agreement is None else {"gate_order_agreement": agreement}


def _both(side: Callable[[Stored, Rescored, Harness], Metrics], note: str = "") -> Callable[[_Case], _Told]:
    """A replay that computes the same of both harnesses, on the rollouts as the parent scored them."""

    def told(case: _Case) -> _Told:
        return _Told(side(case.stored, case.scored, case.parent), side(case.stored, case.scored, case.candidate), note)

    return told


def _clipped(case: _Case) -> _Told:
    before, after = (replay_loss.clipped(h.recipe) for h in (case.parent, case.candidate))
    if before is None or after is None:
        raise Untold(_RATIOS)
    return _Told(before, after, "with one update per batch every ratio is 1: nothing is clipped, either way")


def _group_size(case: _Case) -> _Told:
    before, after = case.parent.recipe.rollout.n, case.candidate.recipe.rollout.n
    return _Told(*sampling.group_size(case.stored, case.scored, before, after))


def _task_mix(case: _Case) -> _Told:
    known, new = case.parent.recipe.data, case.candidate.recipe.data
    before, after = (sampling.task_mix(case.stored, case.scored, known, data) for data in (known, new))
    weak = known.curriculum.mode != "off"
    return _Told(before, after, "what the parent's curriculum hardly drew counts for little" if weak else "")


def _hints(case: _Case) -> _Told:
    before, after = (sampling.hints(case.stored, case.scored, h, case.parent) for h in (case.parent, case.candidate))
    helped = case.stored.hinted[case.stored.group]
    known = f"of the parent's hinted rollouts {share(case.scored.verified[helped]):.0%} are right"
    return _Told(before, after, known if helped.any() else "what a hinted group would solve is not stored")


def _length(case: _Case) -> _Told:
    """The parent's rollouts, and the same under the candidate's limit."""
    old, new = (h.recipe.data.max_response_length for h in (case.parent, case.candidate))
    other = capped(case.stored, new)
    before = score_metrics(case.stored, case.scored)
    after = score_metrics(other, case.score(other, case.candidate))
    for side, stored in ((before, case.stored), (after, other)):
        side["outcome/mean"] = share(stored.column("outcome").astype(np.float64))
    cut, cut_then = (share(stored.column("truncated").astype(np.float64)) for stored in (case.stored, other))
    if new < old:
        note = "a reply that the shorter limit cuts off counts as failed"
        return _Told(before | {"truncated": cut}, after | {"truncated": cut_then}, note)
    note = "how replies that were cut off would go on is not stored"
    return _Told(before | {"truncated/at_best": cut}, after | {"truncated/at_best": 0.0}, note)


# Prefixes of factors to how they are replayed; what is in neither table is a factor of scoring.
_TOLD: Mapping[str, Callable[[_Case], _Told]] = {
    "algorithm.filter_groups.max_num_gen_batches": _both(sampling.refills),
    "actor.mask_truncated": _both(replay_loss.masked),
    "actor.loss_agg_mode": _both(replay_loss.weighed),
    "actor.imitation.": _both(replay_loss.imitated),
    "actor.clip_ratio_": _clipped,
    "actor.policy_loss.": _clipped,
    "rollout.n": _group_size,
    "data.levels": _task_mix,
    "data.curriculum.": _task_mix,
    "data.hints.": _hints,
    "data.max_response_length": _length,
    "data.train_batch_size": _both(sampling.batch_size),
}


# ---------------------------------------------------------------------------- diagnostics


def _diagnostics(
    directories: Sequence[Path],
    parent: Harness,
    candidate: Harness,
    factor: str,
    executor: Executor | None,
    scores: Mapping[str, float],
) -> ReplayReport:
    """Changed diagnostics, read on all stored rollouts as the health report reads them (out of core)."""
    changed = {name: d for name, d in candidate.diagnostics.items() if parent.diagnostics.get(name) != d}
    old = {name: parent.diagnostics[name] for name in changed if name in parent.diagnostics}
    weights = parent.recipe.reward.weights
    after, before = (
        {f.diagnostic: f for f in health_report("", directories, d, scores, [], weights=weights, executor=executor).findings}
        for d in (changed, old)
    )  # fmt: skip
    pairs = {name: (before[name].value, after[name].value) for name in changed if name in before}
    return ReplayReport(
        factor=factor,
        applicable=bool(changed),
        rollouts=sum(pq.read_metadata(file).num_rows for file in rollout_files(directories)),
        metrics={name: (a, b) for name, (a, b) in pairs.items() if a is not None and b is not None},
        findings=tuple(after.values()),
        note="" if changed else f"{factor}: a diagnostic that is taken away reads nothing",
    )
