"""From an intervention to a commit, and from a verdict to the harness's history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agents.types import Diagnosis, Intervention
from graph.bases import admit
from graph.state import Deps
from graph.versions import Version
from trainer.commits import slug_of, subject_prefix
from trainer.harness_files import apply_edit, parse_harness
from trainer.types import HealthReport, InputError, Record, ReplayReport

if TYPE_CHECKING:
    from trainer.gate import GateReport


class Proposal(Record):
    """A candidate's commit, or why its edit could not be applied (one line)."""

    commit: str = ""
    slug: str = ""
    error: str = ""


def commit_candidate(deps: Deps, candidate: str, parent: Version, diagnosis: Diagnosis, idea: Intervention) -> Proposal:
    """Commit the edit on ``cand/<slug>`` and note it in the version's folder; done once."""
    slug = slug_of(candidate, idea.title)
    p = idea.prediction
    effect = f"{p.metric} {p.direction} by at least {p.min_effect:g}"
    body = f"Diagnosis: {diagnosis.hypothesis}\n\nHypothesis: {idea.hypothesis}\n\nExpected effect: {effect}. Rollback: {idea.rollback}"
    trailers = {
        "Version": candidate,
        "Parent-Version": parent.id,
        "Factor": idea.edit.factor,
        "Agent": "designer",
        "Model": deps.specialists.name,
        "Evidence": f"versions/{parent.id}/health.json",
        "Skill": ", ".join(idea.skills) or "none",
        "Expected-Effect": effect,
        "Run-Id": deps.run_id,
    }
    try:
        # A Python part that nothing can run, or a start that nobody can make, is refused before it is a commit.
        edited = parse_harness(apply_edit(deps.harness.files(parent.harness_commit), idea.edit), "")
        deps.parts.admit(edited.python_parts)
        admit(deps, edited.recipe)
        commit = deps.harness.propose(
            version=candidate,
            parent=parent.harness_commit,
            edit=idea.edit,
            slug=slug,
            subject=f"{subject_prefix(idea.edit)}: {idea.title}",
            body=body,
            trailers=trailers,
            author="designer",
        )
        proposal = Proposal(commit=commit, slug=slug)
    except InputError as err:
        proposal = Proposal(slug=slug, error=str(err))
    deps.record.save(candidate, "proposal", proposal)
    version = Version(
        id=candidate, parent=parent.id, harness_commit=proposal.commit, factor=idea.edit.factor, title=idea.title
    )
    deps.record.save(candidate, "version", version)
    return proposal


def replay_candidate(deps: Deps, champion: str, parent: Version, proposal: Proposal) -> ReplayReport:
    """Matched replay of the candidate harness on the champion's stored rollouts and evaluated gate episodes."""
    from graph.versions import eval_file, results_of
    from trainer.replay import replay

    results = results_of(deps, champion).results
    gate = (eval_file(deps.record, champion, seed, "gate").with_suffix(".parquet") for seed in range(len(results)))
    return replay(
        [r.rollouts_dir for r in results if r.rollouts_dir],
        deps.harness.load(parent.harness_commit),
        deps.harness.load(proposal.commit),
        executor=deps.parts.executor,
        episodes=[file for file in gate if file.exists()],
        scores=deps.record.load(champion, "health", HealthReport).scores,
    )


def promote(deps: Deps, candidate: str, title: str, gate: GateReport, metrics: Mapping[str, object]) -> str:
    """Merge the candidate, with the steps it builds on, into main; the subject carries the claim and its interval."""
    version = deps.record.load(candidate, "version", Version)
    interval = f"CI {100 * (gate.ci_low or 0):+.1f}..{100 * (gate.ci_high or 0):+.1f}"
    subject = f"promote: {candidate} {title} ({100 * (gate.delta or 0):+.1f} pp, {interval})"
    trailers = {"Version": candidate, "Verdict": gate.verdict, "Score": f"{gate.delta:+.4f}", "Approved-By": "gate"}
    return deps.harness.promote(
        version=candidate,
        commit=version.harness_commit,
        subject=subject,
        body="; ".join(gate.reasons),
        trailers=trailers,
        metrics=metrics,
    )


def advance(deps: Deps, candidate: str, message: str, metrics: Mapping[str, object]) -> None:
    """Take the candidate as a provisional step: the search goes on from it, main stays."""
    commit = deps.record.load(candidate, "version", Version).harness_commit
    deps.harness.advance(version=candidate, commit=commit, metrics=metrics, message_text=message)


def retire(deps: Deps, candidate: str, verdict: str, message: str, metrics: Mapping[str, object]) -> None:
    """Keep what was not promoted reachable under ``refs/<verdict>/``."""
    version = deps.record.load(candidate, "version", Version)
    if version.harness_commit:
        deps.harness.retire(
            version=candidate, commit=version.harness_commit, verdict=verdict, metrics=metrics, message_text=message
        )
