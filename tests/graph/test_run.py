"""The command line: quick help, exit codes, one line per mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from graph import run

HEAVY = ("torch", "langgraph", "langchain_core", "transformers", "duckdb", "pyarrow", "scipy", "numpy", "reasoning_gym",
         "rich", "git", "pydantic")  # fmt: skip


@pytest.mark.parametrize("module", ["graph.run", "graph.runs"])
def test_help_imports_nothing_heavy(module: str) -> None:
    code = (
        "import sys, runpy\nsys.argv = ['x', '--help']\n"
        f"try: runpy.run_module('{module}', run_name='__main__')\n"
        "except SystemExit: pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "usage:" in done.stdout
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "recipe.optim.lr"], "KEY=VALUE"),
        (["--set", "recipe.optim.rl=1"], "unknown key"),
        (["--domain", "maths"], "math"),
        (["--backend", "cloud"], "embedded"),
        (["--specialists", "oracle"], "playbook"),
        (["--resume", "nothing"], "no such run"),
        (["--tasks", "none.jsonl"], "none.jsonl"),
        (["--policy", "nowhere"], "nowhere"),
        (["--name", "../evil"], "run.name"),
        (["--config", "none.toml"], "none.toml"),
        (["--minutes", "-1"], "minutes"),
        (["--set", "evaluation.validation=8"], "min_varying_tasks"),
        (["--set", "recipe.reward.tests=visible"], "recipe.reward.tests: tasks of domain math show no tests"),
        (["--set", "recipe.actor.ppo_mini_batch_size=64"], "exceeds data.train_batch_size"),
    ],
)
def test_mistakes_end_with_2_and_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run.main(["--runs-dir", str(tmp_path), *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err
    assert not list(tmp_path.iterdir())


def test_a_dry_run_prints_configuration_and_plan_and_makes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run.main(["--runs-dir", str(tmp_path), "--seed", "3", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "seed = 3  # --seed" in out
    assert "would make" in out
    assert not list(tmp_path.iterdir())


def test_hints_are_refused_where_a_task_file_has_answers_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{i}+1"}], "domain": "math", "answer": str(i + 1)}
        for i in range(200)
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--tasks", str(tmp_path / "tasks.jsonl"), "--set", "evaluation.validation=16",
                 "--set", "gate.min_varying_tasks=4", "--set", "recipe.data.hints.enable=true"]  # fmt: skip
    assert run.main(["--runs-dir", str(tmp_path / "runs"), *arguments]) == 2
    error = "error: --set: recipe.data.hints.enable: domain math has no worked replies to these tasks; use false\n"
    assert capsys.readouterr().err == error


def test_doctor_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--doctor", "--json"]) == 0
    parts = {p["name"]: p for p in json.loads(capsys.readouterr().out)}
    assert parts["torch"]["state"] == "ok"
    assert all(p["remedy"] for p in parts.values() if p["state"] != "ok")


def test_resume_refuses_what_cannot_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--resume", "x", "--seed", "3"]) == 2
    assert "only --minutes and --versions" in capsys.readouterr().err
