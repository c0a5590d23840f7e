"""The math domain over tasks from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer.domains.answers import REPLY_FEATURES, final_answer, normalized, reply_features
from trainer.domains.filesplits import FileSplits
from trainer.domains.math.domain import MathDomain
from trainer.domains.splits import Split, content_hash
from trainer.domains.taskfile import read_tasks
from trainer.types import Demonstration, InputError, Judged, Message, Task

GATE_INSTRUCTION = "Solve this and give only the final answer at the end."


class FiledMathDomain:
    """Tasks of a file; see ``trainer.types.Domain`` for the contract of each method.

    A split's ``count`` is an upper bound: what the file holds is returned. Demonstrations are those of
    the generated tasks, for the warm start of the default policy.
    """

    name = "math"
    note = ""
    feature_names: tuple[str, ...] = REPLY_FEATURES

    def __init__(self, path: Path) -> None:
        """Raises InputError for a bad file, a task of another domain, and a split with too few tasks."""
        tasks = read_tasks(path)
        for task in tasks:
            if task.domain != self.name:
                raise InputError(
                    f"{path}: field domain (verl: ability) is {task.domain!r} for the task "
                    f"{task.messages[-1].content[:40]!r}; only {self.name!r} tasks can be used here"
                )
        # The question alone decides the split: two answers to one question must not be divided.
        self._splits = FileSplits(path, tasks, lambda task: content_hash(*(m.content for m in task.messages)))
        self.prompt_length_hint = self._splits.prompt_length_hint
        self._generated = MathDomain()

    def tasks(self, split: Split, count: int, shard: int = 0) -> list[Task]:
        """Raises InputError for any shard but 0."""
        return self._splits.take(split, count, shard)

    def gate_tasks(self, validation: Sequence[Task]) -> list[Task]:
        """The same questions under one more instruction line. Weaker than the gate of generated
        tasks: an answer learnt by heart passes it, a habit bound to the exact prompt does not."""
        return [_reworded(task) for task in validation]

    def demonstrations(self, count: int, seed: int, worked: float = 0.0) -> list[Demonstration]:
        return self._generated.demonstrations(count, seed, worked)

    def hint(self, task: Task) -> str:
        """Nothing: a file has answers, and the beginning of an answer is a guess."""
        return ""

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        return [self.judge_one(task, reply) for task, reply in zip(tasks, replies, strict=True)]

    def judge_one(self, task: Task, reply: str) -> Judged:
        """Outcome 1.0 only if the extracted answer equals the file's, apart from dollar signs around
        it and commas between thousands."""
        answer = final_answer(reply)
        right = answer is not None and normalized(answer) == normalized(task.answer)
        return Judged(outcome=float(right), answer=answer, features=reply_features(reply, answer))

    def close(self) -> None:
        """Nothing is executed."""

    def observe(self, task: Task, turns: Sequence[str]) -> str | None:
        return None


def _reworded(task: Task) -> Task:
    *before, last = task.messages
    message = Message(role=last.role, content=f"{GATE_INSTRUCTION}\n{last.content}")
    return task.model_copy(update={"id": content_hash("gate", task.id), "messages": (*before, message)})
