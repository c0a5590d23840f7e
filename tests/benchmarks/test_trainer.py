from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pytest

from benchmarks.pacing import Paced
from benchmarks.shapes import REWARD_SQL, Shape, reward
from benchmarks.trainer import BEGIN, END, put_into, ratios, report, rotated, table, take_turns, targets

SHAPE = Shape(16, 32)
PROGRAM = """
from benchmarks.pacing import Pacer
import torch
pacer = Pacer()
print("noise of a library", flush=True)
while True:
    pacer.wait()
    pacer.done(step_s=float(torch.get_num_threads()), rollout_s=pacer.elapsed())
"""


def rounds(**step_s: list[float]) -> dict[str, list[dict[str, float]]]:
    return {
        name: [{"step_s": s, "rollout_s": s / 2, "peak_rss_mb": 100.0 + i} for i, s in enumerate(taken)]
        for name, taken in step_s.items()
    }


def test_a_program_repeats_on_demand_with_the_threads_it_is_told(tmp_path: Path) -> None:
    with Paced([sys.executable, "-c", PROGRAM], tmp_path / "log", {}) as paced:
        assert [paced.repeat(threads)["step_s"] for threads in (1, 2, 1)] == [1.0, 2.0, 1.0]
    assert tmp_path.joinpath("log").read_text() == "noise of a library\n"


def test_a_program_that_ends_is_said_with_its_last_words(tmp_path: Path) -> None:
    with (
        Paced([sys.executable, "-c", "raise SystemExit('no such policy')"], tmp_path / "log", {}) as paced,
        pytest.raises(RuntimeError, match="log: ended with 1:\nno such policy"),
    ):
        paced.repeat(1)


def test_repetitions_alternate_and_no_way_always_follows_the_same(tmp_path: Path) -> None:
    assert [list(rotated("abc", i)) for i in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]
    command = [sys.executable, "-c", PROGRAM]
    with Paced(command, tmp_path / "a", {}) as a, Paced(command, tmp_path / "b", {}) as b:
        taken = take_turns({"a": a, "b": b}, {"a": 1, "b": 2}, 3, "test")
    assert {name: [repetition["step_s"] for repetition in found] for name, found in taken.items()} == {
        "a": [1.0] * 3,
        "b": [2.0] * 3,
    }


def test_ratios_pair_what_ran_side_by_side() -> None:
    # The machine was ten times slower in the second round: the ratio does not see it.
    assert ratios(rounds(trl=[4.0, 40.0], ours=[1.0, 10.0]), "trl", "ours", "step_s") == [4.0, 4.0]


def test_the_table_counts_rollouts_and_takes_the_highest_peak() -> None:
    row = table(SHAPE, {"ours": 1, "trl": 2}, rounds(ours=[0.1, 0.1, 0.1], trl=[0.4, 0.4, 0.8])).splitlines()[-1]
    assert row == "| trl | 2 | 400.0 (400.0 to 600.0) | 200.0 (200.0 to 300.0) | 40 | 80 | 102 | 4.00 | 4.00 |"


@pytest.mark.parametrize(("ours", "met"), [(0.2, ["yes", "no", "yes"]), (0.3, ["no", "no", "no"])])
def test_targets_say_what_is_missed(ours: float, met: list[str]) -> None:
    found = rounds(ours=[ours] * 2, trl=[0.8] * 2, generate=[0.9] * 2, passes=[0.15] * 2)
    assert [row[-1] for row in targets(SHAPE, found)] == met


def test_the_report_has_a_table_per_shape_and_goes_between_the_marks_of_a_page() -> None:
    taken = rounds(ours=[0.1, 0.1], trl=[0.4, 0.4], generate=[0.4, 0.4], passes=[0.1, 0.1])
    shape = {"threads": dict.fromkeys(taken, 1), "rounds": taken}
    figures = report({"versions": {"torch": "2"}, "cores": 2, "shapes": {"16x32": shape, "256x32": shape}})
    assert "### 256 × 32 tokens, 2 rounds" in figures
    page = put_into(f"before\n{BEGIN}\nold\n{END}\nafter\n", figures)
    assert page == f"before\n{BEGIN}\n\n{figures}\n\n{END}\nafter\n"
    assert put_into(page, figures) == page
    with pytest.raises(ValueError, match="has no lines"):
        put_into("a page", figures)


def test_the_reward_in_sql_is_the_one_in_python() -> None:
    for reply in ("", "12 + 3", "é\n"):
        query = f"SELECT {REWARD_SQL} FROM (SELECT ? AS response)"
        assert duckdb.execute(query, [reply]).fetchall() == [(reward(reply),)]
