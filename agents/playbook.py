"""The embedded specialists: the four roles played by the playbook's tables, without a model or a network."""

from __future__ import annotations

from dataclasses import dataclass, field

from agents.backtester import backtest
from agents.curator import curate
from agents.designer import design
from agents.diagnostician import diagnose
from agents.rules import Rules, load_rules
from agents.types import (
    BacktestInput,
    BacktestReport,
    CurateInput,
    CurateOutput,
    DesignInput,
    DiagnoseInput,
    Diagnosis,
    Intervention,
)

__all__ = ["Playbook", "load_rules"]


@dataclass
class Playbook:
    """Specialists (agents.types) over loaded rules. Equal inputs give equal answers."""

    rules: Rules = field(default_factory=load_rules)
    name: str = "playbook"

    def diagnose(self, inp: DiagnoseInput) -> Diagnosis:
        return diagnose(inp, self.rules)

    def design(self, inp: DesignInput) -> Intervention | None:
        return design(inp, self.rules)

    def backtest(self, inp: BacktestInput) -> BacktestReport:
        return backtest(inp)

    def curate(self, inp: CurateInput) -> CurateOutput:
        return curate(inp, self.rules)
