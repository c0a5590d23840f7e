"""Shaping against its equations, computed by hand or written out."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.groups import top_variance_groups
from trainer.shaping import diversity_adjusted, overlong_penalty, shape_scores
from trainer.types import OverlongBuffer, RewardRecipe


def test_the_penalty_is_dapos_equation_13() -> None:
    buffer = OverlongBuffer(enable=True, len=4, penalty_factor=0.5)
    # Longest 20, so the line falls from 16 tokens on.
    penalty = overlong_penalty([3, 16, 17, 18, 20, 25], [20] * 6, buffer)
    assert penalty.tolist() == [0.0, 0.0, -0.125, -0.25, -0.5, -0.5]


def test_equal_replies_share_their_reward_and_a_different_one_keeps_it() -> None:
    score = np.array([1.0, 1.0, 1.0, 0.0, 1.0])
    replies = ["abcdef", "abcdef", "uvwxyz", "abcdef", "abcdef"]
    adjusted = diversity_adjusted(score, replies, [0, 0, 0, 0, 1])
    # The first two see two equal replies each, the failed one included; the last is alone in its group.
    assert adjusted.tolist() == [pytest.approx(1 / 3), pytest.approx(1 / 3), 1.0, 0.0, 1.0]


def test_partial_overlap_counts_by_the_share_of_common_pieces() -> None:
    # abc bcd cde against bcd cde def: two of four pieces in common.
    adjusted = diversity_adjusted(np.array([1.0, 1.0]), ["abcde", "bcdef"], [0, 0])
    assert adjusted.tolist() == [pytest.approx(1 / 1.5)] * 2


def test_a_penalty_is_not_made_smaller_by_being_common() -> None:
    assert diversity_adjusted(np.array([-1.0, -1.0]), ["same", "same"], [0, 0]).tolist() == [-1.0, -1.0]


def test_every_part_is_a_term_and_the_score_is_their_sum() -> None:
    rows = pa.table({"response": ["aaaa", "aaaa"], "response_length": [4, 10], "max_response_length": [10, 10]})
    reward = RewardRecipe(diversity=True, overlong_buffer=OverlongBuffer(enable=True, len=5, penalty_factor=0.4))
    base = np.array([1.0, 1.0])
    added, score = shape_scores(rows, base, [0, 0], reward)
    assert added["overlong_buffer"].tolist() == [0.0, pytest.approx(-0.4)]
    np.testing.assert_allclose(base + sum(added.values()), score, atol=1e-12)
    assert score.tolist() == [0.5, pytest.approx(0.3)]
    assert shape_scores(rows, base, [0, 0], RewardRecipe())[0] == {}


@given(st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), min_size=1, max_size=7),
       st.floats(0.05, 1.0))  # fmt: skip
def test_the_variance_filter_keeps_the_fewest_groups_that_reach_the_share(groups: list[list[float]], p: float) -> None:
    values, index = np.ravel(groups), np.repeat(np.arange(len(groups)), 4)
    kept = top_variance_groups(values, index, p)
    variances = [float(np.var(group)) for group in groups]
    total = sum(variances)
    assert all(variances[g] > 0 for g in np.flatnonzero(kept))
    if total == 0:
        assert not kept.any()
        return
    share = sum(variances[g] for g in np.flatnonzero(kept)) / total
    assert share >= p * (1 - 1e-9)
    fewest = min(
        size
        for size in range(1, len(groups) + 1)
        for chosen in itertools.combinations(variances, size)
        if sum(chosen) / total >= p * (1 - 1e-9)
    )
    assert kept.sum() == fewest
