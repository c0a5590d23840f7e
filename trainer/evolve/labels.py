"""Rollouts of earlier versions with labels, read from their Parquet files.

A label is the outcome's, the gate scorer's or a verdict's word, never that of a metric. Two ways to label:

- *versions*: of each version the late rollouts that its reward pays for (score at or above the mean). Those of versions whose
  reward rose while the gate scorer did not follow are bad, those of versions that nothing speaks against are good.
- *failures*: of one version the late rollouts that fail and that no finding covers are bad, those that solve their task good.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from trainer.diagnose import MEMORY_LIMIT, VIEWS
from trainer.evidence import rollout_files
from trainer.evolve.features import features
from trainer.evolve.rules import Floats, Labelled
from trainer.sql import open_parquet, select
from trainer.types import Record

SAMPLE = 4000
"""Rollouts of a version that are looked at, drawn by a hash of their id."""


CONCENTRATED = 0.25
"""Share of all unexplained failures that lie in a cohort before it gets a metric of its own."""


class Source(Record):
    """A version as evidence: the rollout folders of its seeds, and whether it is known to be bad."""

    version: str
    rollouts: tuple[Path, ...]
    bad: bool
    why: str
    """Who says so: ``gate scorer: …``, ``verdict: …``, ``outcome``."""


PAID = "score >= (SELECT avg(score) FROM late)"
Connection = duckdb.DuckDBPyConnection


def open_version(source: Source) -> AbstractContextManager[Connection]:
    """The diagnostics' views over one version. Opening takes most of the time that anything here takes."""
    files = rollout_files(source.rollouts)
    return open_parquet("stored", files, copy=("stored",), views=VIEWS, memory_limit=MEMORY_LIMIT)


@contextmanager
def opened(sources: Sequence[Source]) -> Iterator[Mapping[str, Connection]]:
    """Several versions at once, by name."""
    with ExitStack() as stack:
        yield {s.version: stack.enter_context(open_version(s)) for s in sources}


def by_version(sources: Sequence[Source], at: Mapping[str, Connection]) -> Labelled:
    """Paid late rollouts, labelled by their version."""
    return _joined([(_read(at[s.version], PAID), s.bad) for s in sources])


def by_failure(con: Connection, covered: Sequence[str], cohort: str = "true") -> Labelled:
    """A version's failing late rollouts whose id is not in ``covered`` against its solving ones, of those in ``cohort``."""
    sampled = f"rollout_id IN (SELECT rollout_id FROM late ORDER BY md5(rollout_id), rollout_id LIMIT {SAMPLE})"
    bad = _read(con, f"outcome < 0.5 AND {sampled} AND {_unexplained(covered)} AND {cohort}", terms=False)
    return _joined([(bad, True), (_read(con, f"outcome >= 0.5 AND {cohort}", terms=False), False)])


def by_pointing(con: Connection, evidence: Mapping[str, str]) -> Labelled:
    """A version's failing late rollouts against its solving ones; 1 for each query (by name) that gives the rollout's id."""
    named = {name: f"rollout_id IN (SELECT rollout_id FROM ({query}))" for name, query in evidence.items()}
    parts = [(_read(con, f"outcome {side} 0.5", named=named), bad) for side, bad in (("<", True), (">=", False))]
    return _joined(parts)


def cohorts(con: Connection, covered: Sequence[str]) -> Sequence[str]:
    """Where the unexplained failures of a version live: conditions on family and level of the tasks of which more fail than of
    the rest, a share CONCENTRATED of all those failures, the densest first."""
    query = f"""
        SELECT family, level, count(*) AS n, sum(failed)::DOUBLE AS bad FROM
            (SELECT family, level, (outcome < 0.5 AND {_unexplained(covered)})::INT AS failed FROM late)
        GROUP BY family, level ORDER BY avg(failed) DESC, family, level"""
    rows = select(con, query).to_pylist()
    failures = sum(r["bad"] for r in rows)
    overall = failures / max(1, sum(r["n"] for r in rows))
    return [
        f"family = {_quoted(r['family'])} AND level = {r['level']:d}"
        for r in rows
        if r["bad"] >= CONCENTRATED * failures and r["bad"] / r["n"] > overall and len(rows) > 1
    ]


def _unexplained(covered: Sequence[str]) -> str:
    return f"rollout_id NOT IN ({', '.join(map(_quoted, covered))})" if covered else "true"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def failing_ids(con: Connection) -> tuple[Sequence[str], int]:
    """Ids of the late rollouts that fail, of at most SAMPLE late ones, and how many those are."""
    query = f"SELECT rollout_id, outcome < 0.5 AS failed FROM late ORDER BY md5(rollout_id), rollout_id LIMIT {SAMPLE}"
    found = select(con, query)
    rows = zip(found["rollout_id"].to_pylist(), found["failed"].to_pylist(), strict=True)
    return [str(i) for i, failed in rows if failed], found.num_rows


def expressions(con: Connection, *, terms: bool = True) -> Mapping[str, str]:
    """The features that this version's rollouts have."""
    return features(con.table("rollouts").columns, terms=terms)


def _read(con: Connection, where: str, *, terms: bool = True, named: Mapping[str, str] | None = None) -> pa.Table:
    """``named`` columns (name to SQL; the features where not given) of the late rollouts for which ``where`` holds."""
    named = expressions(con, terms=terms) if named is None else named
    columns = ", ".join(f'({sql})::DOUBLE AS "{name}"' for name, sql in named.items())
    # Windows are over all late rollouts, and only then are some of them looked at.
    inner = f"SELECT rollout_id, task_id, ({where}) AS wanted, {columns} FROM late"
    query = f"SELECT * EXCLUDE (wanted) FROM ({inner}) WHERE wanted ORDER BY md5(rollout_id), rollout_id LIMIT {SAMPLE}"
    return select(con, query)


def _joined(parts: Sequence[tuple[pa.Table, bool]]) -> Labelled:
    """Features that every part has, without a missing value in any."""
    shared = set.intersection(*(set(t.column_names) for t, _ in parts)) - {"rollout_id", "task_id"}
    names = [n for n in parts[0][0].column_names if n in shared]
    values: Mapping[str, Floats] = {
        n: np.concatenate([t[n].to_numpy(zero_copy_only=False).astype(float) for t, _ in parts]) for n in names
    }
    task = np.concatenate([[_number(str(i)) for i in t["task_id"].to_pylist()] for t, _ in parts]).astype(np.int64)
    bad = np.concatenate([np.full(t.num_rows, label) for t, label in parts])
    return Labelled({n: v for n, v in values.items() if np.isfinite(v).all()}, bad, task)


def _number(task_id: str) -> int:
    """A number that depends on the id alone: a task is on the same side of the split in every version."""
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:7], "big")
