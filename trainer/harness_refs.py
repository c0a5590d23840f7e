"""Questions to the refs of a harness repository: what was proposed, what was promoted, what may be."""

from __future__ import annotations

from trainer.gitio import Git, merged_tree
from trainer.types import InputError

MAIN = "refs/heads/main"
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
    """The tree of the merge of ``commit`` into ``main``: what the candidate was trained with, with
    main's newer diagnostics. InputError where main has moved in the recipe or the reward: that
    combination was never trained."""
    base = git("merge-base", main, commit)
    if base == commit:
        raise InputError(f"harness: {commit}: already part of main; nothing to promote")
    if base == main:
        return f"{commit}^{{tree}}"
    tree = merged_tree(git, base, main, commit)
    moved = git("diff-tree", "-r", "--name-only", commit, tree) if tree else "a file the candidate changes"
    if tree is None or "recipe.toml" in moved or "reward/" in moved:
        where = ", ".join(moved.splitlines())
        raise InputError(f"harness: {commit}: main has moved since ({where}); propose the edit again from {main}")
    return tree
