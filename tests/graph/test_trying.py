"""A skill of other runs is tried on a part of the tokens; what does clear harm is stopped there and loses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agents.curator import curate
from agents.diagnostician import diagnose
from agents.rules import load_rules
from agents.types import CurateInput, SkillRef
from graph.integrity.check import check_run
from graph.record import RunRecord
from graph.trying import TRIAL, compared, skill_on_trial, trial_of
from skills_db.store import SkillStore
from tests.agents.situations import finding, lower_rate, situation
from tests.graph.test_bases import services
from tests.runs import LEAST, Runner, arguments
from tests.trainer.rollout_tables import Columns, write
from trainer.evolve.labels import Source
from trainer.types import HarnessEdit, SetOption

VALUE = "0.0003"


def learned(run: Path) -> None:
    """Skills under which the first candidate, whatever the diagnosis, sets the learning rate."""
    store = SkillStore([run / "skills"])
    for trigger in load_rules().bottlenecks:
        for win in range(3):
            note = {
                "name": trigger.replace("_", "-"), "description": "A lower rate.", "domain": "math",
                "trigger": trigger, "factor": "optim.lr", "value": VALUE, "outcome": "win", "evidence": "+0.1",
                "expected_effect": "validation/mean +0.1", "body": "",
            }  # fmt: skip
            store.write(note, f"elsewhere/v{win}")


@pytest.mark.timeout(120)
def test_a_skill_of_another_run_is_tried_first(tmp_path: Path, runner: Runner) -> None:
    learned(tmp_path / "run")
    done = runner.run(*arguments(tmp_path, "run", LEAST, versions=1))
    assert done.returncode == 0, done.stderr
    record = RunRecord(tmp_path / "run")
    trial = trial_of(record, "v0001")
    assert trial is not None and trial.seeds == 2 and not trial.harmful
    (entry,) = record.verdicts()
    assert entry["factor"] == "optim.lr" and entry["gate"] is not None, "it was trained in full"
    assert f"v0001: skill {trial.skill} has not helped in this run yet" in done.stdout + done.stderr
    assert not (record.version_dir("v0001") / TRIAL).exists() and trial.cost.tokens > 0
    assert f"trial v0001, skill {trial.skill}" in (tmp_path / "run" / "report.html").read_text()
    assert check_run(tmp_path / "run").sound


def failing(c: Columns) -> None:
    c["outcome"] = (np.arange(len(c["step"])) % 8 < 1).astype(float)


@pytest.mark.parametrize("harmful", [True, False])
def test_harm_is_what_lies_clearly_below_the_parent_on_the_same_tokens(harmful: bool, tmp_path: Path) -> None:
    own = write(tmp_path / "own", failing if harmful else None)
    sources = [
        Source(version=n, rollouts=(f,), bad=False, why="")
        for n, f in (("own", own), ("parent", write(tmp_path / "parent")))
    ]
    trial = compared("rate", sources[0], sources[1], 40_000)
    assert trial.harmful is harmful
    # healthy: four to six of eight rollouts solve; failing: one of eight.
    assert trial.solved == pytest.approx(0.125 if harmful else trial.parent)
    assert 0.5 <= trial.parent <= 0.75


def test_what_did_harm_in_its_trial_is_a_loss_of_the_skill() -> None:
    diagnosis = diagnose(situation(finding("performance_collapse")), load_rules())
    inp = CurateInput(
        domain="math", diagnosis=diagnosis, intervention=lower_rate(), verdict="refused", delta=None, ci=None, seeds=0,
        realised=None, harmed="trial: 12 % solved where the parent solved 60 %",
    )  # fmt: skip
    output = curate(inp, load_rules())
    assert output.skill is not None and output.skill.outcome == "loss"
    assert "12 % solved" in output.skill.evidence and "12 % solved" in output.case.reason
    assert curate(inp.model_copy(update={"harmed": ""}), load_rules()).skill is None


def test_the_skill_that_was_used_gets_the_evidence_whatever_the_bottleneck_was() -> None:
    diagnosis = diagnose(situation(finding("performance_collapse")), load_rules())
    used = SkillRef(
        name="rate-at-a-plateau", description="d", domains=("math",), trigger="plateau", factor="optim.lr", value=VALUE
    )
    inp = CurateInput(
        domain="math", diagnosis=diagnosis, intervention=lower_rate().model_copy(update={"rule": "skill:rate-at-a-plateau"}),
        verdict="promoted", delta=0.1, ci=(0.05, 0.15), seeds=4, realised=0.1, skills=(used,),
    )  # fmt: skip
    draft = curate(inp, load_rules()).skill
    assert draft is not None
    assert (draft.merge_into, draft.trigger, draft.outcome) == ("rate-at-a-plateau", "plateau", "win")


@pytest.mark.parametrize(
    ("factor", "value", "backtest", "tried"),
    [("optim.lr", 1e-3, True, True), ("optim.lr", 1e-3, False, False), ("data.levels", (1, 2), True, False)],
)
def test_what_is_tried(factor: str, value: object, backtest: bool, tried: bool, broken: Callable[[], Path]) -> None:
    deps = services(broken())
    designer = deps.config.designer.model_copy(update={"backtest": backtest})
    deps = replace(deps, config=deps.config.model_copy(update={"designer": designer}))
    change = SetOption.model_validate({"path": factor, "value": value})
    idea = lower_rate().model_copy(update={"rule": "skill:some", "edit": HarnessEdit(change=change)})
    assert bool(skill_on_trial(deps, idea)) is tried
    assert skill_on_trial(deps, idea.model_copy(update={"rule": "cut-lr"})) == ""
