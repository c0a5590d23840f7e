"""Which tasks are drawn, against the solve rates that were told."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from trainer.embedded.curriculum import TaskChooser
from trainer.types import Curriculum, Message, Task

LEVELS = 4
TASKS = [
    Task(
        id=f"{level}-{i}", domain="d", family="f", level=level, messages=(Message(role="user", content="?"),), answer=""
    )
    for level in range(LEVELS)
    for i in range(30)
]


def chooser(mode: str, **options: float) -> TaskChooser:
    return TaskChooser(TASKS, 4, Curriculum.model_validate({"mode": mode, **options}))


def levels_of(positions: list[int]) -> Counter[int]:
    return Counter(TASKS[position].level for position in positions)


def tell(chosen: TaskChooser, rates: list[float], batches: int = 30) -> None:
    """Let the chooser see every level with its solve rate."""
    for _ in range(batches):
        chosen.observe([30 * level for level in range(LEVELS)], np.array(rates), 8)


def test_each_epoch_visits_every_task_once_in_an_order_of_its_own() -> None:
    order = chooser("off")
    epochs = [order.draw(len(TASKS)) for _ in range(3)]
    assert all(sorted(epoch) == list(range(len(TASKS))) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != TaskChooser(TASKS, 5, Curriculum()).draw(len(TASKS))


def test_solve_rate_prefers_what_is_half_solved() -> None:
    chosen = chooser("solve_rate", floor=0.1)
    tell(chosen, [1.0, 0.75, 0.5, 0.0])
    # 1 - 2|p - 1/2| with the prior of 4 rollouts on about 80: .05, .52, 1, .05; the floor lifts the outer two to .1.
    np.testing.assert_allclose(chosen.weights() / 30, [0.1, 0.52, 1.0, 0.1], atol=0.01)
    drawn = levels_of(chosen.draw(4000))
    # Shares .058, .302, .581, .058: four standard deviations of a binomial share are below .032.
    assert [drawn[level] / 4000 for level in range(LEVELS)] == pytest.approx([0.058, 0.302, 0.581, 0.058], abs=0.032)


def test_range_opens_the_next_level_when_the_highest_open_one_is_solved() -> None:
    chosen = chooser("range", open_at=0.8)
    assert levels_of(chosen.draw(50)).keys() == {0}
    tell(chosen, [0.7, 1.0, 1.0, 1.0], batches=40)
    assert levels_of(chosen.draw(50)).keys() == {0}, "the highest open level is not solved"
    tell(chosen, [0.95, 0.2, 0.0, 0.0], batches=40)
    assert levels_of(chosen.draw(200)).keys() == {0, 1}
    tell(chosen, [0.95, 0.9, 0.9, 0.1], batches=60)
    assert levels_of(chosen.draw(400)).keys() == {0, 1, 2, 3}


def test_a_level_is_not_opened_on_a_handful_of_rollouts() -> None:
    chosen = chooser("range")
    chosen.observe([0], np.array([1.0]), 8)
    assert levels_of(chosen.draw(50)).keys() == {0}


@pytest.mark.parametrize("mode", ["off", "solve_rate", "range"])
def test_a_restored_chooser_draws_what_the_other_would_have_drawn(mode: str) -> None:
    first = chooser(mode)
    first.draw(70)
    tell(first, [0.9, 0.6, 0.3, 0.0])
    first.draw(70)
    again = chooser(mode)
    again.restore(first.state())
    assert again.draw(300) == first.draw(300)
    assert again.metrics() == first.metrics()


def test_within_a_level_no_task_comes_again_before_all_came() -> None:
    drawn = [position for position in chooser("solve_rate").draw(300) if TASKS[position].level == 2]
    assert len(set(drawn[:30])) == min(30, len(drawn))
