from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.diagnostician import diagnose, signature
from agents.rules import Rules, load_rules
from tests.agents.situations import COLLAPSED, HEALTHY, case_of, finding, lower_rate, situation
from trainer.types import Finding, Recipe

RULES = load_rules()
PATHOLOGIES = tuple(key for key in RULES.bottlenecks if key not in RULES.healthy)


@pytest.mark.parametrize("key", PATHOLOGIES)
def test_a_lone_alarm_is_its_own_bottleneck(key: str, rules: Rules) -> None:
    found = finding("reward/brevity" if key == "faulty_term" else key, "warn", 0.4)
    diagnosis = diagnose(situation(finding("ok_one", "ok"), found), rules)
    assert (diagnosis.bottleneck, diagnosis.severity) == (key, "warn")
    assert diagnosis.layer == rules.bottlenecks[key].layer
    assert diagnosis.findings == (found,)
    assert "unknown" not in diagnosis.hypothesis and "{" not in diagnosis.hypothesis
    assert any(value in diagnosis.hypothesis for value in ("0.4", "40%", "brevity"))


@pytest.mark.parametrize(
    ("cause", "symptom"), [(k, s) for k, b in RULES.bottlenecks.items() for s in b.explains]
)  # fmt: skip
def test_root_cause_comes_before_its_symptom_however_severe(cause: str, symptom: str, rules: Rules) -> None:
    diagnosis = diagnose(situation(finding(symptom, "critical"), finding(cause, "warn")), rules)
    assert diagnosis.bottleneck == cause
    assert any(text.startswith(f"{symptom}: ") and "explained by" in text for text in diagnosis.alternatives)
    assert {f.diagnostic for f in diagnosis.findings} == {cause, symptom}


def test_a_collapse_at_a_high_learning_rate_is_named_even_without_its_diagnostic(rules: Rules) -> None:
    for alarms in (
        [finding("dead_groups", "critical", 0.8)],
        [finding("dead_groups", "warn", 0.4), finding("low_diversity", "warn", 0.2)],
        [finding("entropy_collapse", "critical", -0.02), finding("template_collapse", "critical", 0.5)],
    ):
        diagnosis = diagnose(situation(*alarms, recipe=COLLAPSED, scores={"validation/mean": 0.1}), rules)
        assert (diagnosis.bottleneck, diagnosis.layer) == ("performance_collapse", "score")
        assert "2e-3" in diagnosis.hypothesis
        assert set(alarms) <= set(diagnosis.findings)
    assert diagnose(situation(finding("dead_groups", "critical", 0.8)), rules).bottleneck == "dead_groups"


def test_hacking_explains_the_collapse_it_causes(rules: Rules) -> None:
    found = (
        finding("performance_collapse"),
        finding("reward_hacking", "warn", 0.5, kind="validity"),
        finding("dead_groups"),
    )
    assert diagnose(situation(*found), rules).bottleneck == "reward_hacking"


def test_the_procedure_decides_between_equals(rules: Rules) -> None:
    found = (finding("truncation", "warn"), finding("dead_groups_all_pass", "warn"))
    assert diagnose(situation(*found), rules).bottleneck == "dead_groups_all_pass"
    behaviour_first = situation(*found, procedure=("behaviour", "signal"))
    diagnosis = diagnose(behaviour_first, rules)
    assert diagnosis.bottleneck == "truncation"
    assert diagnosis.alternatives == ("dead_groups_all_pass: warn, 0.6 against 0.3; ranks behind",)


def test_severity_goes_before_the_procedure(rules: Rules) -> None:
    found = (finding("truncation", "critical"), finding("dead_groups_all_pass", "warn"))
    assert diagnose(situation(*found), rules).bottleneck == "truncation"


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (HEALTHY, "headroom"),
        ({"validation/mean": 0.85, "validation/pass@8": 0.88}, "plateau"),
        ({"validation/mean": 0.85}, "headroom"),
        ({}, "headroom"),
    ],
)
def test_a_healthy_report_leads_to_headroom_or_plateau(scores: dict[str, float], expected: str, rules: Rules) -> None:
    found = (finding("dead_groups", "ok", 0.1), finding("broken", "info", None, error="no such column"))
    diagnosis = diagnose(situation(*found, scores=scores), rules)
    assert (diagnosis.bottleneck, diagnosis.severity, diagnosis.layer) == (expected, "ok", "score")
    assert diagnosis.findings == found
    assert diagnosis.signature == f"math|{expected}|"


def test_an_unknown_diagnostic_speaks_for_itself(rules: Rules) -> None:
    found = finding("tool_streak", "warn", 7.0, layer="behaviour", line=5.0, description="Longest streak of one tool.")
    diagnosis = diagnose(situation(found), rules)
    assert (diagnosis.bottleneck, diagnosis.layer) == ("tool_streak", "behaviour")
    assert "Longest streak of one tool: tool_streak reads 7 against the line 5" in diagnosis.hypothesis


def test_a_diagnostic_that_failed_raises_no_alarm(rules: Rules) -> None:
    found = finding("dead_groups", "critical", None, error="query failed")
    assert diagnose(situation(found), rules).bottleneck == "headroom"


def test_earlier_cases_are_weighed_in_the_alternatives(rules: Rules) -> None:
    found = (finding("reward_hacking"), finding("truncation", "warn"))
    before = diagnose(situation(finding("truncation", "warn")), rules)
    diagnosis = diagnose(situation(*found, cases=[case_of(before, lower_rate())]), rules)
    assert any(t.startswith("truncation: ") and "tried 1 times before" in t for t in diagnosis.alternatives)


severities = st.sampled_from(["ok", "info", "warn", "critical"])
reports = st.lists(
    st.builds(finding, st.sampled_from([*PATHOLOGIES, "made_up"]), severities, st.floats(0, 1)),
    unique_by=lambda f: f.diagnostic,
    max_size=8,
)


@settings(deadline=None)
@given(reports, st.randoms(use_true_random=False), st.sampled_from([3e-4, 2e-3]))
def test_the_order_of_findings_does_not_matter(found: list[Finding], random: object, lr: float) -> None:
    recipe = Recipe.model_validate({"optim": {"lr": lr}})
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, two = (diagnose(situation(*fs, recipe=recipe), RULES) for fs in (found, shuffled))
    drop = {"findings"}
    assert one.model_dump(exclude=drop) == two.model_dump(exclude=drop)
    assert set(one.findings) == set(two.findings)
    alarmed = {f.diagnostic for f in found if f.severity in ("warn", "critical")}
    assert (one.bottleneck in RULES.healthy) == (not alarmed)


def test_signature_is_stable_and_short() -> None:
    found = (finding("b", "warn"), finding("a", "critical"), finding("c", "ok"), finding("d", "info", None, error="x"))
    assert signature("math", "a", found) == signature("math", "a", found[::-1]) == "math|a|a:critical,b:warn"
