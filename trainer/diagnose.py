"""The health report of a version: the harness's diagnostics, run over its stored rollouts.

Diagnostics are data (one metric query, two lines, one evidence query); this module gives them their
tables and turns numbers into findings. Those in Python get the rows of ``rollouts`` in a sandbox. Tables a query may use:

- ``rollouts``: all training rollouts, all seeds (ROLLOUT_COLUMNS, features, ``term_<name>``), with
  ``progress`` (0 at a seed's first step, 1 at its last) and ``quarter`` (1 to 4) of its training;
- ``early`` and ``late``: its first and last quarter;
- ``groups``: one row per group (seed, step, group_id, task_id, quarter, n, solved = mean outcome,
  dead = no spread in the score, kept, distinct_responses, rollout_id = one member to look at);
- ``terms``: one row per rollout and reward term (rollout_id, seed, step, quarter, name, value), and ``weights``
  (name, value), what the recipe pays for each;
- ``scores`` and ``parent_scores``: (name, value), the report's scores and those of the parent;
- ``trends``: (name, part, value), each training metric's mean in the parts of the training, from 0 on.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from sandboxes.types import Executor
from trainer.evidence import rollout_files
from trainer.groups import SPREAD_TOLERANCE
from trainer.python_diagnostics import evidence as evidence_of
from trainer.python_diagnostics import metrics, rollout_file
from trainer.python_parts import Fault, TermFault, read_faults
from trainer.python_source import defines
from trainer.sql import QueryError, open_parquet, select
from trainer.types import Diagnostic, Finding, HealthReport, InputError, Severity

EVIDENCE_ROWS = 5
MEMORY_LIMIT = "64MB"
"""A million rollouts take no longer than with four times as much; 48 MB do not hold the copy. Trainings need the rest."""
ALARMS: tuple[Severity, ...] = ("warn", "critical")
TREND_PARTS = 10

VIEWS: Mapping[str, str] = {
    "spans": "SELECT seed, min(step) AS first, max(step) AS last FROM stored GROUP BY seed",
    "rollouts": """
        SELECT *, least(4, 1 + floor(4 * progress))::BIGINT AS quarter FROM (
            SELECT stored.*, CASE WHEN last = first THEN 1 ELSE (step - first) / (last - first) END AS progress
            FROM stored JOIN spans USING (seed))""",
    "early": "SELECT * FROM rollouts WHERE quarter = 1",
    "late": "SELECT * FROM rollouts WHERE quarter = 4",
    # `dead` is trainer.groups.groups_with_spread in SQL. Hashes of 64 bits stand for replies, which would not fit.
    "groups": f"""
        SELECT seed, step, group_id, any_value(task_id) AS task_id, any_value(quarter) AS quarter,
            any_value(progress) AS progress, count(*) AS n, avg(outcome) AS solved,
            max(score) - min(score) <= {SPREAD_TOLERANCE} * greatest(1, max(abs(score))) AS dead,
            bool_and(kept) AS kept, count(DISTINCT hash(response)) AS distinct_responses, min(rollout_id) AS rollout_id
        FROM rollouts GROUP BY seed, step, group_id""",
}


def health_report(
    version: str,
    rollouts: Sequence[Path],
    diagnostics: Mapping[str, Diagnostic],
    scores: Mapping[str, float],
    metrics_files: Sequence[Path],
    parent_scores: Mapping[str, float] | None = None,
    *,
    weights: Mapping[str, float] | None = None,
    executor: Executor | None = None,
    fault_files: Sequence[Path] = (),
) -> HealthReport:
    """Run all ``diagnostics`` over the rollout directories of one version (one per seed).

    A diagnostic that fails or gives no number becomes a finding of severity ``info`` with the error
    text; the others go on. ``weights`` are the recipe's, by reward term. ``executor`` runs Python diagnostics; a term that did not run in training
    (``fault_files``, one ``term_faults.jsonl`` per seed, which need not exist) is a critical finding about its file.
    Raises InputError only for damaged files and Python without a sandbox, and SandboxFailure. Memory does not
    grow with the run.
    """
    named = {"scores": scores, "parent_scores": parent_scores or {}, "weights": weights or {}}
    courses = trends(metrics_files)
    tables = {name: _name_values(values) for name, values in named.items()} | {"trends": _trend_rows(courses)}
    files = rollout_files(rollouts)
    try:
        views = {**VIEWS, "terms": _terms_view(pq.read_schema(files[0]).names)}
        with open_parquet(
            "stored", files, copy=("stored", "groups"), views=views, tables=tables, memory_limit=MEMORY_LIMIT
        ) as con:
            python = [d for d in diagnostics.values() if d.python]
            read = run_python_diagnostics(con, python, executor) if python else {}
            findings = tuple(read.get(name) or run_diagnostic(con, d) for name, d in diagnostics.items())
    except QueryError as error:
        raise InputError(
            f"{files[0].parent}: rollout files of {version}: {error}: restore them from a copy, or train again"
        ) from error
    findings += term_findings(fault_files, weights)
    return HealthReport(version=version, findings=findings, scores=dict(scores), trends=courses)


def _terms_view(columns: Sequence[str]) -> str:
    """A SELECT of all ``term_<name>`` columns as rows; without any it gives none."""
    row = "SELECT rollout_id, seed, step, quarter"
    terms = [column for column in columns if column.startswith("term_")]
    quoted = [(term.removeprefix("term_").replace("'", "''"), term.replace('"', '""')) for term in terms]
    parts = [f"{row}, '{name}' AS name, \"{column}\"::DOUBLE AS value FROM rollouts" for name, column in quoted]
    return " UNION ALL ".join(parts) or f"{row}, '' AS name, 0.0 AS value FROM rollouts WHERE false"


def run_diagnostic(con: duckdb.DuckDBPyConnection, diagnostic: Diagnostic) -> Finding:
    """One SQL diagnostic's finding on an open connection; ``line`` is the line that was crossed, else the warn line."""
    value: float | None = None
    error = ""
    evidence: tuple[str, ...] = ()
    try:
        value = _number(select(con, diagnostic.metric, max_rows=2))
        if _severity(diagnostic, value) in ALARMS and diagnostic.evidence:
            evidence = _ids(select(con, diagnostic.evidence, max_rows=EVIDENCE_ROWS))
    except QueryError as failure:
        error = str(failure)
    return _finding(diagnostic, value, evidence, error)


