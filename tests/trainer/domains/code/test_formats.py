"""Rows as the published data has them, good and bad. Only HumanEval needs a sandbox to be read: see test_humaneval."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sandboxes.types import Program, Ran
from trainer.domains.code import lcb
from trainer.domains.code.filed import FiledCodeDomain, divided
from trainer.domains.code.formats import Loaded, read_programs
from trainer.domains.code.rows import BadRow
from trainer.types import Case, InputError, Task
from trainer.types import Tests as Suite  # a name that pytest does not take for a test


class NoExecutor:
    """Reading these formats runs nothing."""

    def run(self, programs: Sequence[Program]) -> list[Ran]:
        raise AssertionError("a program was run")

    def close(self) -> None: ...


def packed(cases: object) -> str:
    """As LiveCodeBench's maintainers pack private cases."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def lcb_row(**changes: Any) -> dict[str, Any]:
    case = {"input": "1 2\n", "output": "3\n", "testtype": "stdin"}
    row = {
        "question_title": "A. Sum", "question_content": "Print a+b.", "platform": "atcoder", "question_id": "abc1_a",
        "contest_id": "abc1", "contest_date": "2024-01-01T00:00:00", "starter_code": "", "difficulty": "medium",
        "public_test_cases": json.dumps([case]), "metadata": "{}",
        "private_test_cases": json.dumps([case, {**case, "input": "2 2\n", "output": "4\n"}]),
    }  # fmt: skip
    return row | changes


def lcb_functional(name: str = "pairs", **changes: Any) -> dict[str, Any]:
    case = {"input": '[1, 2]\n"a\\nb"', "output": "[[1, null]]", "testtype": "functional"}
    return lcb_row(
        starter_code=f"class Solution:\n    def {name}(self, x: List[int], s: str) -> int:\n        ",
        metadata=json.dumps({"func_name": name}),
        public_test_cases=json.dumps([case]),
        private_test_cases=packed([{**case, "input": '[]\n""'}]),
        **changes,
    )


def taco_row(found: object = None, **changes: Any) -> dict[str, Any]:
    found = found or {"inputs": ["1 2\n", "5 5\n", "9 9\n"], "outputs": ["3\n", "10\n", "18\n"]}
    row = {
        "question": "Add.\n\n-----Examples-----\nSample Input 1:\n1 2\n\nSample Output 1:\n3\n\nInput\n5  5\nOutput\n10\n",
        "solutions": json.dumps(["print(sum(map(int, input().split())))\n", "a, b = map(int, input().split())\nprint(a + b)\n"]),
        "starter_code": "", "input_output": found if isinstance(found, str) else json.dumps(found), "difficulty": "HARD",
        "source": "codeforces", "time_limit": "3.5 seconds", "memory_limit": "512.0 megabytes",
    }  # fmt: skip
    return row | changes


def file_of(folder: Path, rows: Sequence[object], name: str = "tasks.jsonl") -> Path:
    path = folder / name
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def read(folder: Path, *rows: object, name: str = "tasks.jsonl") -> Loaded:
    return read_programs(file_of(folder, rows, name), NoExecutor())


def only(folder: Path, row: object) -> tuple[Task, Suite]:
    (task,) = read(folder, row).tasks
    assert task.tests is not None
    return task, task.tests


def test_livecodebench_programs_that_read_their_input(tmp_path: Path) -> None:
    task, tests = only(tmp_path, lcb_row())
    assert (tests.mode, tests.entry, tests.tolerance) == ("stdin", "", 0.0)
    assert tests.visible == (Case(given="1 2\n", expected="3\n"),)
    assert tests.hidden == (Case(given="2 2\n", expected="4\n"),), "the private copy of a public case is no hidden one"
    assert "Print a+b." in task.messages[-1].content and "standard input" in task.messages[-1].content
    assert (task.family, task.level, task.tag) == ("livecodebench", 1, "atcoder medium abc1_a")
    decimal = json.dumps([{"input": "1", "output": "0.50", "testtype": "stdin"}])
    assert only(tmp_path, lcb_row(private_test_cases=decimal))[1].tolerance == lcb.DECIMAL_TOLERANCE


