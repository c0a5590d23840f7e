"""Who decides follows from the configuration; what does not go together is refused with its origin."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agents.given import GivenCandidates, Unscreened
from agents.null import NullCandidates
from agents.playbook import Playbook
from agents.types import Specialists
from graph.config import DesignerSection, RunConfig
from graph.specialists import specialists_of
from trainer.types import InputError

SHORT = 'reward.term.short={term={name="short", description="short", sql="-response_length"}, weight=2}'


def asked(section: DesignerSection, origins: Mapping[str, str] | None = None, **options: object) -> Specialists:
    return specialists_of(RunConfig(designer=section), {k.replace("__", "."): v for k, v in options.items()}, origins)


def test_a_weight_may_be_of_a_term_that_was_given_before() -> None:
    given = asked(DesignerSection(given=(SHORT, "reward.weights.short=1")))
    assert isinstance(given, GivenCandidates)
    assert [change.kind for change in given.changes] == ["term", "weight"]


def test_who_decides() -> None:
    assert isinstance(asked(DesignerSection()), Playbook)
    assert isinstance(asked(DesignerSection(candidates="null")), NullCandidates)
    assert isinstance(asked(DesignerSection(backtest=False)), Unscreened)
    given = asked(DesignerSection(given=("optim.lr=1e-4",), backtest=False))
    assert isinstance(given, GivenCandidates)
    assert not given.screen
    assert given.changes[0].kind == "option"


@pytest.mark.parametrize(
    ("section", "line"),
    [
        (DesignerSection(candidates="null", given=("optim.lr=1e-4",)), "--set: designer.given: .*drop one"),
        (
            DesignerSection(given=("optim.rate=1",)),
            "--set: designer.given: 'optim.rate=1': optim.rate is not a factor.*optim.lr=3e-4",
        ),
        (DesignerSection(given=("optim.lr=1e-4", "optim.lr=-1")), "designer.given: 'optim.lr=-1': .*greater than 0"),
        (DesignerSection(given=("reward.weights.none=1",)), "'reward.weights.none=1': .*no such reward term"),
        (DesignerSection(given=("reward.weights.format=nan",)), "'reward.weights.format=nan': .*finite"),
        (DesignerSection(given=("optim.lr=3e-4\nfoo=2",)), "number"),
        (DesignerSection(given=("rollout.n=4", "optim.lr=5e-4")), "'optim.lr=5e-4': .*changes nothing"),
        (DesignerSection(given=(SHORT.replace("term.short", "term.other"),)), "names another term"),
    ],
)
def test_what_does_not_go_together_is_refused(section: DesignerSection, line: str) -> None:
    origins = {"designer.given": "--set"}
    with pytest.raises(InputError, match=line):
        asked(section, origins)


def test_the_value_that_others_begin_with_is_a_candidate_where_the_run_begins_elsewhere_or_has_left_it() -> None:
    back = DesignerSection(given=("optim.lr=5e-4",))
    assert isinstance(asked(back, optim__lr=2e-3), GivenCandidates)
    assert isinstance(asked(DesignerSection(given=("optim.lr=1e-4", "optim.lr=5e-4"))), GivenCandidates)
