"""The whole loop with real parts, and what a user meets around it."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from graph.record import RunRecord
from tests.runs import Runner, copy_run


def test_a_run_ends_with_versions_verdicts_sealed_scores_and_a_story(undisturbed: tuple[Path, dict[str, Any]]) -> None:
    run, summary = undisturbed
    assert summary["status"] == "done"
    judged = [v for v in summary["versions"] if v["verdict"] != "refused"]
    assert len(judged) == 2
    for v in judged:
        assert v["ci_low"] <= v["delta"] <= v["ci_high"]
        assert v["factor"]
        assert v["reasons"]
    for who in ("warm_start", "baseline", "champion"):
        sealed = summary[who]["sealed"]
        assert 0 <= sealed["ci_low"] <= sealed["mean"] <= sealed["ci_high"] <= 1
        assert (Path(summary[who]["checkpoint"]) / "model.safetensors").is_file()
    assert 0 <= summary["orchestration_share"] <= 1
    html = Path(summary["report"]).read_text()
    assert all(v["version"] in html for v in summary["versions"])
    log = git(run, "log", "--first-parent", "--format=%s", "main")
    assert log.splitlines()[-1].startswith("seed:")
    for v in summary["versions"]:  # what was not promoted stays reachable, with its trailers
        refs = git(run, "for-each-ref", "--contains", v["harness_commit"], "--format=%(refname)")
        assert refs.strip()
        assert f"Version: {v['version']}" in git(run, "show", "-s", "--format=%B", v["harness_commit"])


def test_steps_are_provisional_and_only_a_certified_chain_moves_main(
    undisturbed: tuple[Path, dict[str, Any]],
) -> None:
    run, summary = undisturbed
    steps = [v["version"] for v in summary["versions"] if v["verdict"] == "provisional"]
    assert steps, "a line of -100 standard errors takes every step that the gate scorer does not speak against"
    (tested,) = summary["certifications"]
    assert tested["chain"] == steps
    ledger = {e["key"]: e for e in RunRecord(run).entries("ledger")}
    entry = ledger[f"{steps[-1]}.certification"]
    chosen, fresh = ledger[f"{steps[-1]}.verdict"]["gate"], entry["gate"]
    seeds = sorted(int(p.name.removeprefix("seed-")) for p in (run / "versions" / steps[-1]).glob("seed-*"))
    assert seeds == list(range(chosen["n_seeds"] + fresh["n_seeds"]))
    assert git(run, "rev-parse", "search").strip() == entry["harness_commit"]
    assert git(run, "rev-list", "--reverse", f"{summary['versions'][0]['harness_commit']}^..search").split() == [
        v["harness_commit"] for v in summary["versions"] if v["version"] in steps
    ]
    claims = git(run, "log", "--first-parent", "--format=%s", "main").splitlines()
    assert len(claims) == 1 + (tested["verdict"] == "promoted")
    assert summary["champion"]["version"] == (steps[-1] if tested["verdict"] == "promoted" else "v0000")
    assert "What was certified" in Path(summary["report"]).read_text()


def test_sealed_tasks_appear_in_the_report_only(undisturbed: tuple[Path, dict[str, Any]]) -> None:
    run, _ = undisturbed
    ids = {name: task_ids(run / "tasks" / f"{name}.jsonl") for name in ("validation", "gate", "sealed-0")}
    assert not ids["sealed-0"] & (ids["validation"] | ids["gate"])
    sealed = ids["sealed-0"]
    for store in ("ledger", "decisions", "cases", "search"):
        text = RunRecord(run).path(store).read_text()
        assert not any(task in text for task in sealed), store


def task_ids(path: Path) -> set[str]:
    return {json.loads(line)["id"] for line in path.read_text().splitlines()}


def test_every_decision_is_on_record_and_can_be_shown(runner: Runner, undisturbed: tuple[Path, dict[str, Any]]) -> None:
    run, summary = undisturbed
    roles = [e["role"] for e in RunRecord(run).entries("decisions")]
    assert {"diagnostician", "designer", "backtester", "curator"} == set(roles)
    version = summary["versions"][0]["version"]
    shown = runner.run("show", str(run), "--version", version, "--json", module="graph.runs")
    story = json.loads(shown.stdout)
    assert story["diff"].startswith("diff --git")
    assert story["intervention"]["prediction"]["metric"]
    rollout = next(iter(f["evidence"][0] for f in story["health"]["findings"] if f["evidence"]), None)
    if rollout:
        one = json.loads(runner.run("show", str(run), "--rollout", rollout, "--json", module="graph.runs").stdout)
        assert one["rollout_id"] == rollout
        assert "term_outcome" in one
    listed = runner.run("list", "--runs-dir", str(run.parent), module="graph.runs")
    assert "calm" in listed.stdout


def test_a_finished_run_goes_on_with_more_budget(runner: Runner, undisturbed: tuple[Path, dict[str, Any]]) -> None:
    run, summary = undisturbed
    copy = copy_run(run, run.with_name("longer"))
    same = runner.run("--resume", str(copy), "--json")  # without more budget there is nothing to do
    assert same.returncode == 0, same.stderr
    assert "give more --minutes or --versions" in same.stderr
    assert len(json.loads(same.stdout)["versions"]) == len(summary["versions"])
    done = runner.run("--resume", str(copy), "--versions", "3", "--json")
    assert done.returncode == 0, done.stderr
    longer = json.loads(done.stdout)
    trained = [v for v in longer["versions"] if v["verdict"] != "refused"]
    assert len(trained) == 3
    assert [v["version"] for v in longer["versions"]][: len(summary["versions"])] == [
        v["version"] for v in summary["versions"]
    ]
    assert (copy / "tasks" / "sealed-1.jsonl").is_file()
    assert not task_ids(copy / "tasks" / "sealed-0.jsonl") & task_ids(copy / "tasks" / "sealed-1.jsonl")


@pytest.mark.timeout(240)
def test_a_second_process_is_refused_and_a_signal_stops_the_first_resumably(runner: Runner, tmp_path: Path) -> None:
    first = runner.start(*runner.tiny(tmp_path, "shared"))
    run = tmp_path / "shared"
    while not (run / "status.json").exists():
        assert first.poll() is None
        time.sleep(0.05)
    second = runner.run("--resume", str(run))
    assert second.returncode == 75
    assert second.stderr.count("\n") == 1
    first.send_signal(signal.SIGTERM)
    out, err = first.communicate()
    assert first.returncode == 130, err
    assert f"--resume {shlex.quote(str(run))}" in out
    with (run / "lock").open("a") as lock:  # free again
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert runner.run("--resume", str(run)).returncode == 0


def test_damage_gets_one_line_and_loses_nothing(runner: Runner, undisturbed: tuple[Path, dict[str, Any]]) -> None:
    run, _ = undisturbed
    copy = run.with_name("damaged")
    subprocess.run(["cp", "-r", run, copy], check=True)
    recipe = copy / "harness" / "recipe.toml"
    recipe.write_text(recipe.read_text() + "\n# edited by hand\n")
    before = snapshot(copy)
    done = runner.run("--resume", str(copy), "--versions", "9")
    assert done.returncode == 2
    assert one_line(done.stderr)
    assert "recipe.toml" in done.stderr
    assert snapshot(copy) == before
    subprocess.run(["git", "-C", copy / "harness", "checkout", "-q", "recipe.toml"], check=True)
    (copy / "checkpoints.sqlite").write_bytes(b"not a database" * 100)
    done = runner.run("--resume", str(copy), "--versions", "9")
    assert done.returncode == 2
    assert one_line(done.stderr)
    assert "checkpoints.sqlite" in done.stderr


def one_line(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.startswith("error:")]
    return len(lines) == 1 and "Traceback" not in text


def snapshot(run: Path) -> dict[str, bytes]:
    skip = {"status.json", "clock.json", "lock"}
    files = [p for p in run.rglob("*") if p.is_file() and p.name not in skip and ".git" not in p.parts]
    return {str(p.relative_to(run)): p.read_bytes() for p in files}


def git(run: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", run / "harness", *args], check=True, capture_output=True, text=True, env={**os.environ}
    )
    return done.stdout
