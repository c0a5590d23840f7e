"""Programs against their tests: run inside, compared outside."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from sandboxes.types import Executor, Kind, Program, Ran
from trainer.domains.code import tagged
from trainer.domains.code.compare import same_output, same_value
from trainer.domains.code.types import CaseVerdict, Grade
from trainer.types import Case, Tests

CHECK_SECONDS = 10.0
CHECK_MEMORY_MB = 512
OUTPUT_BYTES = 64 * 1024

TAGGED = f"_tagged = {{}}\nexec({Path(tagged.__file__).read_text('utf-8')!r}, _tagged)\n"
"""Source that puts the functions of ``trainer.domains.code.tagged`` into a dictionary ``_tagged``: many a program has an
``encode`` of its own."""

_FUTURE = re.compile(r"^from __future__ import [^\n(]*$", re.MULTILINE)
_TAG = re.compile(r'\{\s*"(?:tuple|set|dict|float)"\s*:')
_CALLER = "_call_with_decoded_arguments"


def grade(executor: Executor, jobs: Sequence[tuple[Tests, str | None]]) -> list[Grade]:
    """One grade per job, in order: tests and the program's source, None for no program.

    All programs run in one batch, each in one execution with its visible and hidden cases together; what is not equal
    to the expected output and has a checker goes into a second batch. Cases of a program that our own machinery failed
    to run, or to check, are ``missing`` and the kind is ``infra_failure``. Never raises for anything a program does.
    """
    runnable = [i for i, (_, source) in enumerate(jobs) if source is not None and _is_text(source)]
    ran = dict(zip(runnable, executor.run([program(jobs[i][0], jobs[i][1] or "") for i in runnable]), strict=True))
    verdicts = {i: _verdicts(jobs[i][0], result) for i, result in ran.items()}
    broken = _check(executor, jobs, ran, verdicts)
    return [
        _grade(tests, verdicts.get(i), ran.get(i), no_program="no program" if source is None else "not UTF-8 text")
        if i not in broken
        else _missing(tests, "infra_failure", broken[i])
        for i, (tests, source) in enumerate(jobs)
    ]


def program(tests: Tests, source: str) -> Program:
    """What runs: prelude and source, with the inputs of all cases, visible ones first."""
    cases = cases_of(tests)
    entry = tests.entry
    text = f"{tests.prelude}\n{source}" if tests.prelude else source
    if tests.prelude and (future := _FUTURE.findall(source)):
        # Only allowed before everything else.
        text = "\n".join(future) + "\n" + tests.prelude + "\n" + _FUTURE.sub("", source)
    if tests.mode == "call" and any(_TAG.search(case.given) for case in cases):
        text += f"\n\n{TAGGED}\n"
        text += f"def {_CALLER}(*given):\n    return {_called(entry)}(*map(_tagged['decode'], given))\n"
        entry = _CALLER
    longest = max((len(case.expected) for case in cases), default=0)
    return Program(
        source=text,
        mode=tests.mode,
        entry=entry,
        cases=tuple(case.given for case in cases),
        time_s=tests.time_s,
        memory_mb=tests.memory_mb,
        output_limit=max(OUTPUT_BYTES, 4096 + 4 * longest),
    )


def cases_of(tests: Tests) -> tuple[Case, ...]:
    """Visible cases, then hidden ones: the order of a program's results."""
    return (*tests.visible, *tests.hidden)


def _called(entry: str) -> str:
    owner, _, name = entry.rpartition(".")
    return f"{owner}().{name}" if owner else name


def _is_text(source: str) -> bool:
    try:
        source.encode()
    except UnicodeEncodeError:
        return False
    return True


def _verdicts(tests: Tests, ran: Ran) -> list[CaseVerdict]:
    verdicts: list[CaseVerdict] = []
    for case, result in zip(cases_of(tests), ran.cases, strict=True):
        if result.status != "ok":
            verdicts.append(result.status)
        elif _equal(tests, case.expected, result.value):
            verdicts.append("pass")
        else:
            verdicts.append("wrong")
    return verdicts


def _equal(tests: Tests, expected: str, output: str) -> bool:
    if tests.mode == "stdin":
        return same_output(expected, output, tests.tolerance)
    # A checker has the last word, so equality without it may be strict.
    return same_value(expected, output, tests.tolerance, strict=bool(tests.checker))


def _check(
    executor: Executor,
    jobs: Sequence[tuple[Tests, str | None]],
    ran: dict[int, Ran],
    verdicts: dict[int, list[CaseVerdict]],
) -> dict[int, str]:
    """Turn wrong verdicts into passes where a checker accepts the output; the error of each check that we failed to
    run, by job."""
    open_cases: dict[int, list[int]] = {}
    for i, found in verdicts.items():
        if jobs[i][0].checker and (wrong := [k for k, v in enumerate(found) if v == "wrong"]):
            open_cases[i] = wrong
    checks = []
    for i, wrong in open_cases.items():
        cases, results = cases_of(jobs[i][0]), ran[i].cases
        given = [[[cases[k].given, cases[k].expected, results[k].value] for k in wrong]]
        checks.append(
            Program(
                source=jobs[i][0].checker,
                entry="accept",
                cases=(json.dumps(given),),
                time_s=CHECK_SECONDS,
                memory_mb=CHECK_MEMORY_MB,
                output_limit=OUTPUT_BYTES + 16 * len(wrong),
            )
        )
    broken: dict[int, str] = {}
    for (i, wrong), check in zip(open_cases.items(), executor.run(checks) if checks else [], strict=True):
        if check.kind == "infra_failure":
            broken[i] = f"checker: {check.error}"
            continue
        for k, accepted in zip(wrong, _accepted(check, len(wrong)), strict=True):
            if accepted:
                verdicts[i][k] = "pass"
    return broken


def _accepted(check: Ran, count: int) -> list[bool]:
    """The checker's verdicts; all False where it failed on these outputs."""
    (result,) = check.cases
    answer = json.loads(result.value) if result.status == "ok" else None
    if not isinstance(answer, list) or len(answer) != count:
        return [False] * count
    return [one is True for one in answer]


def _grade(tests: Tests, verdicts: list[CaseVerdict] | None, ran: Ran | None, no_program: str) -> Grade:
    if verdicts is None or ran is None:
        return _missing(tests, "exit", no_program)
    if ran.kind == "infra_failure":
        return _missing(tests, ran.kind, ran.error)
    error = next((case.error for case in ran.cases if case.error), "") or ran.error
    shown = len(tests.visible)
    return Grade(kind=ran.kind, visible=tuple(verdicts[:shown]), hidden=tuple(verdicts[shown:]), error=error)


def _missing(tests: Tests, kind: Kind, error: str) -> Grade:
    return Grade(
        kind=kind, visible=("missing",) * len(tests.visible), hidden=("missing",) * len(tests.hidden), error=error
    )
