"""Situations for the tests of the specialists, written as short as they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agents.diagnostician import diagnose
from agents.edits import value_text
from agents.rules import Rules
from agents.types import (
    Case,
    DesignInput,
    DiagnoseInput,
    Diagnosis,
    Dropped,
    Intervention,
    Prediction,
    SkillRef,
)
from trainer.types import Finding, HarnessEdit, HealthReport, Layer, OptimRecipe, Recipe, SetOption, Severity

PROCEDURE: tuple[Layer, ...] = ("score", "signal", "behaviour", "version")
TERMS = ("outcome", "brevity", "format", "overlong", "partial")
HEALTHY: Mapping[str, float] = {"validation/mean": 0.6, "validation/pass@8": 0.88}
COLLAPSED = Recipe(optim=OptimRecipe(lr=2e-3))


def finding(diagnostic: str, severity: Severity = "critical", value: float | None = 0.6, **fields: object) -> Finding:
    given = {"kind": "pathology", "layer": "signal", "line": 0.3, "description": f"share of {diagnostic}", **fields}
    return Finding.model_validate({"diagnostic": diagnostic, "severity": severity, "value": value, **given})


def situation(
    *findings: Finding,
    recipe: Recipe = Recipe(),  # noqa: B008  # frozen
    scores: Mapping[str, float] = HEALTHY,
    procedure: tuple[Layer, ...] = PROCEDURE,
    cases: Sequence[Case] = (),
) -> DiagnoseInput:
    report = HealthReport(version="v0", findings=findings, scores=scores)
    return DiagnoseInput(domain="math", report=report, recipe=recipe, procedure=procedure, cases=tuple(cases))


def to_design(
    inp: DiagnoseInput, rules: Rules, skills: Sequence[SkillRef] = (), refused: Sequence[Dropped] = ()
) -> DesignInput:
    return DesignInput(
        domain=inp.domain,
        diagnosis=diagnose(inp, rules),
        recipe=inp.recipe,
        terms=TERMS,
        cases=inp.cases,
        skills=tuple(skills),
        refused=tuple(refused),
    )


def case_of(diagnosis: Diagnosis, idea: Intervention, verdict: str = "rejected", **fields: object) -> Case:
    return Case.model_validate(
        {
            "signature": diagnosis.signature,
            "domain": "math",
            "bottleneck": diagnosis.bottleneck,
            "factor": idea.edit.factor,
            "value": value_text(idea.edit.change),
            "verdict": verdict,
            **fields,
        }
    )


def lower_rate(value: float = 3e-4) -> Intervention:
    return Intervention(
        title="lower the learning rate to 3e-4",
        edit=HarnessEdit(change=SetOption(path="optim.lr", value=value)),
        rationale="smaller steps",
        hypothesis="the steps are too large",
        prediction=Prediction(metric="validation/mean", direction="up", min_effect=0.05),
        success="validation/mean rises",
        rollback="set optim.lr back to 2e-3",
        rule="cut-lr",
    )
