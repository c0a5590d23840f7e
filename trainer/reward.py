"""Reward terms: SQL expressions of the harness, or Python run in a sandbox, over the rollouts of a training step.

The score of a rollout is the weighted sum of its terms; the verifier's ``outcome`` is one of the
columns a term may use. SQL terms see one rollout at a time and nothing outside it, Python terms a batch of whole groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trainer.python_parts import PythonScorer, scorer
from trainer.python_source import check_term_source
from trainer.sql import QueryError, function_names, locked_connection, parse_select, pure_functions, walk
from trainer.types import REWARD_COLUMNS, ROLLOUT_COLUMNS, InputError, RewardTerm
from trainer.validation import did_you_mean

Floats = NDArray[np.float64]

HIDDEN_TESTS_KNOW: Mapping[str, str] = {
    "outcome": "visible", "tests_passed": "visible_passed", "runtime_error": "", "timed_out": "",
}  # fmt: skip
"""Columns in which the hidden tests of a task have a part, to the column that says the same of the visible ones alone,
or to nothing."""

_SCALAR_CLASSES = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"}
    | {"LAMBDA", "OPERATOR", "TYPE"}
)
_NUMERIC = frozenset({"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL"})


def score_rollouts(
    rows: pa.Table, terms: Mapping[str, RewardTerm], weights: Mapping[str, float], python: PythonScorer | None = None
) -> tuple[dict[str, Floats], Floats]:
    """Terms and score of each rollout, in the order of ``rows`` (N rows): ({name: (N,)}, (N,)).

    ``rows`` holds REWARD_COLUMNS and the domain's feature columns; groups stand together. All terms are evaluated, so
    that the unused ones are there to look at; the score sums those with a weight. ``python`` gives the values of Python
    terms (trainer.python_parts). Raises InputError for a weight without a term, a term that check_term refuses, a
    SQL term that gives NULL, NaN or infinity for any rollout, and a Python term where ``python`` is None.
    """
    for name in weights:
        if name not in terms:
            raise InputError(f"recipe.toml: reward.weights.{name}: no reward/{name}.toml; {did_you_mean(name, terms)}")
    features = tuple(c for c in rows.column_names if c not in ROLLOUT_COLUMNS)
    used: set[str] = set()
    sql = {name: term for name, term in terms.items() if not term.python}
    for term in sql.values():
        used |= _checked_columns(term, features)
    found = _evaluate(rows.select([c for c in rows.column_names if c in used] or rows.column_names[:1]), sql)
    if len(sql) < len(terms):
        isolated = {name: term for name, term in terms.items() if term.python}
        found |= (python or scorer(None))(rows.select(reward_columns(rows.column_names)), isolated)
    values = {name: found[name] for name in terms}
    score = np.zeros(rows.num_rows)
    for name, weight in weights.items():
        score += weight * values[name]
    return values, score


def reward_view(rows: pa.Table, tests: Literal["hidden", "visible"]) -> pa.Table:
    """``rows`` (with column ``visible``) as the training reward may see them: reward_columns alone.

    With ``visible`` the outcome is what the visible tests say, partial credit counts those, and what else the hidden
    tests have a part in is NULL: nothing that only they know is left.
    """
    view = rows.select(reward_columns(rows.column_names))
    if tests == "visible":
        for known, shown in HIDDEN_TESTS_KNOW.items():
            if known in view.column_names:
                values = rows[shown] if shown else pa.nulls(rows.num_rows, view.schema.field(known).type)
                view = view.set_column(view.column_names.index(known), known, values)
    return view


def reward_columns(names: Sequence[str]) -> list[str]:
    """Those of a rollout table's columns that a term may read: REWARD_COLUMNS and the domain's features."""
    return [c for c in names if c in REWARD_COLUMNS or not (c in ROLLOUT_COLUMNS or c.startswith("term_"))]


def check_term(term: RewardTerm, feature_names: Sequence[str]) -> None:
    """Raise InputError unless ``term.sql`` is one scalar numeric expression over REWARD_COLUMNS and
    ``feature_names``, of pure functions alone (no subquery, aggregate, window, file or volatile function), or
    ``term.python`` keeps the contract of trainer.python_source."""
    if term.python:
        check_term_source(term.python, f"reward/{term.name}.toml")
    else:
        _checked_columns(term, tuple(feature_names))


@lru_cache(maxsize=256)
def _checked_columns(term: RewardTerm, features: tuple[str, ...]) -> frozenset[str]:
    """The columns the term reads, lower case."""
    where = f"reward/{term.name}.toml: sql"
    if not term.sql.strip():
        raise InputError(f"{where}: empty: write one scalar expression such as `outcome`")
    try:
        node = parse_select(_query({term.name: term}))
    except QueryError as error:
        raise InputError(f"{where}: {error}: write one scalar expression such as `outcome`") from error
    if node["type"] != "SELECT_NODE" or len(node["select_list"]) != 1 or node["from_table"]["type"] != "BASE_TABLE":
        raise InputError(f"{where}: not a single expression: write one scalar expression such as `outcome`")
    expression = node["select_list"][0]
    for part in walk(expression):
        if "class" in part and part["class"] not in _SCALAR_CLASSES:
            raise InputError(f"{where}: {part['class'].lower()} is not allowed; use the rollout's own columns only")
    for function in sorted(function_names(expression) - pure_functions()):
        raise InputError(
            f"{where}: function {function}() is not allowed; use scalar functions of the rollout's columns"
        )
    known = {c.lower(): c for c in (*REWARD_COLUMNS, *features)}
    columns = _columns(expression)
    for column in sorted(columns - known.keys()):
        raise InputError(f"{where}: unknown column '{column}'; {did_you_mean(column, known)}")
    _check_type(term, features, where)
    return frozenset(known[c] for c in columns)


def _columns(expression: object) -> set[str]:
    """Column names of an expression, lower case, without the parameters of its lambdas."""
    bound = {
        ref["column_names"][0].lower()
        for node in walk(expression)
        if node.get("class") == "LAMBDA"
        for ref in walk(node["lhs"])
        if ref.get("class") == "COLUMN_REF"
    }
    found = {n["column_names"][0].lower() for n in walk(expression) if n.get("class") == "COLUMN_REF"}
    return found - bound


def _check_type(term: RewardTerm, features: tuple[str, ...], where: str) -> None:
    columns = {c: ROLLOUT_COLUMNS[c] for c in REWARD_COLUMNS} | dict.fromkeys(features, "DOUBLE")
    nothing = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in columns.items())
    try:
        found = _connection().sql(f"SELECT typeof(({term.sql}\n)) FROM (SELECT {nothing}) AS rollouts").fetchall()[0][0]
    except duckdb.Error as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}: correct the expression") from error
    if str(found).split("(")[0] not in _NUMERIC:
        raise InputError(f"{where}: gives {found}, not a number: cast or compare it")


def _evaluate(rows: pa.Table, terms: Mapping[str, RewardTerm]) -> dict[str, Floats]:
    if not terms:
        return {}
    con = _connection()
    con.register("rollouts", rows.to_reader())  # a reader skips the scan planner: half the cost of a table
    try:
        columns: dict[str, Any] = con.execute(_query(terms)).fetchnumpy()
    except duckdb.Error as error:
        raise InputError(f"reward/{_culprit(rows, terms)}.toml: sql: {' '.join(str(error).split())}") from error
    values: dict[str, Floats] = {}
    for name, column in zip(terms, columns.values(), strict=True):
        missing = np.ma.getmaskarray(column)
        values[name] = np.ma.filled(column, np.nan).astype(np.float64)
        wrong = missing | ~np.isfinite(values[name])
        if wrong.any():
            what = "NULL" if missing.any() else "NaN or infinity"
            raise InputError(
                f"reward/{name}.toml: sql: gives {what} for {int(wrong.sum())} of {wrong.size} rollouts: "
                "guard it with coalesce(…) or greatest(…)"
            )
    return values


def _query(terms: Mapping[str, RewardTerm]) -> str:
    # The line break closes a trailing `--` comment, which would otherwise swallow the bracket.
    parts = (f"CAST(({term.sql}\n) AS DOUBLE) AS term_{i}" for i, term in enumerate(terms.values()))
    return f"SELECT {', '.join(parts)} FROM rollouts"


def _culprit(rows: pa.Table, terms: Mapping[str, RewardTerm]) -> str:
    """The first term that fails on these rows (evaluated alone)."""
    con = _connection()
    for name, term in terms.items():
        con.register("rollouts", rows.to_reader())
        try:
            con.execute(_query({name: term})).fetchnumpy()
        except duckdb.Error:
            return name
    return "+".join(terms)


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    """One connection per process: opening one costs more than scoring a step."""
    return locked_connection("256MB", optimize=False)