def test_livecodebench_functions_with_packed_private_cases(tmp_path: Path) -> None:
    task, tests = only(tmp_path, lcb_functional())
    assert (tests.mode, tests.entry) == ("call", "Solution.pairs")
    assert json.loads(tests.visible[0].given) == [[1, 2], "a\nb"] and json.loads(tests.visible[0].expected) == [
        [1, None]
    ]
    assert [json.loads(case.given) for case in tests.hidden] == [[[], ""]]
    assert "class Solution:" in task.messages[-1].content
    compile(tests.prelude, "prelude", "exec")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (pickle.dumps(Evil()), "more than a text"),
        (pickle.dumps(["[]"]), "more than a text"),
        (pickle.dumps("[]")[:-4], "broken pickle|not the pickle"),
        (b"", "broken pickle"),
        (b".", "not the pickle"),
    ],
)
def test_a_pickle_is_read_and_never_executed(payload: bytes, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadRow, match=words):
        lcb.unpacked(base64.b64encode(zlib.compress(payload)).decode())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_packs_a_text(protocol: int) -> None:
    text = json.dumps([{"input": "é\u2028" * 50_000}], ensure_ascii=False)
    assert lcb.unpacked(base64.b64encode(zlib.compress(pickle.dumps(text, protocol))).decode()) == text


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lcb, "LARGEST", 1 << 20)
    with pytest.raises(BadRow, match="more than 1048576 bytes"):
        lcb.unpacked(base64.b64encode(zlib.compress(pickle.dumps("0" * (1 << 21)))).decode())


def test_taco_programs_show_the_cases_of_their_question(tmp_path: Path) -> None:
    task, tests = only(tmp_path, taco_row())
    assert [case.given for case in tests.visible] == ["1 2\n", "5 5\n"]
    assert tests.hidden == (Case(given="9 9\n", expected="18\n"),)
    assert (tests.mode, tests.time_s, tests.memory_mb, tests.tolerance) == ("stdin", 3.5, 512, 0.0)
    assert (task.family, task.level, task.tag) == ("taco", 3, "codeforces HARD") and "sum(" in task.answer
    lines = taco_row({"inputs": [["1", "2"]], "outputs": [["0.5", "x"]]})
    _, tests = only(tmp_path, lines)
    assert tests.hidden == (Case(given="1\n2", expected="0.5\nx"),) and tests.tolerance > 0


def test_taco_functions_take_arguments_and_wrapped_values(tmp_path: Path) -> None:
    found = {"fn_name": "count", "inputs": [[[1, 2], 3], [{"1": 5}], [2]], "outputs": [[4], {"2": 7}, [1, 2]]}
    _, tests = only(tmp_path, taco_row(found, starter_code="def count(x, y):\n\t"))
    assert (tests.mode, tests.entry, tests.visible) == ("call", "count", ())
    assert [case.given for case in tests.hidden] == ["[[1,2],3]", '[{"dict":[[1,5]]}]', "[2]"]
    assert [case.expected for case in tests.hidden] == [
        '{"any":[[4],4]}', '{"any":[{"2":7},{"dict":[[2,7]]}]}', "[1,2]",
    ]  # fmt: skip
    _, tests = only(tmp_path, taco_row(found, starter_code="class Solution:\n    def count(self, x):\n"))
    assert tests.entry == "Solution.count"


