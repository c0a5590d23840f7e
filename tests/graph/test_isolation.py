"""The sandbox of a run is chosen once; one for the harness's Python parts comes with the first of them."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agents.types import Intervention
from graph import decide, isolation
from graph.bases import BasePolicy
from graph.clock import Clock
from graph.config import RunConfig, resolve
from graph.drive import make_deps
from graph.harnessing import Proposal, commit_candidate
from graph.isolation import FILE, HarnessSandbox, Isolated, choose, of_run
from graph.progress import Progress
from graph.services import JobRunner, make_trainer
from graph.state import Deps
from graph.versions import Version, eval_file, proxy_scores, train_spec
from sandboxes.types import SandboxUnavailable
from tests.agents.situations import finding, lower_rate, situation
from tests.backends import backend_or_skip
from tests.trainer.rollout_tables import healthy
from tests.trainer.rollout_tables import table as table_of
from trainer.types import (
    REWARD_COLUMNS,
    Diagnostic,
    HarnessEdit,
    InputError,
    PutDiagnostic,
    PutTerm,
    RewardRecipe,
    RewardTerm,
)

PYTHON_TERM = RewardTerm(
    name="digits", description="d", python="def reward(rows):\n    return [float(row['outcome']) for row in rows]\n"
)
PYTHON_DIAGNOSTIC = Diagnostic(
    name="mine", layer="signal", description="d", python="def metric(rollouts):\n    return 1.0\n", warn=1, critical=2
)


@pytest.fixture
def backend() -> str:
    return backend_or_skip().name


def opened(root: Path, wanted: str, said: list[str] | None = None) -> HarnessSandbox:
    of_run(root, "math", wanted)
    return HarnessSandbox(root, "run-1", lambda _, line: (said if said is not None else []).append(line))


def services(root: Path, parts: HarnessSandbox) -> Deps:
    progress = Progress(io.StringIO())
    jobs = JobRunner(make_trainer("embedded", 1), Clock(root / "clock.json"), progress, 1)
    return make_deps(root, "run-1", RunConfig(), {}, jobs, progress, "none", parts)


def test_image_and_runtime_are_options_of_the_run_that_its_jobs_see(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"EVOTRAINER_SANDBOX_IMAGE": "mine:1", "EVOTRAINER_DOCKER_RUNTIME": "runsc"}
    run = resolve(None, environment, {}, {}).config.run
    assert (run.sandbox_image, run.docker_runtime) == ("mine:1", "runsc")
    for name in environment:
        monkeypatch.setenv(name, "of another run")
    isolation.settle(run)
    assert {name: os.environ[name] for name in environment} == environment
    isolation.settle(RunConfig().run)
    assert not environment.keys() & os.environ.keys()


def test_a_domain_that_executes_nothing_gets_no_sandbox_before_there_is_python(tmp_path: Path, backend: str) -> None:
    said: list[str] = []
    parts = opened(tmp_path, "auto", said)
    parts.admit(())
    assert (parts.backend, parts.executor, said) == ("none", None, [])
    assert json.loads((tmp_path / FILE).read_text())["parts"] == ""
    parts.admit(("reward/digits.toml",))
    assert parts.backend == backend and parts.executor is not None
    assert len(said) == 1 and said[0].startswith("reward/digits.toml is Python; sandbox ") and backend in said[0]
    recorded = (tmp_path / FILE).read_text()
    assert Isolated.model_validate_json(recorded).backend == "none"  # the domain still executes nothing
    again = opened(tmp_path, "auto", said)
    again.admit(("reward/digits.toml",))
    assert (again.backend, (tmp_path / FILE).read_text(), len(said)) == (backend, recorded, 1)


def test_whoever_wants_none_gets_none_and_python_is_refused(tmp_path: Path) -> None:
    parts = opened(tmp_path, "none")
    before = (tmp_path / FILE).read_text()
    for _ in range(2):
        with pytest.raises(InputError, match=r"^reward/x\.toml: python: runs in a sandbox only.*--sandbox auto"):
            parts.admit(("reward/x.toml", "diagnostics/y.toml"))
    assert (tmp_path / FILE).read_text() == before
    with pytest.raises(InputError, match=r"^diagnostics/y\.toml: python: .*--sandbox auto"):
        choose("math", "none", ("diagnostics/y.toml",))


def test_where_none_works_python_is_refused_and_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise SandboxUnavailable("bubblewrap: bwrap is missing: apt-get install bubblewrap")

    parts = opened(tmp_path, "auto")
    monkeypatch.setattr(isolation, "open_backend", broken)
    with pytest.raises(InputError, match=r"^reward/x\.toml: python: .*bwrap is missing") as caught:
        parts.admit(("reward/x.toml",))
    assert "\n" not in str(caught.value)
    assert json.loads((tmp_path / FILE).read_text())["parts"] == ""
    with pytest.raises(InputError, match="bwrap is missing"):
        choose("math", "auto", ("reward/x.toml",))


def test_a_recorded_sandbox_that_no_longer_works_is_not_replaced(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path, "auto").admit(("reward/x.toml",))

    def broken(name: str) -> None:
        raise SandboxUnavailable(f"{name}: is gone")

    monkeypatch.setattr(isolation, "open_backend", broken)
    with pytest.raises(
        InputError, match=rf"isolation\.json: this run is isolated by {backend}, which does not work now"
    ):
        of_run(tmp_path, "math", "auto")


def test_a_named_sandbox_serves_python_too(tmp_path: Path, backend: str) -> None:
    assert opened(tmp_path, backend).backend == backend


def propose(deps: Deps, idea: Intervention) -> Proposal:
    from agents.playbook import Playbook, load_rules

    diagnosis = Playbook(load_rules()).diagnose(situation(finding("dead_groups")))
    parent = Version(id="v0000", parent="base", harness_commit=deps.harness.head())
    for version, name, record in (("v0000", "version", parent), ("v0001", "intervention", idea)):
        deps.record.save(version, name, record)
    deps.record.save("v0001", "diagnosis", diagnosis)
    return commit_candidate(deps, "v0001", parent, diagnosis, idea)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (PutTerm(term=PYTHON_TERM, weight=0.1), "reward/digits.toml"),
        (PutDiagnostic(diagnostic=PYTHON_DIAGNOSTIC), "diagnostics/mine.toml"),
    ],
)
def test_the_backtest_refuses_python_that_nothing_can_run(
    tmp_path: Path, change: PutTerm | PutDiagnostic, path: str
) -> None:
    deps = services(tmp_path, opened(tmp_path, "none"))
    proposal = propose(deps, lower_rate().model_copy(update={"edit": HarnessEdit(change=change)}))
    assert (proposal.commit, proposal.error.startswith(f"{path}: python: runs in a sandbox only")) == ("", True)
    report = decide.backtest(deps, "v0001", "v0000")
    assert report.verdict == "refuse" and any(r.startswith(f"config_valid: {path}: python:") for r in report.reasons)


def test_the_proxy_scores_python_on_the_rows_of_training(tmp_path: Path, backend: str) -> None:
    """Columns of an evaluation that training does not have would be another term's input."""
    parts = opened(tmp_path, backend)
    deps = services(tmp_path, parts)
    table = table_of(healthy()).slice(0, 64)
    table = table.append_column("sample", pa.array([i % 8 for i in range(64)]))
    file = eval_file(deps.record, "v0000", 0, "validation").with_suffix(".parquet")
    file.parent.mkdir(parents=True)
    pq.write_table(table, file)
    allowed = sorted([*REWARD_COLUMNS, "format_ok", "repeats"])
    source = f"def reward(rows):\n    return [row['outcome'] if sorted(row) == {allowed!r} else -1 for row in rows]\n"
    harness = deps.harness.load(deps.harness.head())
    term = PYTHON_TERM.model_copy(update={"python": source})
    recipe = harness.recipe.model_copy(update={"reward": RewardRecipe(weights={"digits": 1.0})})
    harness = harness.model_copy(update={"terms": {**harness.terms, "digits": term}, "recipe": recipe})
    assert proxy_scores(deps, "v0000", 1, harness) == (sum(table["outcome"].to_pylist()) / 64,)
    faulty = PYTHON_TERM.model_copy(update={"python": "def reward(rows):\n    return 1 / 0\n"})
    broken = harness.model_copy(update={"terms": {**harness.terms, "digits": faulty}})
    assert proxy_scores(deps, "v0000", 1, broken) == (0.0,)
    parts.close()


