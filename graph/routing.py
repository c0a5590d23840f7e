"""Where the machine goes next: pure functions of the state."""

from __future__ import annotations

from graph.state import LoopState

FAILED = frozenset({"refused", "failed"})


def after_diagnose(state: LoopState) -> str:
    """An evaluation that does not hold settles nothing: no certification either."""
    return "report" if state.get("stop") else "upgrade_harness"


def after_design(state: LoopState) -> str:
    return "certify" if state.get("stop") else "backtest"


def after_backtest(state: LoopState) -> str:
    return "curate" if state["verdict"] == "refused" else "train"


def after_gate(state: LoopState) -> str:
    """An open verdict means that the gate asked for more seeds."""
    return "curate" if state["verdict"] else "train"


def after_curate(state: LoopState) -> str:
    return "certify" if state.get("stop") else "diagnose"


def stop_reason(*, trained: int, versions: int, refused: int, elapsed_s: float, next_s: float, minutes: float) -> str:
    """Why the loop ends here, or an empty string. ``next_s`` estimates one more version and the report."""
    if trained >= versions:
        return f"the budget of {versions} candidate versions is used"
    if refused >= MAX_REFUSED:
        return f"{refused} designs in a row were refused by the backtest"
    if elapsed_s + next_s > minutes * 60:
        return f"the time budget of {minutes:g} min leaves no room for another version (about {next_s:.0f} s)"
    return ""


MAX_REFUSED = 6
