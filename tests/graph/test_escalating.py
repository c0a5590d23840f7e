"""Failures in a row: what is said, what is audited, and when nothing may be decided any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agents.types import Case
from graph import escalating
from graph.escalating import AUDIT, Audit, escalate
from graph.integrity.check import check_run
from graph.state import Deps
from graph.versions import BASELINE
from tests.graph.test_bases import services


def failed(*verdicts: str) -> tuple[Case, ...]:
    return tuple(
        Case.model_validate({"signature": "s", "domain": "math", "bottleneck": "headroom", "factor": "optim.lr", "value": str(i), "verdict": v})
        for i, v in enumerate(verdicts)
    )  # fmt: skip


def after(deps: Deps, monkeypatch: pytest.MonkeyPatch, *verdicts: str) -> tuple[str, list[str]]:
    """What is said, and why the run must stop, before v0009 is designed."""
    monkeypatch.setattr(escalating, "cases_of", lambda deps, candidate: failed(*verdicts))
    said: list[str] = []
    stop = escalate(replace(deps, say=lambda node, line: said.append(line)), "v0009", BASELINE)
    return stop, said


def test_two_failures_are_said_and_three_audit_an_evaluation_that_holds(
    broken: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    deps = services(broken())
    assert after(deps, monkeypatch, "rejected") == ("", [])
    assert after(deps, monkeypatch, "rejected", "refused") == ("", []), "a refused design cost nothing"
    stop, (line,) = after(deps, monkeypatch, "rejected", "provisional", "undecided", "failed")
    assert stop == "" and "2 versions in a row" in line and "notes/*.md" in line
    stop, (line,) = after(deps, monkeypatch, "rejected", "undecided", "failed")
    assert stop == "" and f"audit: {BASELINE} reproduces its score" in line
    assert deps.record.load("v0009", AUDIT, Audit) == Audit(version="v0009", incumbent=BASELINE)
    assert after(deps, monkeypatch, *["rejected"] * 4) == ("", []), "once per streak"
    assert after(deps, monkeypatch, *["rejected"] * 3, "refused") == ("", [])
    off = deps.config.model_copy(update={"designer": deps.config.designer.model_copy(update={"escalate": False})})
    assert after(replace(deps, config=off), monkeypatch, *["rejected"] * 3) == ("", [])


def test_an_incumbent_that_does_not_reproduce_its_score_stops_the_run(
    broken: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = broken()
    path = run / "versions" / BASELINE / "seed-0" / "validation.json"
    stored = json.loads(path.read_text())
    stored["scores"][0] = [1.0 - s for s in stored["scores"][0]]
    path.write_text(json.dumps(stored))
    stop, _ = after(services(run), monkeypatch, *["rejected"] * 3)
    total = len(stored["scores"])
    assert stop.endswith(
        f"versions/{BASELINE}/seed-0/validation.json: 1 of {total} tasks score otherwise when evaluated again"
    )
    assert stop.startswith("the evaluation does not hold")
    assert after(services(run), monkeypatch, *["rejected"] * 3)[0] == stop, "a run that is resumed says the same"
    stored["scores"][0] = [1.0 - s for s in stored["scores"][0]]
    path.write_text(json.dumps(stored))
    assert after(services(run), monkeypatch, *["rejected"] * 3)[0] == "", "until it is repaired"


def test_suites_that_were_changed_stop_the_run(broken: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    run = broken()
    path = run / "tasks" / "gate.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[1], lines[0], *lines[2:]]).replace(json.loads(lines[0])["id"], "0" * 16))
    stop, _ = after(services(run), monkeypatch, *["rejected"] * 3)
    assert "protocol.json: hash" in stop
    assert not check_run(run).sound


def test_suites_that_are_damaged_are_named_and_nothing_is_evaluated_on_them(
    broken: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for spoil in (Path.unlink, lambda path: path.write_text(path.read_text().partition("\n")[2])):
        run = broken()
        spoil(run / "tasks" / "validation.jsonl")
        stop, _ = after(services(run), monkeypatch, *["rejected"] * 3)
        assert "tasks/" in stop or "protocol.json: hash" in stop
        assert not (run / "versions" / "v0009" / AUDIT).exists()
