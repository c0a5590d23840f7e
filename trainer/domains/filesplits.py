"""How the tasks of one file are divided: once, by content, for every domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.domains.splits import Interval, Split
from trainer.types import InputError, Task

# 80/10/10 by content hash. A file is all there is, so validation and sealed have one shard each.
_RANGES: dict[Split, Interval] = {
    "train": Interval(0.0, 0.8),
    "validation": Interval(0.8, 0.9),
    "sealed": Interval(0.9, 1.0),
}
LEAST = 8
"""Tasks below which a split says nothing."""


class FileSplits:
    """The splits of a file's tasks; ``prompt_length_hint`` bounds the tokens of any prompt in it."""

    def __init__(self, path: Path, tasks: Sequence[Task], digest: Callable[[Task], str]) -> None:
        """``digest`` hashes what decides the split. Raises InputError for a split with too few tasks."""
        ordered = sorted(((digest(task), task) for task in tasks), key=lambda pair: (pair[0], pair[1].id))
        self._splits = {split: [t for h, t in ordered if span.holds(h)] for split, span in _RANGES.items()}
        for split, members in self._splits.items():
            if len(members) < LEAST:
                raise InputError(
                    f"{path}: its {len(tasks)} tasks leave {len(members)} for the {split} split, at least {LEAST} "
                    "are needed; add tasks (150 suffice as a rule)"
                )
        # A token is at least one byte in the tokenizers supported here.
        self.prompt_length_hint = max(sum(len(m.content.encode()) + 2 for m in task.messages) for task in tasks)

    def __getitem__(self, split: Split) -> Sequence[Task]:
        return self._splits[split]

    def take(self, split: Split, count: int, shard: int = 0) -> list[Task]:
        """At most ``count``. Raises InputError for any shard but 0."""
        if shard != 0:
            raise InputError(f"a task file has one shard of each split: shard {shard} does not exist, use 0")
        return self._splits[split][:count]
