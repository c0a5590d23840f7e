import json
from pathlib import Path
from typing import Any

import pytest

from trainer.domains.taskfile import read_tasks
from trainer.types import InputError

ROW = {"messages": [{"role": "user", "content": "3+4="}], "domain": "math", "answer": "7", "tag": "sums"}
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "Ann has 3 apples and buys 4. How many has she?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "7"},
    "extra_info": {"split": "train", "index": 0},
}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), "utf-8")
    return path


def complaint(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_tasks(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


def test_json_lines_in_order_with_blank_lines(tmp_path: Path) -> None:
    other = {**ROW, "answer": "8"}
    tasks = read_tasks(write(tmp_path / "a.jsonl", ROW, "", {k: v for k, v in other.items() if k != "tag"}))
    assert [(t.answer, t.tag, t.family, t.domain) for t in tasks] == [
        ("7", "sums", "sums", "math"),
        ("8", "", "file", "math"),
    ]
    assert tasks[0].id != tasks[1].id


def test_verl_rows_from_parquet_and_json_lines_agree(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([VERL]), tmp_path / "a.parquet")
    (task,) = read_tasks(tmp_path / "a.parquet")
    assert read_tasks(write(tmp_path / "a.jsonl", VERL)) == [task]
    assert (task.domain, task.answer, task.tag) == ("math", "7", "openai/gsm8k")
    assert task.messages[0].content.startswith("Ann")


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("{", ("line 2", "not JSON")),
        ("[" * 100_000, ("line 2", "not JSON")),
        ("3", ("line 2", "not an object")),
        ({k: v for k, v in ROW.items() if k != "answer"}, ("line 2", "field answer", "missing")),
        ({**ROW, "anwser": "7"}, ("line 2", "field anwser", "known: messages")),
        ({**ROW, "answer": 7}, ("line 2", "field answer", "in quotes")),
        ({**ROW, "answer": " "}, ("line 2", "field answer")),
        ({**ROW, "messages": []}, ("line 2", "field messages")),
        ({**ROW, "messages": [{"role": "robot", "content": "x"}]}, ("line 2", "field messages.0.role", "'robot'")),
        ({**VERL, "reward_model": {"style": "model", "ground_truth": "7"}}, ("field reward_model.style", "'rule'")),
        ({**VERL, "reward_model": {"style": "rule"}}, ("field reward_model.ground_truth", "missing")),
        (ROW, ("line 2", "repeats line 1")),
    ],
)
def test_a_bad_row_is_named_with_line_field_and_remedy(tmp_path: Path, row: Any, parts: tuple[str, ...]) -> None:
    text = complaint(write(tmp_path / "a.jsonl", ROW, row))
    for part in parts:
        assert part in text


def test_a_bad_parquet_row_is_named_by_its_number(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [VERL, {**VERL, "reward_model": {"style": "rule", "ground_truth": ""}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert "row 2: field reward_model.ground_truth" in complaint(tmp_path / "a.parquet")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "no such task file" in complaint(tmp_path / "a.jsonl")
    assert "use .jsonl or .parquet" in complaint(write(tmp_path / "a.csv", "x"))
    assert "holds no task" in complaint(write(tmp_path / "empty.jsonl", "", ""))
    assert "Parquet" in complaint(write(tmp_path / "a.parquet", "PAR1 not"))
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in complaint(tmp_path / "b.jsonl")
