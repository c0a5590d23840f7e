"""Where the search stands, from the ledger alone: what is certified, and what it works from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from graph.versions import BASELINE

RESETS = ("rejected", "invalid")
"""Verdicts on a chain after which the search goes back to the champion; after the others its tip is still the best guess."""


class Stand(NamedTuple):
    """``champion`` is the version main holds, ``tip`` the working parent: the end of the chain of provisional steps."""

    champion: str
    tip: str


def stand(entries: Iterable[Mapping[str, Any]]) -> Stand:
    """After all entries of a ledger, in whatever order a repair left its lines. A certification of a version whose verdict is
    lost waits until the machine has settled that version again."""
    known = sorted(entries, key=lambda e: (str(e.get("version")), e["kind"] == "certification"))
    settled = {e["version"] for e in known if e["kind"] == "verdict"}
    champion = tip = BASELINE
    for entry in known:
        if entry["kind"] == "certification" and entry["version"] not in settled:
            continue
        match entry["kind"], entry.get("verdict"):
            case "certification" | "verdict", "promoted":
                champion = tip = entry["version"]
            case "verdict", "provisional":
                tip = entry["version"]
            case "certification", verdict if verdict in RESETS:
                tip = champion
    return Stand(champion, tip)


def chain(entries: Iterable[Mapping[str, Any]], tip: str) -> tuple[str, ...]:
    """The version that main held when the chain began, then its provisional steps up to ``tip``."""
    parents: dict[str, str] = {}
    held = {BASELINE}
    for entry in entries:
        if entry["kind"] == "verdict":
            parents[entry["version"]] = entry["parent"]
        if entry.get("verdict") == "promoted" and entry["version"] != tip:
            held.add(entry["version"])
    links = [tip]
    while links[-1] not in held and links[-1] in parents:
        links.append(parents[links[-1]])
    return tuple(reversed(links))
