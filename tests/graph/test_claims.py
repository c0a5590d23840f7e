"""What a run's tables say, and what they must not be able to say: from a real run and its own trainings."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest

from graph.calibrating import FILE, baseline_spread
from graph.gating import pool
from graph.health import health_of, markdown
from graph.record import RunRecord
from graph.report import render_report
from graph.report_types import ReportData, VersionRow
from graph.seals import FILE as SEALS
from graph.summary import AVERAGE, Summary, render_table
from graph.versions import BASELINE, EARLY, evaluations, named_scores, seeds_of
from trainer.gate import Arm, GateInput, GatePolicy, judge
from trainer.gate_certify import certify, provisional
from trainer.types import EarlyStop


def rerun(record: RunRecord, version: str, *seeds: int) -> Arm:
    """Seeds of the baseline under another name: the same recipe, trained again."""
    suites = (
        [
            e.model_copy(update={"version": version})
            for seed in seeds
            for e in evaluations(record, BASELINE, range(seed, seed + 1), suite)
        ]
        for suite in ("validation", "gate")
    )
    validation, gate = (tuple(found) for found in suites)
    return Arm(version=version, validation=validation, gate=gate, proxy=tuple(e.mean for e in validation))


def test_a_baseline_run_again_with_another_seed_is_not_promoted(whole: Path) -> None:
    """Whichever seed is called the candidate, the luckiest one too, and however often it is repeated in the ledger."""
    record, policy = RunRecord(whole), GatePolicy(certify_seeds=3)
    seeds = range(seeds_of(record, BASELINE))
    known = pool(record)
    for first, second, third in permutations(seeds):
        for ours, theirs in (((first,), (second, third)), ((first, second), (third,)), ((first,), (second,))):
            candidate, parent = rerun(record, "v0009", *ours), rerun(record, BASELINE, *theirs)
            report = judge(GateInput(parent=parent, candidate=candidate, pool=known), policy)
            assert report.verdict != "promoted"
            assert certify(candidate, parent, policy, pool=known).verdict != "promoted"
            assert provisional(candidate, parent, policy, pool=known).verdict != "promoted"
    same = judge(
        GateInput(parent=rerun(record, BASELINE, *seeds), candidate=rerun(record, "v0009", *seeds), pool=known), policy
    )
    assert (same.verdict, "identical outputs" in same.reasons[0]) == ("rejected", True)


def test_the_noise_floor_is_measured_before_the_first_candidate_and_shown(whole: Path) -> None:
    noted = [json.loads(line)["file"] for line in (whole / SEALS).read_text().splitlines()]
    candidates = [i for i, file in enumerate(noted) if file.startswith("versions/v0001/")]
    assert noted.index(FILE) < min(candidates)
    sigma = baseline_spread(RunRecord(whole)).variance ** 0.5
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert "<dt>Noise floor σ</dt>" in page
    assert "measured before the first candidate" in page
    shown = float(page.split("<dt>Noise floor σ</dt><dd>")[1].split(" pp")[0])
    assert shown >= round(100 * sigma, 1)  # the pool is floored at what sampling alone makes


def test_every_table_of_scores_names_its_average(whole: Path, tmp_path: Path) -> None:
    summary = Summary.model_validate_json((whole / "summary.json").read_bytes())
    with (tmp_path / "table").open("w+", encoding="utf-8") as file:
        render_table(summary, whole, file)
        file.seek(0)
        text = " ".join(file.read().split())
    assert text.count(AVERAGE) == 1
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert page.count(AVERAGE.capitalize()) == 2 + bool(summary.certifications)
    assert AVERAGE.capitalize() in markdown(health_of(whole))


def test_a_score_is_the_plain_mean_over_samples_tasks_and_seeds_whatever_their_levels(whole: Path) -> None:
    record = RunRecord(whole)
    seeds = seeds_of(record, BASELINE)
    found = evaluations(record, BASELINE, seeds, "validation")
    every = [score for e in found for row in e.scores for score in row]
    scores = named_scores(record, BASELINE, seeds)
    assert scores["validation/mean"] == pytest.approx(sum(every) / len(every))
    summary = Summary.model_validate_json((whole / "summary.json").read_bytes())
    assert summary.baseline.validation and summary.baseline.validation.n == len(found[0].task_ids)


@pytest.mark.parametrize("why", EARLY)
def test_a_training_that_ended_early_says_why_in_the_report(why: EarlyStop, tmp_path: Path) -> None:
    row = VersionRow(version="v0000", verdict="baseline", early=(f"seed 1 ended early: {EARLY[why]}",))
    data = ReportData(run="r", domain="math", seed=0, status="done", wall_s=1.0, versions=(row,), baseline="v0000")
    render_report(data, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"seed 1 ended early: {EARLY[why]}" in page
    assert EARLY["no_signal"] == "no learning signal"
