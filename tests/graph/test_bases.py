"""A version of another mix of demonstrations: where it starts from, what that costs, and what is refused."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from agents.rules import load_rules
from agents.types import BacktestReport, Intervention
from graph.bases import FOLDER, fixed_factors, make_start, mix, start_of, start_s
from graph.calibrating import calibration_of
from graph.clock import Clock
from graph.config import resolve
from graph.drive import make_deps
from graph.harnessing import commit_candidate
from graph.integrity.check import check_run
from graph.isolation import HarnessSandbox
from graph.leftovers import leftovers
from graph.planning import plan, too_late
from graph.progress import Progress
from graph.prune import droppable
from graph.record import RunRecord, read_record
from graph.services import JobRunner, make_trainer
from graph.session import Manifest
from graph.state import Deps
from graph.versions import BASELINE, Version
from skills_db.store import SkillStore
from tests.agents.situations import finding, lower_rate, situation
from tests.runs import LEAST, Runner, arguments, copy_run
from trainer.embedded.files import CHECKPOINT, MANIFEST
from trainer.types import HarnessEdit, Recipe, SetOption, TrainSpec, WarmStartRecipe

OPTION = "warm_start.worked"
MIXED = Recipe(warm_start=WarmStartRecipe(worked=0.8))
IDEA = lower_rate().model_copy(update={"edit": HarnessEdit(change=SetOption(path=OPTION, value=0.8))})


def learned(run: Path) -> None:
    """Skills under which the next candidate, whatever the diagnosis, sets the option."""
    store = SkillStore([run / "skills"])
    for trigger in load_rules().bottlenecks:
        for win in range(3):
            note = {
                "name": trigger.replace("_", "-"), "description": "More worked demonstrations.", "domain": "math",
                "trigger": trigger, "factor": OPTION, "value": "0.8", "outcome": "win", "evidence": "+0.1",
                "expected_effect": "validation/mean +0.1", "body": "",
            }  # fmt: skip
            store.write(note, f"elsewhere/v{win}")


@pytest.fixture(scope="module")
def mixed(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose only candidate asks for another mix, and what it said."""
    runs_dir = tmp_path_factory.mktemp("runs")
    learned(runs_dir / "mixed")
    done = runner.run(*arguments(runs_dir, "mixed", LEAST, versions=1))
    assert done.returncode == 0, done.stderr
    return runs_dir / "mixed", done.stdout


def services(root: Path, policy: str = "") -> Deps:
    progress = Progress(io.StringIO())
    jobs = JobRunner(make_trainer("embedded", 1), Clock(root / "clock.json"), progress, 1)
    config = resolve(root / "config.toml", {}, {}, {}).config
    config = config.model_copy(update={"run": config.run.model_copy(update={"policy": policy})})
    run_id = read_record(root / "manifest.json", Manifest).run_id
    return make_deps(root, run_id, config, {}, jobs, progress, "none", HarnessSandbox(root, run_id, progress.say))


def start(run: Path, version: str) -> Path:
    path = run / "versions" / version / "seed-0" / "train" / "spec.json"
    return TrainSpec.model_validate_json(path.read_bytes()).base_policy


def test_a_version_of_another_mix_starts_from_a_warm_start_of_that_mix(mixed: tuple[Path, str]) -> None:
    run, said = mixed
    (entry,) = RunRecord(run).verdicts()
    assert (entry["factor"], entry["gate"] is not None) == (OPTION, True), entry
    own = run / FOLDER / "worked-0.8"
    assert (start(run, BASELINE), start(run, "v0001")) == (run / "base", own)
    manifests = [json.loads((folder / MANIFEST).read_text()) for folder in (run / "base", own)]
    assert [(m["worked"], m["settings"]) for m in manifests] == [(w, manifests[0]["settings"]) for w in (0.0, 0.8)]
    assert (own / "tokenizer.json").read_bytes() == (run / "base" / "tokenizer.json").read_bytes()
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run / "base", own))
    assert any((ours[name] != theirs[name]).any() for name in ours)
    assert "0.8 of demonstrations worked: a warm start of 40 steps first" in said
    metrics = next((run / "versions" / "v0001" / "seed-0" / "train").glob("metrics-*.jsonl"))
    first = json.loads(metrics.read_text().splitlines()[0])["data"]
    assert first["actor/kl_to_base"] == pytest.approx(0, abs=1e-3), "the KL is that to its own start"


