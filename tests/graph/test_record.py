"""The record: append once, survive a torn line, name what is damaged."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph.record import RunRecord, read_record, write_atomic
from graph.versions import Version
from trainer.types import InputError


def test_an_entry_is_written_once_per_key_also_after_reopening(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, writable=True)
    assert record.append("ledger", "v0000.baseline", {"kind": "baseline"})
    assert not record.append("ledger", "v0000.baseline", {"kind": "again"})
    again = RunRecord(tmp_path, writable=True)
    assert not again.append("ledger", "v0000.baseline", {"kind": "again"})
    assert [e["kind"] for e in again.entries("ledger")] == ["baseline"]


@settings(max_examples=30)
@given(st.integers(min_value=0, max_value=200), st.text(min_size=1, max_size=30))
def test_a_line_torn_anywhere_loses_only_itself(tmp_path_factory: pytest.TempPathFactory, cut: int, text: str) -> None:
    root = tmp_path_factory.mktemp("run")
    record = RunRecord(root, writable=True)
    record.append("cases", "a", {"text": text})
    whole = record.path("cases").read_bytes()
    record.append("cases", "b", {"text": text})
    torn = record.path("cases").read_bytes()
    end = min(len(whole) + cut, len(torn) - 1)
    record.path("cases").write_bytes(torn[:end])
    mended = RunRecord(root, writable=True)
    assert [e["key"] for e in mended.entries("cases")] == ["a"]
    assert mended.append("cases", "b", {"text": text})
    assert record.path("cases").read_bytes() == torn


def test_a_reader_of_a_live_run_skips_the_line_being_written(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, writable=True)
    record.append("search", "a", {})
    with record.path("search").open("a") as file:
        file.write('{"key": "b"')
    assert [e["key"] for e in RunRecord(tmp_path).entries("search")] == ["a"]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    record = RunRecord(tmp_path, writable=True)
    record.append("ledger", "a", {})
    with record.path("ledger").open("a") as file:
        file.write("garbage\n")
    with pytest.raises(InputError, match=r"ledger\.jsonl: line 2"):
        list(RunRecord(tmp_path).entries("ledger"))


def test_damaged_record_files_name_file_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "version.json"
    for content in ("", "{", json.dumps({"id": "v1", "parent": "v0", "harness_commit": "c", "surprise": 1})):
        path.write_text(content)
        with pytest.raises(InputError) as error:
            read_record(path, Version)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="missing"):
        read_record(tmp_path / "none.json", Version)


def test_atomic_writing_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "deep" / "a.json", "1")
    write_atomic(tmp_path / "deep" / "a.json", "2")
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["a.json"]
    assert (tmp_path / "deep" / "a.json").read_text() == "2"
