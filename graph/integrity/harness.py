"""The harness repository: sound objects, the ledger's commits, main where the champion says, nothing left over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graph.integrity.types import Problem, Run, fault
from graph.versions import BASELINE, Version
from trainer.gitio import Git, GitError, check_clean
from trainer.harness import HarnessRepo
from trainer.harness_refs import BRANCHES, MAIN
from trainer.types import InputError


def harness_problems(run: Run) -> Iterator[Problem]:
    path = run.root / "harness"
    if not path.exists() and not run.ledger:
        return  # killed before it was made
    repo = HarnessRepo(path.absolute())
    git = repo.git
    yield from leftover_locks(run, repo)
    try:
        git("fsck", "--no-dangling", "--no-progress")
    except (GitError, InputError) as error:
        yield run.problem(path, str(error))
        return
    yield from _commits(run, git)
    main = _resolved(git, MAIN)
    promoted = champion_commit(run)
    if promoted and main != promoted and not is_ahead(git, promoted, main):
        yield run.problem(
            path, f"main is at {main[:12] or 'nothing'}, the ledger's champion is {promoted[:12]}", "harness"
        )
        return
    try:
        HarnessRepo.open(path)
        check_clean(git, MAIN)
    except InputError as error:
        what, _, remedy = str(error).removeprefix(f"{path.absolute()}: ").rpartition("; ")
        yield run.problem(path, what, "harness") if main else run.problem(path, what, remedy=remedy)


def champion_commit(run: Run) -> str:
    """Where main must be: the ledger's last promotion, or the baseline's harness; empty before there is one."""
    settled = sorted(run.ledger, key=lambda e: str(e.get("version")))
    promoted = [str(e["merge_commit"]) for e in settled if e.get("verdict") == "promoted"]
    baseline = run.record.version_dir(BASELINE) / "version.json"
    if promoted or fault(baseline, Version):
        return promoted[-1] if promoted else ""
    return Version.model_validate_json(baseline.read_bytes()).harness_commit


def is_ahead(git: Git, old: str, new: str) -> bool:
    """Whether ``new`` came by merges onto ``old``: a promotion is in git before it is in the ledger."""
    try:
        return old in git("log", "--first-parent", "--format=%H", new).split()
    except GitError:
        return False


def leftover_locks(run: Run, repo: HarnessRepo) -> Iterator[Problem]:
    """What an operation that was killed left: git's lock files, a note in ours, worktrees without a candidate."""
    for lock in sorted(repo.git.git_dir.rglob("*.lock")):
        yield run.problem(lock, "left by a git that was killed", "sweep")
    for scratch in sorted(repo.git.git_dir.glob("scratch-*")):
        yield run.problem(scratch, "left by an operation that was killed", "sweep")
    note = run.root / "harness.lock"
    if note.exists() and (left := note.read_text(errors="replace")):
        yield run.problem(note, f"'{left}' was under way when its process was killed", "sweep", "--resume finishes it")
    try:
        refs = repo.git("for-each-ref", "--format=%(refname)", *BRANCHES).split()
    except (GitError, InputError):
        return
    candidates = {ref.rsplit("/", 1)[1] for ref in refs}
    for folder in sorted((run.root / "worktrees").glob("*/")):
        if folder.name not in candidates:
            yield run.problem(folder, "a worktree without a candidate", "sweep")


def _commits(run: Run, git: Git) -> Iterator[Problem]:
    for entry in run.ledger:
        for field in ("harness_commit", "merge_commit"):
            commit = entry.get(field)
            if commit and not _resolved(git, commit):
                yield run.problem(
                    run.root / "harness", f"{field} {commit[:12]} of {entry.get('version')} is not in the repository"
                )


def _resolved(git: Git, name: str) -> str:
    try:
        return git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except GitError:
        return ""


def tree_files(root: Path) -> list[Path]:
    """Files of the main work tree, git's own left out."""
    return [p for p in sorted(root.rglob("*")) if p.is_file() and ".git" not in p.relative_to(root).parts]
