"""Changed diagnosis procedures: another order of the layers of evidence, replayed on the versions before it is adopted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, permutations

from agents.types import DiagnoseInput, Diagnosis
from trainer.types import Layer, Record

BETTER = 2
"""Trained versions more than now that an order has to be right about: one may be chance."""


class Past(Record):
    """A trained version: what its diagnosis was made from, the bottleneck its change addressed, and whether it brought a step."""

    version: str
    inp: DiagnoseInput
    worked_on: str
    helped: bool


class Reordered(Record):
    """What the replay of another order says. ``elsewhere`` are versions that brought no step and whose bottleneck it would not
    have named, ``kept`` those that did and whose bottleneck it still names. ``reasons`` are empty if it may be adopted."""

    order: tuple[Layer, ...]
    before: tuple[Layer, ...]
    elsewhere: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def reordered(
    past: Sequence[Past], before: Sequence[Layer], diagnose: Callable[[DiagnoseInput], Diagnosis]
) -> Reordered:
    """The order that is right about most versions and nearest to the present one: it names what was worked on where that brought a
    step, and something else where it did not. No version that brought a step may be lost, and BETTER more must be right."""

    def named(order: Sequence[Layer]) -> Sequence[str]:
        return [diagnose(p.inp.model_copy(update={"procedure": tuple(order)})).bottleneck for p in past]

    def right(names: Sequence[str]) -> int:
        return sum((name == p.worked_on) == p.helped for name, p in zip(names, past, strict=True))

    def loses(names: Sequence[str]) -> bool:
        return any(p.helped and p.worked_on == now != name for now, name, p in zip(today, names, past, strict=True))

    today = named(before)
    others = [order for order in permutations(before) if order != tuple(before)]
    replayed = {order: names for order in others if not loses(names := named(order))}
    if not replayed:
        return Reordered(
            order=tuple(before), before=tuple(before), reasons=("every other order misses what brought a step",)
        )
    best = max(replayed, key=lambda order: (right(replayed[order]), -_swaps(order, before)))
    gain = right(replayed[best]) - right(today)
    pairs = list(zip(replayed[best], past, strict=True))
    return Reordered(
        order=best,
        before=tuple(before),
        elsewhere=tuple(p.version for name, p in pairs if not p.helped and name != p.worked_on),
        kept=tuple(p.version for name, p in pairs if p.helped and name == p.worked_on),
        reasons=() if gain >= BETTER else (f"no order is right about {BETTER} of {len(past)} trained versions more",),
    )


def _swaps(order: Sequence[Layer], before: Sequence[Layer]) -> int:
    """Pairs of layers that stand the other way round."""
    place = {layer: i for i, layer in enumerate(before)}
    return sum(place[a] > place[b] for a, b in combinations(order, 2))