def run_python_diagnostics(
    con: duckdb.DuckDBPyConnection, diagnostics: Sequence[Diagnostic], executor: Executor | None
) -> dict[str, Finding]:
    """Findings of Python diagnostics by name, as for SQL ones; an error begins with its kind (``timeout: …``)."""
    try:
        rollouts = rollout_file(con)
    except duckdb.Error as failure:
        raise QueryError(" ".join(str(failure).split())) from failure
    read = metrics(executor, diagnostics, rollouts)
    alarmed = [
        d
        for d in diagnostics
        if isinstance(value := read[d.name], float) and _severity(d, value) in ALARMS and defines(d.python, "evidence")
    ]
    shown = evidence_of(executor, alarmed, rollouts, EVIDENCE_ROWS) if executor else {}
    found = {}
    for diagnostic in diagnostics:
        value, ids = read[diagnostic.name], shown.get(diagnostic.name, ())
        error = "; ".join(str(part) for part in (value, ids) if isinstance(part, Fault))
        found[diagnostic.name] = _finding(
            diagnostic,
            value if isinstance(value, float) else None,
            ids if isinstance(ids, tuple) else (),
            error,
            note=rollouts.note,
        )
    return found


def _finding(
    diagnostic: Diagnostic, value: float | None, evidence: tuple[str, ...], error: str, note: str = ""
) -> Finding:
    severity: Severity = "info" if value is None else _severity(diagnostic, value)
    return Finding(
        diagnostic=diagnostic.name,
        kind=diagnostic.kind,
        layer=diagnostic.layer,
        severity=severity,
        value=value,
        line=diagnostic.critical if severity == "critical" else diagnostic.warn,
        description=diagnostic.description + note,
        evidence=evidence,
        error=error,
    )


def term_findings(fault_files: Sequence[Path], weights: Mapping[str, float] | None = None) -> tuple[Finding, ...]:
    """One validity finding per reward term that did not run in some batch; ``value`` counts those batches.

    Critical, but ``info`` for a term that ``weights`` (None: unknown) do not pay. Raises InputError for a damaged file.
    """
    faults: dict[str, list[TermFault]] = {}
    for file in fault_files:
        for fault in read_faults(file):
            faults.setdefault(fault.term, []).append(fault)
    paid = {term for term in faults if weights is None or weights.get(term)}
    return tuple(_term_finding(term, found, term in paid) for term, found in sorted(faults.items()))


