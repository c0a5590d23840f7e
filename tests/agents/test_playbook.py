"""The four roles together, as the graph calls them."""

from __future__ import annotations

from agents.checklist import open_questions
from agents.playbook import Playbook
from agents.types import BacktestInput, CurateInput, Specialists
from tests.agents.situations import COLLAPSED, finding, situation, to_design


def test_from_a_collapse_to_a_skill() -> None:
    specialists: Specialists = Playbook()
    inp = situation(finding("performance_collapse", "critical", 0.3), recipe=COLLAPSED)
    diagnosis = specialists.diagnose(inp)
    design = to_design(inp, Playbook().rules)
    assert design.diagnosis == diagnosis
    idea = specialists.design(design)
    assert idea is not None
    report = specialists.backtest(
        BacktestInput(
            domain="math",
            intervention=idea,
            signature=diagnosis.signature,
            actual_factors=(idea.edit.factor,),
            paths=("recipe.toml",),
            config_error="",
            replay=None,
        )
    )
    assert open_questions(diagnosis, idea, report) == ()
    output = specialists.curate(
        CurateInput(
            domain="math",
            diagnosis=diagnosis,
            intervention=idea,
            verdict="promoted",
            delta=0.3,
            ci=(0.2, 0.4),
            seeds=3,
            realised=0.3,
        )
    )
    assert output.skill and output.case.signature == diagnosis.signature
