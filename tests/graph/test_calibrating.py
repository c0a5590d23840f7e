"""Noise floors of earlier runs count, those of the same trainings do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph.calibrating import FILE, Floor, detectable
from graph.record import read_record
from tests.runs import LEAST, Runner, arguments
from trainer.gate_types import GatePolicy, VersionSpread
from trainer.statistics import upper_sigma_factor

OWN = VersionSpread(version="v0000", protocol_hash="h", variance=0.0004, df=3, n_tasks=100, r=0.01)


def test_the_least_effect_follows_from_the_pooled_noise_floor() -> None:
    policy = GatePolicy()
    alone = detectable(OWN, None, policy)
    assert alone.sigma == pytest.approx(0.02)
    assert alone.upper == pytest.approx(alone.mde * upper_sigma_factor(3))
    stored = OWN.model_copy(update={"df": 40})
    known = detectable(OWN, stored, policy)
    assert known.sigma == pytest.approx(0.02)
    assert known.upper == pytest.approx(known.mde * upper_sigma_factor(3 + 4)), "at most four degrees are borrowed"
    assert known.mde < alone.mde


def test_the_floor_is_never_below_what_sampling_alone_makes() -> None:
    calm = OWN.model_copy(update={"variance": 0.0})
    assert detectable(calm, None, GatePolicy()).sigma == pytest.approx(0.01)  # √(.01 / 100)


def test_testing_each_candidate_sees_less_than_certifying_one_chain() -> None:
    each = detectable(OWN, None, GatePolicy(strategy="each"))
    assert each.mde > detectable(OWN, None, GatePolicy()).mde


def test_a_run_takes_the_floors_of_other_seeds_alone_and_a_damaged_store_stops_nothing(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "home")

    def run(name: str, seed: int, **options: object) -> tuple[Floor, str]:
        values = {**LEAST, "warm_start.steps": 20, **{k.replace("__", "."): v for k, v in options.items()}}
        begin = arguments(tmp_path, name, values, versions=0)
        done = runner.run(*begin, "--seed", str(seed))
        assert done.returncode == 0, done.stderr
        return read_record(tmp_path / name / FILE, Floor), done.stderr + done.stdout

    assert run("first", 0)[0] == Floor()
    assert run("again", 0)[0] == Floor(), "the same trainings would count twice"
    other, said = run("other", 1)
    assert other.spread is not None
    assert other.spread.df == LEAST["trainer.seeds"] - 1
    assert "df of earlier runs" in said
    assert run("damaged", 1, recipe__optim__lr="2e-3")[0] == Floor(), "another recipe trains with another noise"
    (store,) = (p for p in (runner.home / "cache").rglob("calibration/*.json") if "seed 0" in p.read_text())
    store.write_text("{")
    spoilt, said = run("spoilt", 2)
    assert spoilt == Floor()
    assert "earlier noise floors are left out" in said
    assert str(store) in said
