"""What a run has before the first training: suites, protocol, base policy, harness, services."""

from __future__ import annotations

import shutil
from pathlib import Path

from graph.record import write_atomic
from graph.seals import seal
from graph.state import Deps
from graph.versions import BasePolicy, Suites, write_tasks
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


def make_base_policy(deps: Deps) -> None:
    """Warm-start the default policy (from the cache if an equal one was made before) or take the user's."""
    target = deps.record.root / "base.json"
    if target.exists():
        return
    config = deps.config
    if config.run.policy:
        base = BasePolicy(path=Path(config.run.policy).resolve(), warm_start=False)
        deps.say("prepare", f"policy {base.path}")
    else:
        base = BasePolicy(path=_warm_start(deps), warm_start=True)
    write_atomic(target, base.model_dump_json(indent=1))
    seal(deps.record.root, [target, deps.record.root / "base"])


def _warm_start(deps: Deps) -> Path:
    from trainer.embedded.warmstart import SftSettings

    config = deps.config
    settings = SftSettings(steps=config.warm_start.steps)
    cached = deps.jobs.warm_start(config.run.domain, config.run.seed, settings, deps.record.root)
    own = deps.record.root / "base"
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(cached, own)  # a cleared cache must not take a run's base policy away
    return own
