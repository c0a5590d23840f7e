"""The miniature: tasks are determined, distinct by behaviour, split for good, and not to be guessed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from random import Random

import pytest

from sandboxes.types import Program, Ran
from trainer.domains.code.domain import CodeDomain
from trainer.domains.code.family import Problem, behaviour, compiled, draft_of, draw, examples_of, hidden_of
from trainer.domains.code.tables import LEVELS, SOME, STYLES, WORKED
from trainer.domains.splits import interval
from trainer.types import Task


class NoExecutor:
    """Tasks and demonstrations must not need to run anything."""

    def run(self, programs: list[Program]) -> list[Ran]:
        raise AssertionError("nothing may be run")

    def close(self) -> None:
        pass


CODE = CodeDomain(NoExecutor())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return list(islice(draw(LEVELS, interval("train"), "tests"), 400))


def passes(body: str, task: Task) -> bool:
    assert task.tests is not None
    function = compiled(body)
    return all(
        json.dumps(function(json.loads(c.given)[0], None), separators=(",", ":")) == c.expected
        for c in task.tests.hidden
    )


def test_problems_differ_in_behaviour_and_a_shorter_draw_is_a_prefix(problems: list[Problem]) -> None:
    assert len({behaviour(p.body) for p in problems}) == len(problems)
    assert list(islice(draw(LEVELS, interval("train"), "tests"), 50)) == problems[:50]
    assert Counter(p.level.level for p in problems).keys() == {0, 1, 2, 3}


def test_an_open_number_is_settled_by_the_examples() -> None:
    random, seen = Random(1), 0
    for _ in range(3000):
        draft = draft_of(LEVELS[0], random)
        if draft.open_number is None or (visible := examples_of(draft, random)) is None:
            continue
        seen += 1
        function = compiled(draft.body.replace("{c}", "c"))
        fits = [
            c
            for c in range(10)
            if all(
                json.dumps(function(json.loads(v.given)[0], c), separators=(",", ":")) == v.expected for v in visible
            )
        ]
        assert fits == [draft.open_number]
    assert seen > 100


def test_words_determine_the_program_up_to_the_open_number(problems: list[Problem]) -> None:
    meanings: dict[str, set[str]] = {}
    for p in islice(draw(LEVELS, interval("validation"), "words"), 300):
        if SOME not in p.text.split():
            meanings.setdefault(p.text, set()).add(p.digest)
    assert max(len(m) for m in meanings.values()) == 1


def test_splits_share_no_behaviour() -> None:
    of = {split: {t.id for t in CODE.tasks(split, 200)} for split in ("train", "validation", "sealed")}
    assert not of["train"] & of["validation"] and not of["validation"] & of["sealed"] and not of["train"] & of["sealed"]
    assert not {t.id for t in CODE.tasks("sealed", 200, shard=1)} & of["sealed"]


def test_hidden_and_gate_tests_are_new_inputs() -> None:
    validation = CODE.tasks("validation", 50)
    for task, gate in zip(validation, CODE.gate_tasks(validation), strict=True):
        assert task.tests is not None and gate.tests is not None
        shown, hidden, gated = (
            {c.given for c in cases} for cases in (task.tests.visible, task.tests.hidden, gate.tests.hidden)
        )
        assert len(hidden) == 6 and len(gated) == 6
        assert not shown & hidden and not (shown | hidden) & gated
        assert gate.id != task.id and gate.messages != task.messages and gate.answer == task.answer


def test_what_passes_the_examples_by_heart_fails_the_hidden_tests() -> None:
    """A verifier of six inputs must not be passed by constants, nor often by another program of the family."""
    tasks = CODE.tasks("train", 300)
    others = [t.answer for t in tasks]
    cross = sum(passes(others[i - 1], task) for i, task in enumerate(tasks))
    assert all(passes(task.answer, task) for task in tasks)
    assert cross <= 0.03 * len(tasks)
    for task in tasks:
        assert task.tests is not None
        assert len({c.expected for c in task.tests.hidden}) >= 3


def test_demonstrations_mix_styles_and_special_cases_pass_what_is_shown() -> None:
    demos = CODE.demonstrations(600, 3)
    share = Counter(d.style for d in demos)
    for style, wanted in STYLES.items():
        # Binomial with n = 600: 4.5 standard deviations.
        assert abs(share[style] / 600 - wanted) < 4.5 * (wanted * (1 - wanted) / 600) ** 0.5
    for demo in demos:
        if demo.style == "cases":
            function = compiled(demo.reply)
            _, *examples, header = demo.messages[0].content.split("\n")
            assert header == "def f(x):"
            for example in examples:
                given, value = example.removeprefix("f(").split(")=")
                assert function(json.loads(given), None) == json.loads(value)
    assert CODE.demonstrations(600, 3) == demos


def test_a_recipe_may_set_how_many_demonstrations_write_the_program() -> None:
    worked = 0.8
    share = Counter(d.style for d in CODE.demonstrations(600, 3, worked))
    others = 1 - STYLES[WORKED]
    wanted = {s: worked if s == WORKED else (1 - worked) * w / others for s, w in STYLES.items()}
    for style, part in wanted.items():
        assert abs(share[style] / 600 - part) < 4.5 * (part * (1 - part) / 600) ** 0.5
    assert CODE.demonstrations(600, 3, 0.0) == CODE.demonstrations(600, 3)


def test_hidden_tests_depend_on_the_program_and_the_salt_only() -> None:
    body = CODE.tasks("train", 1)[0].answer
    assert hidden_of(body, "a", ()) == hidden_of(body, "a", ()) != hidden_of(body, "b", ())
