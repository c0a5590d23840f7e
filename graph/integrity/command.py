"""python -m graph.runs check: the report as lines or JSON, and the repair."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from graph.integrity.check import check_run, quiet
from graph.integrity.repair import repair as mend
from graph.integrity.types import Report
from graph.session import Locked, locked

SOUND, PROBLEMS, IN_USE = 0, 1, 75


def check(root: Path, *, repair: bool, as_json: bool) -> int:
    """Print what was found; with ``repair`` mend it first and print what was done and what remains. Exit code."""
    done: list[str] = []
    try:
        if repair:
            with locked(root):
                done, report = _repaired(root)
        else:
            with quiet(root):
                report = check_run(root)
    except Locked as error:
        print(f"error: {error}", file=sys.stderr)
        return IN_USE
    if as_json:
        print(json.dumps({**report.model_dump(mode="json"), "sound": report.sound, "done": done}, ensure_ascii=False))
    else:
        for line in lines(report, done):
            print(line)
    return SOUND if report.sound else PROBLEMS


def _repaired(root: Path) -> tuple[list[str], Report]:
    """Mending one thing may uncover another (an unreadable file hides what it says), so it is looked at again."""
    done: list[str] = []
    report = check_run(root)
    while any(problem.mend for problem in report.problems):
        steps = list(mend(root, report.problems))
        done += steps
        report = check_run(root)
        if not steps:
            break
    return done, report


def lines(report: Report, done: list[str]) -> list[str]:
    counts = ", ".join(f"{count} {what}" for what, count in report.checked.items())
    verdict = "sound" if report.sound else f"{len(report.problems)} problems"
    return [*(f"repaired  {d}" for d in done), *(f"problem   {p}" for p in report.problems),
            *(f"note      {n}" for n in report.notes), f"{report.run}: {verdict} ({counts})"]  # fmt: skip
