"""Python diagnostics, run in a sandbox over a version's rollouts as a file of JSON lines.

The rollouts are streamed into the file a piece at a time. Where a version has more than fit, evenly spaced whole groups
stand for all of them, and the reading says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from sandboxes.types import Executor, Program
from trainer.python_parts import OUTPUT_BYTES, Fault, no_sandbox, not_a_number, run_isolated, shown, value_of
from trainer.types import Diagnostic

MAX_ROLLOUTS = 16_384
MAX_BYTES = 16 << 20
PIECE = 1024
"""Rollouts held as Python objects at a time."""
METRIC_SECONDS = 20.0
METRIC_MEMORY_MB = 448
FILE = "rollouts.jsonl"

_CALLS = f"""

def _evotrainer_rollouts():
    import json
    from io import open
    with open("{FILE}", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _evotrainer_metric():
    return metric(_evotrainer_rollouts())


def _evotrainer_evidence(most):
    from itertools import islice
    return list(islice(iter(evidence(_evotrainer_rollouts())), most))
"""


@dataclass(frozen=True)
class RolloutFile:
    """Rollouts as JSON lines in order of seed, step and id: ``rows`` of ``total``, every ``stride``-th group."""

    data: bytes
    ids: frozenset[str]
    rows: int
    total: int
    stride: int

    @property
    def note(self) -> str:
        """What a reading of a part must say; empty for the whole."""
        return (
            f" (read on {self.rows} of {self.total} rollouts, every {self.stride}th group)" if self.stride > 1 else ""
        )


def rollout_file(
    con: duckdb.DuckDBPyConnection, *, max_rollouts: int = MAX_ROLLOUTS, max_bytes: int = MAX_BYTES
) -> RolloutFile:
    """The views ``rollouts`` and ``groups`` of a health report (trainer.diagnose) as a file within both bounds."""
    ((total,),) = con.execute("SELECT count(*) FROM rollouts").fetchall()
    stride = max(1, math.ceil(total / max_rollouts))
    while (found := _lines(con, stride, max_bytes)) is None:
        stride *= 2
    data, ids = found
    return RolloutFile(data=data, ids=frozenset(ids), rows=len(ids), total=total, stride=stride)


def _lines(con: duckdb.DuckDBPyConnection, stride: int, max_bytes: int) -> tuple[bytes, list[str]] | None:
    """None beyond ``max_bytes``, unless a single group is left."""
    query = f"""
        SELECT rollouts.* FROM rollouts JOIN (
            SELECT seed, step, group_id, row_number() OVER (ORDER BY seed, step, group_id) - 1 AS place FROM groups
        ) USING (seed, step, group_id)
        WHERE place % {stride} = 0 ORDER BY seed, step, rollout_id"""
    data = bytearray()
    ids: list[str] = []
    groups: set[Any] = set()
    for piece in con.sql(query).to_arrow_reader(PIECE):
        for row in piece.to_pylist():
            data += json.dumps(row, ensure_ascii=False, default=str).encode() + b"\n"
            ids.append(row["rollout_id"])
            groups.add((row["seed"], row["step"], row["group_id"]))
        if len(data) > max_bytes and len(groups) > 1:
            return None
    return bytes(data), ids


def metrics(
    executor: Executor | None, diagnostics: Sequence[Diagnostic], rollouts: RolloutFile
) -> dict[str, float | Fault]:
    """The number of each Python diagnostic, by name, or what it did instead. Raises InputError without an executor,
    and SandboxFailure."""
    if executor is None:
        raise no_sandbox(f"diagnostics/{diagnostics[0].name}.toml")
    programs = [_program(d, "_evotrainer_metric", "[]", rollouts) for d in diagnostics]
    results = run_isolated(executor, programs)
    return {
        d.name: _number(value_of(ran, 0, METRIC_SECONDS, METRIC_MEMORY_MB))
        for d, ran in zip(diagnostics, results, strict=True)
    }


def evidence(
    executor: Executor, diagnostics: Sequence[Diagnostic], rollouts: RolloutFile, most: int
) -> Mapping[str, tuple[str, ...] | Fault]:
    """At most ``most`` rollout ids per diagnostic that defines ``evidence``, by name."""
    programs = [_program(d, "_evotrainer_evidence", json.dumps([most]), rollouts) for d in diagnostics]
    results = run_isolated(executor, programs) if programs else []
    return {
        d.name: _ids(value_of(ran, 0, METRIC_SECONDS, METRIC_MEMORY_MB), rollouts.ids)
        for d, ran in zip(diagnostics, results, strict=True)
    }


def _program(diagnostic: Diagnostic, entry: str, case: str, rollouts: RolloutFile) -> Program:
    return Program(
        source=diagnostic.python + _CALLS,
        entry=entry,
        cases=(case,),
        files={FILE: rollouts.data},
        time_s=METRIC_SECONDS,
        output_limit=OUTPUT_BYTES,
        memory_mb=METRIC_MEMORY_MB,
    )


def _number(value: Any) -> float | Fault:
    if isinstance(value, Fault):
        return value
    if value is None:
        return Fault(kind="wrong_value", what="no value for these rollouts")
    if problem := not_a_number(value, largest=1e300):
        return Fault(kind="wrong_value", what=f"metric gives {problem}")
    return float(value)


def _ids(value: Any, known: Iterable[str]) -> tuple[str, ...] | Fault:
    if isinstance(value, Fault):
        return value
    if not isinstance(value, list):
        return Fault(kind="wrong_value", what=f"evidence gives {shown(value)}, not rollout ids")
    for one in value:
        if not isinstance(one, str) or one not in known:
            return Fault(kind="wrong_value", what=f"evidence gives {shown(one)}, which is no rollout_id it was given")
    return tuple(dict.fromkeys(value))
