"""Notes that a person leaves in a run: which lines are ideas, and when they are tried."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.designer import design
from agents.diagnostician import diagnose
from agents.rules import load_rules
from agents.types import DesignInput, Intervention, Note
from graph.notes import FOLDER, LARGEST, LONGEST, MOST, notes_of
from tests.agents.situations import case_of, finding, lower_rate, situation, to_design

RULES = load_rules()
IDEA = Note(source="notes/a.md:1", text="rollout.n=12")


def test_lines_that_say_try_are_ideas_and_nothing_else_is(tmp_path: Path) -> None:
    assert notes_of(tmp_path) == ()
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "b.md").write_text(
        "# what I would do\n\n- try optim.lr = 3e-4\n* Try: rollout.n=12\nI try things.\ntry nothing\n"
    )
    (folder / "a.md").write_bytes(b"try `rollout.temperature = 0.9`\n\xff\xfe\n")
    (folder / "c.txt").write_text("try optim.lr = 1\n")
    assert [(n.source, n.text) for n in notes_of(tmp_path)] == [
        ("notes/a.md:1", "rollout.temperature = 0.9"),
        ("notes/b.md:3", "optim.lr = 3e-4"),
        ("notes/b.md:4", "rollout.n=12"),
    ]
    (folder / "d.md").write_text("x" * LARGEST + "\ntry optim.lr = 1\n")
    (folder / "e.md").write_text("try optim.lr = 1e-4\n" * 2 * MOST)
    assert len(notes_of(tmp_path)) == MOST
    assert not any("d.md" in n.source for n in notes_of(tmp_path))


def test_names_and_lines_that_no_record_could_hold_do_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "deep.md").write_text("try optim.lr = " + "[" * 2 * LONGEST)
    Path(os.fsdecode(os.fsencode(folder) + b"/f\xfcr.md")).write_text("1. try `optim.lr` = `2e-4`\n")
    (note,) = notes_of(tmp_path)
    assert note.text == "optim.lr = 2e-4"
    note.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        "reward.weights.outcome = nan",
        "reward.weights.outcome=inf",
        "optim.lr = " + "[" * 900,
        "reward.weights.nope = 1",
    ],
)
def test_values_that_no_recipe_can_hold_are_dropped(text: str) -> None:
    idea = designed(Note(source="notes/a.md:1", text=text), failures=2)
    assert idea is not None and not idea.rule.startswith("note:")
    assert any(d.reason.startswith("notes/a.md:1: ") for d in idea.dropped)


def designed(*notes: Note, failures: int = 0, escalate: bool = True) -> Intervention | None:
    where = situation(finding("performance_collapse"))
    base = to_design(where, RULES)
    cases = tuple(case_of(diagnose(where, RULES), lower_rate(), version=f"v000{i}") for i in range(1, failures + 1))
    return design(DesignInput(**{**dict(base), "notes": notes, "cases": cases, "escalate": escalate}), RULES)


def test_a_note_waits_until_two_versions_in_a_row_have_failed() -> None:
    first, later, kept = (designed(IDEA, failures=n, escalate=e) for n, e in ((0, True), (2, True), (2, False)))
    assert first and later and kept
    assert not first.rule.startswith("note:") and not kept.rule.startswith("note:")
    assert (later.rule, later.edit.factor) == ("note:notes/a.md:1", "rollout.n")
    assert later.title == "as noted: set rollout.n to 12" and "notes/a.md:1" in later.rationale


def test_a_note_that_cannot_be_tried_is_dropped_with_its_place() -> None:
    bad = [
        Note(source=f"notes/a.md:{i}", text=t) for i, t in enumerate(("optim.rate=1", "optim.lr=-1", "rollout.n=16"))
    ]
    idea = designed(*bad, IDEA, failures=2)
    assert idea is not None and idea.edit.factor == "rollout.n"
    reasons = [d.reason for d in idea.dropped if d.reason.startswith("notes/")]
    assert [r.partition(": ")[0] for r in reasons][:2] == ["notes/a.md:0", "notes/a.md:1"]
    assert "not a factor" in reasons[0] and "greater than 0" in reasons[1]
