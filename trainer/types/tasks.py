"""Tasks, their tests, and the domains that make and judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Field

from trainer.types.base import Record


class Message(Record):
    """One chat message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class Case(Record):
    """One test of a program. ``given``: a JSON array of arguments (mode ``call``) or the text of standard input;
    ``expected``: the value as JSON (tagged as in sandboxes.types.CaseResult) or the output."""

    given: str
    expected: str


class Tests(Record):
    """How a program is tested. Expected outputs never enter the process that runs it.

    ``visible`` cases may be shown and rewarded; ``hidden`` ones decide the outcome. ``prelude`` is put before the
    program. ``checker`` is Python source with ``accept(cases)`` for problems with several right answers: it gets a
    list of [given, expected, output] and returns a list of bool; it runs in a sandboxed process of its own, and only
    for cases that are not equal. ``tolerance`` is the relative and absolute difference forgiven between floats.
    """

    __test__: ClassVar[bool] = False  # pytest would take the name for a test's

    mode: Literal["call", "stdin"] = "call"
    entry: str = ""
    visible: tuple[Case, ...] = ()
    hidden: tuple[Case, ...]
    prelude: str = ""
    checker: str = ""
    tolerance: Annotated[float, Field(ge=0)] = 0.0
    time_s: Annotated[float, Field(gt=0)] = 2.0
    memory_mb: Annotated[int, Field(gt=0)] = 256


class Task(Record):
    """One problem with a checkable answer.

    ``id`` is a content hash (domain, family, canonical problem), stable over rendering; ``family``
    and ``level`` name the generator and its difficulty; ``tag`` is free text from a task file.
    """

    id: str
    domain: str
    family: str
    level: int = 0
    messages: tuple[Message, ...]
    answer: str
    tag: str = ""
    tests: Tests | None = None


class Demonstration(Record):
    """A prompt with the reply that supervised warm start imitates; ``style`` names how it is written."""

    messages: tuple[Message, ...]
    reply: str
    style: str


class Judged(Record):
    """What the domain's fixed verifier says of one reply.

    ``outcome`` is 1.0 only for an exact, strictly extracted answer. ``features`` are named numbers
    that reward terms and diagnostics may use as columns (for instance ``format_ok``). ``visible`` is what a weaker
    verifier, the visible tests alone, would say (equal to ``outcome`` where a domain has none). ``valid`` is False
    where our own machinery failed: such a rollout is masked from rewards and never scored.
    """

    outcome: float
    answer: str | None
    visible: float | None = None
    valid: bool = True
    features: Mapping[str, float] = Field(default_factory=dict)


class Domain(Protocol):
    """A family of tasks with its verifier. Pure and deterministic: no clock, no global state."""

    name: str
    feature_names: tuple[str, ...]
    """Keys of ``Judged.features``, the same for every reply."""
    prompt_length_hint: int
    """Upper bound of prompt tokens with the default policy's tokenizer."""
    note: str
    """One line about what was read (rows skipped, say), or empty."""

    def tasks(self, split: Literal["train", "validation", "sealed"], count: int, shard: int = 0) -> list[Task]:
        """``count`` distinct tasks of a split; splits are disjoint by content hash and a task of
        one split never appears in another. ``shard`` selects disjoint slices of a split."""
        ...

    def gate_tasks(self, validation: Sequence[Task]) -> list[Task]:
        """One perturbed, re-rendered task per validation task (same order): the gate scorer's
        suite. Never a reward and never trained on."""
        ...

    def demonstrations(self, count: int, seed: int, worked: float = 0.0) -> list[Demonstration]:
        """Warm-start demonstrations on train tasks, in mixed styles: the domain's own mix, or, above 0, ``worked`` of them in
        the style that works a task out, the other styles in their proportions."""
        ...

    def hint(self, task: Task) -> str:
        """A correct, worked reply to the task, of which a beginning may be given away in training; empty where the domain
        knows none."""
        ...

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        """Score finished replies, one task each, in order; never raises on any text."""
        ...

    def observe(self, task: Task, turns: Sequence[str]) -> str | None:
        """The environment's next observation after the given assistant turns, or None when the
        episode is over. Single-turn domains always return None."""
        ...

    def close(self) -> None:
        """End what the domain runs (sandboxes); the domain is not used afterwards."""
        ...
