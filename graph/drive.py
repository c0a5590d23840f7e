"""Open a run, put its services together and drive the machine to its end."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from graph import isolation, loggers, memory, session
from graph.bases import require_no_warm_start
from graph.clock import Clock
from graph.config import Resolved, RunConfig, seed_files
from graph.leftovers import sweep
from graph.progress import Progress, console
from graph.record import RunRecord
from graph.scratch import use_scratch
from graph.specialists import specialists_of
from graph.versions import NULL_VERSIONS
from sandboxes.types import SandboxFailure
from trainer.storage import storage_error
from trainer.types import InputError

if TYPE_CHECKING:
    from graph.state import Deps, LoopState

RECURSION_LIMIT = 100_000
SPECIALISTS: dict[str, str] = {"playbook": "a table of rules, offline"}


@dataclass(frozen=True)
class Start:
    """Make a new run in ``root``."""

    root: Path
    resolved: Resolved


@dataclass(frozen=True)
class Resume:
    """Go on with the run in ``root``; budgets are totals, None keeps the saved ones."""

    root: Path
    minutes: float | None
    versions: int | None


def check(resolved: Resolved) -> None:
    """What can be said to be wrong before anything is made: names, task file, checkpoint, recipe."""
    config = resolved.config
    from graph.services import BACKENDS

    loggers.parse(config.run.logger)

    for key, value, known in (
        ("run.backend", config.run.backend, BACKENDS),
        ("run.specialists", config.run.specialists, SPECIALISTS),
    ):
        if value not in known:
            origin = resolved.origins[key]
            raise InputError(f"{origin}: {key}: unknown name '{value}'; known: {', '.join(known)}")
    if config.designer.candidates == "null" and config.run.versions > NULL_VERSIONS:
        raise InputError(
            f"{resolved.origins['run.versions']}: run.versions: {config.run.versions} null candidates would share training seeds "
            f"with the next run's; at most {NULL_VERSIONS}"
        )
    specialists_of(config, resolved.chosen("recipe"), resolved.origins)
    if config.evaluation.validation < config.gate.min_varying_tasks:
        raise InputError(
            f"{resolved.origins['evaluation.validation']}: evaluation.validation: {config.evaluation.validation} tasks can never "
            f"promote anything, the gate wants gate.min_varying_tasks = {config.gate.min_varying_tasks}; raise the first"
        )
    from trainer.domains import misfit, opened_domain
    from trainer.harness_files import parse_harness

    if config.run.memory:
        memory.read_memory(memory.memory_file(config.run.memory))
    isolation.settle(config.run)
    python_parts = parse_harness(seed_files(config), "").python_parts
    sandbox = isolation.choose(config.run.domain, config.run.sandbox, python_parts).backend
    with opened_domain(config.run.domain, config.run.tasks or None, sandbox=sandbox, run="check") as domain:
        if config.run.tasks:
            domain.tasks("validation", config.evaluation.validation)
        if found := misfit(config.recipe, domain, "validation"):
            option, why = f"recipe.{found[0]}", found[1]
            raise InputError(f"{resolved.origins[option]}: {option}: {why}")
    if config.run.policy:
        option = "recipe.warm_start.worked"
        require_no_warm_start(config.recipe, f"{resolved.origins[option]}: recipe.")
        from trainer.embedded.policy import load_policy

        load_policy(Path(config.run.policy))


def plan(resolved: Resolved, root: Path) -> str:
    """What ``--dry-run`` says would happen."""
    c = resolved.config
    after = (
        f"{c.gate.certify_seeds} fresh ones certify the last"
        if c.gate.strategy == "certify"
        else "more where they pass"
    )
    start = c.run.policy or f"the default policy, warm-started with {c.warm_start.steps} steps"
    return (
        f"# would make {root}: domain {c.run.domain}, backend {c.run.backend}, specialists {c.run.specialists}\n"
        f"# policy: {start}\n"
        f"# baseline: {c.trainer.seeds} seeds × {c.trainer.token_budget} tokens; then up to {c.run.versions} candidate "
        f"versions ({c.gate.first_seeds} seeds each, {after}) within {c.run.minutes:g} min\n"
        f"# suites: {c.evaluation.validation} validation, as many gate and {c.evaluation.sealed} sealed tasks × {c.evaluation.k}"
    )


def drive(action: Start | Resume, *, as_json: bool) -> int:
    """Run to the end of the machine; returns the exit code. Raises Locked when another process has the run."""
    use_scratch()
    if isinstance(action, Start):
        check(action.resolved)
    with session.locked(action.root):
        from graph.build import NODES

        names = tuple(NODES)
        if isinstance(action, Start):
            if (action.root / "manifest.json").exists():
                raise InputError(
                    f"run.name: {action.root} is there already; --resume {shlex.quote(str(action.root))} goes on with it, "
                    "or choose another --name"
                )
            manifest = session.create(action.root, action.resolved, names)
            config, options = action.resolved.config, action.resolved.chosen("recipe")
        else:
            manifest, saved = session.reopen(action.root, names)
            sweep(action.root)
            config, options = _with_budget(saved.config, action), saved.chosen("recipe")
        return _loop(action, manifest.run_id, config, options, as_json)


def _with_budget(config: RunConfig, action: Resume) -> RunConfig:
    given = {"minutes": action.minutes, "versions": action.versions}
    update = {k: v for k, v in given.items() if v is not None}
    return config.model_copy(update={"run": config.run.model_copy(update=update)})


def _loop(
    action: Start | Resume,
    run_id: str,
    config: RunConfig,
    options: Mapping[str, Any],
    as_json: bool,
) -> int:
    from langgraph.errors import GraphDrained
    from langgraph.runtime import RunControl

    from graph.build import build
    from graph.nodes import out_of_budget
    from graph.planning import plan as plan_of
    from graph.rebuild import remake, require_records, standing
    from graph.reporting import missing
    from graph.services import JobRunner, make_trainer

    root = action.root
    heard = loggers.parse(config.run.logger)
    progress = console(as_json, "console" in heard)
    clock = Clock(root / "clock.json")
    parallel = config.trainer.parallel or os.cpu_count() or 1
    jobs = JobRunner(make_trainer(config.run.backend, parallel), clock, progress, parallel)
    isolation.settle(config.run)
    isolated = isolation.of_run(root, config.run.domain, config.run.sandbox)
    parts = isolation.HarnessSandbox(root, run_id, progress.say)
    deps = make_deps(root, run_id, config, options, jobs, progress, isolated.backend, parts)
    control = RunControl()
    status: session.Status = "failed"
    session.set_status(root, "running")
    progress.say("run", f"{root.name}: domain {config.run.domain}, seed {config.run.seed}, {config.run.minutes:g} min")
    if isolated.parts not in ("none", ""):
        progress.say("run", f"sandbox {isolated.description}")
    try:
        with (
            session.checkpoints(root) as saver,
            session.draining(control, progress.say),
            isolation.swept(lambda: parts.backend, progress.say),
            loggers.following(root, heard, progress.say),
        ):
            machine = build(saver)
            where: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": RECURSION_LIMIT}
            state = machine.get_state(where)
            if found := None if state.created_at else standing(deps.record):
                progress.say("run", f"no checkpoint: goes on behind the {found.node} of the ledger's last version")
                machine.update_state(where, found.state, as_node=found.node)
                state = machine.get_state(where)
            require_records(deps.record)
            remake(deps)
            finished = bool(state.created_at) and not state.next
            spent = out_of_budget(deps, cast("LoopState", state.values), plan_of(deps)) if finished else ""
            if finished and not spent:
                machine.update_state(where, {"stop": ""}, as_node="curate")  # the report was made: go on searching
            if spent:
                progress.say("run", f"{spent}; give more --minutes or --versions (totals)")
            if spent and (lost := missing(root)):
                progress.say("run", f"{' and '.join(lost)} missing: written again from what was measured")
                machine.update_state(where, {"reports": state.values["reports"] - 1}, as_node="certify")
                machine.invoke(None, where, context=deps, durability="sync", control=control)
            elif not spent:
                first: Any = None if state.created_at else {}
                machine.invoke(first, where, context=deps, durability="sync", control=control)
        status = "done"
    except (GraphDrained, KeyboardInterrupt):
        status = "interrupted"
        progress.say("run", f"stopped; to go on: python -m graph.run --resume {shlex.quote(str(root))}")
        return 130
    except (RuntimeError, SandboxFailure) as err:
        if storage_error(err, root):
            raise
        print(f"error: {err}", file=sys.stderr)
        return 1
    finally:
        jobs.close()
        deps.domain.close()
        parts.close()
        # A disk that is full has stopped the run already; that is what is said.
        with contextlib.suppress(OSError) if status == "failed" else contextlib.nullcontext():
            sweep(root)  # a job that was killed with its run, or over its time, may have been writing
            clock.save()
            session.set_status(root, status)
    return _finish(root, progress, as_json)


def _finish(root: Path, progress: Progress, as_json: bool) -> int:
    from graph.record import read_record
    from graph.summary import Summary, render_table

    summary = read_record(root / "summary.json", Summary)
    if as_json:
        print(json.dumps(summary.model_dump(mode="json"), ensure_ascii=False))
    else:
        render_table(summary, root, sys.stdout)
    return 0


def make_deps(
    root: Path,
    run_id: str,
    config: RunConfig,
    options: Mapping[str, Any],
    jobs: Any,
    progress: Progress,
    sandbox: str,
    parts: isolation.HarnessSandbox,
) -> Deps:
    """Services of a run; the harness repository is made here on the first start. Raises InputError where it holds
    Python and nothing can run that."""
    from graph.state import Deps
    from skills_db.store import SEED_DIR, SkillStore
    from trainer.domains import load_domain
    from trainer.harness import HarnessRepo

    # What the harness began with is in its git: a folder of one's own terms need not be there any more.
    begin = {} if (root / "harness").exists() else seed_files(config)
    harness = HarnessRepo.create(root / "harness", begin, {k: options[k] for k in sorted(options)}, run_id)
    tasks = Path(config.run.tasks) if config.run.tasks else None
    harness.reset_stale_worktrees()
    harness.check_clean()
    parts.admit(harness.load(harness.head()).python_parts)
    return Deps(
        run_id=run_id,
        config=config,
        record=RunRecord(root, writable=True),
        domain=load_domain(config.run.domain, tasks, sandbox=sandbox, run=run_id),
        sandbox=sandbox,
        parts=parts,
        harness=harness,
        specialists=specialists_of(config, options, begin=harness.files(harness.beginning())),
        jobs=jobs,
        skills=SkillStore([root / "skills", root / memory.SKILLS, SEED_DIR]),
        say=progress.say,
        elapsed=jobs.clock.elapsed,
    )
