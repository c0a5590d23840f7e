from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.evidence import rollout_files
from trainer.sql import FILES_AT_ONCE, QueryError, locked_connection, open_parquet, parse_select, select

from .rollout_tables import write


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "COPY (SELECT 1) TO '/tmp/x.csv'",
        "ATTACH 'x.db'",
        "PRAGMA version",
        "SET threads = 8",
        "INSTALL httpfs",
        "CREATE TABLE t AS SELECT 1",
        "DELETE FROM rollouts",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM (SELECT * FROM (SELECT content FROM read_blob('/etc/passwd')))",
        "WITH x AS (FROM read_text('/etc/passwd')) FROM x",
        "SELECT random()",
        "SELECT now()",
        "SELECT pg_sleep(1)",
        "SELECT FROM",
        "",
    ],
)
def test_only_one_pure_select_passes(sql: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_select(sql)
    assert "\n" not in str(caught.value)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return rollout_files([write(tmp_path / "rollouts")])


@pytest.mark.parametrize("copy", [(), ("rollouts",), ("rollouts", "late")])
def test_a_connection_reads_its_files_and_nothing_else(
    files: list[Path], tmp_path: Path, copy: tuple[str, ...]
) -> None:
    other = tmp_path / "other.parquet"
    other.write_bytes(files[0].read_bytes())
    scores = pa.table({"name": ["a"], "value": [1.0]})
    views = {"late": "SELECT * FROM rollouts WHERE step >= 12"}
    with open_parquet("rollouts", files, copy=copy, views=views, tables={"scores": scores}) as con:
        counts = "SELECT (SELECT count(*) FROM rollouts), (SELECT count(*) FROM late), (SELECT sum(value) FROM scores)"
        assert [list(r.values()) for r in select(con, counts).to_pylist()] == [[1280, 320, 1.0]]
        for path in (other, "/etc/hostname"):
            with pytest.raises(QueryError):
                select(con, f"SELECT * FROM '{path}'")
        for statement in (
            f"COPY scores TO '{tmp_path}/out.csv'",
            "SET enable_external_access = true",
            "SET threads = 2",
        ):
            with pytest.raises(Exception, match=r"Permission|lock|disabled"):
                con.execute(statement)
    assert not (tmp_path / "out.csv").exists()


def test_tables_never_resolve_to_python_variables(files: list[Path]) -> None:
    secret = pa.table({"x": [1]})
    with open_parquet("rollouts", files) as con, pytest.raises(QueryError, match="secret"):
        select(con, "SELECT * FROM secret")
    assert secret.num_rows == 1


def test_long_queries_are_stopped_and_long_answers_cut(files: list[Path]) -> None:
    with open_parquet("rollouts", files) as con:
        with pytest.raises(QueryError, match=r"stopped after 0\.1 s"):
            select(con, "SELECT count(*) FROM range(1000000000) a, range(1000000000) b", timeout_s=0.1)
        assert select(con, "SELECT * FROM rollouts", max_rows=7).num_rows == 7
        assert select(con, "SELECT count(*) AS n FROM rollouts").to_pylist() == [{"n": 1280}]


def test_work_beyond_the_memory_limit_spills_to_disk(files: list[Path]) -> None:
    query = "SELECT count(*) AS n FROM (SELECT DISTINCT md5((a.i * 1000 + b.i)::VARCHAR) FROM range(1000) a(i), range(600) b(i))"
    with open_parquet("rollouts", files, memory_limit="40MB") as con:
        assert select(con, query).to_pylist() == [{"n": 600_000}]


def test_a_copy_of_many_files_is_what_one_scan_of_them_reads(tmp_path: Path) -> None:
    files = [tmp_path / f"{i:04d}.parquet" for i in range(2 * FILES_AT_ONCE + 1)]
    for i, file in enumerate(files):
        table = pa.table({"a": [i], "b": [-i]})
        pq.write_table(table if i % 2 else table.select(["b", "a"]), file)  # columns have names, not places
    for copy in ((), ("rows",)):
        with open_parquet("rows", files, copy=copy) as con:
            assert con.sql("SELECT a, b FROM rows").fetchall() == [(i, -i) for i in range(len(files))]
    pq.write_table(pa.table({"a": [1]}), files[-1])
    with pytest.raises(QueryError, match="b"), open_parquet("rows", files, copy=("rows",)):
        pass


def test_errors_are_one_line_with_the_name(files: list[Path]) -> None:
    with open_parquet("rollouts", files) as con, pytest.raises(QueryError, match="reponse") as caught:
        select(con, "SELECT max(reponse) FROM rollouts")
    assert "\n" not in str(caught.value)


def test_no_connection_draws_a_progress_bar_into_standard_output(tmp_path: Path) -> None:
    setting = "SELECT current_setting('enable_progress_bar')"
    with open_parquet("rollouts", rollout_files([write(tmp_path)])) as con:
        assert con.execute(setting).fetchall() == [(False,)]
    assert locked_connection().execute(setting).fetchall() == [(False,)]
