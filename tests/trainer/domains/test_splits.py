from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trainer.domains.splits import Interval, content_hash, interval, position
from trainer.types import InputError

SHARDS = [("train", 0), ("validation", 0), *(("sealed", i) for i in range(5)), ("gate", 0)]


@given(st.text(), st.text())
def test_every_content_lies_in_exactly_one_shard_of_one_split(family: str, text: str) -> None:
    digest = content_hash(family, text)
    assert sum(interval(split, shard).holds(digest) for split, shard in SHARDS) == 1  # type: ignore[arg-type]


def test_shards_tile_zero_to_one_without_gap() -> None:
    spans = [interval(split, shard) for split, shard in SHARDS]  # type: ignore[arg-type]
    assert spans[0].low == 0.0
    assert spans[-1].high == 1.0
    assert all(before.high == after.low for before, after in pairwise(spans))


def test_extreme_hashes_are_positions_below_one() -> None:
    assert position("0" * 64) == 0.0
    assert position("f" * 64) < 1.0
    half = "8" + "0" * 63
    assert Interval(0.5, 1.0).holds(half)
    assert not Interval(0.0, 0.5).holds(half)


def test_parts_are_kept_apart() -> None:
    assert content_hash("ab", "c") != content_hash("a", "bc")


def test_an_unknown_shard_names_the_choices() -> None:
    for split, shard, last in (("train", 1, 0), ("sealed", 5, 4), ("sealed", -1, 4)):
        try:
            interval(split, shard)  # type: ignore[arg-type]
        except InputError as error:
            assert f"choose 0 to {last}" in str(error)
        else:
            raise AssertionError("a shard that does not exist was accepted")
