"""Nothing that decides, and nothing that agents write, can know a sealed task before the report that measures on it."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import graph
from graph.build import NODES
from graph.record import STORES
from graph.seals import FILE as SEALS
from trainer.types import Task

OWN = ("tasks/sealed-", "report.html", "summary.json")
"""What the report writes at the end: its tasks and itself. ``sealed-N`` of a version are its evaluations."""
BINARY = (".safetensors", ".lock")


@pytest.fixture
def sealed(whole: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Ids and prompts of the sealed shard."""
    lines = (whole / "tasks" / "sealed-0.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = [Task.model_validate_json(line) for line in lines]
    assert tasks
    return frozenset(t.id for t in tasks), frozenset(m.content for t in tasks for m in t.messages)


def readable(run: Path) -> Iterator[Path]:
    """Files of a run that the report did not write."""
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.is_file() and not name.startswith(OWN) and not path.name.startswith("sealed-"):
            yield path


def strings(value: object) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def test_no_rollout_and_no_input_of_a_term_or_diagnostic_is_of_a_sealed_task(
    whole: Path, sealed: tuple[frozenset[str], frozenset[str]]
) -> None:
    """Rollouts are what diagnostics, replays and Python terms are given; episodes what the proxy scores."""
    ids, prompts = sealed
    tables = [path for path in readable(whole) if path.suffix == ".parquet"]
    assert {"rollouts", "seed-0"} <= {path.parent.name for path in tables}
    for path in tables:
        table = pq.read_table(path, columns=["task_id", "prompt"])
        assert not ids & set(table["task_id"].to_pylist()), path
        assert not prompts & set(table["prompt"].to_pylist()), path


def test_no_suite_decision_or_record_names_a_sealed_task(
    whole: Path, sealed: tuple[frozenset[str], frozenset[str]]
) -> None:
    ids, prompts = sealed
    looked_at = set()
    for path in readable(whole):
        if path.suffix in (".parquet", *BINARY) or ".git" in path.parts:
            continue
        raw = path.read_bytes()
        assert not [task for task in ids if task.encode() in raw], path
        looked_at.add(path.relative_to(whole).as_posix())
        if path.suffix in (".json", ".jsonl"):
            text = raw.decode()
            values = [json.loads(text)] if path.suffix == ".json" else map(json.loads, text.splitlines())
            # Whole texts: a short sum may well be a part of a longer one.
            assert not prompts & {part for value in values for part in strings(value)}, path
    stores = {f"record/{store}.jsonl" for store in STORES}
    records = {f"versions/v0001/{name}.json" for name in ("diagnosis", "intervention", "backtest")}
    given = {"versions/v0000/health.json", "tasks/validation.jsonl", "tasks/gate.jsonl", "checkpoints.sqlite"}
    assert stores | records | given <= looked_at


def test_no_object_of_the_harness_repository_names_a_sealed_task(
    whole: Path, sealed: tuple[frozenset[str], frozenset[str]]
) -> None:
    """Every commit, note, tag and blob, reachable or not."""
    ids, prompts = sealed
    git = ["git", "-C", str(whole / "harness"), "cat-file", "--batch", "--batch-all-objects"]
    objects = subprocess.run(git, check=True, capture_output=True).stdout.decode(errors="replace")
    assert "recipe.toml" in objects
    assert not [task for task in ids if task in objects]
    assert not prompts & {line.strip() for line in objects.splitlines()}


def test_the_shard_is_made_after_the_last_decision(whole: Path) -> None:
    """In the order in which the run noted its files: nothing of a sealed shard is there before all else is done."""
    noted = [json.loads(line)["file"] for line in (whole / SEALS).read_text().splitlines()]
    first = min(i for i, file in enumerate(noted) if "sealed" in file)
    assert all("sealed" in file for file in noted[first:])
    made = (whole / "tasks" / "sealed-0.jsonl").stat().st_mtime_ns
    assert made >= max((whole / "record" / f"{store}.jsonl").stat().st_mtime_ns for store in STORES)
    assert {p.name for p in (whole / "tasks").iterdir()} == {"validation.jsonl", "gate.jsonl", "sealed-0.jsonl"}


# -------------------------------------------------------------------------------- by construction

SOURCES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in Path(graph.__path__[0]).rglob("*.py")}


def calls(name: str) -> Iterator[tuple[str, str, ast.Call]]:
    """(module, function around it, call) of every call of ``name`` in the package."""
    for module, tree in SOURCES.items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and name in (
                        getattr(node.func, "attr", ""),
                        getattr(node.func, "id", ""),
                    ):
                        yield module, function.name, node


def test_only_the_report_opens_and_measures_sealed_tasks() -> None:
    """Which split tasks come from and on which suites versions are evaluated is always written out, and says ``sealed`` in
    one module; that is called by one node."""
    opened = {(m, f) for m, f, call in calls("tasks") if _says(call.args[0]) == {"sealed"}}
    assert opened == {("reporting", "open_sealed")}
    measured = {(m, f): _says(call.args[2]) for m, f, call in calls("evaluate_seeds")}
    assert all(measured.values()), "suites are written where they are asked for"
    assert {place for place, suites in measured.items() if "sealed" in suites} == {("reporting", "make_report")}
    assert {(m, f) for m, f, _ in calls("open_sealed")} == {("reporting", "make_report")}
    assert {(m, f) for m, f, _ in calls("make_report")} == {("nodes", "report")}
    assert [name for name, node in NODES.items() if node.__name__ == "report"] == ["report"]


def _says(argument: ast.expr) -> set[str]:
    """The literals of an argument; empty for one that is computed."""
    parts = argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
    return {str(part.value) for part in parts if isinstance(part, ast.Constant)}
