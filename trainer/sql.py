"""Locked-down DuckDB: the one place where SQL of a harness (or of a model) is parsed and run.

A connection opens with a memory limit, gets its views, and is then locked: no files beyond the
listed ones, no network, no extensions, no further settings (in this order, because the views need
the files). Queries are parsed before they run: one SELECT, no file or volatile functions.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

MEMORY_LIMIT = "512MB"
TIMEOUT_S = 20.0
MAX_ROWS = 10_000
FILES_AT_ONCE = 256
"""Files per statement that copies rows: a scan keeps something of every file it has opened until it ends."""

_CONFIG: dict[str, Any] = {
    "threads": 1,  # one process, one core; it also fixes the order of floating point sums
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # a table name must never resolve to a Python variable
}
_TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})
_PURE_MACROS = ("if", "nullif", "split_part", "list_sum", "list_avg", "list_min", "list_max")


class QueryError(Exception):
    """A query failed: not one SELECT, unknown column, timeout, out of memory. The message is one line."""


def locked_connection(memory_limit: str = MEMORY_LIMIT, *, optimize: bool = True) -> duckdb.DuckDBPyConnection:
    """An in-memory connection without any file access, already locked. Arrow tables can be registered.

    Without ``optimize`` queries are planned as written: half the cost of a query over few rows.
    """
    con = _connect(":memory:", memory_limit, "")
    if not optimize:
        con.execute("PRAGMA disable_optimizer")
    _lock(con)
    return con


@contextmanager
def open_parquet(
    name: str,
    files: Sequence[Path],
    *,
    copy: Collection[str] = (),
    views: Mapping[str, str] | None = None,
    tables: Mapping[str, pa.Table] | None = None,
    memory_limit: str = MEMORY_LIMIT,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A locked connection in which ``name`` holds the rows of ``files`` (at least one), next to small
    ``tables`` and, on top of both, ``views`` (name to SELECT, in order).

    What ``copy`` names (``name`` or views) is computed once, into a temporary database on disk: worth
    it when many queries follow, because opening hundreds of small files costs more than reading
    them. Memory stays under ``memory_limit`` either way; larger intermediates spill to a temporary
    folder. Raises QueryError when a file cannot be read or a view does not bind.
    """
    with tempfile.TemporaryDirectory(prefix="evotrainer-sql-") as scratch:
        database = str(Path(scratch) / "rows.duckdb") if copy else ":memory:"
        spill = str(Path(scratch) / "spill")
        con = _connect(database, memory_limit, spill)
        try:
            with _one_line_errors():
                kind = {n: "TABLE" if n in copy else "VIEW" for n in (name, *(views or {}))}
                if name in copy:
                    _copy(con, name, files)
                else:
                    con.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({_listed(files)})")
                for table_name, table in (tables or {}).items():
                    con.register("_incoming", table)
                    con.execute(f"CREATE TABLE {table_name} AS SELECT * FROM _incoming")
                    con.unregister("_incoming")
                for view_name, query in (views or {}).items():
                    con.execute(f"CREATE {kind[view_name]} {view_name} AS {query}")
                con.execute(f"SET allowed_paths = {'[]' if name in copy else _listed(files)}")
                _lock(con)
            yield con
        finally:
            con.close()


def select(
    con: duckdb.DuckDBPyConnection, sql: str, *, timeout_s: float = TIMEOUT_S, max_rows: int = MAX_ROWS
) -> pa.Table:
    """Run one SELECT and return at most ``max_rows`` rows.

    Raises QueryError for a query that parse_select refuses, that fails, or that takes more than
    ``timeout_s`` seconds of this process's time: what a query gives must not depend on how busy the
    machine is.
    """
    parse_select(sql)
    done = threading.Event()
    threading.Thread(target=_interrupt_after, args=(con, timeout_s, done), daemon=True).start()
    try:
        with _one_line_errors(timeout_s):
            return con.sql(sql).limit(max_rows).to_arrow_table()
    finally:
        done.set()


