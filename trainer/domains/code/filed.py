"""The code domain over problems from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sandboxes.types import Executor
from trainer.domains.code.extract import program_in
from trainer.domains.code.features import FEATURES, features
from trainer.domains.code.formats import read_programs
from trainer.domains.code.grading import grade
from trainer.domains.code.prompts import reworded
from trainer.domains.filesplits import FileSplits
from trainer.domains.splits import Split, content_hash, seeded
from trainer.types import Case, Demonstration, InputError, Judged, Task, Tests


class FiledCodeDomain:
    """Problems of a file; see ``trainer.types.Domain`` for the contract of each method.

    A split's ``count`` is an upper bound: what the file holds is returned. About a third of a problem's hidden cases is
    held back for the gate and never decides an outcome, so outcomes here are a little easier than the benchmark's
    own (``formats.read_programs`` gives the whole tests). ``loaded`` says what was read and what was skipped.
    """

    name = "code"
    feature_names: tuple[str, ...] = FEATURES

    def __init__(self, path: Path, executor: Executor) -> None:
        """Raises InputError for a bad file and a split with too few tasks."""
        self.loaded = read_programs(path, executor)
        self.note = str(self.loaded)
        self._executor = executor
        self._whole = {task.id: task for task in self.loaded.tasks}
        # The id hashes what is asked, and nothing else.
        self._splits = FileSplits(path, self.loaded.tasks, lambda task: task.id)
        self.prompt_length_hint = self._splits.prompt_length_hint

    def tasks(self, split: Split, count: int, shard: int = 0) -> list[Task]:
        """Raises InputError for any shard but 0."""
        return [_with_hidden(task, divided(_tests(task))[0]) for task in self._splits.take(split, count, shard)]

    def gate_tasks(self, validation: Sequence[Task]) -> list[Task]:
        """The same questions under one more line, decided by the cases that were held back. A problem with a single
        hidden case is decided by it in both places: there only the wording differs, and an answer learnt by heart
        passes."""
        return [self._gate_task(task) for task in validation]

    def demonstrations(self, count: int, seed: int, worked: float = 0.0) -> list[Demonstration]:
        """Programs that the file gives for train problems (HumanEval and TACO have some, LiveCodeBench has none), drawn
        with replacement; all are worked, whatever share is asked for. Raises InputError where there is none."""
        solved = [task for task in self._splits["train"] if task.answer.strip()]
        if not solved:
            raise InputError(
                "this task file holds no solutions to learn from: start from a policy that needs no warm start"
            )
        chosen = seeded("code demonstrations", str(seed)).choices(solved, k=count)
        return [Demonstration(messages=t.messages, reply=_reply(t), style="program") for t in chosen]

    def hint(self, task: Task) -> str:
        """The program that the file gives, if any."""
        return _reply(task) if task.answer.strip() else ""

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        """All programs of a batch in one go. Outcome 1.0 if every case passes, those that are shown included, as the
        benchmarks count."""
        jobs = [(_tests(task), _program(task, reply)) for task, reply in zip(tasks, replies, strict=True)]
        return [
            Judged(
                outcome=min(g.outcome, g.weak),
                answer=program,
                visible=g.weak,
                valid=g.kind != "infra_failure",
                features=features(reply, program, g),
            )
            for reply, (_, program), g in zip(replies, jobs, grade(self._executor, jobs), strict=True)
        ]

    def observe(self, task: Task, turns: Sequence[str]) -> str | None:
        return None

    def close(self) -> None:
        self._executor.close()

    def _gate_task(self, task: Task) -> Task:
        held_back = divided(_tests(self._whole[task.id]))[1]
        changed = {"id": content_hash("gate", task.id), "messages": reworded(task.messages)}
        return _with_hidden(task, held_back).model_copy(update=changed)


def divided(tests: Tests) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """The hidden cases that decide the outcome, and those held back for the gate: a third, by content hash, at least
    one on each side; a single case is on both."""
    ranked = sorted(tests.hidden, key=lambda case: content_hash("gate case", case.given))
    if len(ranked) == 1:
        return tests.hidden, tests.hidden
    held_back = set(ranked[: max(1, len(ranked) // 3)])
    return tuple(c for c in tests.hidden if c not in held_back), tuple(c for c in tests.hidden if c in held_back)


def _reply(task: Task) -> str:
    return f"```python\n{task.answer.strip()}\n```"


def _with_hidden(task: Task, hidden: tuple[Case, ...]) -> Task:
    return task.model_copy(update={"tests": _tests(task).model_copy(update={"hidden": hidden})})


def _tests(task: Task) -> Tests:
    assert task.tests is not None, "tasks of this domain carry their tests"
    return task.tests


def _program(task: Task, reply: str) -> str | None:
    tests = _tests(task)
    return program_in(reply, tests.entry, tests.mode, tests.prelude)
