"""The first commits of a run's harness repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.commits import message
from trainer.gitio import Git, commit_tree, tree_with
from trainer.harness_files import is_harness_file, parse_harness, set_options
from trainer.harness_refs import MAIN


def build(git: Git, files: Mapping[str, str], options: Mapping[str, Any], run_id: str) -> None:
    """Initialise an empty folder: the seed harness, then the user's options as a commit of its own.

    Only harness files of ``files`` (path to text) are taken. InputError where they or the options are bad.
    """
    seed = {name: text for name, text in files.items() if is_harness_file(name)}
    parse_harness(seed, "")
    tuned = set_options(seed, options)
    trailers = {"Run-Id": run_id}
    git("init", "-q", "--template=", "--initial-branch=main")
    head = commit_tree(git, tree_with(git, None, seed), [], message("seed: the human reference", "", trailers))
    if tuned != seed:
        settings = ", ".join(f"{path} = {value}" for path, value in options.items())
        text = message(f"tune(seed): {settings}", "Options the user set for this run.", trailers)
        head = commit_tree(git, tree_with(git, head, tuned), [head], text)
    git("update-ref", "-m", "seed", MAIN, head)
    git("read-tree", "-u", "--reset", "HEAD")
