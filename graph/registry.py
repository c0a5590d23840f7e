"""Which diagnostics a run registered and when: read from the folders of the versions before whose design that happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agents.procedure import Reordered
from agents.types import Gap
from graph.record import RunRecord
from trainer.evolve.types import Retrospect
from trainer.types import Diagnostic, Record

UPGRADE = "upgrade"
END = "w"
"""Later than every version."""


class Upgrade(Record):
    """What was open before a version was designed, and what came of it. ``harness_commit`` is what it was added to;
    ``retired`` are diagnostics that had blocked too often what the gate scorer confirmed, ``folded`` those that ``diagnostic``
    takes the place of; ``procedure`` is another order of diagnosis and what its replay says."""

    gap: Gap | None = None
    diagnostic: Diagnostic | None = None
    retrospect: Retrospect | None = None
    harness_commit: str = ""
    retired: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()
    procedure: Reordered | None = None

    @property
    def line(self) -> str:
        """What a person is told; empty where nothing was open."""
        gap, r, d, p = self.gap, self.retrospect, self.diagnostic, self.procedure
        if not gap:
            return ""
        if p:
            return f"{gap.why}; {_line_of(p)}"
        if not r:
            return f"{gap.why}; noted, no new metric follows from that"
        if not d:
            return f"{gap.why}; nothing registered: {'; '.join(r.reasons)}"
        held = f"separates held-out tasks by {r.held_out:.2f} ({r.low:.2f} to {r.high:.2f})"
        return f"{gap.why}; registered {d.name}: {r.rule}; {held}, warn {d.warn:.2f}, critical {d.critical:.2f}"


def _line_of(p: Reordered) -> str:
    if p.reasons:
        return f"the order of diagnosis stays: {'; '.join(p.reasons)}"
    other = f"it names something else before {', '.join(p.elsewhere)}, which brought no step"
    same = f", and the same before {', '.join(p.kept)}, which did" if p.kept else ""
    return f"the order of diagnosis is now {', '.join(p.order)}: {other}{same}"


def upgrades(record: RunRecord) -> Sequence[tuple[str, Upgrade]]:
    """(version, upgrade) in order."""
    names = sorted(path.parent.name for path in (record.root / "versions").glob(f"v*/{UPGRADE}.json"))
    return [(name, record.load(name, UPGRADE, Upgrade)) for name in names]


def ever(record: RunRecord) -> frozenset[str]:
    """Names of all diagnostics that the run registered, retired ones included."""
    return frozenset(found.diagnostic.name for _, found in upgrades(record) if found.diagnostic)


def registered(record: RunRecord, version: str) -> Mapping[str, Diagnostic]:
    """The diagnostics that hold for this version, by name: registered before it was designed, and not retired by then."""
    found: dict[str, Diagnostic] = {}
    for name, upgrade in upgrades(record):
        if name > version:
            break
        for gone in (*upgrade.retired, *upgrade.folded):
            found.pop(gone, None)
        if upgrade.diagnostic:
            found[upgrade.diagnostic.name] = upgrade.diagnostic
    return found


def orders(record: RunRecord, version: str) -> Sequence[Reordered]:
    """The orders of diagnosis that the run adopted before this version was designed, the one that holds last."""
    found = [upgrade.procedure for name, upgrade in upgrades(record) if name <= version]
    return [order for order in found if order and not order.reasons]
