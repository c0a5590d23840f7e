"""A skill's trial: a short training before the full one, while all that speaks for it happened in other runs.

The trial gets TOKENS of the token budget, on the first seeds, and is held against the same stretch of the parent's training. It
can only stop a candidate: where it does clear harm, the skill gets a loss and the run goes on to something else. Where solved
shares of the two trainings would differ by design, and where there is no time for it, there is none.
"""

from __future__ import annotations

import math
import shutil

from agents.types import Intervention
from graph.bases import make_start
from graph.harnessing import Proposal
from graph.planning import plan
from graph.record import RunRecord
from graph.situations import source_of
from graph.state import Deps
from graph.versions import Version, add_costs, train_spec
from trainer.evolve.labels import Connection, Source, open_version
from trainer.sql import select
from trainer.types import Cost, Recipe, Record

TOKENS = 0.25
Z = 2.576
"""Half-width of the 99 % interval, in standard errors over groups; a trial that is in doubt stops nothing."""
TRIAL = "trial"
BY_DESIGN = ("data.", "rollout.temperature")
"""Factors that change which tasks are sampled, or how: what is solved in training then says nothing of the policy."""


class Trial(Record):
    """What a skill's trial measured: solved shares over the second half of the trial's tokens, candidate and parent, and the
    upper end of the interval of their difference."""

    skill: str
    seeds: int
    solved: float
    parent: float
    high: float
    cost: Cost = Cost()

    @property
    def harmful(self) -> bool:
        return self.high < 0

    @property
    def line(self) -> str:
        """What is said of it."""
        return (
            f"trial of skill {self.skill} on {TOKENS:.0%} of the tokens: {100 * self.solved:.1f} % solved where the parent "
            f"solved {100 * self.parent:.1f} % (difference at most {100 * self.high:+.1f} pp)"
        )


def skill_on_trial(deps: Deps, idea: Intervention) -> str:
    """The skill that an intervention rests on if it has not helped in this run yet and a trial can tell; empty otherwise."""
    name = idea.rule.removeprefix("skill:")
    if name == idea.rule or idea.edit.factor.startswith(BY_DESIGN) or not deps.config.designer.backtest:
        return ""
    known = deps.skills.get(name)
    own = known and any(e.outcome == "win" and e.key.startswith(f"{deps.run_id}/") for e in known.evidence)
    return "" if own else name


def tried(deps: Deps, candidate: str, tip: str, idea: Intervention, proposal: Proposal) -> Trial | None:
    """The trial of the skill that the candidate rests on, run where it is due; None where none is, and where it cannot tell."""
    folder = deps.record.version_dir(candidate) / TRIAL
    if found := trial_of(deps.record, candidate):
        shutil.rmtree(folder, ignore_errors=True)
        return found
    name, parent = skill_on_trial(deps, idea), source_of(deps, tip, bad=False, why="")
    if not name or parent is None:
        return None
    harness, now = deps.harness.load(proposal.commit), plan(deps)
    if _scheduled(harness.recipe) or TOKENS * now.candidate_s + now.next_s > now.left_s:
        return None
    deps.say(
        "trial",
        f"{candidate}: skill {name} has not helped in this run yet, so it gets {TOKENS:.0%} of the tokens first",
    )
    make_start(deps, harness.recipe)
    version = Version(id=candidate, parent=tip, harness_commit=proposal.commit)
    budget = max(1, int(TOKENS * deps.config.trainer.token_budget))
    specs = [
        train_spec(deps, version, harness, seed).model_copy(
            update={"token_budget": budget, "out_dir": folder / f"seed-{seed}"}
        )
        for seed in range(min(deps.config.gate.first_seeds, len(parent.rollouts)))
    ]
    results = deps.jobs.train(specs)
    folders = tuple(r.rollouts_dir for r in results if r.rollouts_dir and any(r.rollouts_dir.glob("*.parquet")))
    if len(folders) < len(specs):
        return None
    own = Source(version=candidate, rollouts=folders, bad=False, why="")
    trial = compared(name, own, parent.model_copy(update={"rollouts": parent.rollouts[: len(specs)]}), budget)
    trial = trial.model_copy(update={"cost": add_costs([r.cost for r in results])})
    deps.record.save(candidate, TRIAL, trial)
    shutil.rmtree(
        folder
    )  # its figures are kept; policies and rollouts of a quarter of a training are nobody's evidence
    return trial


def _scheduled(recipe: Recipe) -> bool:
    """Whether sampling follows a schedule over the tokens: a quarter of them is then not the first quarter of a training."""
    return recipe.data.hints.enable or recipe.rollout.temperature_end not in (0.0, recipe.rollout.temperature)


def compared(skill: str, own: Source, parent: Source, budget: int) -> Trial:
    """Solved shares of both over the second half of the first ``budget`` tokens of each seed. Groups are the units."""
    found = []
    for source in (own, parent):
        with open_version(source) as con:
            found.append(_solved(con, budget))
    (a, va), (b, vb) = found
    return Trial(skill=skill, seeds=len(own.rollouts), solved=a, parent=b, high=a - b + Z * math.sqrt(va + vb))


def _solved(con: Connection, budget: int) -> tuple[float, float]:
    """Mean and its variance; the mean's largest possible variance where there is a single group."""
    query = f"""
        WITH t AS (SELECT seed, step, sum(sum(response_length)) OVER (PARTITION BY seed ORDER BY step) AS spent
                   FROM rollouts GROUP BY seed, step),
            g AS (SELECT avg(outcome) AS solved FROM rollouts JOIN t USING (seed, step)
                  WHERE spent > {budget} / 2 AND spent <= {budget} * 1.05 GROUP BY seed, step, group_id)
        SELECT coalesce(avg(solved), 0) AS solved, coalesce(var_samp(solved) / count(*), 0.25) AS error FROM g"""
    (row,) = select(con, query).to_pylist()
    return float(row["solved"]), float(row["error"])


def trial_of(record: RunRecord, candidate: str) -> Trial | None:
    """The trial that a candidate had, if any."""
    return record.load(candidate, TRIAL, Trial) if record.saved(candidate, TRIAL) else None
