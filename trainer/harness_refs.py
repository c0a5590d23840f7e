"""Questions to the refs of a harness repository: what was proposed, what was promoted, what may be."""

from __future__ import annotations

from trainer.gitio import Git, merged_tree
from trainer.types import InputError

MAIN = "refs/heads/main"
SEARCH = "refs/heads/search"
"""The tip of the steps that were taken on weak evidence: a line of candidates that leaves main where it was certified last."""
BRANCHES = ("refs/heads/cand/", "refs/heads/diag/")


def proposal(git: Git, edit_id: str) -> str:
    """The commit with this trailer ``Edit-Id``, on whatever ref, or empty."""
    found = git(
        "log", "--all", "--no-merges", "--fixed-strings", f"--grep=Edit-Id: {edit_id}",
        "--format=%H %(trailers:key=Edit-Id,valueonly,separator=%x2C)",
    )  # fmt: skip
    # The search also finds a body that quotes the trailer.
    return next((line.split()[0] for line in found.splitlines() if line.split()[1:] == [edit_id]), "")


def pointing(git: Git, commit: str, *prefixes: str) -> str:
    """The first ref under ``prefixes`` that is this commit, or empty."""
    refs = git("for-each-ref", f"--points-at={commit}", "--format=%(refname)", *prefixes)
    return refs.partition("\n")[0]


def branch_of(git: Git, commit: str) -> str:
    """The branch of an open candidate, or empty."""
    return pointing(git, commit, *BRANCHES)


def merge_of(git: Git, commit: str) -> str:
    """The merge on main that promoted this commit, or empty."""
    merges = git("log", "--first-parent", "--merges", "--format=%H %P", MAIN).splitlines()
    return next((merge.split()[0] for merge in merges if merge.split()[2:] == [commit]), "")


def tree_to_promote(git: Git, main: str, commit: str) -> str:
    """The tree of the merge of ``commit`` into ``main``. InputError where both changed recipe or
    reward since they parted: that combination was never trained, so no gate has judged it."""
    base = git("merge-base", main, commit)
    if base == commit:
        raise InputError(f"harness: {commit}: already part of main; nothing to promote")
    if base == main:
        return f"{commit}^{{tree}}"
    moved, retrained = (_training_files(git, base, tip) for tip in (main, commit))
    tree = merged_tree(git, base, main, commit)
    if tree is None or (moved and retrained):
        where = ", ".join(moved) if moved and retrained else "the same file"
        raise InputError(f"harness: {commit}: main has moved since in {where}; propose the edit again from {main}")
    return tree


def _training_files(git: Git, a: str, b: str) -> list[str]:
    """What differs in the files that training depends on: all but diagnostics and procedure."""
    return git("diff-tree", "-r", "--name-only", a, b, "--", "recipe.toml", "reward").splitlines()
