"""The outer loop in a run: what is registered, who reads it, what it may block, and when it is retired."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.types import Gap
from graph import gating, upgrading
from graph.decide import diagnose, upgrade
from graph.integrity.check import check_run
from graph.record import RunRecord
from graph.registry import UPGRADE, Upgrade, registered
from graph.reordering import in_vain
from graph.seen import seen_rows
from graph.situations import seen
from graph.state import Deps
from graph.versions import BASELINE, health_of
from tests.agents.situations import finding
from tests.graph.test_bases import services
from tests.runs import Runner
from tests.trainer.gate_arms import BETTER, judged
from trainer.evolve.types import Retrospect
from trainer.gate_types import GateReport
from trainer.types import Diagnostic, DropDiagnostic, HarnessEdit

GAP = Gap(kind="score_insufficient", key="score_insufficient:v0001", why="the reward rose")
LOUD = Diagnostic(
    name="evolved_loud", kind="validity", layer="behaviour", description="Share of late rollouts with words >= 0.",
    metric="SELECT 0.9", warn=0.5, critical=0.8, evidence="SELECT rollout_id FROM late ORDER BY rollout_id LIMIT 5",
)  # fmt: skip
FOUND = Retrospect(rule="words >= 0", held_out=0.9, low=0.8, high=1.0, labels=("v0000: good (verdict)",))


def git(deps: Deps, *args: str) -> str:
    done = subprocess.run(["git", "-C", deps.harness.path, *args], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def with_upgrade(run: Path, version: str, diagnostic: Diagnostic = LOUD) -> Deps:
    deps = services(run)
    found = Upgrade(gap=GAP, diagnostic=diagnostic, retrospect=FOUND, harness_commit=deps.harness.head())
    deps.record.save(version, UPGRADE, found)
    return deps


def test_what_nothing_explains_is_searched_and_git_or_the_search_trace_says_what_came_of_it(
    broken: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.gaps.UNCOVERED", 0.0)
    monkeypatch.setattr("agents.gaps.FAILING", 0.0)
    deps = services(broken())
    assert deps.record.saved("v0001", UPGRADE), "the run itself asked"
    found = upgrade(deps, "v0004", BASELINE)
    assert found.gap is not None and found.gap.kind == "behaviour_unexplained" and found.retrospect is not None
    assert found.retrospect.labels[0] == "v0000: bad (outcome of each rollout)"
    assert found.gap.why in found.line
    story = git(deps, "log", "--first-parent", "--format=%s", "main")
    trace = [e for e in deps.record.entries("search") if e["key"] == f"v0004.{UPGRADE}"]
    if found.diagnostic:
        assert f"register: {found.diagnostic.name}" in story and not trace
    else:
        assert "register:" not in story and trace[0]["reason"] == found.line
    assert upgrade(deps, "v0004", BASELINE) == found
    assert upgrade(deps, "v0005", BASELINE).gap is None, "on the same evidence it is not asked again"


def test_registering_is_done_once_and_reads_the_tip_from_the_next_diagnosis_on(broken: Callable[[], Path]) -> None:
    deps = with_upgrade(broken(), "v0002")
    before = deps.harness.head()
    for _ in range(2):  # as after a kill
        upgrade(deps, "v0002", BASELINE)
    new = git(deps, "log", "--format=%s", f"{before}..main").splitlines()
    assert sorted(new) == ["diag: register evolved_loud", "register: evolved_loud (words >= 0)"]
    assert deps.harness.load(deps.harness.head()).diagnostics["evolved_loud"] == LOUD
    assert "evolved_loud" not in registered(deps.record, "v0001"), "what came before knows nothing of it"
    diagnosis = diagnose(deps, "v0003", BASELINE)
    read = {f.diagnostic: f for f in diagnosis.findings} | {a.partition(":")[0]: None for a in diagnosis.alternatives}
    assert "evolved_loud" in read
    assert check_run(deps.record.root).problems == ()


@pytest.mark.parametrize(("kind", "verdict"), [("validity", "invalid"), ("pathology", "provisional")])
def test_only_a_validity_check_blocks_and_only_a_gain(broken: Callable[[], Path], kind: str, verdict: str) -> None:
    run = broken()
    deps = with_upgrade(run, "v0001", LOUD.model_copy(update={"kind": kind}))
    health_of(deps, "v0001", BASELINE)
    gain = judged(BETTER).model_copy(update={"verdict": "provisional", "status": "final"})
    report = gating.blocked(deps.record, "v0001", gain)
    assert report.verdict == verdict
    assert report.reasons[0].startswith("blocked by evolved_loud, which reads 0.90 against 0.80") == (
        kind == "validity"
    )
    for other in ("rejected", "undecided", "invalid"):
        spared = gain.model_copy(update={"verdict": other})
        assert gating.blocked(deps.record, "v0001", spared) == spared, "it never promotes, and blocks nothing else"


def test_a_check_registered_after_a_version_was_designed_does_not_block_it(broken: Callable[[], Path]) -> None:
    deps = with_upgrade(broken(), "v0002")
    health_of(deps, "v0001", BASELINE)
    gain = judged(BETTER).model_copy(update={"verdict": "promoted"})
    assert gating.blocked(deps.record, "v0001", gain) == gain


def test_a_check_that_blocks_what_the_gate_scorer_confirms_is_retired_with_a_commit(
    broken: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = broken()
    deps = with_upgrade(run, "v0001")
    upgrade(deps, "v0001", BASELINE)
    health_of(deps, "v0001", BASELINE)
    confirmed = judged(BETTER)
    assert confirmed.validity.state == "clean" and (confirmed.validity.gate_delta or 0) > 0
    gain = confirmed.model_copy(update={"verdict": "provisional", "status": "final"})
    blocked = gating.blocked(deps.record, "v0001", gain)
    assert (blocked.blocked_by, blocked.unblocked) == ("evolved_loud", "provisional")
    gate = blocked.model_dump(mode="json")
    blocks = [{"version": "v0001", "gate": gate, "verdict": "invalid"}] * 2
    monkeypatch.setattr(RunRecord, "verdicts", lambda self: blocks)
    assert upgrading.false_blocks(deps.record, "v0003") == {"evolved_loud": 2}
    upgrade(deps, "v0003", BASELINE)
    assert deps.record.load("v0003", UPGRADE, Upgrade).retired == ("evolved_loud",)
    assert "evolved_loud" not in registered(deps.record, "v0003")
    assert "evolved_loud" not in deps.harness.load(deps.harness.head()).diagnostics
    assert "retire: evolved_loud" in git(deps, "log", "--first-parent", "-1", "--format=%s", "main")
    upgrade(deps, "v0003", BASELINE)
    assert git(deps, "log", "--format=%s", "main").count("retire: evolved_loud") == 1


def test_a_run_that_does_not_evolve_looks_for_nothing(broken: Callable[[], Path]) -> None:
    deps = services(broken())
    off = deps.config.model_copy(update={"designer": deps.config.designer.model_copy(update={"evolve": False})})
    found = upgrade(replace(deps, config=off), "v0005", BASELINE)
    assert (found.gap, found.line) == (None, "")


def test_a_diagnostic_can_be_dropped_and_nothing_else_with_it(broken: Callable[[], Path]) -> None:
    deps = services(broken())
    head = deps.harness.head()
    edit = HarnessEdit(change=DropDiagnostic(name="truncation"))
    args: Any = ("v0007", head, edit, "0007-drop", "diag: drop truncation", "", {}, "diagnostician")
    commit = deps.harness.propose(*args)
    assert deps.harness.propose(*args) == commit
    assert set(deps.harness.files(head)) - set(deps.harness.files(commit)) == {"diagnostics/truncation.toml"}
    assert deps.harness.diff(head, commit).factors == (edit.factor,) == ("diagnostics.truncation",)


def test_what_a_metric_blocked_is_no_label_for_the_next_one(broken: Callable[[], Path]) -> None:
    deps = with_upgrade(broken(), "v0001")
    health_of(deps, "v0001", BASELINE)
    gain = judged(BETTER).model_copy(update={"verdict": "provisional", "status": "final"})
    deps.record.save("v0001", "gate", gating.blocked(deps.record, "v0001", gain))
    assert deps.record.load("v0001", "gate", GateReport).verdict == "invalid"
    assert upgrading.judged(deps.record, "v0001").state == "sound"
    (row,) = seen_rows(deps.record)
    assert (row.name, row.blocked, row.first_wrong, row.first_right) == ("evolved_loud", ("v0001",), "v0001", "")


def test_a_version_that_was_designed_already_gets_no_more_diagnostics(
    broken: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.gaps.UNCOVERED", 0.0)
    monkeypatch.setattr("agents.gaps.FAILING", 0.0)
    run = broken()
    (run / "versions" / "v0001" / f"{UPGRADE}.json").unlink()
    assert upgrading.decided(services(run), "v0001", BASELINE) == Upgrade()


def test_a_lost_upgrade_is_restored_from_its_decision(broken: Callable[[], Path], runner: Runner) -> None:
    run = broken()
    path = run / "versions" / "v0001" / f"{UPGRADE}.json"
    was = path.read_text()
    for spoil in (path.unlink, lambda: path.write_text("{")):
        spoil()
        (problem,) = check_run(run).problems
        assert problem.file == f"versions/v0001/{UPGRADE}.json" and problem.mend == "restore"
        assert runner.runs("check", str(run), "--repair").returncode == 0
        assert path.read_text() == was


def test_a_retired_diagnostic_steers_nothing(broken: Callable[[], Path]) -> None:
    deps = with_upgrade(broken(), "v0001")
    report = health_of(deps, "v0001", BASELINE)
    assert "evolved_loud" in {f.diagnostic for f in seen(deps, report, "v0002").findings}
    deps.record.save("v0003", UPGRADE, Upgrade(retired=("evolved_loud",), harness_commit=deps.harness.head()))
    assert "evolved_loud" not in {f.diagnostic for f in seen(deps, report, "v0003").findings}
    upgrade(deps, "v0003", BASELINE)  # it is not in this harness: nothing to drop, and no reason to stop


def test_metrics_that_point_to_the_same_are_folded_into_one_and_dropped(
    broken: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.gaps.FAILING", 2.0)
    where, run = "outcome < 1 AND left(md5(rollout_id), 1) < '8'", broken()
    for version, name in (("v0002", "evolved_one"), ("v0003", "evolved_two")):
        found = LOUD.model_copy(
            update={
                "name": name, "kind": "pathology", "metric": f"SELECT avg(({where})::INT) FROM late /* {name} */",
                "evidence": f"SELECT rollout_id FROM late WHERE {where} ORDER BY rollout_id LIMIT 5",
            }
        )  # fmt: skip
        deps = with_upgrade(run, version, found)
        upgrade(deps, version, BASELINE)
    before = deps.harness.head()
    done = [upgrade(deps, "v0004", BASELINE) for _ in range(2)]  # as after a kill
    assert done[0] == done[1] and done[0].folded == ("evolved_one", "evolved_two") and done[0].diagnostic is not None
    name = done[0].diagnostic.name
    now = deps.harness.load(deps.harness.head()).diagnostics
    assert name in now and not {"evolved_one", "evolved_two"} & set(now)
    subjects = git(deps, "log", "--first-parent", "--reverse", "--format=%s", f"{before}..main").splitlines()
    assert subjects == [f"register: {name} (evolved_one or evolved_two)", "fold: evolved_one", "fold: evolved_two"]
    assert {n for n in registered(deps.record, "v0005") if n.startswith("evolved_")} >= {name}
    assert not {"evolved_one", "evolved_two"} & set(registered(deps.record, "v0005"))
    assert "both point to 100% of what either points to" in done[0].line
    assert upgrade(deps, "v0005", BASELINE).gap is None
    assert check_run(run).sound


def test_an_order_that_was_worked_through_in_vain_is_changed_on_a_branch_and_says_what_it_changed(
    broken: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.gaps.FAILING", 2.0)
    monkeypatch.setattr("agents.gaps.IN_VAIN", 1)  # the run has trained one candidate
    monkeypatch.setattr("agents.procedure.BETTER", 1)
    deps = services(broken())
    signal, behaviour = finding("dead_groups_all_pass", "warn"), finding("truncation", "warn", layer="behaviour")
    rewrite(
        deps.record.root / "versions" / BASELINE / "health.json", findings=[signal.model_dump(), behaviour.model_dump()]
    )
    trained = [e["version"] for e in deps.record.verdicts() if e["gate"]]
    kept = [dict(e, verdict="rejected") for e in deps.record.entries("cases") if e["version"] in trained]
    (deps.record.root / "record" / "cases.jsonl").write_text("".join(json.dumps(e) + "\n" for e in kept))
    for version in trained:
        rewrite(deps.record.root / "versions" / version / "intervention.json", bottleneck=signal.diagnostic)
        rewrite(deps.record.root / "versions" / version / "version.json", parent=BASELINE)
    deps = services(deps.record.root)
    first = diagnose(deps, "v0007", BASELINE)
    assert (first.bottleneck, first.ties, first.otherwise) == ("dead_groups_all_pass", ("truncation",), "")
    assert len(kept) > len(trained), "a certificate is a second word on the same version"
    assert in_vain(deps, "v0007", signal.diagnostic) == len(trained)
    done = [upgrade(deps, "v0007", BASELINE) for _ in range(2)]  # as after a kill
    found = done[0].procedure
    assert done[0] == done[1] and found is not None and found.reasons == ()
    assert found.order == ("score", "behaviour", "signal", "version") and found.elsewhere == tuple(trained)
    assert deps.harness.load(deps.harness.head()).procedure == found.order
    assert (
        git(deps, "log", "--first-parent", "-1", "--format=%s", "main") == "reorder: score, behaviour, signal, version"
    )
    assert "the order of diagnosis is now score, behaviour, signal, version" in done[0].line
    later = diagnose(deps, "v0008", BASELINE)
    assert (later.bottleneck, later.otherwise) == ("truncation", "dead_groups_all_pass")
    row = seen_rows(deps.record)[-1]
    assert (row.kind, row.rule, row.named) == ("procedure", "score, behaviour, signal, version", ("v0008",))
    again = upgrade(deps, "v0008", BASELINE)
    assert again.procedure is None, "the same tie is not weighed twice"


def rewrite(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
