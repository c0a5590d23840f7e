"""Git as a child process that nothing around the run can influence, and the lock around its refs.

GitPython's ``repo.git.*`` would pass the caller's environment on: started from a git hook, with
GIT_DIR or GIT_INDEX_FILE set, it commits into the caller's repository. So these few lines start git
themselves, with the repository named explicitly and every other GIT_ variable, hook, template and
configuration of user and system out of the way.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trainer.types import InputError

SERVICE = "EvoTrainer"
TIMEOUT_S = 60.0

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "gc.auto=0",  # a detached gc would outlive the call, and hold the lock
    "maintenance.auto=false",
)
_CONFIG = [part for setting in _SETTINGS for part in ("-c", setting)]


class GitError(RuntimeError):
    """A git command that failed; one line with the command and git's own first words."""


@dataclass(frozen=True)
class Git:
    """``git(*args)`` runs one git command on this repository and work tree and returns its output.

    ``inherited`` are file descriptors every child keeps open: those of the lock, so that a child
    that outlives a killed parent still holds it.
    """

    git_dir: Path
    work_tree: Path
    inherited: tuple[int, ...] = ()

    def __call__(self, *args: str, stdin: str = "", env: Mapping[str, str] | None = None) -> str:
        return self.raw(*args, stdin=stdin, env=env).decode(errors="replace").removesuffix("\n")

    def raw(self, *args: str, stdin: str = "", env: Mapping[str, str] | None = None) -> bytes:
        """The output as bytes. Raises GitError where git fails, InputError where there is no git."""
        try:
            done = subprocess.run(
                ["git", *_CONFIG, *args],
                input=stdin.encode(),
                capture_output=True,
                cwd=self.work_tree,
                env=self._environment() | dict(env or {}),
                pass_fds=self.inherited,
                timeout=TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError:
            where = (
                "not found; restore it" if not self.work_tree.is_dir() else "git not on PATH; install git 2.32 or newer"
            )
            raise InputError(f"{self.work_tree}: {where}") from None
        except subprocess.TimeoutExpired:
            raise GitError(f"git {args[0]}: no answer within {TIMEOUT_S:.0f} s") from None
        if done.returncode:
            words = " ".join(done.stderr.decode(errors="replace").split())
            raise GitError(f"git {args[0]}: {words[:300] or f'exit code {done.returncode}'}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | {
            "GIT_DIR": str(self.git_dir),
            "GIT_WORK_TREE": str(self.work_tree),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",  # looking (status) writes nothing, and leaves no lock when it is killed
            **identity("AUTHOR", SERVICE),
            **identity("COMMITTER", SERVICE),
            "LC_ALL": "C",
        }


def identity(role: Literal["AUTHOR", "COMMITTER"], name: str) -> dict[str, str]:
    """The environment by which git signs: ``service@evotrainer.invalid`` or the specialist's name."""
    mailbox = "service" if name == SERVICE else name
    return {f"GIT_{role}_NAME": name, f"GIT_{role}_EMAIL": f"{mailbox}@evotrainer.invalid"}


# -------------------------------------------------------------------------------------- lock


@dataclass(frozen=True)
class Hold:
    """A held lock. ``left`` is what the previous holder had noted if it was killed, else empty."""

    fd: int
    left: str

    def note(self, text: str) -> None:
        """Say what is going on; it stays in the lock file if this process dies."""
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, text.encode(), 0)


