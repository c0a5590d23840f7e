"""The vectorised gate gives the gate's own numbers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import gate_engine as engine
from tests.trainer.gate_arms import evaluated
from trainer.gate import LONG, Arm, GateInput, GatePolicy, Look, VersionSpread, judge
from trainer.statistics import Spread, compare, moments

SHORT = GatePolicy(mde_target=1e6)
"""Without further parent seeds, which the simulations leave out."""
EARLY = LONG.model_copy(
    update={"mde_target": 1e6, "alpha": 0.9, "looks": tuple(Look(s, f, 0.6) for s, f, _ in LONG.looks)}
)
"""A lenient long form, so that promotions come at every look."""


def scores(
    rng: np.random.Generator, runs: int, seeds: int, tasks: int = 24, k: int = 3, sd: float = 0.1, gain: float = 0.0
) -> np.ndarray:
    p = gain + rng.uniform(size=tasks) + sd * rng.standard_normal((runs, seeds, 1))
    return (rng.uniform(size=(runs, seeds, tasks, k)) < p[..., None]).astype(float)


def version(name: str, rows: np.ndarray, first_seed: int) -> Arm:
    evals = {
        suite: tuple(evaluated(name, first_seed + i, seed, suite) for i, seed in enumerate(rows))
        for suite in ("validation", "gate")
    }
    return Arm(version=name, **evals)


@pytest.mark.parametrize("max_rule", [True, False])
@pytest.mark.parametrize(("n_c", "n_b"), [(2, 3), (3, 3), (6, 4)])
def test_a_comparison_is_that_of_the_gate(n_c: int, n_b: int, max_rule: bool) -> None:
    rng = np.random.default_rng(n_c)
    runs = 40
    c, b = scores(rng, runs, n_c), scores(rng, runs, n_b, sd=0.02)
    past = engine.Past(
        rng.uniform(size=(runs, 5)) ** 6, rng.integers(0, 3, (runs, 5)).astype(float), rng.uniform(size=(runs, 5)) / 4
    )
    found = engine.compare(
        engine.first(engine.from_scores(c), n_c), engine.first(engine.from_scores(b), n_b), past, max_rule=max_rule
    )
    for i in range(runs):
        others = [Spread(v, d, r) for v, d, r in zip(*(column[i] for column in past), strict=True) if d > 0]
        want = compare(moments(c[i]), moments(b[i]), others, max_rule=max_rule)
        assert found.delta[i] == pytest.approx(want.delta, abs=1e-12)
        assert found.variance[i] == pytest.approx(want.variance, rel=1e-12)
        assert found.df[i] == pytest.approx(want.df, rel=1e-12)
        assert found.p[i] == pytest.approx(want.p, abs=1e-12)


@pytest.mark.parametrize("policy", [SHORT, EARLY])
def test_runs_of_candidates_are_those_of_the_gate(policy: GatePolicy) -> None:
    rng = np.random.default_rng(5)
    runs, n_b, most = 12, policy.parent_seeds, policy.plan[-1].seeds
    parents, candidates = scores(rng, runs, n_b), [scores(rng, runs, most, gain=0.15 * j) for j in range(4)]
    gate = engine.Gate(policy, engine.first(engine.from_scores(parents), n_b))
    verdicts = [gate.add(engine.from_scores(c)) for c in candidates]
    promotions = 0
    for i in range(runs):
        parent = version("v0", parents[i], 0)
        spent: tuple[float, ...] = ()
        pool: tuple[VersionSpread, ...] = ()
        for j, candidate in enumerate(candidates):
            seeds = policy.plan[0].seeds
            while True:
                arm = version(f"v{j + 1}", candidate[i][:seeds], 100 * (j + 1))
                inp = GateInput(parent=parent, candidate=arm, index=j, spent=spent, pool=pool)
                report = judge(inp, policy)
                if report.status == "final":
                    break
                seeds += report.need_seeds
            assert report.n_seeds == verdicts[j].seeds[i]
            assert report.p == pytest.approx(verdicts[j].p[i], abs=1e-12)
            assert report.share == pytest.approx(gate.shares[j], rel=1e-12)
            assert (report.verdict == "promoted") == verdicts[j].promoted[i]
            promotions += report.verdict == "promoted"
            if report.verdict == "promoted":
                break
            spent, pool = (*spent, report.spent), (*pool, report.parent_spread, report.spread)
        assert (gate.first[i] <= 4) == (report.verdict == "promoted")
    assert policy is SHORT or promotions


def test_validity_is_that_of_the_gate() -> None:
    rng = np.random.default_rng(6)
    runs, states = 150, {"clean": 0, "invalid": 0, "unconfirmed": 0}
    a, b = (tuple(rng.standard_normal((runs, 3)) for _ in range(2)) for _ in range(2))
    gain = rng.uniform(0, 14, runs)[:, None]
    a, b = (a[0] + gain, a[1]), (b[0] + gain * rng.uniform(0, 0.4, runs)[:, None], b[1])
    invalid, unconfirmed = engine.validity(a, b, SHORT)

    def arm(name: str, i: int, side: int) -> Arm:
        # A single task of one sample is a plain number per seed, in the gate as here.
        seeds = [100 * side + s for s in range(3)]
        return Arm(
            version=name,
            validation=tuple(evaluated(name, s, np.full((1, 1), v)) for s, v in zip(seeds, a[side][i], strict=True)),
            gate=tuple(evaluated(name, s, np.full((1, 1), v), "gate") for s, v in zip(seeds, b[side][i], strict=True)),
        )

    for i in range(runs):
        state = judge(GateInput(parent=arm("v0", i, 1), candidate=arm("v1", i, 0)), SHORT).validity.state
        assert (state == "invalid", state == "unconfirmed") == (invalid[i], unconfirmed[i])
        states[state] += 1
    assert min(states.values()) > 0
