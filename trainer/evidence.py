"""The rollout store: Parquet files of one step each, and the ways to look into them.

Training writes ``step-000001.parquet`` … into one directory per (version, seed); everything that
judges a version reads them through DuckDB, so that memory does not grow with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.sql import MEMORY_LIMIT, QueryError, open_parquet
from trainer.storage import replacing
from trainer.types import ROLLOUT_COLUMNS, InputError

_ARROW_TYPES = {"BIGINT": pa.int64(), "VARCHAR": pa.string(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_()}


def write_step(directory: Path, step: int, table: pa.Table) -> Path:
    """Write the rollouts of one step to ``step-%06d.parquet``, atomically: the file is there whole or not at all.

    ``table`` holds ROLLOUT_COLUMNS (cast to their declared types) and any number of further
    columns. Raises ValueError for a missing column.
    """
    missing = [c for c in ROLLOUT_COLUMNS if c not in table.column_names]
    if missing:
        raise ValueError(f"rollout table of step {step} lacks {', '.join(missing)}")
    fixed = [(c, table[c].cast(_ARROW_TYPES[kind])) for c, kind in ROLLOUT_COLUMNS.items()]
    further = [(c, table[c]) for c in table.column_names if c not in ROLLOUT_COLUMNS]
    path = directory / f"step-{step:06d}.parquet"
    with replacing(path) as partial:
        pq.write_table(pa.table(dict(fixed + further)), partial, compression="zstd")
    return path


def rollout_files(directories: Sequence[Path]) -> list[Path]:
    """All step files of the directories, in order of directory and step.

    Raises InputError naming the first damaged file and the remedy, or the directories when there is
    no file at all.
    """
    files = [file for directory in directories for file in sorted(directory.glob("step-*.parquet"))]
    if not files:
        where = ", ".join(str(d) for d in directories) or "no directory"
        raise InputError(f"{where}: no rollout files (step-*.parquet): train the version first")
    for file in files:
        try:
            pq.read_metadata(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise damaged(file) from error
    return files


def damaged(file: Path) -> InputError:
    """The error for a rollout file that cannot be read."""
    return InputError(f"{file}: damaged rollout file: restore it from a copy, or train the version again")


@contextmanager
def open_rollouts(
    directories: Sequence[Path], *, memory_limit: str = MEMORY_LIMIT
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A locked connection (query it with trainer.sql.select) with the view ``rollouts`` over all step files."""
    with open_parquet("rollouts", rollout_files(directories), memory_limit=memory_limit) as con:
        yield con


def find_rollout(directories: Sequence[Path], rollout_id: str) -> dict[str, Any] | None:
    """The rollout with this id as a dict of its columns, or None."""
    with open_rollouts(directories) as con:
        try:
            query = con.sql("SELECT * FROM rollouts WHERE rollout_id = ? LIMIT 1", params=[rollout_id])
            rows: list[dict[str, Any]] = query.to_arrow_table().to_pylist()
        except duckdb.Error as error:
            raise QueryError(" ".join(str(error).split())) from error
    return rows[0] if rows else None