def parse_select(sql: str) -> dict[str, Any]:
    """The syntax tree (DuckDB's ``json_serialize_sql``) of one SELECT.

    Raises QueryError for several statements, other statements (COPY, ATTACH, PRAGMA, SET …), table
    functions (they read files or settings), volatile functions and syntax errors.
    """
    row = _parser().cursor().execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert row is not None  # a SELECT of one scalar
    tree = json.loads(row[0])
    if tree["error"]:
        raise QueryError(_one_line(tree["error_message"]))
    if len(tree["statements"]) != 1:
        raise QueryError(f"{len(tree['statements'])} statements: write one SELECT")
    node: dict[str, Any] = tree["statements"][0]["node"]
    for call in walk(node):
        if call.get("type") == "TABLE_FUNCTION":
            name = str(call["function"].get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                raise QueryError(f"table function {name}() is not allowed: read from the given views only")
    volatile = sorted(function_names(node) & volatile_functions())
    if volatile:
        raise QueryError(f"function {volatile[0]}() is volatile: equal rollouts must give equal numbers")
    return node


def walk(node: Any) -> Iterator[dict[str, Any]]:
    """All objects of a syntax tree, depth first."""
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from walk(child)
    elif isinstance(node, list):
        for child in node:
            yield from walk(child)


def function_names(node: Any) -> set[str]:
    """Lower-case names of all functions (operators too) in a syntax tree."""
    return {str(n["function_name"]).lower() for n in walk(node) if n.get("function_name")}


@cache
def pure_functions() -> frozenset[str]:
    """Scalar functions whose value depends on their arguments alone, by DuckDB's own catalogue."""
    return _functions(
        "function_type = 'scalar' AND stability = 'CONSISTENT' AND NOT starts_with(function_name, '__')"
    ) | {*_PURE_MACROS}


@cache
def volatile_functions() -> frozenset[str]:
    """Functions that depend on a clock, a random generator or the session's state, and those that wait."""
    return (_functions("function_type = 'scalar'") | {"pg_sleep", "ago"}) - _functions(
        "function_type = 'scalar' AND stability = 'CONSISTENT'"
    )


def _interrupt_after(con: duckdb.DuckDBPyConnection, cpu_s: float, done: threading.Event) -> None:
    limit = time.process_time() + cpu_s
    while not done.wait(0.05):
        if time.process_time() > limit:
            con.interrupt()
            return


def _copy(con: duckdb.DuckDBPyConnection, name: str, files: Sequence[Path]) -> None:
    """The table ``name`` with the columns of the first file; as in one scan, a later file that lacks one is an error."""
    con.execute("BEGIN")  # rows of one transaction are written once; of many, to the log as well
    con.execute(f"CREATE TABLE {name} AS SELECT * FROM read_parquet({_listed(files[:FILES_AT_ONCE])})")
    columns = ", ".join('"' + column.replace('"', '""') + '"' for column in con.table(name).columns)
    for start in range(FILES_AT_ONCE, len(files), FILES_AT_ONCE):
        part = _listed(files[start : start + FILES_AT_ONCE])
        con.execute(f"INSERT INTO {name} SELECT {columns} FROM read_parquet({part})")
    con.execute("COMMIT")


def _listed(files: Sequence[Path]) -> str:
    return "[" + ", ".join("'" + str(file.resolve()).replace("'", "''") + "'" for file in files) + "]"


def _connect(database: str, memory_limit: str, spill: str) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect(database, config={**_CONFIG, "memory_limit": memory_limit, "temp_directory": spill})
    con.execute("SET enable_progress_bar = false")  # it goes to standard output, where a program may read JSON
    return con


def _lock(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")


def _functions(where: str) -> frozenset[str]:
    rows = _parser().cursor().execute(f"SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE {where}")
    return frozenset(name for (name,) in rows.fetchall())


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return locked_connection("64MB")


@contextmanager
def _one_line_errors(timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    try:
        yield
    except duckdb.InterruptException as error:
        raise QueryError(f"stopped after {timeout_s:g} s: simplify the query") from error
    except duckdb.Error as error:
        raise QueryError(_one_line(str(error))) from error


def _one_line(text: str) -> str:
    """DuckDB's message without the source excerpt that follows it."""
    return " ".join(text.split("\nLINE ")[0].split())
