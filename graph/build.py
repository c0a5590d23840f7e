"""The state machine on one screen.

prepare -> baseline -> diagnose -> upgrade_harness -> design -> backtest -> train -> evaluate -> gate -> curate -> diagnose ...
                                                        |          |(refused)  ^---------------| (more seeds)  |
                                                        |(no idea) +---------------------------------> curate  |(budget used)
                                                        +--------------------------------> certify <-----------+
                                                                                              +-> report
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from graph import nodes, routing
from graph.state import Deps, LoopState

Node = Callable[[LoopState, Runtime[Deps]], LoopState]

NODES: Mapping[str, Node] = {
    "prepare": nodes.prepare,
    "baseline": nodes.baseline,
    "diagnose": nodes.diagnose,
    "upgrade_harness": nodes.upgrade_harness,
    "design": nodes.design,
    "backtest": nodes.backtest,
    "train": nodes.train,
    "evaluate": nodes.evaluate,
    "gate": nodes.gate,
    "curate": nodes.curate,
    "certify": nodes.certify,
    "report": nodes.report,
}


def build(
    checkpointer: BaseCheckpointSaver[str] | None, node_table: Mapping[str, Node] = NODES
) -> CompiledStateGraph[LoopState, Deps, LoopState, LoopState]:
    """Compile the machine; ``node_table`` may wrap the nodes (names stay)."""
    graph: StateGraph[LoopState, Deps, LoopState, LoopState] = StateGraph(LoopState, context_schema=Deps)
    for name, node in node_table.items():
        action: Any = node
        graph.add_node(name, action)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "baseline")
    graph.add_edge("baseline", "diagnose")
    graph.add_conditional_edges("diagnose", routing.after_diagnose, ["upgrade_harness", "report"])
    graph.add_edge("upgrade_harness", "design")
    graph.add_conditional_edges("design", routing.after_design, ["backtest", "certify"])
    graph.add_conditional_edges("backtest", routing.after_backtest, ["train", "curate"])
    graph.add_edge("train", "evaluate")
    graph.add_edge("evaluate", "gate")
    graph.add_conditional_edges("gate", routing.after_gate, ["train", "curate"])
    graph.add_conditional_edges("curate", routing.after_curate, ["diagnose", "certify"])
    graph.add_edge("certify", "report")
    graph.add_edge("report", END)
    return graph.compile(checkpointer=checkpointer)