@contextmanager
def exclusive(path: Path) -> Iterator[Hold]:
    """Hold the lock file, across threads and processes, waiting for it. Not re-entrant.

    The lock goes with the last process that has it open, so it survives a killed parent as long as
    a child still works.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield Hold(fd, os.pread(fd, 4096, 0).decode(errors="replace"))
    finally:
        os.close(fd)


def holding(git: Git, hold: Hold) -> Git:
    """``git`` whose children hold the lock too."""
    return replace(git, inherited=(hold.fd,))


# ---------------------------------------------------------------------------------- plumbing


def read_files(git: Git, commit: str) -> dict[str, str]:
    """Path → text of a commit, from the object store. Raises GitError where it cannot be read and
    InputError on anything but plain files of UTF-8 text."""
    entries = [line.split(None, 3) for line in git("ls-tree", "-r", "-z", commit).split("\0") if line]
    for mode, _, _, path in entries:
        if mode != "100644":
            raise InputError(f"harness: {path}: mode {mode}; a harness holds plain files only")
    stream = git.raw("cat-file", "--batch", stdin="".join(f"{oid}\n" for _, _, oid, _ in entries))
    files, at = {}, 0
    for _, _, oid, path in entries:
        start = stream.index(b"\n", at) + 1
        header = stream[at:start].split()
        if header[1:2] != [b"blob"]:
            raise GitError(f"git cat-file: {oid} ({path}) is missing")
        at = start + int(header[2]) + 1
        try:
            files[path] = stream[start : at - 1].decode()
        except UnicodeDecodeError:
            raise InputError(f"harness: {path}: not UTF-8 text; save it as UTF-8") from None
    return files


def check_clean(git: Git, branch: str) -> None:
    """InputError where somebody else's work is in the work tree: changed or untracked files, another
    branch or none, an operation under way, a lock file left. The message has the remedy."""
    where, here = git.work_tree, shlex.quote(str(git.work_tree))
    if locks := [*git.git_dir.glob("*.lock"), *(git.git_dir / "refs").rglob("*.lock")]:
        names = ", ".join(str(lock.relative_to(where)) for lock in locks)
        raise InputError(f"{where}: lock files left: {names}; delete them once no git runs there")
    at = (git.git_dir / "HEAD").read_text().strip()
    if at != f"ref: {branch}":
        name = branch.rsplit("/", 1)[1]
        raise InputError(f"{where}: HEAD is at {at}, not on {name}; run: git -C {here} switch {name}")
    if (git.git_dir / "MERGE_HEAD").exists() or (git.git_dir / "CHERRY_PICK_HEAD").exists():
        raise InputError(f"{where}: a merge is under way; run: git -C {here} reset --merge")
    status = git("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    if dirty := [" ".join(entry[3:].split()) for entry in status.split("\0") if entry]:
        more = f" and {len(dirty) - 5} more" if len(dirty) > 5 else ""
        raise InputError(
            f"{where}: dirty harness tree: {', '.join(dirty[:5])}{more}; set aside with: git -C {here} stash -u"
        )


def commit_tree(git: Git, tree: str, parents: Sequence[str], text: str, author: str = SERVICE) -> str:
    """A commit object; moves no ref."""
    options = [option for parent in parents for option in ("-p", parent)]
    return git("commit-tree", tree, *options, "-F", "-", stdin=text, env=identity("AUTHOR", author))


def tree_with(git: Git, base: str | None, files: Mapping[str, str | None]) -> str:
    """The tree of commit ``base`` (None: the empty one) with these files put in, and those without a text left out."""
    with _scratch_index(git) as env:
        if base:
            git("read-tree", base, env=env)
        kept = {path: text for path, text in files.items() if text is not None}
        blobs = {path: git("hash-object", "-w", "--stdin", stdin=text) for path, text in kept.items()}
        entries = "".join(f"100644 {blob}\t{path}\0" for path, blob in blobs.items())
        entries += "".join(f"0 {'0' * 40}\t{path}\0" for path in files.keys() - kept.keys())
        git("update-index", "-z", "--index-info", stdin=entries, env=env)
        return git("write-tree", env=env)


def merged_tree(git: Git, base: str, ours: str, theirs: str) -> str | None:
    """The tree of a three-way merge by whole files, or None where both sides changed one file."""
    with _scratch_index(git) as env:
        git("read-tree", "-i", "-m", "--aggressive", base, ours, theirs, env=env)
        if git("ls-files", "--unmerged", env=env):
            return None
        return git("write-tree", env=env)


@contextmanager
def _scratch_index(git: Git) -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="scratch-", dir=git.git_dir) as folder:
        yield {"GIT_INDEX_FILE": f"{folder}/index"}
