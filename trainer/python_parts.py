"""Python reward terms, run in a sandbox: rows go in as JSON, one finite number per row comes out.

A term runs in batches of whole groups, each batch in a process that knows nothing of those before it. What a term does
instead of giving its values is a Fault with its kind; our own failures are repeated once and then raise SandboxFailure.
Nothing of a term's text is imported or executed here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from sandboxes.types import CaseResult, Executor, Program, Ran, SandboxFailure
from trainer.types import InputError, Record, RewardTerm
from trainer.validation import did_you_mean

Floats = NDArray[np.float64]
PythonScorer = Callable[[pa.Table, Mapping[str, RewardTerm]], dict[str, Floats]]
"""Values of Python terms (name to (N,)) on N rows that hold what a reward term may read, and nothing else."""

BATCH_ROWS = 1024
TERM_SECONDS = 5.0
TERM_MEMORY_MB = 384
OUTPUT_BYTES = 64 * 1024
LARGEST = 1e6
"""Magnitude a term may give: beyond it the squares in an advantage's deviation lose the other terms."""
FAULTS_IN_A_ROW = 3
TERM_FAULTS = "term_faults.jsonl"

FaultKind = Literal["error", "timeout", "oom", "output_limit", "crash", "wrong_value"]


class Fault(Record):
    """What a part did instead of giving its value: it raised (``error``), ran into a limit, ended its process
    (``crash``) or gave something else (``wrong_value``). ``what`` is one line."""

    kind: FaultKind
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


class TermFault(Record):
    """One line of ``term_faults.jsonl``: a term counted 0 in a batch of a training step. ``off``: with this fault it was
    switched off for the rest of the job."""

    step: int
    term: str
    kind: FaultKind
    what: str
    off: bool = False


@dataclass(frozen=True)
class TermRun:
    """Values of one term, 0 in batches with a fault, and those faults; ``batches`` counts all."""

    values: Floats
    faults: tuple[Fault, ...]
    batches: int


# ------------------------------------------------------------------------------------- scoring


def scorer(
    executor: Executor | None,
    *,
    must_run: Collection[str] = (),
    breaks: Sequence[int] = (),
    notes: list[str] | None = None,
) -> PythonScorer:
    """Scores outside training (replay, proxy) as training does: a batch with a fault counts 0 and is noted.

    ``breaks`` are rows at which a training step began. A fault of a term in ``must_run`` raises InputError, as does
    any term where ``executor`` is None. Raises SandboxFailure.
    """

    def score(rows: pa.Table, terms: Mapping[str, RewardTerm]) -> dict[str, Floats]:
        values: dict[str, Floats] = {}
        for name, run in run_terms(executor, rows, terms, breaks).items():
            values[name] = run.values
            if run.faults and name in must_run:
                raise InputError(f"reward/{name}.toml: python: {run.faults[0]}: correct the term")
            if run.faults and notes is not None:
                counted = f"counts 0 in {len(run.faults)} of {run.batches} batches"
                notes.append(f"reward/{name}.toml {counted} ({run.faults[0]})")
        return values

    return score


