"""The health report of a version, from the files of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.types import Intervention, Prediction
from graph.health import BARS, course, health_of, markdown
from graph.record import RunRecord
from graph.runs import main
from graph.versions import Results, Version, eval_file
from trainer.harness import HarnessRepo
from trainer.seed_harness import load_seed_files
from trainer.types import (
    Cost,
    Evaluation,
    Finding,
    HarnessEdit,
    HealthReport,
    InputError,
    Record,
    SetOption,
    TrainResult,
)

HOSTILE = "a | b\nc \x1b[31m"
SCORES = {"v0000": ((1, 1), (0, 0), (1, 0), (0, 0)), "v0001": ((0, 0), (1, 1), (1, 1), (0, 0))}


def finding(name: str, value: float, severity: str, evidence: tuple[str, ...] = ()) -> Finding:
    return Finding.model_validate(
        {
            "diagnostic": name,
            "kind": "pathology",
            "layer": "signal",
            "severity": severity,
            "value": value,
            "line": 0.3,
            "description": HOSTILE,
            "evidence": evidence,
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline, v0001 promoted over it, and v0002 that was refused."""
    root = tmp_path_factory.mktemp("runs") / "demo"
    record = RunRecord(root, writable=True)
    commit = HarnessRepo.create(root / "harness", load_seed_files("math"), {}, "demo").head()

    def save(version: str, name: str, value: Record) -> None:
        record.save(version, name, value)

    for version, parent, ratio in (("v0000", "base", 0.6), ("v0001", "v0000", 0.2)):
        save(
            version,
            "version",
            Version(id=version, parent=parent, harness_commit=commit, factor="optim.lr", title="cut"),
        )
        result = TrainResult(status="completed", checkpoint=root, metrics_file=None, rollouts_dir=None, cost=Cost())
        save(version, "training", Results(results=(result,)))
        evaluation = Evaluation(
            suite="validation", version=version, seed=0, protocol_hash="h", task_ids=("a", "b", "c", "d"), scores=SCORES[version]
        )  # fmt: skip
        eval_file(record, version, 0, "validation").parent.mkdir(parents=True)
        eval_file(record, version, 0, "validation").write_text(evaluation.model_dump_json())
        findings = (
            finding("truncation", 0.0, "ok"),
            finding("dead_groups", ratio, "critical" if ratio > 0.5 else "warn", (f"{version}-r1", f"{version}-r2")),
            finding("gone", 1.0, "warn"),  # a diagnostic that this harness does not have
        )
        report = HealthReport(
            version=version,
            findings=findings,
            scores={"validation/mean": 1 - ratio},
            trends={"actor/entropy": (0.5, 0.4, ratio), "other": (1.0,)},
        )
        save(version, "health", report)
    prediction = Prediction(metric="dead_groups", direction="down", min_effect=0.1)
    idea = Intervention(
        title="cut", edit=HarnessEdit(change=SetOption(path="optim.lr", value=1e-4)), rationale="r", hypothesis="h",
        prediction=prediction, success="s", rollback="b", rule="cut-lr",
    )  # fmt: skip
    save("v0001", "intervention", idea)
    gate = {"delta": 0.4, "ci_low": 0.3, "ci_high": 0.5}
    for version, verdict, own in (("v0001", "promoted", gate), ("v0002", "refused", None)):
        entry = {
            "kind": "verdict",
            "version": version,
            "factor": "optim.lr",
            "title": "cut",
            "verdict": verdict,
            "gate": own,
        }
        record.append("ledger", f"{version}.verdict", entry)
    (root / "manifest.json").touch()  # makes the folder a run
    return root


def test_a_version_is_read_against_its_lines_its_course_and_its_parent(run: Path) -> None:
    health = health_of(run, "v0001")
    by_name = {r.finding.diagnostic: r for r in health.readings}
    dead = by_name["dead_groups"]
    assert (dead.finding.value, dead.warn, dead.critical, dead.above, dead.parent) == (0.2, 0.3, 0.5, True, 0.6)
    assert [r.finding.severity for r in health.readings] == ["warn", "warn", "ok"]
    assert health.scores == {"validation/mean": (0.8, 0.4)}
    (entropy,) = health.courses["signal"]
    assert (entropy.metric, entropy.values, entropy.parent) == ("actor/entropy", (0.5, 0.4, 0.2), (0.5, 0.4, 0.6))
    change = health.change
    assert change is not None and (change.verdict, change.gained, change.lost) == ("promoted", 1, 1)
    assert change.realised == pytest.approx(-0.4) and change.earlier == ()


def test_the_champion_is_the_default_and_the_baseline_has_no_change(run: Path) -> None:
    assert health_of(run).version == "v0001"
    baseline = health_of(run, "v0000")
    assert baseline.change is None and all(r.parent is None for r in baseline.readings)
    assert "The reference: nothing was changed yet." in markdown(baseline)


def test_a_version_without_a_report_is_refused_with_those_that_have_one(run: Path) -> None:
    with pytest.raises(InputError, match=r"^demo: version v0002: no health report; .*: v0000, v0001$"):
        health_of(run, "v0002")
    assert main(["health", str(run), "--version", "v0002"]) == 2


def test_markdown_keeps_its_shape_whatever_a_diagnostic_says(run: Path) -> None:
    text = markdown(health_of(run, "v0001"))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    columns = [line.replace("\\|", "").count("|") for line in rows]
    assert set(columns) == {5, 6, 7} and "\x1b" not in text
    assert "| warn | dead_groups | 0.2 | > 0.3, 0.5 | 0.6 | a \\| b c ␛[31m |" in rows
    assert "- dead_groups: v0001-r1, v0001-r2" in text
    assert f"python -m graph.runs show {run} --rollout v0001-r1" in text
    assert "predicted dead_groups down by at least 0.1: −0.4, held" in text
    assert "- gate: +40.0 pp (+30.0 to +50.0)" in text


def test_json_is_the_whole_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == health_of(run, "v0001").model_dump(mode="json")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10))
def test_a_course_has_a_bar_per_part_and_reaches_both_ends(values: list[float]) -> None:
    bars, _ = course(values)
    assert len(bars) == len(values)
    assert bars[values.index(min(values))] == BARS[0]
    assert len({*values}) == 1 or bars[values.index(max(values))] == BARS[-1]
