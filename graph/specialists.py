"""Who decides in a run, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainer.types import Change, InputError

if TYPE_CHECKING:
    from agents.types import Specialists
    from graph.config import DesignerSection

SAVED = "config.toml"
"""Where a value came from in a run that goes on."""


def specialists_of(designer: DesignerSection, origins: Mapping[str, str] | None = None) -> Specialists:
    """The playbook, or who stands in for its designer. Raises InputError, with the value's origin, for options that
    do not go together and for given candidates that are none."""
    from agents.given import GivenCandidates
    from agents.null import NullCandidates
    from agents.playbook import Playbook, load_rules

    def refuse(option: str, why: str) -> InputError:
        return InputError(f"{(origins or {}).get(option, SAVED)}: {option}: {why}")

    playbook = Playbook(load_rules())
    if designer.candidates == "null":
        if designer.given:
            raise refuse("designer.given", "designer.candidates = null makes candidates already; drop one of the two")
        return NullCandidates(playbook)
    if designer.given:
        try:
            return GivenCandidates(playbook, changes(designer.given), screen=designer.backtest)
        except ValueError as err:
            raise refuse("designer.given", f"{err}; give factor=value, for instance optim.lr=3e-4") from err
    if not designer.backtest:
        raise refuse("designer.backtest", "only given candidates may go unscreened; name them in designer.given")
    return playbook


def changes(given: Sequence[str]) -> Sequence[Change]:
    """Raises ValueError with a short reason."""
    from agents.given import parse_given

    return [parse_given(text) for text in given]