def test_the_runs_base_stays_what_it_was(mixed: tuple[Path, str]) -> None:
    run, _ = mixed
    summary = json.loads((run / "summary.json").read_text())
    assert summary["warm_start"]["checkpoint"] == str(run / "base")
    assert calibration_of(RunRecord(run)) is None


def test_the_stored_noise_floor_is_that_of_the_runs_own_base(mixed: tuple[Path, str], runner: Runner) -> None:
    stores = [json.loads(path.read_text()) for path in (runner.home / "cache").rglob("calibration/*.json")]
    named = [s for s in stores if s["fingerprint"]["base_policy"] == "warm start of 40 steps"]
    assert named and all(floor["df"] == LEAST["trainer.seeds"] - 1 for s in named for floor in s["runs"].values())
    assert not [s for s in stores if "worked" in s["fingerprint"]["base_policy"]]


def test_the_backtest_says_that_a_replay_cannot_tell(mixed: tuple[Path, str]) -> None:
    report = RunRecord(mixed[0]).load("v0001", "backtest", BacktestReport)
    assert report.verdict == "pass" and "replay" in report.untold
    assert report.replay and "another warm start is another policy" in report.replay.note
    assert "cannot tell: replay" in mixed[1]


@pytest.mark.timeout(240)
def test_a_damaged_start_is_named_set_aside_and_made_again(
    mixed: tuple[Path, str], runner: Runner, tmp_path: Path
) -> None:
    run = copy_run(mixed[0], tmp_path / "run")
    assert check_run(run).sound
    assert not [d for d in droppable(run) if FOLDER in d.path.parts], "later versions start from it"
    weights = run / FOLDER / "worked-0.8" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + bytes(4))  # can be read, and is not what was written
    (problem,) = check_run(run).problems
    assert problem.file == "bases/worked-0.8/model.safetensors" and problem.mend == "remake"
    weights.write_bytes(whole[:100])
    partial = run / FOLDER / ".worked-0.8.999999999.partial"  # of a process that was killed
    partial.mkdir()
    assert {p.file for p in check_run(run).problems} == {"bases/worked-0.8", str(partial.relative_to(run))}
    assert runner.runs("check", str(run), "--repair").returncode == 0
    assert (run / "damaged" / FOLDER / "worked-0.8").is_dir() and leftovers(run) == []
    trained = run / "versions" / "v0001" / "seed-0" / "train" / CHECKPOINT / "model.safetensors"
    before = trained.read_bytes()
    trained.write_bytes(b"")  # a training that has to begin again, and with it its start
    assert runner.runs("check", str(run), "--repair").returncode == 0
    done = runner.run("--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert check_run(run).sound
    assert (weights.read_bytes(), trained.read_bytes()) == (whole, before)


def test_a_start_is_made_once_and_its_time_is_planned(mixed: tuple[Path, str], tmp_path: Path) -> None:
    deps = services(copy_run(mixed[0], tmp_path / "run"))
    start = start_of(deps, MIXED)
    made = start.stat().st_mtime_ns
    make_start(deps, MIXED)
    assert start.stat().st_mtime_ns == made
    assert (start_s(deps, MIXED), start_s(deps, Recipe()), too_late(deps, MIXED)) == (0, 0, "")
    shutil.rmtree(start)
    needed, now = start_s(deps, MIXED), plan(deps)
    assert needed == json.loads((deps.record.root / "base" / MANIFEST).read_text())["wall_s"] > 0
    assert too_late(deps, MIXED) == "", "an hour is enough"
    minutes = deps.config.run.minutes * 60
    # Time for a candidate as such, and half of what its warm start takes.
    late = dataclasses.replace(deps, elapsed=lambda: minutes - now.next_s - needed / 2)
    assert "its warm start takes about" in too_late(late, MIXED)
    assert too_late(late, Recipe()) == ""


def test_a_run_that_begins_with_another_mix_has_it_as_its_base(mixed: tuple[Path, str], tmp_path: Path) -> None:
    deps = services(copy_run(mixed[0], tmp_path / "run"))
    config = deps.config.model_copy(update={"recipe": MIXED})
    deps = dataclasses.replace(deps, config=config)
    assert start_of(deps, MIXED).name == "base"
    assert start_of(deps, Recipe()) == deps.record.root / FOLDER / "worked-0.0"
    assert mix(0.0) == "the domain's own mix of demonstrations"


def test_a_policy_of_the_users_own_gets_no_other_start(mixed: tuple[Path, str], runner: Runner, tmp_path: Path) -> None:
    policy = str(mixed[0] / "base")
    asked = [*arguments(tmp_path, "own", LEAST, versions=1), "--policy", policy, "--set", f"recipe.{OPTION}=0.8"]
    refused = runner.run(*asked)
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines()[-1] == (
        f"error: --set: recipe.{OPTION}: a policy of your own (--policy) gets no warm start; use 0 or drop --policy"
    )
    assert not (tmp_path / "own").exists()


def test_a_candidate_for_a_policy_of_the_users_own_is_refused(mixed: tuple[Path, str], tmp_path: Path) -> None:
    from agents.playbook import Playbook
    from graph.decide import backtest

    run = copy_run(mixed[0], tmp_path / "run")
    deps = services(run, policy=str(run / "base"))
    parent = deps.record.load(BASELINE, "version", Version)
    diagnosis = Playbook(load_rules()).diagnose(situation(finding("dead_groups")))
    deps.record.save("v0009", "diagnosis", diagnosis)
    deps.record.save("v0009", "intervention", Intervention.model_validate(IDEA))
    proposal = commit_candidate(deps, "v0009", parent, diagnosis, IDEA)
    assert not proposal.commit and "gets no warm start" in proposal.error
    report = backtest(deps, "v0009", BASELINE)
    assert report.verdict == "refuse"
    assert any(f"config_valid: recipe.toml: {OPTION}: a policy of your own" in reason for reason in report.reasons)
    assert fixed_factors(deps) and not fixed_factors(services(run))


def test_what_was_refused_for_lack_of_time_is_untried_where_there_is_more_of_it(
    mixed: tuple[Path, str], tmp_path: Path
) -> None:
    from agents.playbook import Playbook
    from graph.decide import backtest, curate
    from graph.situations import cases_of

    run = copy_run(mixed[0], tmp_path / "run")
    shutil.rmtree(run / FOLDER / "worked-0.8")
    deps = services(run)
    parent = deps.record.load(BASELINE, "version", Version)
    diagnosis = Playbook(load_rules()).diagnose(situation(finding("dead_groups")))
    deps.record.save("v0002", "diagnosis", diagnosis)
    deps.record.save("v0002", "intervention", Intervention.model_validate(IDEA))
    commit_candidate(deps, "v0002", parent, diagnosis, IDEA)
    minutes = deps.config.run.minutes
    late = dataclasses.replace(deps, elapsed=lambda: 60 * minutes - 0.01)
    assert backtest(late, "v0002", BASELINE).verdict == "refuse"
    curate(late, "v0002", "refused")
    (case,) = (c for c in cases_of(late, "v0003") if c.version == "v0002")
    assert (case.factor, case.verdict, case.minutes) == (OPTION, "refused", minutes)
    more = deps.config.model_copy(update={"run": deps.config.run.model_copy(update={"minutes": minutes + 1})})
    assert "v0002" not in {c.version for c in cases_of(dataclasses.replace(deps, config=more), "v0003")}
