"""Who decides in a run, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graph.config import seed_files
from trainer.types import Change, HarnessEdit, InputError

if TYPE_CHECKING:
    from agents.types import Specialists
    from graph.config import RunConfig

SAVED = "config.toml"
"""Where a value came from in a run that goes on."""


def specialists_of(
    config: RunConfig,
    options: Mapping[str, Any],
    origins: Mapping[str, str] | None = None,
    begin: Mapping[str, str] | None = None,
) -> Specialists:
    """The playbook, or who stands in for its designer; ``options`` are those of the recipe that the user chose, ``begin``
    the files that the harness began with (those of the configuration, where not given). Raises
    InputError, with the value's origin, for options that do not go together and for given candidates that are none."""
    from agents.given import GivenCandidates, Unscreened
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
            found = changes(designer.given, options, begin or seed_files(config))
            return GivenCandidates(playbook, changes=found, screen=designer.backtest)
        except ValueError as err:
            raise refuse("designer.given", f"{err}; give factor=value, for instance optim.lr=3e-4") from err
    return playbook if designer.backtest else Unscreened(playbook)


def changes(given: Sequence[str], options: Mapping[str, Any], seed: Mapping[str, str]) -> Sequence[Change]:
    """``seed`` are the files that the harness began with, before ``options``. Raises ValueError, with the candidate, for what
    that harness does not take, or would not be changed by. One that repeats a factor is meant for after those before it."""
    from agents.given import parse_given
    from trainer.harness_files import apply_edit, parse_harness, set_options

    found: list[HarnessEdit] = []
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
