"""What a run has before the first training: suites and protocol. Its base policy: graph.bases."""

from __future__ import annotations

from graph.record import write_atomic
from graph.seals import seal
from graph.state import Deps
from graph.versions import Suites, write_tasks
from trainer.evaluation import protocol_hash
from trainer.types import EvalProtocol


def make_suites(deps: Deps) -> None:
    """Write validation and gate tasks and freeze the protocol. Sealed tasks are not made here: the
    report makes them, so that no file of them exists while specialists work."""
    root = deps.record.root
    if (root / "protocol.json").exists():
        return
    config = deps.config
    section = config.evaluation
    if deps.domain.note:
        deps.say("prepare", deps.domain.note)
    validation = deps.domain.tasks("validation", section.validation)
    gate = deps.domain.gate_tasks(validation)
    protocol = EvalProtocol(
        domain=config.run.domain,
        k=section.k,
        temperature=section.temperature,
        max_response_length=section.max_response_length,
        sampling_seed=section.sampling_seed,
        validation=len(validation),
        sealed=section.sealed,
    )
    write_tasks(root / "tasks" / "validation.jsonl", validation)
    write_tasks(root / "tasks" / "gate.jsonl", gate)
    digest = protocol_hash(protocol, {"validation": validation, "gate": gate})
    write_atomic(root / "protocol.json", Suites(protocol=protocol, protocol_hash=digest).model_dump_json(indent=1))
    seal(root, [root / "tasks", root / "protocol.json"])
    deps.say(
        "prepare", f"{len(validation)} validation and {len(gate)} gate tasks × {section.k}, protocol {digest[:12]}"
    )
