from __future__ import annotations

import pytest

from agents.curator import curate, skill_name
from agents.rules import Rules
from agents.types import CurateInput, SkillRef
from skills_db.types import check_name
from tests.agents.situations import COLLAPSED, finding, lower_rate, situation, to_design

CI = (0.05, 0.15)


def finished(
    rules: Rules, verdict: str = "promoted", ci: tuple[float, float] | None = CI, **fields: object
) -> CurateInput:
    design = to_design(situation(finding("performance_collapse"), recipe=COLLAPSED), rules)
    given = {
        "domain": "math",
        "diagnosis": design.diagnosis,
        "intervention": lower_rate(),
        "verdict": verdict,
        "delta": 0.1 if ci is None or ci[0] > 0 else -0.1,
        "ci": ci,
        "seeds": 3,
        "realised": 0.1,
        **fields,
    }
    return CurateInput.model_validate(given)


@pytest.mark.parametrize(
    ("verdict", "ci", "outcome"),
    [
        ("promoted", CI, "win"),
        ("rejected", (-0.15, -0.05), "loss"),
        ("rejected", (-0.15, 0.05), None),
        ("rejected", (-0.15, 0.04), "loss"),  # the predicted 0.05 is refuted
        ("rejected", None, None),
        ("invalid", CI, "loss"),
        ("provisional", CI, None),
        ("undecided", CI, None),
        ("unconfirmed", CI, None),
        ("no_information", None, None),
        ("refused", None, None),
        ("failed", None, None),
    ],
)
def test_a_case_always_and_a_skill_when_it_teaches(
    verdict: str, ci: tuple[float, float] | None, outcome: str | None, rules: Rules
) -> None:
    inp = finished(rules, verdict, ci)
    output = curate(inp, rules)
    case = output.case
    assert (case.verdict, case.factor, case.value) == (verdict, "optim.lr", "0.0003")
    assert (case.signature, case.bottleneck, case.delta) == (inp.diagnosis.signature, "performance_collapse", inp.delta)
    assert (output.skill.outcome if output.skill else None) == outcome
    assert output.note.startswith("case only" if outcome is None else "new skill performance-collapse-optim-lr")


def test_a_skill_says_when_what_and_what_was_measured(rules: Rules) -> None:
    skill = curate(finished(rules), rules).skill
    assert skill is not None and skill.merge_into is None
    assert (skill.domain, skill.trigger, skill.factor, skill.value) == (
        "math",
        "performance_collapse",
        "optim.lr",
        "0.0003",
    )
    assert skill.expected_effect == "validation/mean +0.100 [+0.050, +0.150] over 3 seeds"
    assert skill.preconditions == ("optim.lr > 0.0006",)
    assert "predicted +0.05, realised +0.1" in skill.evidence and "optim.lr = 3e-4" in skill.evidence
    for section in ("Trigger", "Intervention", "Preconditions", "Expected effect", "Validation"):
        assert f"## {section}\n" in skill.body
    assert skill.description.startswith("When the bottleneck is performance_collapse in math")


def test_it_merges_into_the_skill_on_the_same_factor_own_domain_first(rules: Rules) -> None:
    def known(name: str, **fields: object) -> SkillRef:
        given = {"name": name, "description": name, "domains": ("math",), "body": f"body of {name}", "value": "0.0001"}
        same = {"trigger": "performance_collapse", "factor": "optim.lr"}
        return SkillRef.model_validate(given | same | fields)

    others = (
        known("a-other", trigger="headroom"),
        known("b-other", factor="rollout.n"),
        known("c-far", domains=("code",)),
    )
    output = curate(finished(rules, skills=(*others, known("z-own"))), rules)
    assert output.skill and (output.skill.merge_into, output.skill.body) == ("z-own", "body of z-own")
    assert output.skill.value == "0.0003"
    assert output.note.startswith("merged into z-own")
    far = curate(finished(rules, skills=others), rules).skill
    assert far and far.merge_into == "c-far"
    fresh = curate(finished(rules, skills=others[:2]), rules).skill
    assert fresh and fresh.merge_into is None


def test_unmeasured_numbers_are_called_so(rules: Rules) -> None:
    case = curate(finished(rules, "failed", None, delta=None, realised=None), rules).case
    assert case.reason == "failed, not measured; validation/mean predicted +0.05, realised not measured"


@pytest.mark.parametrize("trigger", ["performance_collapse", "Größe!", "x" * 200, "a__b"])
@pytest.mark.parametrize("factor", ["optim.lr", "reward.term.over_long", "y" * 70])
def test_skill_names_fit_the_format(trigger: str, factor: str) -> None:
    assert check_name(skill_name(trigger, factor))
