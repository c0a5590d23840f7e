from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from trainer.evidence import find_rollout, open_rollouts, rollout_files, write_step
from trainer.sql import select
from trainer.types import ROLLOUT_COLUMNS, InputError

from .rollout_tables import STEPS, healthy, table, write


def test_steps_are_files_of_declared_types_and_nothing_else_is_left(tmp_path: Path) -> None:
    directory = write(tmp_path / "with 'quote'")
    assert [f.name for f in sorted(directory.iterdir())] == [f"step-{s:06d}.parquet" for s in range(STEPS)]
    schema = pq.read_schema(directory / "step-000000.parquet")
    assert schema.names == [*ROLLOUT_COLUMNS, "format_ok", "repeats"]
    with open_rollouts([directory]) as con:
        types = select(con, "SELECT column_name, column_type FROM (DESCRIBE rollouts)").to_pylist()
    assert {t["column_name"]: t["column_type"] for t in types} | dict(ROLLOUT_COLUMNS) == {
        t["column_name"]: t["column_type"] for t in types
    }


def test_a_step_written_twice_is_replaced_and_a_missing_column_is_a_bug(tmp_path: Path) -> None:
    rows = table(healthy())
    path = write_step(tmp_path, 3, rows)
    assert write_step(tmp_path, 3, rows.slice(0, 8)) == path and pq.read_metadata(path).num_rows == 8
    with pytest.raises(ValueError, match="outcome"):
        write_step(tmp_path, 4, rows.drop_columns(["outcome"]))
    assert list(tmp_path.iterdir()) == [path]


def test_files_come_in_order_of_directory_and_step(tmp_path: Path) -> None:
    rows = table(healthy()).slice(0, 8)
    for directory, step in (("b", 2), ("b", 10), ("a", 1)):
        write_step(tmp_path / directory, step, rows)
    (tmp_path / "a" / ".step-000002.parquet.99").write_bytes(b"an unfinished write")
    found = [f.relative_to(tmp_path).as_posix() for f in rollout_files([tmp_path / "b", tmp_path / "a"])]
    assert found == ["b/step-000002.parquet", "b/step-000010.parquet", "a/step-000001.parquet"]


@pytest.mark.parametrize("keep", [0, 3, -1, -8])
def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path, keep: int) -> None:
    directory = write(tmp_path)
    damaged = directory / "step-000005.parquet"
    damaged.write_bytes(damaged.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"step-000005\.parquet: damaged .*restore") as caught:
        rollout_files([directory])
    assert "\n" not in str(caught.value)


def test_no_rollouts_is_an_error_with_the_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing-here: no rollout files"):
        rollout_files([tmp_path / "nothing-here"])


def test_a_rollout_is_found_by_its_id_in_any_directory(tmp_path: Path) -> None:
    first, second = write(tmp_path / "s0"), tmp_path / "s1"
    c = healthy()
    c["rollout_id"] = c["rollout_id"] + "x"
    write_step(second, 0, table(c).slice(0, 8))
    found = find_rollout([first, second], "r000003x")
    assert found is not None and (found["task_id"], found["response_length"]) == ("task0", 18)
    assert find_rollout([first, second], "r000003' OR true --") is None
