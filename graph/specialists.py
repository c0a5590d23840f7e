"""Who decides in a run, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainer.types import Change, HarnessEdit, InputError

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
    """Raises ValueError, with the candidate, for what no harness takes; a harness of terms of its own may still refuse one."""
    from agents.given import parse_given
    from trainer.harness_files import apply_edit, parse_harness
    from trainer.seed_harness import load_seed_files

    found: list[Change] = []
    seed = load_seed_files()
    for text in given:
        try:
            change = parse_given(text)
            terms = [other for other in found if other.kind == "term"]  # a weight may be that of a term given before
            files: Mapping[str, str] = seed
            for step in (*terms, change):
                files = apply_edit(files, HarnessEdit(change=step))
            parse_harness(files, "")
        except (ValueError, InputError) as err:
            raise ValueError(f"{text!r}: {err}") from err
        found.append(change)
    return found
