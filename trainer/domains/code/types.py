"""Words of the code domain."""

from __future__ import annotations

from typing import Literal

from sandboxes.types import Kind
from trainer.types import Record

CaseVerdict = Literal["pass", "wrong", "error", "timeout", "output_limit", "oom", "missing"]


class Grade(Record):
    """One program against its tests: a verdict per case, ``kind`` how its process ended, ``error`` the first
    exception (type and message, one line; syntax errors too). ``visible`` and ``hidden`` in the order of the tests;
    no program at all gives ``missing`` everywhere."""

    kind: Kind
    visible: tuple[CaseVerdict, ...]
    hidden: tuple[CaseVerdict, ...]
    error: str = ""

    @property
    def outcome(self) -> float:
        """1.0 if every hidden test passes (and there is one)."""
        return float(bool(self.hidden) and all(v == "pass" for v in self.hidden))

    @property
    def weak(self) -> float:
        """1.0 if every visible test passes; without any visible one, the outcome."""
        return float(all(v == "pass" for v in self.visible)) if self.visible else self.outcome