BAD = [
    (lcb_row(private_test_cases="!"), "private_test_cases: neither JSON nor packed"),
    (lcb_row(private_test_cases="[]", public_test_cases="[]"), "no case"),
    (lcb_row(public_test_cases="[1]"), "a case that is no object"),
    (lcb_row(public_test_cases='[{"input": "1", "output": "1", "testtype": "x"}]'), "testtype 'x' is unknown"),
    (lcb_row(public_test_cases=lcb_functional()["public_test_cases"]), "cases of both kinds"),
    (lcb_functional() | {"metadata": "{}"}, "no func_name"),
    (lcb_row(question_content=None), "question_content: missing"),
    (lcb_row(question_content="\ud800"), "half a character"),
    (taco_row("{"), "input_output: not JSON"),
    (taco_row({"inputs": ["1"], "outputs": []}), "equal length"),
    (taco_row({"inputs": [], "outputs": []}), "no test case"),
    (taco_row({"inputs": [[["a"]]], "outputs": ["1"]}), "neither text nor lists of lines"),
    (taco_row({"inputs": ["1"], "outputs": ["1"], "fn_name": "f"}), "lists of arguments"),
    (taco_row({"inputs": [[1]], "outputs": [1], "fn_name": "a b"}), "fn_name is no name"),
    (taco_row('{"inputs": [[' + "9" * 5000 + ']], "outputs": [1], "fn_name": "f"}'), "input_output: not JSON"),
    ("{]", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("3", "not an object"),
    ({"question": "x"}, "input_output: missing"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "words"), BAD)
def test_bad_rows_are_named_and_counted_and_the_rest_is_read(tmp_path: Path, row: Any, words: str) -> None:
    good = lcb_row() if isinstance(row, dict) and "question_content" in row else taco_row()
    loaded = read(tmp_path, good, row, good | {"question_content": "b", "question": "b"}, good)
    assert len(loaded.tasks) == 2
    first, repeated = loaded.skipped
    assert first.startswith("line 2: ") and words in first and "\n" not in first and len(first) < 200
    assert repeated == "line 4: repeats line 1"
    assert str(loaded).startswith("2 tasks (") and "2 rows skipped; first: line 2" in str(loaded)


def own_row(number: int, hidden: int = 6, **changes: Any) -> dict[str, Any]:
    cases = [{"given": f"[{i}]", "expected": str(i + number)} for i in range(hidden)]
    tests = {"entry": "f", "visible": [{"given": "[9]", "expected": str(9 + number)}], "hidden": cases}
    row = {"messages": [{"role": "user", "content": f"Add {number}."}], "domain": "code", "tag": "add", "tests": tests}
    return row | {"answer": f"def f(x):\n    return x + {number}\n"} | changes


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (own_row(1, hidden=0), "line 2: field tests.hidden: empty"),
        (own_row(1, domain="math"), "line 2: field domain: "),
        (own_row(1, extra=1), "line 2: field extra: "),
        (own_row(1) | {"tests": {"hidden": [{"given": "1", "expected": "1"}]}}, "line 2: field tests.entry: needed"),
    ],
)
def test_a_bad_row_of_our_own_is_an_error(tmp_path: Path, row: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, own_row(0), row)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.jsonl", b"", "holds no task"),
        ("t.jsonl", b'{"a": 1}', "line 1: the fields of no known format"),
        ("t.csv", b"", "no kind of task file"),
        ("t.jsonl.gz", b"\x1f\x8b broken", "cannot be read"),
        ("t.parquet", b"PAR1", "cannot be read as Parquet"),
    ],
)
def test_files_that_are_none_are_one_line(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_programs(tmp_path / name, NoExecutor())
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no such task file"):
        read_programs(tmp_path / "absent.jsonl", NoExecutor())


def test_packed_lines_and_parquet_hold_the_same_tasks(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [taco_row(question=f"Question {i}") for i in range(3)]
    plain = read(tmp_path, *rows)
    assert read(tmp_path, "\ufeff" + json.dumps(rows[0]), *rows[1:], name="a.jsonl.gz").tasks == plain.tasks
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert read_programs(tmp_path / "a.parquet", NoExecutor()).tasks == plain.tasks


def test_splits_and_gate_share_no_task_and_no_deciding_case(tmp_path: Path) -> None:
    rows = [own_row(i, hidden=1 + i % 7) for i in range(200)]
    domain = FiledCodeDomain(file_of(tmp_path, rows), NoExecutor())
    again = FiledCodeDomain(file_of(tmp_path, rows[::-1]), NoExecutor())
    splits = {split: domain.tasks(split, 1000) for split in ("train", "validation", "sealed")}
    assert sum(map(len, splits.values())) == 200 == len({t.id for tasks in splits.values() for t in tasks})
    assert again.tasks("sealed", 1000) == splits["sealed"], "the order of the file does not matter"
    validation = splits["validation"]
    for task, gate in zip(validation, domain.gate_tasks(validation), strict=True):
        assert task.tests is not None and gate.tests is not None
        assert (
            gate.id != task.id and task.messages[-1].content in gate.messages[-1].content != task.messages[-1].content
        )
        shared = set(task.tests.hidden) & set(gate.tests.hidden)
        whole = len(set(task.tests.hidden) | set(gate.tests.hidden))
        assert shared == (set(task.tests.hidden) if whole == 1 else set()) and gate.tests.hidden
    demonstration, *_ = domain.demonstrations(5, seed=1)
    assert demonstration.reply.startswith("```python\ndef f(x)")
    with pytest.raises(InputError, match="shard 1 does not exist"):
        domain.tasks("train", 1, shard=1)


def test_a_file_that_is_too_small_or_without_solutions_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least 8"):
        FiledCodeDomain(file_of(tmp_path, [own_row(i) for i in range(20)]), NoExecutor())
    bare = [own_row(i) | {"answer": ""} for i in range(200)]
    with pytest.raises(InputError, match="no solutions"):
        FiledCodeDomain(file_of(tmp_path, bare), NoExecutor()).demonstrations(1, seed=0)


def test_a_third_is_held_back_whatever_the_order() -> None:
    cases = tuple(Case(given=f"[{i}]", expected="1") for i in range(9))
    decides, held_back = divided(Suite(hidden=cases))
    assert len(held_back) == 3 and set(decides) | set(held_back) == set(cases) and len(decides) == 6
    assert set(divided(Suite(hidden=cases[::-1]))[1]) == set(held_back)
    assert list(map(len, divided(Suite(hidden=cases[:2])))) == [1, 1]
