"""Champion, tip and chain follow from the ledger, whatever the order of its lines."""

from __future__ import annotations

import random
from typing import Any

import pytest

from graph.lineage import Stand, chain, stand


def verdict(version: str, parent: str, verdict: str) -> dict[str, Any]:
    return {"kind": "verdict", "version": version, "parent": parent, "verdict": verdict}


def certification(version: str, parent: str, verdict: str) -> dict[str, Any]:
    return {"kind": "certification", "version": version, "parent": parent, "verdict": verdict}


START = {"kind": "baseline", "version": "v0000", "parent": "base"}
CHAIN = [
    START,
    verdict("v0001", "v0000", "provisional"),
    verdict("v0002", "v0001", "undecided"),
    verdict("v0003", "v0001", "provisional"),
]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], Stand("v0000", "v0003")),
        ([certification("v0003", "v0000", "promoted")], Stand("v0003", "v0003")),
        ([certification("v0003", "v0000", "undecided")], Stand("v0000", "v0003")),
        ([certification("v0003", "v0000", "failed")], Stand("v0000", "v0003")),
        ([certification("v0003", "v0000", "rejected")], Stand("v0000", "v0000")),
        ([certification("v0003", "v0000", "invalid")], Stand("v0000", "v0000")),
        (
            [certification("v0003", "v0000", "rejected"), verdict("v0004", "v0000", "provisional")],
            Stand("v0000", "v0004"),
        ),
        (
            [certification("v0003", "v0000", "promoted"), verdict("v0004", "v0003", "provisional")],
            Stand("v0003", "v0004"),
        ),
        ([verdict("v0004", "v0003", "refused")], Stand("v0000", "v0003")),
    ],
)
def test_where_the_search_stands(more: list[dict[str, Any]], expected: Stand) -> None:
    entries = CHAIN + more
    assert stand(entries) == expected
    random.Random(0).shuffle(entries)
    assert stand(entries) == expected


def test_a_certification_waits_for_a_verdict_that_was_lost() -> None:
    entries = [*CHAIN[:3], certification("v0003", "v0000", "promoted")]
    assert stand(entries) == Stand("v0000", "v0001")


def test_without_a_candidate_the_baseline_is_both() -> None:
    assert stand([]) == stand([START]) == Stand("v0000", "v0000")


def test_promotions_of_single_candidates_move_both() -> None:
    assert stand([START, verdict("v0001", "v0000", "promoted")]) == Stand("v0001", "v0001")


def test_a_chain_begins_at_what_main_held() -> None:
    assert chain(CHAIN, "v0003") == ("v0000", "v0001", "v0003")
    certified = [*CHAIN, certification("v0003", "v0000", "promoted"), verdict("v0004", "v0003", "provisional")]
    assert chain(certified, "v0004") == ("v0003", "v0004")
    assert chain(certified, "v0003") == ("v0000", "v0001", "v0003"), "its own certification does not shorten a chain"
