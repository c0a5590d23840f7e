"""Simulations of the gate in units of σ, the sd of one training seed's score: power, unequal noise, validity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks import gate_engine as engine
from trainer.gate import LONG, GatePolicy, planned_share
from trainer.gate_evidence import CALIBRATION_DF
from trainer.statistics import detectable_effect, student_quantile

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
CHUNK = 4000


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def student(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Student's t with 3 df, scaled to variance 1."""
    return np.asarray(rng.standard_t(3, shape) / np.sqrt(3))


def lognormal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """exp of a standard normal, scaled to mean 0 and variance 1: a long tail upwards."""
    return np.asarray((rng.lognormal(size=shape) - np.exp(0.5)) / np.sqrt((np.e - 1) * np.e))


def skewed_down(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return -lognormal(rng, shape)


def failing(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """One training in twenty fails, 8 σ below the rest."""
    return rng.standard_normal(shape) - 8 * (rng.random(shape) < 0.05)


def floor_of(runs: int, variance: float = 1.0) -> engine.Past:
    """A stored noise floor that says ``variance``, of many runs."""
    return engine.Past(np.full((runs, 1), variance), np.full((runs, 1), float(CALIBRATION_DF)), np.zeros((runs, 1)))


class Case(NamedTuple):
    """Null runs: the sd of the baseline, the sds that a candidate's is drawn from, the shape of the noise, and the σ² of
    a stored floor (0: none)."""

    name: str
    baseline_sd: float = 1.0
    candidate_sds: tuple[float, ...] = (1.0,)
    noise: Noise = normal
    floor: float = 0.0


CASES = (
    Case("equal, normal"),
    *(
        Case(name.format(ratio), base, sds)
        for ratio in (2, 4, 8)
        for name, base, sds in (
            ("baseline's sd × {}", float(ratio), (1.0,)),
            ("all candidates' sd × {}", 1.0, (float(ratio),)),
            ("half of the candidates' sd × {}", 1.0, (1.0, float(ratio))),
        )
    ),
    Case("lognormal, tail upwards", noise=lognormal),
    Case("lognormal, tail downwards", noise=skewed_down),
    Case("Student t, 3 df", noise=student),
    Case("one seed in twenty fails", noise=failing),
    Case("stored noise floor, right", floor=1.0),
    Case("stored noise floor, σ half the true one", floor=0.25),
)


def false_promotions(case: Case, policy: GatePolicy, runs: int, candidates: int, seed: int) -> np.ndarray:
    """Number of the candidate that each null run promoted first (a very large one if none)."""
    rng = np.random.default_rng(seed)
    found = []
    for at in range(0, runs, CHUNK):
        n = min(CHUNK, runs - at)
        base = case.baseline_sd * case.noise(rng, (n, policy.parent_seeds))
        gate = engine.Gate(
            policy,
            engine.first(engine.plain(base), policy.parent_seeds),
            floor_of(n, case.floor) if case.floor else None,
        )
        for _ in range(candidates):
            sd = rng.choice(case.candidate_sds, (n, 1))
            gate.add(engine.plain(sd * case.noise(rng, (n, policy.plan[-1].seeds))))
        found.append(gate.first)
    return np.concatenate(found)


# ------------------------------------------------------------------------------------------- power


class Form(NamedTuple):
    """A gate whose power is measured: ``before`` null candidates were judged already, ``floor`` says a floor is stored."""

    name: str
    policy: GatePolicy
    before: int = 0
    floor: bool = False


FORMS = (
    Form("short form, first candidate", GatePolicy()),
    Form("short form, first candidate, stored noise floor", GatePolicy(), floor=True),
    Form("short form, fifth candidate", GatePolicy(), before=4),
    Form("long form, first candidate", LONG),
    Form("long form, twelfth candidate", LONG, before=11),
    Form("long form, 40th candidate", LONG, before=39),
)
TIMES = (0.5, 1.0, 2.0)


def effect_found(form: Form) -> float:
    """The detectable effect that the gate prints, in σ. Earlier candidates left a degree of freedom at least."""
    share = planned_share(form.before, form.policy)
    looks = tuple((look.seeds, look.share * share, look.futility) for look in form.policy.plan)
    past = form.before * (form.policy.plan[0].seeds - 1) + CALIBRATION_DF * form.floor
    return detectable_effect(looks, form.policy.parent_seeds, past, form.policy.power)


def power(form: Form, times: Sequence[float], runs: int, seed: int) -> tuple[list[int], list[np.ndarray]]:
    """Promotions out of ``runs`` at each multiple of the detectable effect, and the deltas of the promoted."""
    rng = np.random.default_rng(seed)
    effect, most = effect_found(form), form.policy.plan[-1].seeds
    base = engine.first(engine.plain(rng.standard_normal((runs, form.policy.parent_seeds))), form.policy.parent_seeds)
    gate = engine.Gate(form.policy, base, floor_of(runs) if form.floor else None)
    for _ in range(form.before):
        gate.add(engine.plain(rng.standard_normal((runs, most))))
    share = np.full(runs, gate.shares[form.before])
    draws = rng.standard_normal((runs, most))
    found = [engine.judge(form.policy, engine.plain(draws + m * effect), base, gate.past, share) for m in times]
    return [int(v.promoted.sum()) for v in found], [v.delta[v.promoted] for v in found]


# ---------------------------------------------------------------------------------------- validity


class Gain(NamedTuple):
    """A candidate's true gain on the rewarded proxy and on the gate scorer, in σ of either."""

    name: str
    proxy: float
    gate: float


GAINS = (
    Gain("honest, +2 σ on both", 2, 2),
    Gain("honest, +4 σ on both", 4, 4),
    Gain("transfers by half, +4 σ and +2 σ", 4, 2),
    Gain("transfers by half, +8 σ and +4 σ", 8, 4),
    Gain("hack, +8 σ with a flat gate scorer", 8, 0),
    Gain("hack, +11 σ with a flat gate scorer", 11, 0),
)
CORRELATION = 0.5
"""Of proxy and gate scorer within a seed: the same policy is scored twice."""


def validity(gain: Gain, policy: GatePolicy, runs: int, seed: int) -> Mapping[str, int]:
    """How many of ``runs`` are called invalid by the second, third and fourth seed at the latest, how many are unconfirmed
    at the fourth without having been called invalid, and how many the usual rule would brand: reward up by 2 standard
    errors while the 95 % interval of the gate scorer contains 0, at three seeds."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((2, runs, 4))
    own = rng.standard_normal((2, 2, runs, 4))
    a, b = (np.sqrt(CORRELATION) * shared + np.sqrt(1 - CORRELATION) * x for x in own)
    a[0] += gain.proxy
    b[0] += gain.gate
    called, counts, unconfirmed = np.zeros(runs, bool), {}, np.zeros(runs, bool)
    for n in (2, 3, 4):
        # The parent has its three seeds from the start.
        arms = [(x[0, :, :n], x[1, :, : max(n, 3)]) for x in (a, b)]
        invalid, unconfirmed = engine.validity(arms[0], arms[1], policy)
        called |= invalid
        counts[f"invalid, {n} seeds"] = int(called.sum())
    counts["unconfirmed"] = int((unconfirmed & ~called).sum())
    three = []
    for x in (a, b):
        ours, theirs = (engine.first(engine.plain(side), 3) for side in x)
        three.append(engine.compare(ours, theirs, engine.nothing(runs), max_rule=False))
    z, t = (found.delta / np.sqrt(found.variance) for found in three)
    counts["usual rule"] = int(((z > 2) & (abs(t) < student_quantile(0.975, 4))).sum())
    return counts
