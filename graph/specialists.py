"""Who decides in a run, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer.types import Change, HarnessEdit, InputError

if TYPE_CHECKING:
    from agents.types import Specialists
    from graph.config import RunConfig

SAVED = "config.toml"
"""Where a value came from in a run that goes on."""


def specialists_of(
    config: RunConfig, options: Mapping[str, Any], origins: Mapping[str, str] | None = None
) -> Specialists:
    """The playbook, or who stands in for its designer; ``options`` are those of the recipe that the user chose. Raises
    InputError, with the value's origin, for options that do not go together and for given candidates that are none."""
    from agents.given import GivenCandidates
    from agents.null import NullCandidates
    from agents.playbook import Playbook, load_rules

    def refuse(option: str, why: str) -> InputError:
        return InputError(f"{(origins or {}).get(option, SAVED)}: {option}: {why}")

    designer, playbook = config.designer, Playbook(load_rules())
    if designer.candidates == "null":
        if designer.given:
            raise refuse("designer.given", "designer.candidates = null makes candidates already; drop one of the two")
        return NullCandidates(playbook)
    if designer.given:
        try:
            return GivenCandidates(
                playbook, changes(designer.given, options, config.run.domain), screen=designer.backtest
            )
        except ValueError as err:
            raise refuse("designer.given", f"{err}; give factor=value, for instance optim.lr=3e-4") from err
    if not designer.backtest:
        raise refuse("designer.backtest", "only given candidates may go unscreened; name them in designer.given")
    return playbook


def changes(given: Sequence[str], options: Mapping[str, Any], domain: str) -> Sequence[Change]:
    """Raises ValueError, with the candidate, for what the harness that the run begins with does not take, or would not be
    changed by. One that repeats a factor is meant for after those before it."""
    from agents.given import parse_given
    from trainer.harness_files import apply_edit, parse_harness, set_options
    from trainer.seed_harness import load_seed_files

    found: list[HarnessEdit] = []
    seed = load_seed_files(domain)
    begin = set_options(seed, options)
    for text in given:
        try:
            edit = HarnessEdit(change=parse_given(text))
            files: Mapping[str, str] = begin
            for step in (*(e for e in found if e.change.kind == "term" or e.factor == edit.factor), edit):
                files = apply_edit(files, step)
            parse_harness(files, "")
        except (ValueError, InputError) as err:
            raise ValueError(f"{text!r}: {err}") from err
        found.append(edit)
    return [edit.change for edit in found]
