"""Diagnostic gaps: where what the harness measures does not suffice, does not explain, or contradicts itself.

Lines: a gap of behaviour is open where at least FAILING of the late rollouts fail and no finding points to UNCOVERED of those; one of
the signal where findings call for opposite cures, or where the procedure alone put one bottleneck before another that is as
severe, and IN_VAIN trainings worked on it in vain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agents.facts import SEVERITY_RANK
from agents.types import Gap, GapInput

FAILING = 0.1
UNCOVERED = 0.5
IN_VAIN = 2
CONTRADICTIONS: Sequence[tuple[str, str, str]] = (
    (
        "dead_groups_all_fail",
        "dead_groups_all_pass",
        "tasks are at once beyond the policy and done with: easier and harder ones are both called for",
    ),
    (
        "over_filtering",
        "dead_groups",
        "more groups are filtered out than carry a gradient, and the rest have no spread: a looser and a stricter filter are both called for",
    ),
)
"""Diagnostics whose alarms call for opposite cures, and why."""


def gaps(inp: GapInput) -> tuple[Gap, ...]:
    """The open gaps, the most pressing first: what is rewarded and wrong before what is not understood."""
    return tuple(gap for gap in (*_score(inp), *_signal(inp), *_behaviour(inp)) if gap.key not in inp.closed)


def _score(inp: GapInput) -> Iterator[Gap]:
    """A version whose reward rose without the gate scorer, and no validity diagnostic says so."""
    unseen = [v.version for v in inp.versions if v.state == "invalid" and not v.named]
    if unseen:
        yield Gap(
            kind="score_insufficient",
            key=f"score_insufficient:{','.join(unseen)}",
            why=f"the reward of {', '.join(unseen)} rose and the gate scorer did not follow, and no validity diagnostic saw it",
        )


def _signal(inp: GapInput) -> Iterator[Gap]:
    alarmed = {f.diagnostic for f in inp.report.findings if SEVERITY_RANK[f.severity] >= SEVERITY_RANK["warn"]}
    for one, other, why in CONTRADICTIONS:
        if {one, other} <= alarmed:
            yield Gap(
                kind="signal_ambiguous",
                key=f"signal_ambiguous:{inp.report.version}:{one}:{other}",
                why=f"{one} and {other} are both raised: {why}",
            )
    found = inp.diagnosis
    if found and found.ties and inp.in_vain >= IN_VAIN:
        first, *_ = found.ties
        yield Gap(
            kind="signal_ambiguous",
            key=f"signal_ambiguous:{inp.report.version}:{found.bottleneck}:{first}",
            why=f"{found.bottleneck} and {first} are as severe, only the order of diagnosis put the first before the other, and "
            f"{inp.in_vain} trainings worked on it in vain",
        )


def _behaviour(inp: GapInput) -> Iterator[Gap]:
    if inp.failing >= FAILING and inp.uncovered >= UNCOVERED:
        yield Gap(
            kind="behaviour_unexplained",
            key=f"behaviour_unexplained:{inp.report.version}",
            why=f"{inp.failing:.0%} of the late rollouts fail, and no finding points to {inp.uncovered:.0%} of those",
        )
