"""The noise floor: what the baseline's seeds say of it, what earlier runs left of it, and which effect can be seen at all.

A run reads the stored floors once and keeps what it read, so that its verdicts do not change while other runs finish.
Only runs that start with the same recipe share a floor. Runs of the same seed train the same baseline, so a run leaves out what
its own seed has stored.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from graph.kind import fingerprint_of, recipe_of, shelf_folder
from graph.record import RunRecord, read_record, write_atomic
from graph.seals import seal
from graph.state import Deps
from graph.versions import BASELINE, evaluations, seeds_of, stalled
from trainer.evaluation import score_array
from trainer.gate import planned_share
from trainer.gate_calibration import Calibration, noise_floor, pooled_floor
from trainer.gate_evidence import CALIBRATION_DF, moments_of, version_spread
from trainer.gate_types import Arm, GatePolicy, VersionSpread
from trainer.shelf import put, read_shelf
from trainer.statistics import Spread, detectable_effect, pooled, upper_sigma_factor
from trainer.types import InputError, Record

FILE = "calibration.json"


class Floor(Record):
    """What a run uses of earlier ones: their pooled spread, or nothing, and from where."""

    spread: VersionSpread | None = None
    source: str = ""


class Detectable(NamedTuple):
    """The noise floor σ (one training seed's score), and the effect a test finds with the policy's power: from σ as it was
    estimated, and from its 80 % upper bound."""

    sigma: float
    mde: float
    upper: float


def calibrate(deps: Deps) -> None:
    """Enter the noise floor of the baseline into the store, take what other runs left there, and say what can be seen. Only the
    baseline's: it starts from the run's own base, and candidates may not."""
    take(deps)
    stored = calibration_of(deps.record)
    own = baseline_spread(deps.record)
    if own.df < 1:
        return
    seen = detectable(own, stored, deps.config.gate)
    more = f" and {min(stored.df, CALIBRATION_DF):g} df of earlier runs" if stored else ""
    deps.say(
        "baseline",
        f"noise floor σ {100 * seen.sigma:.1f} pp from {own.df + 1} seeds{more}; a test finds {100 * seen.mde:.1f} pp with "
        f"{deps.config.gate.power:.0%} power ({100 * seen.upper:.1f} pp if σ is at its upper bound)",
    )


def take(deps: Deps) -> None:
    """Exchange noise floors with the store, once per run."""
    path = deps.record.root / FILE
    if not path.exists():
        floor = _exchange(deps) if deps.config.gate.use_calibration else Floor()
        write_atomic(path, floor.model_dump_json(indent=1) + "\n")
        seal(deps.record.root, [path])


def calibration_of(record: RunRecord) -> VersionSpread | None:
    """What this run took from earlier ones; runs of before there was such a store took nothing."""
    path = record.root / FILE
    return read_record(path, Floor).spread if path.exists() else None


def baseline_spread(record: RunRecord) -> VersionSpread:
    """Over the seeds that the baseline had before the first candidate; a certification may give it more."""
    entry = next((e for e in record.entries("ledger") if e["kind"] == "baseline"), None)
    seeds = entry["seeds"] if entry else seeds_of(record, BASELINE)
    validation = evaluations(record, BASELINE, seeds, "validation")
    arm = Arm(version=BASELINE, validation=validation, gate=(), stalled=stalled(record, BASELINE))
    return version_spread(arm, moments_of(arm, score_array(validation)))


def detectable(baseline: VersionSpread, stored: VersionSpread | None, policy: GatePolicy) -> Detectable:
    """Before the first candidate. How differently tasks may react to it is not known yet, so this is the least."""
    past = [Spread(stored.variance, min(stored.df, CALIBRATION_DF), stored.r)] if stored else []
    pool = pooled([Spread(baseline.variance, baseline.df, baseline.r)], past, baseline.n_tasks)
    sigma = math.sqrt(pool.variance)
    if policy.strategy == "certify":
        looks: tuple[tuple[int, float, float], ...]
        looks, n_b = ((policy.certify_seeds, policy.certify_share * policy.alpha, 1.0),), policy.certify_seeds
    else:
        share = planned_share(0, policy)
        looks, n_b = tuple((k.seeds, share * k.share, k.futility) for k in policy.plan), baseline.df + 1
    mde = sigma * detectable_effect(looks, max(n_b, 2), sum(s.df for s in past), policy.power)
    return Detectable(sigma, mde, mde * upper_sigma_factor(pool.df))


def _exchange(deps: Deps) -> Floor:
    # The spread between seeds is the recipe's: from 1.3 pp to 7 pp where the learning rate alone differs.
    fingerprint = fingerprint_of(deps).model_copy(update={"recipe": recipe_of(deps)})
    own, folder = f"seed {deps.config.run.seed}", shelf_folder("calibration")
    try:
        known = read_shelf(folder, fingerprint, Calibration)
        if floor := noise_floor([baseline_spread(deps.record)]):
            put(folder, fingerprint, Calibration, own, floor)
    except (InputError, OSError) as error:
        deps.say("baseline", f"earlier noise floors are left out: {error}")
        return Floor()
    spread = pooled_floor(known, own)
    return Floor(spread=spread, source=f"{len(known.others(own))} runs in {folder}" if spread else "")
