from __future__ import annotations

import statistics
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.groups import group_advantages, groups_with_spread

REWARDS = st.floats(-100, 100, allow_nan=False, width=32)
BATCHES = st.lists(st.lists(REWARDS, min_size=1, max_size=8), min_size=1, max_size=6)


def flat(batch: list[list[float]]) -> tuple[list[float], list[int]]:
    return [r for group in batch for r in group], [g for g, group in enumerate(batch) for _ in group]


def reference(group: list[float], estimator: str, norm_by_std: bool) -> list[float]:
    """verl's loops, one group at a time, in exact means and unbiased deviations of the standard library."""
    n = len(group)
    mean, std = (0.0, 1.0) if n == 1 else (statistics.fmean(group), statistics.stdev(group))
    if estimator == "rloo":
        return group if n == 1 else [r - (sum(group) - r) / (n - 1) for r in group]
    return [(r - mean) / (std + 1e-6 if norm_by_std else 1.0) for r in group]


@given(BATCHES, st.sampled_from(["grpo", "rloo"]), st.booleans())
def test_advantages_follow_the_equations(batch: list[list[float]], estimator: str, norm_by_std: bool) -> None:
    scores, index = flat(batch)
    got = group_advantages(scores, index, estimator, norm_by_std)  # type: ignore[arg-type]
    spread = groups_with_spread(scores, index)
    at = 0
    for g, group in enumerate(batch):
        mine = got[at : at + len(group)]
        at += len(group)
        if len(group) > 1 and not spread[g]:
            assert (mine == 0).all()
        else:
            # sums of ≤ 8 numbers ≤ 100 err by < 1e-12; a std ≥ 1e-6 / 3 divides that up to 1e6 times
            np.testing.assert_allclose(mine, reference(group, estimator, norm_by_std), rtol=1e-6, atol=1e-5)


@given(BATCHES, st.randoms(use_true_random=False))
def test_rollouts_may_come_in_any_order(batch: list[list[float]], random: object) -> None:
    scores, index = map(np.array, flat(batch))
    order = np.arange(len(scores))
    random.shuffle(order)  # type: ignore[attr-defined]
    mixed = group_advantages(scores[order], index[order])
    np.testing.assert_allclose(mixed, group_advantages(scores, index)[order], rtol=1e-6, atol=1e-5)
    assert (groups_with_spread(scores[order], index[order]) == groups_with_spread(scores, index)).all()


@pytest.mark.parametrize(
    ("group", "spread"),
    [
        ([1.0, 1.0, 1.0], False),
        ([0.5, 0.5 + 1e-9, 0.5], False),
        ([0.1 + 0.2, 0.3, 0.3], False),
        ([1e6, 1e6 + 0.1, 1e6], False),  # float32 noise at this scale is 0.06
        ([1e6, 1e6 + 10, 1e6], True),
        ([0.0, 1e-9], False),
        ([0.0, 1e-3], True),
        ([-1.0, -1.0, 0.0], True),
        ([1.0], False),
    ],
)
def test_float_noise_is_no_spread(group: list[float], spread: bool) -> None:
    assert groups_with_spread(group, [0] * len(group)).tolist() == [spread]
    if len(group) > 1 and not spread:
        assert group_advantages(group, [0] * len(group)).tolist() == [0.0] * len(group)


def test_a_group_of_one_follows_verl() -> None:
    assert group_advantages([0.5], [0], "grpo")[0] == pytest.approx(0.5, rel=2e-6)
    assert group_advantages([0.5], [0], "rloo").tolist() == [0.5]


def test_groups_do_not_see_each_other() -> None:
    alone = groups_with_spread([0.0, 0.5], [0, 0])
    beside = groups_with_spread([0.0, 0.5, 1e9, 1e9], [0, 0, 1, 1])
    assert alone.tolist() == [True] and beside.tolist() == [True, False]


def test_empty_input_and_bad_input() -> None:
    assert groups_with_spread([], []).shape == (0,)
    assert group_advantages([], []).shape == (0,)
    with pytest.raises(ValueError, match="NaN"):
        group_advantages([0.0, float("nan")], [0, 0])
    with pytest.raises(ValueError, match="one length"):
        groups_with_spread([0.0, 1.0], [0])


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
@pytest.mark.parametrize("odd", [0.0, 1.0])
def test_a_group_of_one_loser_or_one_winner_keeps_all_of_its_signal(
    estimator: Literal["grpo", "rloo"], odd: float
) -> None:
    """A mask that asks whether the others agree would drop just the one rollout that differs from them."""
    group = [1 - odd, 1 - odd, odd, 1 - odd]
    assert groups_with_spread(group, [0] * 4).tolist() == [True]
    advantages = group_advantages(group, [0] * 4, estimator)
    assert (np.sign(advantages) == np.sign(np.array(group) - 0.5)).all()
    assert abs(advantages[2]) == pytest.approx(3 * abs(advantages[0]))
    # The same at the scale of a reward that is a sum of weighted terms, where equal rewards differ by rounding.
    noisy = np.array([0.1 + 0.2, 0.3, 0.3, 0.15 + 0.15])
    assert group_advantages(noisy, [0] * 4, estimator).tolist() == [0.0] * 4
    assert (group_advantages(noisy + np.array(group), [0] * 4, estimator) != 0).all()