def _term_finding(term: str, faults: Sequence[TermFault], paid: bool) -> Finding:
    kinds = Counter(fault.kind for fault in faults)
    off = [fault.step for fault in faults if fault.off]
    times = ", ".join(f"{kind} × {count}" for kind, count in kinds.most_common())
    switched = f"; switched off from step {min(off)} on in {len(off)} training(s)" if off else ""
    first = next(fault for fault in faults if fault.kind == kinds.most_common(1)[0][0])
    return Finding(
        diagnostic=f"reward/{term}",
        kind="validity",
        layer="score",
        severity="critical" if paid else "info",
        value=float(len(faults)),
        line=0.0,
        description=f"Batches in which reward/{term}.toml did not run and counted 0 ({times}{switched}).",
        error=f"{first.kind}: {first.what}",
    )


def trends(metrics_files: Sequence[Path]) -> dict[str, tuple[float, ...]]:
    """Each metric's mean in ten equal parts of the training, averaged over the files (one per seed).

    Files hold verl's lines ``{"step": n, "data": {name: number}}``. A training of fewer than ten
    lines gives as many parts as the shortest file has lines. Reads line by line, twice: memory does
    not grow with the run. Raises InputError naming file and line for a damaged one.
    """
    lengths = {file: sum(1 for _ in _records(file)) for file in metrics_files}
    lengths = {file: n for file, n in lengths.items() if n}
    parts = min([TREND_PARTS, *lengths.values()])
    means: defaultdict[str, list[list[float]]] = defaultdict(lambda: [[] for _ in range(parts)])
    for file, length in lengths.items():
        sums: defaultdict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for i, data in enumerate(_records(file)):
            for name, value in data.items():
                if math.isfinite(value):
                    total = sums[name, i * parts // length]
                    total[0] += value
                    total[1] += 1
        for (name, part), (total_value, count) in sums.items():
            means[name][part].append(total_value / count)
    # A metric that some part never logged has no curve of ten points; leave it out.
    return {
        name: tuple(sum(seeds) / len(seeds) for seeds in by_part)
        for name, by_part in sorted(means.items())
        if all(by_part)
    }


def _records(file: Path) -> Iterator[dict[str, float]]:
    """The numeric entries of each line; a last line without line break is an unfinished write and is left out."""
    if not file.exists():
        raise InputError(f"{file}: no such metrics file: train the version first")
    with file.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith("\n"):
                return
            try:
                data = json.loads(line)["data"].items()
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(f'{file}: line {number}: not {{"step": n, "data": {{…}}}}: delete the line') from error
            yield {name: float(value) for name, value in data if isinstance(value, int | float)}


def _number(answer: pa.Table) -> float:
    if answer.num_rows > 1 or answer.num_columns != 1:
        raise QueryError(f"metric gives {answer.num_rows} × {answer.num_columns} values: select one number")
    value = answer.column(0)[0].as_py() if answer.num_rows else None
    if value is None:
        raise QueryError("no value for these rollouts")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise QueryError(f"metric gives {value!r}, not a number") from error
    if not math.isfinite(number):
        raise QueryError(f"metric gives {number}")
    return number


def _severity(diagnostic: Diagnostic, value: float) -> Severity:
    sign = 1.0 if diagnostic.above else -1.0
    if sign * value > sign * diagnostic.critical:
        return "critical"
    return "warn" if sign * value > sign * diagnostic.warn else "ok"


def _ids(rows: pa.Table) -> tuple[str, ...]:
    column = "rollout_id" if "rollout_id" in rows.column_names else rows.column_names[0]
    return tuple(dict.fromkeys(str(v) for v in rows[column].to_pylist() if v is not None))


def _name_values(scores: Mapping[str, float]) -> pa.Table:
    return pa.table(
        {
            "name": pa.array(list(scores), pa.string()),
            "value": pa.array([float(v) for v in scores.values()], pa.float64()),
        }
    )


def _trend_rows(courses: Mapping[str, Sequence[float]]) -> pa.Table:
    rows = [(name, part, value) for name, values in courses.items() for part, value in enumerate(values)]
    names, parts, values = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "name": pa.array(names, pa.string()),
            "part": pa.array(parts, pa.int64()),
            "value": pa.array(values, pa.float64()),
        }
    )
