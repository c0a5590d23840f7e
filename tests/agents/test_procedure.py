"""Another order of diagnosis is adopted only where the versions of before speak for it."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from agents.diagnostician import diagnose
from agents.procedure import BETTER, Past, reordered
from agents.rules import load_rules
from agents.types import DiagnoseInput, Diagnosis
from tests.agents.situations import PROCEDURE, finding, situation
from trainer.types import Layer

RULES = load_rules()
TIED = situation(
    finding("truncation", "warn", layer="behaviour"),
    finding("dead_groups_all_pass", "warn"),
    finding("reward_off_outcome", "info", layer="score"),
)
SIGNAL, BEHAVIOUR = "dead_groups_all_pass", "truncation"


def replay(inp: DiagnoseInput) -> Diagnosis:
    return diagnose(inp, RULES)


def past(version: str, worked_on: str, *, helped: bool) -> Past:
    return Past(version=version, inp=TIED, worked_on=worked_on, helped=helped)


def test_what_was_worked_on_in_vain_twice_is_looked_at_later() -> None:
    vain = [past(f"v{i}", SIGNAL, helped=False) for i in range(BETTER)]
    found = reordered(vain, PROCEDURE, replay)
    assert found.reasons == () and found.elsewhere == ("v0", "v1") and found.kept == ()
    assert found.order == ("score", "behaviour", "signal", "version"), "the nearest of the orders that do"
    assert replay(TIED.model_copy(update={"procedure": found.order})).bottleneck == BEHAVIOUR
    once = reordered(vain[:1], PROCEDURE, replay)
    assert once.reasons == ("no order is right about 2 of 1 trained versions more",)


def test_what_brought_a_step_is_not_given_up_for_what_did_not() -> None:
    mixed = [past("v1", SIGNAL, helped=True), *(past(f"v{i}", SIGNAL, helped=False) for i in (2, 3, 4))]
    assert reordered(mixed, PROCEDURE, replay).reasons == ("no order is right about 2 of 4 trained versions more",)


def test_where_the_other_was_tried_in_vain_too_nothing_changes() -> None:
    both = [past(f"v{i}", key, helped=False) for i, key in enumerate((SIGNAL, SIGNAL, BEHAVIOUR, BEHAVIOUR))]
    assert reordered(both, PROCEDURE, replay).reasons


@given(st.lists(st.tuples(st.sampled_from([SIGNAL, BEHAVIOUR, "headroom"]), st.booleans()), max_size=8),
       st.permutations(PROCEDURE))  # fmt: skip
def test_an_adopted_order_loses_no_step_and_is_right_more_often(
    tried: list[tuple[str, bool]], before: list[Layer]
) -> None:
    versions = [past(f"v{i}", key, helped=helped) for i, (key, helped) in enumerate(tried)]
    found = reordered(versions, tuple(before), replay)

    def right(order: tuple[Layer, ...]) -> list[bool]:
        name = replay(TIED.model_copy(update={"procedure": order})).bottleneck
        return [(name == p.worked_on) == p.helped for p in versions]

    now, new = right(tuple(before)), right(found.order)
    assert not any(p.helped and a and not b for p, a, b in zip(versions, now, new, strict=True))
    best = max(sum(right(order)) for order in permutations(PROCEDURE))
    if not found.reasons:
        assert sum(new) >= sum(now) + BETTER
    else:
        losing = any(p.helped for p in versions)
        assert losing or best < sum(now) + BETTER
