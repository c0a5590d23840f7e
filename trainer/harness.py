"""The harness repository of a run: every version a commit, every verdict a ref.

``main`` holds what was promoted, each by one ``--no-ff`` merge, so that its first-parent log reads
as the story of the run and claims no more than was shown. Steps on weak evidence are the line of commits
``main..search``; a certification merges that line as a whole. A candidate lives on ``cand/<slug>`` (a diagnostic on ``diag/<slug>``) with
a worktree beside the repository until it is promoted or retired to ``refs/<verdict>/<slug>`` and an
annotated tag. Metrics are JSON in ``refs/notes/metrics``.

Every operation may be repeated after a kill at any point: it asks what is there and does the rest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from trainer.commits import check_commit, check_name, message, one_line_of
from trainer.gitio import Git, GitError, Hold, check_clean, commit_tree, exclusive, holding, read_files, tree_with
from trainer.harness_build import build
from trainer.harness_files import apply_edit, diff_factors, parse_harness
from trainer.harness_refs import BRANCHES, MAIN, SEARCH, branch_of, merge_of, pointing, proposal, tree_to_promote
from trainer.types import DropDiagnostic, Harness, HarnessEdit, InputError, PutDiagnostic, Record, SetProcedure

RETIRED = ("rejected", "undecided", "invalid", "unconfirmed", "no_information", "provisional", "refused", "failed")
_MAIN_MOVES = "promote: main moves"
_NOTES = "--ref=metrics"


class HarnessDiff(Record):
    """What a commit changes against another: factors (as HarnessEdit.factor), paths, unified patch."""

    factors: tuple[str, ...]
    paths: tuple[str, ...]
    patch: str


@dataclass(frozen=True)
class HarnessRepo:
    """A harness repository at ``path`` (absolute). Safe to share between threads and processes."""

    path: Path
    git: Git = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "git", Git(self.path / ".git", self.path))

    # ------------------------------------------------------------------------ open and check

    @classmethod
    def create(cls, path: Path, seed: Mapping[str, str], options: Mapping[str, Any], run_id: str) -> HarnessRepo:
        """The run's repository, made from the seed harness on first call and opened on later ones.

        ``options`` (dotted recipe path → value) are the user's overrides: a second commit on main.
        Raises InputError on a bad option, a bad seed, or a repository of another run.
        """
        path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Built aside and moved into place as a whole: there is no half-made repository to repair.
        building = path.with_name(f".{path.name}.building")
        with exclusive(_lock_file(path)):
            if not path.exists():
                shutil.rmtree(building, ignore_errors=True)
                building.mkdir()
                build(cls(building).git, seed, options, run_id)
                building.rename(path)
        repo = cls.open(path)
        owner = repo.git("log", "--format=%(trailers:key=Run-Id,valueonly,separator=%x2C)", "--max-parents=0", MAIN)
        if owner != one_line_of(run_id):
            raise InputError(f"{path}: belongs to run '{owner}', not '{run_id}'; choose another run name")
        return repo

    @classmethod
    def open(cls, path: Path) -> HarnessRepo:
        """Open a repository that exists and whose main parses; InputError with the remedy otherwise."""
        repo = cls(path.absolute())
        if not (repo.path / ".git").is_dir():
            raise InputError(f"{path}: no harness repository; restore the folder or start a new run")
        try:
            repo.load(repo.head())
        except GitError as error:
            raise InputError(f"{path}: damaged ({error}); restore the folder or start a new run") from None
        return repo

    def check_clean(self) -> None:
        """InputError where somebody else's work is in the main work tree: changed or untracked
        files, another branch or no branch, an operation under way, a lock file left."""
        with self._exclusive("check"):
            check_clean(self.git, MAIN)

    def reset_stale_worktrees(self) -> None:
        """After a crash: finish what was interrupted and drop worktrees without an open candidate."""
        with self._exclusive("prune") as (git, _):
            refs = git("for-each-ref", "--format=%(refname)", *BRANCHES).split()
            candidates = {ref.rsplit("/", 1)[1] for ref in refs}
            found = {path.name for folder in self._worktree_folders for path in folder.glob("*/")}
            for slug in found - candidates:
                self._drop_worktree(slug)
            git("worktree", "prune")

    # ----------------------------------------------------------------------------------- read

    def head(self) -> str:
        """The commit id of main: the champion's harness."""
        return self.git("rev-parse", "--verify", f"{MAIN}^{{commit}}")

    def beginning(self) -> str:
        """The first commit of main: the seed harness without the run's options."""
        return self.git("rev-list", "--max-parents=0", MAIN)

    def files(self, commit: str) -> dict[str, str]:
        """Path → text of a commit, read from the object store and not from any work tree."""
        try:
            return read_files(self.git, check_commit(commit))
        except GitError:
            raise self._unknown(commit) from None

    def load(self, commit: str) -> Harness:
        """The parsed harness of a commit."""
        return parse_harness(self.files(commit), commit)

    def diff(self, parent: str, commit: str) -> HarnessDiff:
        """What ``commit`` changes against ``parent``; InputError where one of them does not parse."""
        factors = diff_factors(self.load(parent), self.load(commit))
        paths = self.git("diff-tree", "-r", "--name-only", "-z", parent, commit).split("\0")
        patch = self.git("diff-tree", "-p", "--no-ext-diff", "--no-textconv", "--no-renames", parent, commit)
        return HarnessDiff(factors=factors, paths=tuple(filter(None, paths)), patch=patch)

    def story(self) -> list[tuple[str, str]]:
        """(commit, subject) of main's first-parent log, newest first as git prints it."""
        lines = self.git("log", "--first-parent", "--format=%H %s", MAIN).splitlines()
        return [(commit, subject) for commit, _, subject in (line.partition(" ") for line in lines)]

    def metrics(self, commit: str) -> dict[str, Any]:
        """The metrics noted on a commit; empty where there are none."""
        self._known(commit)
        noted = self.git("log", "-1", "--no-standard-notes", "--notes=metrics", "--format=%N", commit)
        return dict(json.loads(noted or "{}"))

    # ---------------------------------------------------------------------------------- write

    def propose(
        self,
        version: str,
        parent: str,
        edit: HarnessEdit,
        slug: str,
        subject: str,
        body: str,
        trailers: Mapping[str, str],
        author: str,
    ) -> str:
        """Commit a single-factor edit of ``parent`` on a branch of its own and return the commit.

        The same (version, parent, edit, slug) gives the same commit again. Raises InputError on an
        edit that does not apply (see apply_edit), an unacceptable name, or a slug in use.
        """
        for what, name in (("version", version), ("slug", slug), ("author", author)):
            check_name(what, name)
        key = "\0".join([version, parent, slug, edit.model_dump_json()])
        edit_id = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:16]
        text = message(subject, body, {**trailers, "Version": version, "Factor": edit.factor, "Edit-Id": edit_id})
        kind = "diag" if isinstance(edit.change, PutDiagnostic | DropDiagnostic | SetProcedure) else "cand"
        branch = f"refs/heads/{kind}/{slug}"
        before = self.files(parent)
        after = apply_edit(before, edit)
        with self._exclusive("propose") as (git, _):
            if commit := proposal(git, edit_id):
                if branch_of(git, commit):
                    self._checkout(git, branch, slug)
                return commit
            if taken := git("for-each-ref", "--format=%(refname)", *(prefix + slug for prefix in BRANCHES)):
                raise InputError(f"harness: slug: {taken} holds another edit; choose another slug")
            changed: dict[str, str | None] = {path: after.get(path) for path in {*before, *after}}
            changed = {path: changed[path] for path in sorted(changed) if before.get(path) != changed[path]}
            commit = commit_tree(git, tree_with(git, parent, changed), [parent], text, author)
            git("update-ref", "-m", "propose", branch, commit, "0" * len(commit))
            self._checkout(git, branch, slug)
            return commit

    def promote(
        self,
        version: str,
        commit: str,
        subject: str,
        body: str,
        trailers: Mapping[str, str],
        metrics: Mapping[str, object],
    ) -> str:
        """Merge a candidate into main (``--no-ff``), note its metrics, close its branch; return the merge.

        Promoting the same commit again returns the same merge. Raises InputError on a main work
        tree that is not clean, and where main has moved in recipe or reward since the candidate was
        proposed (a diagnostic merges always: it changes no training).
        """
        check_name("version", version)
        self._known(commit)
        text = message(subject, body, {**trailers, "Version": version})
        with self._exclusive("promote") as (git, hold):
            check_clean(self.git, MAIN)
            old = self.head()
            merge = merge_of(git, commit)
            if not merge:
                merge = commit_tree(git, tree_to_promote(git, old, commit), [old, commit], text)
                hold.note(_MAIN_MOVES)
                git("update-ref", "-m", f"promote {version}", MAIN, merge, old)
                # A run that was copied has files of the right content and another stat, which read-tree would refuse.
                git("update-index", "-q", "--refresh")
                git("read-tree", "-m", "-u", old, merge)
                hold.note("promote")
            self._note(git, merge, metrics)
            self._close(git, branch_of(git, commit))
            return merge

    def retire(
        self, version: str, commit: str, verdict: str, metrics: Mapping[str, object], message_text: str = ""
    ) -> str:
        """Close a candidate that is not promoted, keep it reachable, and return its ref.

        The ref is ``refs/<verdict>/<slug>``; the annotated tag ``<verdict>/<version>`` carries the
        message. Retiring it again the same way returns the same ref.
        """
        check_name("version", version)
        self._known(commit)
        if verdict not in RETIRED:
            raise InputError(f"harness: verdict: expected one of {', '.join(RETIRED)}, got {verdict[:60]!r}")
        with self._exclusive("retire") as (git, _):
            branch = branch_of(git, commit)
            if not branch:
                if ref := pointing(git, commit, f"refs/{verdict}/"):
                    return ref
                raise InputError(f"harness: {commit}: no open candidate; it was promoted or retired before")
            slug = branch.rsplit("/", 1)[1]
            ref = f"refs/{verdict}/{slug}"
            self._note(git, commit, metrics)
            if not git("tag", "--points-at", commit, "--list", f"{verdict}/*"):
                taken = git("tag", "--list", f"{verdict}/{version}")
                text = message(f"{verdict}: {version}", message_text, {})
                tag = f"{verdict}/{slug if taken else version}"
                git("tag", "-a", "--cleanup=verbatim", "-F", "-", tag, commit, stdin=text)
            git("update-ref", ref, commit)
            self._close(git, branch)
            return ref

    def advance(self, version: str, commit: str, metrics: Mapping[str, object], message_text: str = "") -> str:
        """Take a candidate as a provisional step: ``search`` moves to it, main stays; return its ref as ``retire`` does."""
        check_name("version", version)
        self._known(commit)
        with self._exclusive("advance") as (git, _):
            git("update-ref", "-m", f"provisional {version}", SEARCH, commit)
        return self.retire(version, commit, "provisional", metrics, message_text)

    # -------------------------------------------------------------------------------- details

    @contextmanager
    def _exclusive(self, doing: str) -> Iterator[tuple[Git, Hold]]:
        """Hold the lock, after finishing what a killed holder left. The note stays behind if this
        process dies or fails; after a refusal of bad input there is nothing to finish."""
        with exclusive(_lock_file(self.path)) as hold:
            git = holding(self.git, hold)
            if hold.left:
                # Its children are gone too (they hold the lock with it), so git's locks are stale.
                for lock in self.git.git_dir.rglob("*.lock"):
                    lock.unlink(missing_ok=True)
            if hold.left == _MAIN_MOVES:
                git("read-tree", "--reset", "-u", "HEAD")
            hold.note(doing)
            try:
                yield git, hold
            except InputError:
                hold.note("")
                raise
            hold.note("")

    def _known(self, commit: str) -> None:
        try:
            self.git("cat-file", "-e", f"{check_commit(commit)}^{{commit}}")
        except GitError:
            raise self._unknown(commit) from None

    def _unknown(self, commit: str) -> InputError:
        return InputError(f"{self.path}: no readable commit {commit}; use a commit of this harness")

    def _checkout(self, git: Git, branch: str, slug: str) -> None:
        self._drop_worktree(slug)
        git("worktree", "add", "-q", str(self._worktree_folders[0] / slug), branch.removeprefix("refs/heads/"))

    def _drop_worktree(self, slug: str) -> None:
        # By hand: `git worktree remove` refuses what a kill left half-made.
        for folder in self._worktree_folders:
            shutil.rmtree(folder / slug, ignore_errors=True)

    def _note(self, git: Git, commit: str, metrics: Mapping[str, object]) -> None:
        text = to_json(metrics, indent=1, inf_nan_mode="null").decode()
        git("notes", _NOTES, "add", "-f", "-F", "-", commit, stdin=text)

    def _close(self, git: Git, branch: str) -> None:
        if branch:
            self._drop_worktree(branch.rsplit("/", 1)[1])
            git("update-ref", "-d", branch)

    @property
    def _worktree_folders(self) -> tuple[Path, Path]:
        """Where worktrees are, and where git keeps its side of them."""
        return self.path.with_name("worktrees"), self.git.git_dir / "worktrees"


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")
