"""The gate's benchmark: the rules it compares with, its intervals and its page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gate, gate_chains, gate_null, gate_plain, gate_rules
from benchmarks.trainer import BEGIN, END
from tests.trainer.gate_arms import tolerance
from trainer.gate import GatePolicy


def resampled(rng: np.random.Generator, of: int, draws: int) -> np.ndarray:
    return rng.integers(0, of, (draws, of))


def test_the_bootstraps_are_the_limit_of_resampling() -> None:
    """20,000 resamples estimate p to within 4.5·.5/√20000 = .016; for 200 tasks the normal limit is off by about
    1/√200 times a skewness below .1, .007 at most."""
    rng, draws, tasks = np.random.default_rng(0), 20_000, 200
    for gain in (0.0, 0.02, 0.05):
        c = (rng.random((3, tasks)) < 0.5 + gain).astype(float)
        b = (rng.random((3, tasks)) < 0.5).astype(float)
        over_tasks = (c[0] - b[0])[resampled(rng, tasks, draws)].mean(axis=1)
        assert gate_rules.task_bootstrap(c[:1], b[:1])[0] == pytest.approx(_below(over_tasks), abs=0.025)
        # Seeds resampled in each arm, then tasks of the seed-averaged differences.
        seeds = [x.mean(axis=1)[resampled(rng, 3, draws)].mean(axis=1) for x in (c, b)]
        difference = (c - b).mean(axis=0)
        noise = (difference - difference.mean())[resampled(rng, tasks, draws)].mean(axis=1)
        found = gate_rules.hierarchical_bootstrap(c.mean(axis=1)[None], b.mean(axis=1)[None], difference[None])[0]
        assert found == pytest.approx(_below(seeds[0] - seeds[1] + noise), abs=0.025)


def _below(values: np.ndarray) -> float:
    """Share at or below zero, ties counted by half as the continuous limit does."""
    return float((values < -1e-12).mean() + (abs(values) <= 1e-12).mean() / 2)


def test_a_world_has_the_noise_that_it_names() -> None:
    rng = np.random.default_rng(1)
    for world in gate_null.WORLDS:
        runs = 400
        p = gate_null.difficulties(world, rng)
        trained = gate_null.train(world, p, runs, 6, rng)
        live = p[(p > 0) & (p < 1)]
        # Seeds move the probabilities, so that E[p(1−p)] loses the variance of that shift on live tasks.
        spread = (world.sigma_seed * world.tasks / len(live)) ** 2
        r = (live * (1 - live) - spread).sum() / world.tasks / world.k
        assert trained.seeds.noise.mean() == pytest.approx(r, rel=0.02)
        sigma2 = world.sigma_seed**2 + r / world.tasks
        # 400 × 5 df: the variance's relative sd is √(2/2000) = .032.
        assert trained.seeds.means.var(axis=1, ddof=1).mean() == pytest.approx(sigma2, rel=4.5 * 0.032)
        assert trained.checkpoints.shape == (runs, gate_null.CHECKPOINTS)


def test_the_usual_practices_fail_in_null_runs_and_the_gate_does_not() -> None:
    runs = 200
    first = gate_null.first_promotions(gate_null.WORLDS[0], runs, 8, seed=2)

    def share(rule: str, count: int) -> float:
        return float((first[rule] <= count).mean())

    single, tasks, seeds = gate_null.USUAL
    assert share(single, 1) > 0.40
    assert share(single, 8) > 0.80
    assert share(tasks, 8) > tolerance(0.05, runs)
    assert share(seeds, 8) > tolerance(0.05, runs)
    for form in ("the gate, short form", "the gate, long form"):
        assert share(form, 8) <= tolerance(0.05, runs)


def test_certifying_needs_room_for_fresh_seeds_and_finds_more_at_equal_trainings() -> None:
    draw, runs = gate_chains.EFFECTS["a third each −2, 0, +2"], 400
    assert not gate_chains.certified(GatePolicy(), 11, draw, runs, 0).certified.any()
    chain, single = (gate_chains.STRATEGIES[name](41, draw, runs, 0) for name in ("certify", "each, long form"))
    error = np.sqrt((chain.gain.var() + single.gain.var()) / runs)
    assert chain.gain.mean() - single.gain.mean() > 4.5 * error
    empty = gate_chains.certified(GatePolicy(), 41, gate_chains.nulls, runs, 0)
    assert empty.false.mean() <= tolerance(0.05, runs)
    assert (empty.idle == empty.steps).all()


def test_equal_options_give_equal_figures_and_other_seeds_do_not() -> None:
    case = gate_plain.CASES[0]
    runs = [gate_plain.false_promotions(case, GatePolicy(), 500, 20, seed) for seed in (0, 0, 1)]
    assert (runs[0] == runs[1]).all()
    assert (runs[0] != runs[2]).any()


def test_a_noise_of_ones_own_is_tabled_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "gate.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    options = ["gate", "--sigma-seed", "0.02", "--tasks", "40", "--k", "2", "--runs", "10", "--json"]
    monkeypatch.setattr("sys.argv", [*options, "--write", str(page)])
    assert gate.main() == 0
    table = json.loads(capsys.readouterr().out)
    assert "40 tasks × 2, σ_seed 0.02" in table["title"]
    assert {row[0] for row in table["rows"]} == {*gate_null.USUAL, "the gate, short form", "the gate, long form"}
    assert all(
        cell["runs"] == 10 and cell["low"] <= cell["rate"] <= cell["high"]
        for _, *cells in table["rows"]
        for cell in cells
    )
    assert f"### {table['title']}" in page.read_text()
    monkeypatch.setattr("sys.argv", ["gate", "--sigma-seed", "0.2"])
    with pytest.raises(SystemExit):
        gate.main()