class TrainingTerms:
    """The Python terms of one training job. A fault counts as 0 for that batch and is written to
    ``<folder>/term_faults.jsonl``; after FAULTS_IN_A_ROW in a row a term is 0 for the rest of the job and is not run."""

    def __init__(
        self, executor: Executor | None, folder: Path, in_a_row: Mapping[str, int] | None = None, step: int = 0
    ) -> None:
        """``in_a_row`` are the faults in a row of each term after ``step``, where an earlier attempt stopped; what it
        wrote later is dropped."""
        self._executor = executor
        self._file = folder / TERM_FAULTS
        self.in_a_row = dict(in_a_row or {})
        earlier = [fault for fault in read_faults(self._file) if fault.step <= step] if step else []
        self._file.unlink(missing_ok=True)
        for fault in earlier:
            self._write(fault)

    def values(self, step: int, rows: pa.Table, terms: Mapping[str, RewardTerm]) -> dict[str, Floats]:
        """Values of all ``terms`` on one batch. Raises InputError without an executor, and SandboxFailure."""
        values = {name: np.zeros(rows.num_rows) for name in terms}
        alive = {name: t for name, t in terms.items() if self.in_a_row.get(name, 0) < FAULTS_IN_A_ROW}
        for name, run in run_terms(self._executor, rows, alive).items():
            values[name] = run.values
            self.in_a_row[name] = self.in_a_row.get(name, 0) + 1 if run.faults else 0
            if run.faults:
                self._note(step, name, run.faults[0])
        return values

    def _note(self, step: int, name: str, fault: Fault) -> None:
        off = self.in_a_row[name] >= FAULTS_IN_A_ROW
        line = TermFault(step=step, term=name, kind=fault.kind, what=fault.what, off=off)
        self._write(line)
        print(f"step {step}: reward/{name}.toml counts 0{' from now on' if off else ''}: {fault}", flush=True)

    def _write(self, fault: TermFault) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(fault.model_dump_json() + "\n")


def read_faults(file: Path) -> list[TermFault]:
    """The lines of a ``term_faults.jsonl``; none where there is no such file. A last line without line break is an
    unfinished write. Raises InputError for another damaged one."""
    if not file.exists():
        return []
    faults = []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(True), start=1):
        if line.endswith("\n"):
            try:
                faults.append(TermFault.model_validate_json(line))
            except ValidationError as error:
                raise InputError(f"{file}: line {number}: no fault of a term: delete the line") from error
    return faults


def run_terms(
    executor: Executor | None, rows: pa.Table, terms: Mapping[str, RewardTerm], breaks: Sequence[int] = ()
) -> dict[str, TermRun]:
    """Run every term on every batch of ``rows``, all in one call of the executor."""
    if not terms or not rows.num_rows:
        return {name: TermRun(np.zeros(rows.num_rows), (), 0) for name in terms}
    if executor is None:
        raise no_sandbox(f"reward/{next(iter(terms))}.toml")
    batches = batches_of(rows["task_id"].to_pylist(), breaks)
    given = [json.dumps([rows.slice(start, stop - start).to_pylist()]) for start, stop in batches]
    programs = [
        Program(
            source=term.python,
            entry="reward",
            cases=(case,),
            time_s=TERM_SECONDS,
            output_limit=OUTPUT_BYTES + 40 * (stop - start),
            memory_mb=TERM_MEMORY_MB,
        )
        for term in terms.values()
        for case, (start, stop) in zip(given, batches, strict=True)
    ]
    results = iter(run_isolated(executor, programs))
    runs: dict[str, TermRun] = {}
    for name in terms:
        values = np.zeros(rows.num_rows)
        faults: list[Fault] = []
        for start, stop in batches:
            found = _numbers(value_of(next(results), 0, TERM_SECONDS, TERM_MEMORY_MB), stop - start)
            if isinstance(found, Fault):
                faults.append(_hinted(found, rows.column_names))
            else:
                values[start:stop] = found
        runs[name] = TermRun(values, tuple(faults), len(batches))
    return runs


