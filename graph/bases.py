"""The policies that trainings start from: the run's base, and warm starts on another mix that a version's recipe asks for.

The base belongs to the recipe the run began with. A version whose recipe mixes the demonstrations otherwise starts from a
warm start of its own, made once per mix, as long as the base's and of the same seed, initialisation and vocabulary.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from graph.record import RunRecord, read_record, write_atomic
from graph.seals import digest, note, seal
from graph.state import Deps
from trainer.types import InputError, Recipe, Record

FOLDER = "bases"
"""Where the warm starts of other mixes lie, one folder each."""


class BasePolicy(Record):
    """Where the untrained policy lies and whether we made it."""

    path: Path
    warm_start: bool


def base_of(record: RunRecord) -> BasePolicy:
    return read_record(record.root / "base.json", BasePolicy)


def make_base(deps: Deps) -> None:
    """Warm-start the default policy (from the cache if an equal one was made before) or take the user's."""
    root, config = deps.record.root, deps.config
    target = root / "base.json"
    if target.exists():
        return
    if config.run.policy:
        base = BasePolicy(path=Path(config.run.policy).resolve(), warm_start=False)
        deps.say("prepare", f"policy {base.path}")
    else:
        own = root / "base"
        shutil.rmtree(own, ignore_errors=True)
        # A copy: a cleared cache must not take a run's base policy away.
        shutil.copytree(_warm_start(deps, config.recipe.warm_start.worked), own)
        base = BasePolicy(path=own, warm_start=True)
    write_atomic(target, base.model_dump_json(indent=1))
    seal(root, [target, root / "base"])


def start_of(deps: Deps, recipe: Recipe) -> Path:
    """The policy that a version of this recipe starts from; ``make_start`` makes it."""
    worked = recipe.warm_start.worked
    if worked == deps.config.recipe.warm_start.worked:
        return base_of(deps.record).path
    return deps.record.root / FOLDER / f"worked-{worked}"


def make_start(deps: Deps, recipe: Recipe) -> None:
    """Warm-start the policy that a version of this recipe starts from, where that is not done."""
    own = start_of(deps, recipe)
    if own.parent.name != FOLDER or own.is_dir():
        return
    worked = recipe.warm_start.worked
    deps.say("train", f"{mix(worked)}: a warm start of {deps.config.warm_start.steps} steps first")
    cached = _warm_start(deps, worked)
    partial = own.with_name(f".{own.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(cached, partial)
    # Noted before it is there: a kill in between leaves a line without its file, never a policy that nobody vouches for.
    note(deps.record.root, {own / file.name: digest(file) for file in sorted(partial.iterdir())})
    partial.replace(own)


def start_s(deps: Deps, recipe: Recipe) -> float:
    """Seconds that ``make_start`` would take, by what the base took; 0 where nothing is to be made."""
    from trainer.embedded.warmjob import wall_s

    own = start_of(deps, recipe)
    return 0.0 if own.parent.name != FOLDER or own.is_dir() else wall_s(base_of(deps.record).path)


def admit(deps: Deps, recipe: Recipe) -> None:
    """Raises InputError where the run cannot give the recipe its start."""
    if deps.config.run.policy:
        require_no_warm_start(recipe, "recipe.toml: ")


def fixed_factors(deps: Deps) -> Mapping[str, str]:
    """What no candidate of this run can change, and why."""
    return {"warm_start.worked": "a policy of your own gets no warm start"} if deps.config.run.policy else {}


def require_no_warm_start(recipe: Recipe, where: str) -> None:
    """Raises InputError for a recipe that asks for a warm start; the line begins with ``where``."""
    if recipe.warm_start.worked:
        raise InputError(
            f"{where}warm_start.worked: a policy of your own (--policy) gets no warm start; use 0 or drop --policy"
        )


def mix(worked: float) -> str:
    """A mix of demonstrations in words."""
    return f"{worked:.4g} of demonstrations worked" if worked else "the domain's own mix of demonstrations"


def _warm_start(deps: Deps, worked: float) -> Path:
    from trainer.embedded.warmstart import SftSettings

    config = deps.config
    settings = SftSettings(steps=config.warm_start.steps)
    return deps.jobs.warm_start(config.run.domain, config.run.seed, settings, worked, deps.record.root)
