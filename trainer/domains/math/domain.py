"""The math domain: arithmetic from reasoning_gym, answered strictly as ``#<answer>``.

A reply may work step by step first, as in ``4+7=11 11-5=6 #6``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count as counting
from itertools import islice
from pathlib import Path
from random import Random

from trainer.domains.answers import MARKER, REPLY_FEATURES, marked_answer, reply_features
from trainer.domains.math.expressions import complex_parts, perturb, solve
from trainer.domains.math.gym import Generator, generator
from trainer.domains.math.problems import Problem, digest_of, draw
from trainer.domains.math.tables import LEVELS, STYLES, WORDINGS, WORKED
from trainer.domains.splits import Split, interval, seeded
from trainer.domains.styles import mixed
from trainer.types import Demonstration, Domain, InputError, Judged, Message, Task

GATE_TRIES = 10_000
ROUND = 2_000


def create(tasks_file: Path | None = None) -> Domain:
    """The math domain; with a task file, over its tasks instead of generated ones."""
    if tasks_file is None:
        return MathDomain()
    from trainer.domains.math.filed import FiledMathDomain

    return FiledMathDomain(tasks_file)


class MathDomain:
    """Generated tasks; see ``trainer.types.Domain`` for the contract of each method."""

    name = "math"
    note = ""
    feature_names: tuple[str, ...] = REPLY_FEATURES
    prompt_length_hint: int = 40

    def tasks(self, split: Split, count: int, shard: int = 0) -> list[Task]:
        """Raises InputError when the split's shard holds fewer than ``count`` distinct problems."""
        problems = list(islice(draw(LEVELS, interval(split, shard), salt="tasks"), count))
        if len(problems) < count:
            raise InputError(
                f"math has {len(problems)} distinct {split} tasks in shard {shard}, {count} were asked for: "
                "ask for fewer, or widen the levels in trainer/domains/math/tables.py"
            )
        return [_task(problem, WORDINGS[problem.family].tasks) for problem in problems]

    def gate_tasks(self, validation: Sequence[Task]) -> list[Task]:
        """The structure of each task with other operands in another wording; the operands are
        such that the problem's hash lies in the gate's own range."""
        used: set[str] = set()
        return [_task(_perturbed(task, used), WORDINGS[task.family].gate) for task in validation]

    def demonstrations(self, count: int, seed: int, worked: float = 0.0) -> list[Demonstration]:
        """Styles by the shares of STYLES, or with ``worked`` of them in style WORKED; wordings (the gate's too) in equal shares."""
        random = seeded("math demonstrations", str(seed))
        shares = mixed(STYLES, WORKED, worked)
        styles = random.choices(list(shares), weights=list(shares.values()), k=count)
        problems = islice(_train_problems(seed), count)
        return [_demonstration(p, style, random) for p, style in zip(problems, styles, strict=True)]

    def hint(self, task: Task) -> str:
        """The style that works step by step."""
        return " ".join([*solve(_expression(task)).steps, f"{MARKER}{task.answer}"])

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        return [self.judge_one(task, reply) for task, reply in zip(tasks, replies, strict=True)]

    def judge_one(self, task: Task, reply: str) -> Judged:
        """Outcome 1.0 only if the extracted answer is the canonical one and reasoning_gym's scorer
        gives it 1.0: that scorer alone pays part for a text that merely contains the answer."""
        answer = marked_answer(reply)
        right = answer == task.answer and _gym_score(task) == 1.0
        return Judged(outcome=float(right), answer=answer, features=reply_features(reply, answer))

    def close(self) -> None:
        """Nothing is executed."""

    def observe(self, task: Task, turns: Sequence[str]) -> str | None:
        return None


def _task(problem: Problem, wordings: Sequence[str]) -> Task:
    return Task(
        id=problem.digest,
        domain="math",
        family=problem.family,
        level=problem.level,
        messages=_prompt(wordings[int(problem.digest[-8:], 16) % len(wordings)], problem.text),
        answer=problem.answer,
    )


def _prompt(wording: str, text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=wording.format(e=text)),)


def _expression(task: Task) -> str:
    """The expression in a generated task's prompt."""
    prompt = task.messages[-1].content
    for wording in WORDINGS[task.family].tasks:
        before, after = wording.split("{e}")
        text = prompt.removeprefix(before).removesuffix(after)
        if wording.format(e=text) == prompt and _solvable(text):
            return text
    raise ValueError(f"not a generated task: {prompt[:80]!r}")


def _solvable(text: str) -> bool:
    try:
        return bool(solve(text))
    except ValueError:
        return False


def _perturbed(task: Task, used: set[str]) -> Problem:
    text, random = _expression(task), seeded("math gate", task.id)
    spec = next(spec for spec in LEVELS if (spec.family, spec.level) == (task.family, task.level))
    for _ in range(GATE_TRIES):
        changed = perturb(text, random, spec.largest)
        digest = digest_of(task.family, changed)
        if digest not in used and interval("gate").holds(digest):
            used.add(digest)
            return Problem(task.family, task.level, changed, solve(changed).answer, digest)
    raise InputError(
        f"math {task.family} level {task.level} has too few distinct gate problems of the form {text}: "
        "ask for fewer validation tasks, or widen the level in trainer/domains/math/tables.py"
    )


def _train_problems(seed: int) -> Iterator[Problem]:
    """Train problems without end: drawn anew every ROUND problems, so that small levels keep their share."""
    for number in counting():
        yield from islice(draw(LEVELS, interval("train"), salt=f"demonstrations {seed} {number}"), ROUND)


def _demonstration(problem: Problem, style: str, random: Random) -> Demonstration:
    wordings = WORDINGS[problem.family]
    prompt = _prompt(random.choice(wordings.tasks + wordings.gate), problem.text)
    return Demonstration(messages=prompt, reply=REPLIES[style](problem), style=style)


def _direct(problem: Problem) -> str:
    return f"{MARKER}{problem.answer}"


def _steps(problem: Problem) -> str:
    return " ".join([*solve(problem.text).steps, _direct(problem)])


REPLIES: Mapping[str, Callable[[Problem], str]] = {"direct": _direct, "steps": _steps}
"""How each style of STYLES writes its reply."""


@cache
def _scorer(family: str) -> Generator:
    return generator(family)


def _gym_score(task: Task) -> float:
    """What reasoning_gym's scorer gives the task's own answer."""
    metadata = {"result": complex_parts(task.answer)} if task.family == "complex_arithmetic" else {}
    return _scorer(task.family).score_answer(task.answer, {"answer": task.answer, "metadata": metadata})
