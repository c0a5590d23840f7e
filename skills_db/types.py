"""The records of the skill library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

Outcome = Literal["win", "loss"]


def check_name(name: str) -> str:
    """A skill name as the Agent Skills format has it: 1–64 of a–z, 0–9 and single inner hyphens.

    It becomes a folder, so this is also what keeps a name inside the library.
    """
    if len(name) > 64 or not _NAME.fullmatch(name):
        raise ValueError(f"skill name {name[:80]!r}: use up to 64 of a-z, 0-9 and single hyphens")
    return name


Name = Annotated[str, AfterValidator(check_name)]
Given = Annotated[str, Field(min_length=1)]
Description = Annotated[str, Field(min_length=1, max_length=1024)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Evidence(_Record):
    """One measured use of a skill. ``key`` (run/version) makes adding it twice count once."""

    key: Given
    domain: Given
    outcome: Outcome
    value: str
    """JSON text of the factor's value that was tried."""
    text: str


class SkillNote(_Record):
    """What is to be written: a new skill, or evidence for an existing one (``merge_into``).

    The fields are those of a curator's draft.
    """

    name: Name
    description: Description
    domain: Given
    trigger: Given
    factor: Given
    value: str
    outcome: Outcome
    evidence: str
    expected_effect: str
    body: str
    merge_into: Name | None = None
    preconditions: tuple[str, ...] = ()


class Skill(_Record):
    """A skill: when ``trigger`` is the bottleneck, give ``factor`` the ``value``.

    ``origin`` is the domain it was born in; ``value`` is JSON text, empty where the skill only
    advises. Everything that counts is derived from ``evidence``, so it cannot disagree with it.
    """

    schema_version: Literal[1] = 1
    name: Name
    description: Description
    origin: Given
    trigger: Given
    factor: Given
    value: str = ""
    preconditions: tuple[str, ...] = ()
    expected_effect: str = ""
    source: str = ""
    evidence: tuple[Evidence, ...] = ()
    body: str = ""

    @property
    def domains(self) -> tuple[str, ...]:
        """Where it applies: its origin and every domain in which its value won."""
        return tuple(sorted({self.origin, *self._won}))

    @property
    def shared(self) -> bool:
        """Whether its value won in two domains: it then belongs to every domain, elsewhere it is a fallback."""
        return len(self._won) > 1

    @property
    def _won(self) -> frozenset[str]:
        return frozenset(e.domain for e in self.evidence if e.outcome == "win" and e.value == self.value)

    @property
    def wins(self) -> int:
        return self._count("win")

    @property
    def losses(self) -> int:
        return self._count("loss")

    @property
    def vetoes(self) -> tuple[str, ...]:
        """Other values of the factor that lost more often than they won."""
        return tuple(sorted(v for v, score in balance(self.evidence).items() if v != self.value and score < 0))

    def _count(self, outcome: Outcome) -> int:
        return sum(1 for e in self.evidence if e.outcome == outcome and e.value == self.value)


def balance(evidence: tuple[Evidence, ...]) -> Mapping[str, int]:
    """Value to wins minus losses, in the order the values were first tried."""
    score: dict[str, int] = {}
    for item in evidence:
        score[item.value] = score.get(item.value, 0) + (1 if item.outcome == "win" else -1)
    return score


class Problem(_Record):
    """A skill folder that was left out, and why."""

    path: str
    reason: str
