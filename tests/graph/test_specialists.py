"""Who decides follows from the configuration; what does not go together is refused with its origin."""

from __future__ import annotations

import pytest

from agents.given import GivenCandidates
from agents.null import NullCandidates
from agents.playbook import Playbook
from graph.config import DesignerSection
from graph.specialists import specialists_of
from trainer.types import InputError


def test_who_decides() -> None:
    assert isinstance(specialists_of(DesignerSection()), Playbook)
    assert isinstance(specialists_of(DesignerSection(candidates="null")), NullCandidates)
    given = specialists_of(DesignerSection(given=("optim.lr=1e-4",), backtest=False))
    assert isinstance(given, GivenCandidates)
    assert not given.screen
    assert given.changes[0].kind == "option"


@pytest.mark.parametrize(
    ("section", "line"),
    [
        (DesignerSection(candidates="null", given=("optim.lr=1e-4",)), "--set: designer.given: .*drop one"),
        (DesignerSection(backtest=False), "--set: designer.backtest: .*designer.given"),
        (DesignerSection(given=("optim.rate=1",)), "--set: designer.given: optim.rate is not a factor.*optim.lr=3e-4"),
    ],
)
def test_what_does_not_go_together_is_refused(section: DesignerSection, line: str) -> None:
    origins = {"designer.given": "--set", "designer.backtest": "--set"}
    with pytest.raises(InputError, match=line):
        specialists_of(section, origins)
