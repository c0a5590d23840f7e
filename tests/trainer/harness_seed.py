"""A small seed harness and edits of it, for the tests of the harness repository."""

from __future__ import annotations

from pathlib import Path

from trainer.harness import HarnessRepo
from trainer.harness_files import dump_diagnostic, dump_recipe, dump_term
from trainer.types import Diagnostic, HarnessEdit, PutDiagnostic, PutTerm, Recipe, RewardTerm, SetOption

OUTCOME = RewardTerm(name="outcome", description="The verifier's outcome.", sql="outcome")
BREVITY = RewardTerm(name="brevity", description="Shorter is better.", sql="-response_length / max_response_length")
TRUNCATION = Diagnostic(
    name="truncation",
    layer="behaviour",
    description="Share of truncated rollouts.",
    metric="SELECT avg(truncated::INT) FROM rollouts",
    warn=0.15,
    critical=0.3,
)
SEED = {
    "recipe.toml": dump_recipe(Recipe()),
    "procedure.toml": 'order = ["score", "signal", "behaviour", "version"]\n',
    "reward/outcome.toml": dump_term(OUTCOME),
    "reward/brevity.toml": dump_term(BREVITY),
    "diagnostics/truncation.toml": dump_diagnostic(TRUNCATION),
}

LOWER_LR = HarnessEdit(change=SetOption(path="optim.lr", value=1e-4))
CLIP_HIGHER = HarnessEdit(change=SetOption(path="actor.clip_ratio_high", value=0.28))
FORMAT_TERM = HarnessEdit(
    change=PutTerm(term=RewardTerm(name="format", description="Format.", sql="format_ok"), weight=0.1)
)
DIAGNOSTIC = HarnessEdit(change=PutDiagnostic(diagnostic=TRUNCATION.model_copy(update={"name": "endless"})))


def new_repo(run: Path) -> HarnessRepo:
    return HarnessRepo.create(run / "harness", SEED, {}, "run-1")


def propose(repo: HarnessRepo, edit: HarnessEdit = LOWER_LR, version: str = "v0001", parent: str = "") -> str:
    return repo.propose(
        version=version,
        parent=parent or repo.head(),
        edit=edit,
        slug=f"{version[1:]}-a-change",
        subject="tune(optim): lower the learning rate",
        body="Diagnosis: the update is too large.",
        trailers={"Agent": "designer", "Parent-Version": "v0000"},
        author="designer",
    )


def promote(repo: HarnessRepo, commit: str, version: str = "v0001") -> str:
    subject = f"promote: {version} lower learning rate (+6.1 pp, CI 3.2..9.0)"
    return repo.promote(version, commit, subject, "Gate passed.", {"Verdict": "promoted"}, {"delta": 0.061})
