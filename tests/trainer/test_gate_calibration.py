"""The stored noise floor: pooled, counted once, with at most four degrees of freedom; and its file."""

from __future__ import annotations

import pytest

from tests.trainer.gate_arms import BETTER, PARENT, POLICY, SAME, judged
from trainer.gate import GateInput, VersionSpread, judge
from trainer.gate_calibration import (
    Calibration,
    NoiseFloor,
    noise_floor,
    pooled_floor,
)
from trainer.shelf import Fingerprint
from trainer.statistics import detectable_effect

HERE = Fingerprint(domain="math", protocol_hash="h", token_budget=1000, base_policy="b")
FLOOR = NoiseFloor(variance=4e-4, df=10, r=0.01, n_tasks=24)


def stored(df: int, variance: float = 4e-4, protocol_hash: str = "h") -> VersionSpread:
    return VersionSpread(
        version="calibration", protocol_hash=protocol_hash, variance=variance, df=df, n_tasks=24, r=1e-4
    )


def with_calibration(calibration: VersionSpread | None) -> float:
    p = judge(GateInput(parent=PARENT, candidate=SAME, calibration=calibration), POLICY).p
    assert p is not None
    return p


def test_a_calibration_counts_with_four_degrees_of_freedom_and_only_for_its_protocol() -> None:
    assert with_calibration(stored(4)) == with_calibration(stored(400)) != with_calibration(stored(3))
    assert with_calibration(stored(9, protocol_hash="other")) == with_calibration(None)
    assert with_calibration(stored(0)) == with_calibration(None) != with_calibration(stored(4))


def test_a_calibration_lowers_the_detectable_effect_as_four_more_degrees_of_freedom_do() -> None:
    plain = judged(BETTER)
    report = judge(GateInput(parent=PARENT, candidate=BETTER, calibration=stored(40, plain.sigma**2)), POLICY)
    looks = ((2, 0.0, 0.3), (3, 0.005, 1.0))
    assert plain.mde is not None
    assert report.mde is not None
    # The pool's noise changes slightly with the calibration's own r; the interaction is far below 1 % of it.
    assert report.mde / plain.mde == pytest.approx(
        detectable_effect(looks, 3, 4) / detectable_effect(looks, 3, 0), rel=0.01
    )


def test_floors_are_pooled_by_df_over_the_other_runs() -> None:
    runs = {"a": FLOOR, "b": FLOOR.model_copy(update={"variance": 1e-4, "df": 5}), "c": FLOOR}
    calibration = Calibration(fingerprint=HERE, runs=runs)
    spread = pooled_floor(calibration, "c")
    assert spread is not None
    assert (spread.df, spread.protocol_hash) == (15, "h")
    assert spread.r == pytest.approx(0.01)
    assert spread.variance == pytest.approx((10 * 4e-4 + 5 * 1e-4) / 15)
    assert pooled_floor(Calibration(fingerprint=HERE, runs={"c": FLOOR}), "c") is None


def test_the_floor_of_a_run_is_the_gates_own_pool() -> None:
    report = judged(SAME)
    floor = noise_floor([report.parent_spread, report.spread, report.spread])
    assert floor is not None
    assert (floor.df, floor.n_tasks) == (4, 24)
    assert floor.variance**0.5 == pytest.approx(report.sigma, rel=1e-12)
    assert noise_floor([stored(0)]) is None
