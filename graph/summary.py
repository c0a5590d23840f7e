"""The outcome of a run: one JSON object for machines, one table for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from trainer.evaluation import Interval
from trainer.types import Record

if TYPE_CHECKING:
    from rich.table import Table

BADGE = {
    "promoted": "bold green",
    "provisional": "green",
    "rejected": "red",
    "invalid": "bold red",
    "refused": "yellow",
    "failed": "bold red",
    "undecided": "cyan",
}


AVERAGE = "scores are plain means: every task counts the same whatever its level, every training seed too"
"""The one average of this project, as tables name it. All tasks have equally many samples, so that weighting tasks or
samples alike is the same; scores of subsets (levels, families) are never averaged again."""


class Score(Record):
    """A mean over training seeds with its 95 % interval, over ``n`` tasks."""

    mean: float
    ci_low: float
    ci_high: float
    n: int


class PolicySummary(Record):
    """One policy; ``checkpoint`` is its seed with the best validation score, scores are means over seeds."""

    version: str
    checkpoint: str
    validation: Score | None
    sealed: Score | None
    sealed_pass_at_k: float | None = None


class VersionSummary(Record):
    version: str
    parent: str
    factor: str
    title: str
    prediction: str
    realised: float | None
    verdict: str
    delta: float | None
    ci_low: float | None
    ci_high: float | None
    mde: float | None
    seeds: int
    reasons: tuple[str, ...]
    harness_commit: str


LEFT: Any = {"title_justify": "left", "caption_justify": "left"}


class CertificationSummary(Record):
    """A chain of provisional steps, tested as one on fresh seeds of its tip.

    ``delta`` (tip − champion of its time, on validation) is from seeds that chose nothing and is the one to quote;
    ``selected`` is the same difference on the seeds that chose the tip, which is too high by what the choice took from
    chance. ``sigma`` is the noise floor: the standard deviation of one training seed's score.
    """

    version: str
    parent: str
    chain: tuple[str, ...]
    verdict: str
    delta: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    mde: float | None
    sigma: float | None
    seeds: int
    selected: Interval
    reasons: tuple[str, ...]


class Summary(Record):
    """What ``--json`` prints. ``learned`` and ``gain`` are paired differences on sealed tasks:
    baseline − warm start and champion − baseline. ``orchestration_share`` is wall time outside
    training and evaluation over wall time; ``peak_rss_mb`` the largest process."""

    run: str
    domain: str
    seed: int
    status: str
    stop: str
    sandbox: str = "none"
    """What isolated the programs of this run, and how strongly."""
    warm_start: PolicySummary
    baseline: PolicySummary
    champion: PolicySummary
    learned: Score
    gain: Score
    versions: tuple[VersionSummary, ...]
    certifications: tuple[CertificationSummary, ...] = ()
    harness: str
    report: str
    diagnostics_added: tuple[str, ...]
    skills_added: tuple[str, ...]
    wall_s: float
    train_s: float
    orchestration_share: float
    peak_rss_mb: float


def percent(score: Score | None) -> str:
    """``53.1 % (50.2 to 56.0)``."""
    if score is None:
        return "–"
    return f"{100 * score.mean:.1f} % ({100 * score.ci_low:.1f} to {100 * score.ci_high:.1f})"


def points(mean: float | None, low: float | None, high: float | None) -> str:
    """``+4.2 pp (+1.0 to +7.4)``."""
    if mean is None:
        return "–"
    if low is None or high is None:
        return f"{100 * mean:+.1f} pp"
    return f"{100 * mean:+.1f} pp ({100 * low:+.1f} to {100 * high:+.1f})"


def _chains(summary: Summary) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="certifications: the end of a chain on fresh seeds, tested once", **LEFT)
    for column in ("chain", "selected", "fresh seeds, 95 % interval", "detectable", "noise floor σ", "verdict"):
        table.add_column(column, overflow="fold")
    for c in summary.certifications:
        chosen = c.selected
        cells = (
            " → ".join((c.parent, *c.chain)),
            points(chosen.mean, chosen.ci_low, chosen.ci_high),
            points(c.delta, c.ci_low, c.ci_high),
            points(c.mde, None, None),
            points(c.sigma, None, None).lstrip("+"),
        )
        style = BADGE.get(c.verdict, "")
        table.add_row(*(escape(cell) for cell in cells), f"[{style}]{c.verdict}[/]" if style else c.verdict)
    return table


def render_table(summary: Summary, root: Path, stream: TextIO) -> None:
    """Versions, champion against baseline on sealed tasks, and the commands to go on."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(file=stream, width=None if stream.isatty() else 150, highlight=False)
    table = Table(title=f"versions of {escape(summary.run)}", **LEFT)
    for column in ("version", "change", "prediction", "came out at", "delta, 95 % interval", "verdict"):
        table.add_column(column, overflow="fold")
    for v in summary.versions:
        style = BADGE.get(v.verdict, "")
        verdict = f"[{style}]{v.verdict}[/]" if style else v.verdict
        realised = "–" if v.realised is None else f"{v.realised:+.3f}"
        cells = [f"{v.version} ← {v.parent}", v.title, v.prediction, realised, points(v.delta, v.ci_low, v.ci_high)]
        table.add_row(*(escape(c) for c in cells), verdict)
    console.print(table)
    if summary.certifications:
        console.print(_chains(summary))
    sealed = Table(title="on sealed tasks (opened by this report only)", **LEFT)
    for column in ("policy", "version", "solved, 95 % interval", "pass@k", "validation"):
        sealed.add_column(column)
    for role, policy in (
        ("warm start", summary.warm_start),
        ("baseline", summary.baseline),
        ("champion", summary.champion),
    ):
        best = "–" if policy.sealed_pass_at_k is None else f"{100 * policy.sealed_pass_at_k:.1f} %"
        sealed.add_row(role, policy.version, percent(policy.sealed), best, percent(policy.validation))
    console.print(sealed)
    console.print(f"In all tables {AVERAGE}.", style="dim", soft_wrap=True)
    g, b = summary.gain, summary.learned
    same = summary.champion.version == summary.baseline.version
    gained = f"the champion gained {points(g.mean, g.ci_low, g.ci_high)} over the baseline."
    lines = [
        f"RL taught the baseline {points(b.mean, b.ci_low, b.ci_high)} over the warm start; "
        + ("nothing was promoted, the baseline stays champion." if same else gained),
        f"champion's checkpoint: {summary.champion.checkpoint}",
        f"diagnostics registered: {', '.join(summary.diagnostics_added) or 'none'}",
        f"skills written: {', '.join(summary.skills_added) or 'none'}",
        f"stopped: {summary.stop}; {summary.wall_s:.0f} s, of them {summary.train_s:.0f} s training; "
        f"orchestration {100 * summary.orchestration_share:.1f} %, largest process {summary.peak_rss_mb:.0f} MB",
        "",
        f"history of the harness   git -C '{summary.harness}' log --graph --first-parent",
        f"report                   {summary.report}",
        f"one version, one rollout python -m graph.runs show '{root}' --version {summary.champion.version}",
        f"more budget              python -m graph.run --resume '{root}' --minutes M   (M is the total)",
    ]
    for line in lines:
        console.print(escape(line), soft_wrap=True)
