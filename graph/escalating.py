"""When versions fail in a row: say so, then audit the evaluation itself before more is spent on what it measures.

Two: a person could steer. Three: does the incumbent reproduce its score, are suites and protocol what they were? Where they are not,
no verdict means anything and the run stops. Further failures send the designer to another layer and to subtraction (agents.designer).
"""

from __future__ import annotations

import shutil

from agents.edits import failures_in_a_row
from graph.record import RunRecord, read_record
from graph.situations import cases_of
from graph.state import Deps
from graph.versions import eval_file, eval_spec, evaluations, suites_of
from trainer.evaluation import protocol_hash
from trainer.types import Evaluation, InputError, Record, Task

SAY, AUDITED = 2, 3
AUDIT = "audit"


class Audit(Record):
    """What was looked at before ``version`` was designed; ``faults`` are empty where the evaluation holds."""

    version: str
    incumbent: str
    faults: tuple[str, ...] = ()


def escalate(deps: Deps, candidate: str, tip: str) -> str:
    """Why the run must stop, or an empty string. An audit is done once per streak, and its result kept."""
    if not deps.config.designer.escalate or deps.config.designer.candidates == "null":
        return ""
    cases = cases_of(deps, candidate)
    if not cases or cases[-1].verdict == "refused":
        return ""  # said and audited when the last version was trained
    streak = failures_in_a_row(cases)
    if streak == SAY:
        deps.say(
            "escalate",
            f"{SAY} versions in a row brought no step; a person could steer: lines 'try FACTOR = VALUE' in notes/*.md of the run now come first",
        )
    if streak != AUDITED:
        return ""
    audit = _audited(deps, candidate, tip)
    if audit.faults:
        return f"the evaluation does not hold, and no verdict of it: {'; '.join(audit.faults)}"
    deps.say(
        "escalate",
        f"{AUDITED} versions in a row brought no step; audit: {tip} reproduces its score, suites and protocol are intact; now another layer first",
    )
    return ""


def _audited(deps: Deps, candidate: str, tip: str) -> Audit:
    """A sound audit is kept. One with faults is done again: the run may have been repaired since."""
    if deps.record.saved(candidate, AUDIT) and not (kept := deps.record.load(candidate, AUDIT, Audit)).faults:
        return kept
    shutil.rmtree(deps.record.version_dir(candidate) / AUDIT, ignore_errors=True)
    fault = _suites_fault(deps.record) or _score_fault(deps, candidate, tip)
    audit = Audit(version=candidate, incumbent=tip, faults=(fault,) if fault else ())
    deps.record.save(candidate, AUDIT, audit)
    return audit


def _suites_fault(record: RunRecord) -> str:
    """Whether tasks, protocol and evaluation code still have the hash that the run began with."""
    frozen = suites_of(record)
    try:
        suites = {name: _tasks(record, name) for name in ("validation", "gate")}
    except (OSError, ValueError) as error:
        return f"tasks/: {str(error).splitlines()[0]}"
    found = protocol_hash(frozen.protocol, suites)
    return (
        ""
        if found == frozen.protocol_hash
        else f"protocol.json: hash {frozen.protocol_hash[:12]}, tasks and code give {found[:12]}: where the project was updated since the run "
        "began, go on with the version it began with, or start a new run"
    )


def _tasks(record: RunRecord, name: str) -> list[Task]:
    lines = (record.root / "tasks" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [Task.model_validate_json(line) for line in lines]


def _score_fault(deps: Deps, candidate: str, tip: str) -> str:
    """Whether the incumbent's first seed gets the same score on every task when it is evaluated again: sampling is seeded, so
    that replies and the verifier's word must be the same."""
    out = deps.record.version_dir(candidate) / AUDIT / "validation.json"
    try:
        (before,) = evaluations(deps.record, tip, range(1), "validation")
    except InputError as error:
        return str(error)
    deps.jobs.evaluate([eval_spec(deps, tip, 0, "validation", "validation", out)])
    try:
        again = read_record(out, Evaluation)
    except InputError as error:
        return str(error)
    if before.task_ids != again.task_ids:
        return f"{out.name}: the incumbent was evaluated on other tasks than those of now"
    differing = sum(a != b for a, b in zip(before.scores, again.scores, strict=True))
    where = eval_file(deps.record, tip, 0, "validation").relative_to(deps.record.root)
    return (
        f"{where}: {differing} of {len(before.scores)} tasks score otherwise when evaluated again" if differing else ""
    )
