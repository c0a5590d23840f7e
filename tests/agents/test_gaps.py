"""Each kind of gap is seen where it is, and only there."""

from __future__ import annotations

from agents.diagnostician import diagnose
from agents.gaps import FAILING, IN_VAIN, UNCOVERED, gaps
from agents.rules import load_rules
from agents.types import GapInput, Judged
from tests.agents.situations import finding, situation
from trainer.types import Finding, HealthReport


def asked(*findings: Finding, versions: tuple[Judged, ...] = (), **values: object) -> GapInput:
    report = HealthReport(version="v0002", findings=findings, scores={"validation/mean": 0.5})
    return GapInput.model_validate({"report": report, "versions": versions, **values})


def test_a_version_that_only_the_gate_scorer_caught_is_a_gap_of_the_score() -> None:
    sound, unseen = Judged(version="v0000", state="sound"), Judged(version="v0001", state="invalid")
    (gap,) = gaps(asked(versions=(sound, unseen)))
    assert (gap.kind, gap.key) == ("score_insufficient", "score_insufficient:v0001")
    assert "v0001" in gap.why and "gate scorer did not follow" in gap.why
    named = unseen.model_copy(update={"named": ("reward_hacking",)})
    assert gaps(asked(versions=(sound, named))) == ()
    assert gaps(asked(versions=(sound, Judged(version="v0001", state="open")))) == ()


def test_failures_without_a_finding_are_a_gap_of_behaviour() -> None:
    (gap,) = gaps(asked(failing=FAILING, uncovered=UNCOVERED))
    assert gap.kind == "behaviour_unexplained" and gap.key.endswith("v0002")
    assert gaps(asked(failing=FAILING / 2, uncovered=1.0)) == gaps(asked(failing=1.0, uncovered=UNCOVERED / 2)) == ()


def test_findings_that_call_for_opposite_cures_are_a_gap_of_the_signal() -> None:
    both = finding("dead_groups_all_fail", "warn", 0.3), finding("dead_groups_all_pass", "warn", 0.3)
    (gap,) = gaps(asked(*both))
    assert gap.kind == "signal_ambiguous" and "easier and harder" in gap.why
    assert gaps(asked(both[0], finding("dead_groups_all_pass", "info", 0.1))) == ()


def test_what_an_upgrade_was_tried_for_stays_closed_and_reward_comes_first() -> None:
    inp = asked(versions=(Judged(version="v0001", state="invalid"),), failing=0.5, uncovered=1.0)
    assert [g.kind for g in gaps(inp)] == ["score_insufficient", "behaviour_unexplained"]
    closed = inp.model_copy(update={"closed": ("score_insufficient:v0001",)})
    assert [g.kind for g in gaps(closed)] == ["behaviour_unexplained"]
    later = closed.model_copy(update={"versions": (*inp.versions, Judged(version="v0003", state="invalid"))})
    assert gaps(later)[0].key == "score_insufficient:v0001,v0003", "there is more evidence now"


def test_a_tie_that_only_the_procedure_broke_is_a_gap_once_work_on_it_was_in_vain() -> None:
    both = finding("dead_groups_all_pass", "warn", 0.3), finding("truncation", "warn", 0.3, layer="behaviour")
    tied = diagnose(situation(*both), load_rules())
    assert tied.ties == ("truncation",)
    (gap,) = gaps(asked(*both, diagnosis=tied, in_vain=IN_VAIN))
    assert (gap.kind, gap.key) == ("signal_ambiguous", "signal_ambiguous:v0002:dead_groups_all_pass:truncation")
    assert gaps(asked(*both, diagnosis=tied, in_vain=IN_VAIN - 1)) == ()
    worse = finding("dead_groups_all_pass", "critical", 0.9)
    clear = diagnose(situation(worse, both[1]), load_rules())
    assert clear.ties == () and gaps(asked(worse, both[1], diagnosis=clear, in_vain=9)) == ()
