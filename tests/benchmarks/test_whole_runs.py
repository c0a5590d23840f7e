"""Benchmarks of whole runs: what they read from a run, and what they make of it."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.given import parse_given
from benchmarks import cells, clean, hacks, memory, null, strategies
from graph.config import resolve
from graph.record import RunRecord
from tests.trainer.gate_arms import BETTER, WORSE, judged
from tests.trainer.gate_arms import tolerance as share
from trainer.types import HarnessEdit


def summary(seed: int, champion: float) -> dict[str, Any]:
    """What a run prints, as far as the tables read it."""
    sealed = {
        who: {"sealed": {"mean": mean, "ci_low": mean - 0.02, "ci_high": mean + 0.02}, "sealed_pass_at_k": 0.9}
        for who, mean in (("warm_start", 0.4), ("baseline", 0.6), ("champion", champion))
    }
    return {
        **sealed, "seed": seed, "gain": {"mean": champion - 0.6, "ci_low": 0.0, "ci_high": 0.1}, "versions": [],
        "certifications": [], "wall_s": 60.0, "orchestration_share": 0.05, "peak_rss_mb": 400.0, "first_bottleneck": "none",
    }  # fmt: skip


def test_sigma_is_the_one_that_was_drawn_and_its_interval_covers() -> None:
    rng, sigma, noise, runs, df = np.random.default_rng(0), 0.013, 0.007, 10, 20
    covered, repeats = 0, 400
    for _ in range(repeats):
        draws = rng.normal(0, sigma, (runs, df + 1)).var(axis=1, ddof=1)
        found, low, high, freedom, training = null.pooled([null.Spread(v, df, noise**2, 0.7) for v in draws])
        assert freedom == runs * df and low < found < high
        assert training == pytest.approx(math.sqrt(max(0.0, found**2 - noise**2)))
        covered += low <= sigma <= high
    # The interval is exact for normal draws.
    assert 1 - covered / repeats < share(0.05, repeats)


def test_a_table_of_null_runs_counts_false_promotions() -> None:
    spread = null.Spread(1e-4, 20, 5e-5, 0.7)
    row = null.Tested(0, 8, 9, 0, 2, 1, 0, spread, 200.0)
    text = null.markdown([row, row._replace(seed=1, promoted=2), row._replace(seed=2)])
    assert "false promotions in 1 of 3 runs" in text and "24 candidates, 27 gate looks and 3 certifications" in text
    assert "σ of a training seed: 1.00 pp" in text and "60 degrees of freedom" in text


def test_strategies_are_compared_by_seed() -> None:
    pairs = [
        {"certify": summary(s, 0.7 + 0.01 * s), "each": summary(s, 0.65 + 0.01 * s)} for s in range(3)
    ]  # a difference of .05 on every seed, though the runs differ
    text = strategies.tables("damaged", pairs)
    assert "champion of certify − champion of each over 3 seeds: +0.050, 95 % interval +0.050 to +0.050" in text
    assert text.count("## damaged start") == 2


def test_every_candidate_is_known_and_every_cell_is_a_valid_run() -> None:
    changed = [
        HarnessEdit(change=parse_given(text)).factor
        for text in (hacks.TIDY, hacks.PLAUSIBLE, hacks.VISIBLE, hacks.RATE, hacks.WORKED)
    ]
    assert changed[:3] == list(hacks.HACKS) and not set(changed[3:]) & set(hacks.HACKS)
    for options in (*hacks.CELLS.values(), *strategies.STARTS.values(), null.NULL, cells.INDEPENDENT):
        sets = dict(text.split("=", 1) for flag, text in pairwise(options) if flag == "--set")
        resolve(None, {}, {}, sets)


def test_a_candidate_rests_where_the_run_settled_it(tmp_path: Path) -> None:
    run = tmp_path / "direct-math-0"
    record = RunRecord(run)
    gain, loss = judged(BETTER), judged(WORSE)
    for version, report in (("v0001", gain), ("v0002", loss)):
        record.save(version, "gate", report)
    record.save("v0001", "certificate", gain)
    versions = (
        ("v0001", "optim.lr", "provisional"),
        ("v0002", "reward.term.tidy", "invalid"),
        ("v0003", "reward.tests", "refused"),
    )
    found = hacks.judged(
        run,
        {
            "versions": [{"version": v, "factor": f, "verdict": verdict} for v, f, verdict in versions],
            "certifications": [{"version": "v0001", "verdict": "promoted"}],
        },
    )
    assert [(c.station, c.verdict, c.hack) for c in found] == [
        ("certification", "promoted", False),
        ("gate", "invalid", True),
        ("backtest", "refused", True),
    ]
    table = hacks.markdown(found)
    assert f"{100 * loss.delta:+.1f} pp" in table and "| backtest | refused |  |  |  |  |" in table
    said = hacks.claims(found)
    assert "reward.term.tidy before the gate judged invalid or unconfirmed (direct-math): 1 of 1" in said
    assert "reward.tests before the gate judged invalid or unconfirmed (direct-math): 0 of 1" in said
    assert "optim.lr, honest, invalid: 0 of 1" in said and "optim.lr, honest, promoted: 1 of 1" in said


def test_a_cell_waits_for_a_run_that_somebody_else_has_and_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "WAIT_S", 0.01)
    gate = tmp_path / "gate"
    program = f"import pathlib, sys; p = pathlib.Path({str(gate)!r}); n = len(p.read_text()) if p.exists() else 0\n"
    program += "p.write_text('x' * (n + 1)); sys.exit(75) if n < 2 else print('{}')"
    assert cells.run([sys.executable, "-c", program]) == "{}\n" and gate.read_text() == "xxx"
    with pytest.raises(SystemExit, match="exit code 3; start the benchmark again"):
        cells.run([sys.executable, "-c", "import sys; sys.exit(3)"])


def test_memory_is_measured_in_versions_until_the_certified_step() -> None:
    def run(seed: int, at: int | None) -> dict[str, Any]:
        versions = [{"version": f"v{i:04d}", "verdict": "refused" if i == 1 else "undecided"} for i in range(1, 6)]
        chain = [] if at is None else [{"verdict": "promoted", "chain": [f"v{at:04d}"]}]
        return {**summary(seed, 0.7), "versions": versions, "certifications": chain}

    assert [memory.effort(run(0, at)) for at in (2, 5, None)] == [1, 4, None]
    trios = [{"teacher": run(s, 4), "with": run(s, 2), "without": run(s, 4)} for s in range(3)]
    text = memory.table("reference", trios)
    assert "versions, with − without: -2.0 (95 % interval -2.0 to -2.0)" in text and text.count("| 3 | 3 | 1 |") == 3
    assert "sealed, with − without: +0.0 pp" in text
    assert "never" in memory.table("reference", [{**trios[0], "with": run(0, None)}])


def test_a_clean_table_counts_versions_once_however_many_checks_would_block_them() -> None:
    foreign = (("v0001", "a/one"), ("v0001", "b/two"))
    runs = [
        clean.Clean("math-0", ("v0001", "v0002"), 1, 1, 1, 0, 1, 1, foreign, 9.0),
        clean.Clean("math-1", ("v0001", "v0002"), 0, 0, 0, 0, 0, 0, (), 9.0),
    ]
    text = clean.markdown(runs, 2)
    assert "registered: 1 pathologies, 1 validity checks" in text
    assert "false blocks by checks of the run itself: 1 of 4" in text
    assert "one of 2 checks of other runs would have blocked: 1 of 4" in text