def test_a_run_whose_harness_holds_python_starts_only_with_a_sandbox(tmp_path: Path, backend: str) -> None:
    deps = services(tmp_path, opened(tmp_path, "auto"))
    idea = lower_rate().model_copy(update={"edit": HarnessEdit(change=PutTerm(term=PYTHON_TERM, weight=0.1))})
    proposal = propose(deps, idea)
    assert proposal.commit and deps.parts.backend == backend
    (tmp_path / "base.json").write_text(BasePolicy(path=tmp_path, warm_start=False).model_dump_json())
    version = deps.record.load("v0001", "version", Version)
    # What ran without the sandbox is not another experiment for its sake.
    assert train_spec(deps, version, deps.harness.load(deps.harness.head()), 0).sandbox == "none"
    assert train_spec(deps, version, deps.harness.load(proposal.commit), 0).sandbox == backend
    deps.harness.promote("v0001", proposal.commit, "promote: v0001 digits", "Gate passed.", {}, {})
    assert services(tmp_path, opened(tmp_path, "auto")).harness.load(deps.harness.head()).python_parts
    (tmp_path / FILE).unlink()
    with pytest.raises(InputError, match=r"^reward/digits\.toml: python: runs in a sandbox only"):
        services(tmp_path, opened(tmp_path, "none"))
