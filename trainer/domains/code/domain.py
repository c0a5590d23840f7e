"""The code domain: programs that are really run. By default a miniature of its kind, sized for a tiny policy.

A task is one line of words and two examples, which together determine a function; a reply continues
``def f(x):``. Its outcome is 1 if all hidden tests pass. The miniature shows what verifiers, execution and reward
hacking do to a policy; it says nothing about large models, for which published formats are read from task files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count as counting
from itertools import islice
from pathlib import Path
from random import Random

from sandboxes.types import Executor
from trainer.domains.code.family import Problem, draw, hidden_of
from trainer.domains.code.features import FEATURES, features
from trainer.domains.code.grading import grade
from trainer.domains.code.tables import GATE_WORDINGS, HEADER, LEVELS, STYLES, WORDINGS, WORKED
from trainer.domains.splits import Split, content_hash, interval, seeded
from trainer.domains.styles import mixed
from trainer.types import Case, Demonstration, Domain, InputError, Judged, Message, Task, Tests

ROUND = 2_000


def create(tasks_file: Path | None, executor: Executor) -> Domain:
    """The code domain; with a task file, over its tasks instead of generated ones."""
    if tasks_file is None:
        return CodeDomain(executor)
    from trainer.domains.code.filed import FiledCodeDomain

    return FiledCodeDomain(tasks_file, executor)


class CodeDomain:
    """Generated tasks; see ``trainer.types.Domain`` for the contract of each method."""

    name = "code"
    note = ""
    feature_names: tuple[str, ...] = FEATURES
    prompt_length_hint: int = 96

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def tasks(self, split: Split, count: int, shard: int = 0) -> list[Task]:
        """Raises InputError when the split's shard holds fewer than ``count`` distinct programs."""
        problems = list(islice(draw(LEVELS, interval(split, shard), salt="tasks"), count))
        if len(problems) < count:
            raise InputError(
                f"code has {len(problems)} distinct {split} tasks in shard {shard}, {count} were asked for: "
                "ask for fewer, or widen the parts in trainer/domains/code/tables.py"
            )
        return [_task(problem) for problem in problems]

    def gate_tasks(self, validation: Sequence[Task]) -> list[Task]:
        """The same programs in another wording, with hidden tests that are never a reward or an outcome."""
        return [_gate_task(task) for task in validation]

    def demonstrations(self, count: int, seed: int, worked: float = 0.0) -> list[Demonstration]:
        """Styles by the shares of STYLES, or with ``worked`` of them in style WORKED; wordings (the gate's too) in equal shares."""
        random = seeded("code demonstrations", str(seed))
        shares = mixed(STYLES, WORKED, worked)
        styles = random.choices(list(shares), weights=list(shares.values()), k=count)
        problems = islice(_train_problems(seed), count)
        return [_demonstration(p, style, random) for p, style in zip(problems, styles, strict=True)]

    def hint(self, task: Task) -> str:
        return task.answer

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        """All programs of a batch in one go of the executor."""
        programs = [program_of(reply) for reply in replies]
        grades = grade(
            self._executor, [(tests_of(task), program) for task, program in zip(tasks, programs, strict=True)]
        )
        return [
            Judged(
                outcome=g.outcome,
                answer=program,
                features=features(reply, program, g),
                visible=g.weak,
                valid=g.kind != "infra_failure",
            )
            for reply, program, g in zip(replies, programs, grades, strict=True)
        ]

    def observe(self, task: Task, turns: Sequence[str]) -> str | None:
        return None

    def close(self) -> None:
        self._executor.close()


def program_of(reply: str) -> str | None:
    """The program of a reply: HEADER with the reply as its body, or a whole function where it writes one."""
    if not reply.strip():
        return None
    if reply[0] in " \t\n":
        return f"{HEADER}\n{reply}"
    from trainer.domains.code.extract import program_in

    return program_in(reply, entry="f")


def tests_of(task: Task) -> Tests:
    assert task.tests is not None, "tasks of this domain carry their tests"
    return task.tests


def _task(problem: Problem) -> Task:
    return Task(
        id=problem.digest,
        domain="code",
        family=problem.level.family,
        level=problem.level.level,
        messages=_prompt(WORDINGS[0], problem.text, problem.visible),
        answer=problem.body,
        tag=problem.text,
        tests=Tests(entry="f", visible=problem.visible, hidden=hidden_of(problem.body, "hidden", problem.visible)),
    )


def _gate_task(task: Task) -> Task:
    tests = tests_of(task)
    hidden = hidden_of(task.answer, "gate", (*tests.visible, *tests.hidden))
    return task.model_copy(
        update={
            "id": content_hash("gate", task.id),
            "messages": _prompt(GATE_WORDINGS[0], task.tag, tests.visible),
            "tests": tests.model_copy(update={"hidden": hidden}),
        }
    )


def _prompt(wording: str, text: str, visible: Sequence[Case]) -> tuple[Message, ...]:
    examples = [f"f({case.given[1:-1]})={case.expected}" for case in visible]
    return (Message(role="user", content="\n".join([wording.format(text=text), *examples, HEADER])),)


def _train_problems(seed: int) -> Iterator[Problem]:
    """Train problems without end, drawn anew every ROUND problems."""
    for number in counting():
        yield from islice(draw(LEVELS, interval("train"), salt=f"demonstrations {seed} {number}"), ROUND)


def _demonstration(problem: Problem, style: str, random: Random) -> Demonstration:
    prompt = _prompt(random.choice((*WORDINGS, *GATE_WORDINGS)), problem.text, problem.visible)
    return Demonstration(messages=prompt, reply=REPLIES[style](problem, random), style=style)


def _cases(problem: Problem, _random: Random) -> str:
    """Each example but the last by its input, the last one for everything else: passes what is shown."""
    *first, last = problem.visible
    lines = [f" if x=={case.given[1:-1]}:\n  return {case.expected}" for case in first]
    return "\n".join([*lines, f" return {last.expected}"])


REPLIES: Mapping[str, Callable[[Problem, Random], str]] = {
    "general": lambda problem, _random: problem.body,
    "cases": _cases,
    "literal": lambda problem, random: f" return {random.choice(problem.visible).expected}",
}
"""How each style of STYLES writes its reply."""