def batches_of(task_ids: Sequence[str], breaks: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Half-open ranges of at most about BATCH_ROWS rows that cut no group (rows of one task that stand together) and
    cross no break."""
    cuts = set(breaks)
    batches: list[tuple[int, int]] = []
    start = group = 0
    for row in range(1, len(task_ids) + 1):
        if row < len(task_ids) and row not in cuts and task_ids[row] == task_ids[row - 1]:
            continue
        # Rows group..row are one group; close the batch before it where it would not fit.
        if row - start > BATCH_ROWS and group > start:
            batches.append((start, group))
            start = group
        group = row
        if row == len(task_ids) or row in cuts:
            batches.append((start, row))
            start = row
    return batches


# ------------------------------------------------------------------------------- shared by parts


def no_sandbox(path: str, reason: str = "") -> InputError:
    """The refusal of a Python part where nothing can run it."""
    return InputError(
        f"{path}: python: runs in a sandbox only, and there is none{f' ({reason})' if reason else ''}: start a run with "
        "--sandbox auto where Docker or bubblewrap works (see python -m graph.run --doctor), or say it in SQL"
    )


def run_isolated(executor: Executor, programs: Sequence[Program]) -> list[Ran]:
    """One result per program, in order; what our own machinery failed to run is run once more.

    Raises SandboxFailure where that fails too.
    """
    results = list(executor.run(programs))
    failed = [i for i, ran in enumerate(results) if ran.kind == "infra_failure"]
    for i, ran in zip(failed, executor.run([programs[i] for i in failed]) if failed else [], strict=True):
        if ran.kind == "infra_failure":
            raise SandboxFailure(f"sandbox: a Python part of the harness could not be run, twice: {ran.error}")
        results[i] = ran
    return results


def value_of(ran: Ran, case: int, time_s: float, memory_mb: int) -> Any | Fault:
    """What a case returned, from JSON, or why it did not."""
    result = ran.cases[case]
    if result.status == "ok":
        try:
            return json.loads(result.value)
        except (ValueError, RecursionError):
            return Fault(kind="wrong_value", what="the value is nested or long beyond reading")
    return _fault(ran, result, time_s, memory_mb)


def _fault(ran: Ran, result: CaseResult, time_s: float, memory_mb: int) -> Fault:
    how = result.status if result.status != "missing" else ran.kind
    said = plain(result.error or ran.error)
    match how:
        case "timeout":
            return Fault(kind="timeout", what=f"no value within {time_s:g} s")
        case "oom":
            return Fault(kind="oom", what=f"more than {memory_mb} MB of memory")
        case "output_limit":
            return Fault(kind="output_limit", what=said or "printed more than is allowed")
        case "error":
            return Fault(kind="error", what=said)
    return Fault(kind="crash", what=f"its process ended before it gave a value{f' ({said})' if said else ''}")


def _numbers(value: Any, count: int) -> Floats | Fault:
    """``value`` as ``count`` finite numbers."""
    if isinstance(value, Fault):
        return value
    if isinstance(value, dict) and value.keys() == {"tuple"}:
        value = value["tuple"]
    if not isinstance(value, list):
        return _wrong(f"gives {shown(value)}, not a list of {count} numbers")
    if len(value) != count:
        return _wrong(f"gives {len(value)} values for {count} rows")
    for row, one in enumerate(value):
        if problem := not_a_number(one):
            return _wrong(f"gives {problem} for row {row}")
    return np.array(value, dtype=np.float64)


def not_a_number(value: Any, largest: float = LARGEST) -> str:
    """What is wrong with a value that should be a finite number; empty if nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return f"{shown(value)}, no finite number"
    return "" if -largest <= value <= largest else f"{shown(value)}, beyond ±{largest:g}"


def plain(text: str) -> str:
    """Text from outside as one line of at most 300 characters without control sequences: it goes to terminals."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:300]


def shown(value: Any) -> str:
    """A value from outside, short and on one line."""
    if isinstance(value, dict) and len(value) == 1 and (tag := next(iter(value))) in ("float", "repr"):
        return plain(str(value[tag]))[:40]
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge integer"
    text = " ".join(json.dumps(value, ensure_ascii=True).split())
    return text if len(text) <= 40 else text[:37] + "..."


def _wrong(what: str) -> Fault:
    return Fault(kind="wrong_value", what=what)


def _hinted(fault: Fault, columns: Sequence[str]) -> Fault:
    """A row's key that does not exist is most often a column misspelt."""
    key = fault.what.removeprefix("KeyError: ").strip("'\"")
    if fault.kind != "error" or not fault.what.startswith("KeyError: ") or key in columns:
        return fault
    return fault.model_copy(update={"what": f"{fault.what}; {did_you_mean(key, columns)}"})
