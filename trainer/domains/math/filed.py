"""The math domain over tasks from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer.domains.answers import REPLY_FEATURES, final_answer, normalized, reply_features
from trainer.domains.math.domain import MathDomain
from trainer.domains.splits import Interval, Split, content_hash
from trainer.domains.taskfile import read_tasks
from trainer.types import Demonstration, InputError, Judged, Message, Task

# 80/10/10 by content hash. A file is all there is, so validation and sealed have one shard each.
_RANGES: dict[Split, Interval] = {
    "train": Interval(0.0, 0.8),
    "validation": Interval(0.8, 0.9),
    "sealed": Interval(0.9, 1.0),
}
LEAST = 8
"""Tasks below which a split says nothing."""

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
        hashed = [(content_hash(*(m.content for m in task.messages)), task) for task in tasks]
        hashed.sort(key=lambda pair: (pair[0], pair[1].id))
        self._splits = {split: [t for h, t in hashed if span.holds(h)] for split, span in _RANGES.items()}
        for split, members in self._splits.items():
            if len(members) < LEAST:
                raise InputError(
                    f"{path}: its {len(tasks)} tasks leave {len(members)} for the {split} split, at least {LEAST} "
                    "are needed; add tasks (150 suffice as a rule)"
                )
        # A token is at least one byte in the tokenizers supported here.
        self.prompt_length_hint = max(sum(len(m.content.encode()) + 2 for m in task.messages) for task in tasks)
        self._generated = MathDomain()

    def tasks(self, split: Split, count: int, shard: int = 0) -> list[Task]:
        """Raises InputError for any shard but 0."""
        if shard != 0:
            raise InputError(f"a task file has one shard of each split: shard {shard} does not exist, use 0")
        return self._splits[split][:count]

    def gate_tasks(self, validation: Sequence[Task]) -> list[Task]:
        """The same questions under one more instruction line. Weaker than the gate of generated
        tasks: an answer learnt by heart passes it, a habit bound to the exact prompt does not."""
        return [_reworded(task) for task in validation]

    def demonstrations(self, count: int, seed: int) -> list[Demonstration]:
        return self._generated.demonstrations(count, seed)

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
