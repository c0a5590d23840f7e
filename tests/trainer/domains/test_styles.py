from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.domains.styles import mixed

OWN = {"a": 0.45, "b": 0.45, "c": 0.1}


def test_no_share_is_the_mix_as_it_is() -> None:
    assert mixed(OWN, "a", 0.0) is OWN


@given(st.floats(min_value=1e-9, max_value=1))
def test_one_style_has_its_share_and_the_others_keep_their_proportions(share: float) -> None:
    new = mixed(OWN, "a", share)
    assert list(new) == list(OWN)
    assert new["a"] == share
    assert sum(new.values()) == pytest.approx(1)
    assert new["b"] / 0.45 == pytest.approx(new["c"] / 0.1)
