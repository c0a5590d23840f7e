"""The harness repository after a kill: every operation is done again and nothing is done twice."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.harness_seed import CLIP_HIGHER, LOWER_LR, SEED, new_repo, promote, propose
from trainer.gitio import Git, GitError, exclusive
from trainer.harness import HarnessRepo

Act = Callable[[HarnessRepo, str], None]


class Killed(BaseException):
    """Stands for the end of the process: no handler of the project catches it."""


@pytest.fixture
def repo(tmp_path: Path) -> HarnessRepo:
    return new_repo(tmp_path / "a run")


def state(repo: HarnessRepo) -> dict[str, Any]:
    """All the repository holds, ids aside: they depend on the second of the commit."""
    folders = (repo.path.parent / "worktrees", repo.git.git_dir / "worktrees")
    return {
        "refs": repo.git("for-each-ref", "--format=%(refname) %(objecttype) %(contents)"),
        "log": sorted(
            repo.git("log", "--exclude=refs/notes/*", "--all", "--format=%T %an %B%x00")
            .replace("\0\n", "\0")
            .split("\0")
        ),
        "notes": [repo.metrics(line.split()[1]) for line in repo.git("notes", "--ref=metrics", "list").splitlines()],
        "files": {path.name: path.read_text() for path in repo.path.rglob("*.toml")},
        "worktrees": [sorted(path.name for path in folder.glob("*")) for folder in folders],
        "lock": (repo.path.parent / "harness.lock").read_text(),
    }


def promoted(repo: HarnessRepo, start: str) -> None:
    promote(repo, propose(repo, parent=start))


def rejected(repo: HarnessRepo, start: str) -> None:
    repo.retire("v0001", propose(repo, parent=start), "rejected", {"delta": -0.1}, "no")


def stepped(repo: HarnessRepo, start: str) -> None:
    repo.advance("v0001", propose(repo, parent=start), {"delta": 0.1}, "a step")


@pytest.mark.parametrize(("act", "least"), [(promoted, 6), (rejected, 6), (stepped, 7)])
def test_killed_after_any_git_command_and_repeated(
    act: Act, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = new_repo(tmp_path / "fresh")
    start = fresh.head()

    def copy(name: str) -> HarnessRepo:
        shutil.copytree(fresh.path.parent, tmp_path / name)
        return HarnessRepo(tmp_path / name / "harness")

    calm = copy("calm")
    act(calm, start)
    expected = state(calm)
    raw, writing = Git.raw, ("update-ref", "worktree", "read-tree", "notes", "tag")
    for kill_at in range(1, 99):
        run = copy(str(kill_at))
        left = kill_at

        def dying(self: Git, *args: str, **kwargs: Any) -> bytes:
            nonlocal left
            out = raw(self, *args, **kwargs)
            left -= args[0] in writing
            if not left:
                raise Killed
            return out

        with monkeypatch.context() as patch, pytest.raises((Killed, StopIteration)) as end:
            patch.setattr(Git, "raw", dying)
            act(run, start)
            raise StopIteration
        again = HarnessRepo.create(run.path, SEED, {}, "run-1")
        again.reset_stale_worktrees()
        again.check_clean()
        act(again, start)
        assert state(again) == expected, f"killed after writing command {kill_at}"
        if end.type is StopIteration:
            assert kill_at > least, "the loop has to meet every command before it ends"
            assert again.git("fsck", "--strict") == ""
            return


def test_a_repository_whose_files_were_touched_or_copied_promotes(repo: HarnessRepo) -> None:
    """What the index remembers of a file (time, inode) then differs, and the content does not."""
    for file in repo.path.glob("*.toml"):
        os.utime(file, (1, 1))
    promote(repo, propose(repo))
    repo.check_clean()


def test_each_operation_twice_is_once(repo: HarnessRepo) -> None:
    start = repo.head()
    one, two = propose(repo), propose(repo, CLIP_HIGHER, "v0002", start)
    assert propose(repo, parent=start) == one
    merge = promote(repo, one)
    ref = repo.retire("v0002", two, "undecided", {})
    before = state(repo)
    assert promote(repo, one) == merge
    assert repo.retire("v0002", two, "undecided", {}) == ref
    assert propose(repo, parent=start) == one, "a promoted proposal is found on main"
    assert propose(repo, CLIP_HIGHER, "v0002", start) == two, "a retired one under its ref"
    assert state(repo) == before


def test_a_slug_in_use_is_refused_and_its_candidate_left(repo: HarnessRepo) -> None:
    one = propose(repo, LOWER_LR)
    with pytest.raises(Exception, match="refs/heads/cand/0001-a-change holds another edit; choose another slug"):
        propose(repo, CLIP_HIGHER)
    assert propose(repo, LOWER_LR) == one


def test_a_half_made_worktree_is_made_again(repo: HarnessRepo) -> None:
    commit = propose(repo)
    worktree, admin = repo.path.parent / "worktrees/0001-a-change", repo.git.git_dir / "worktrees/0001-a-change"
    for damage in (
        (worktree / ".git").unlink,
        lambda: shutil.rmtree(worktree),
        lambda: shutil.rmtree(admin),
        lambda: (admin / "gitdir").rename(admin / "locked"),
        lambda: (worktree / "recipe.toml").write_text("half"),
    ):
        damage()
        assert propose(repo) == commit
        assert {path: (worktree / path).read_text() for path in SEED} == repo.files(commit)


def test_worktrees_without_a_candidate_go_and_others_stay(repo: HarnessRepo) -> None:
    propose(repo)
    stray = repo.path.parent / "worktrees" / "0009-gone"
    (stray / "reward").mkdir(parents=True)
    (repo.git.git_dir / "worktrees" / "0008-gone").mkdir()
    (repo.path.parent / "worktrees" / ".DS_Store").touch()
    repo.reset_stale_worktrees()
    assert [p.name for p in (repo.path.parent / "worktrees").glob("*/")] == ["0001-a-change"]
    assert [p.name for p in (repo.git.git_dir / "worktrees").iterdir()] == ["0001-a-change"]


def test_a_git_killed_while_main_moves_is_finished(repo: HarnessRepo) -> None:
    """What kill -9 of the whole process group leaves: main moved, a file torn, git's locks in place."""
    candidate = propose(repo)
    merge = promote(repo, candidate)
    repo.git("read-tree", "--reset", "-u", f"{merge}^1")
    (repo.path / "recipe.toml").write_text("[opti")
    for lock in ("index.lock", "refs/heads/main.lock", "HEAD.lock", "packed-refs.lock"):
        (repo.git.git_dir / lock).touch()
    (repo.path.parent / "harness.lock").write_text("promote: main moves")
    assert HarnessRepo.create(repo.path, SEED, {}, "run-1").head() == merge
    repo.check_clean()
    assert {path: (repo.path / path).read_text() for path in SEED} == repo.files(merge)
    assert promote(repo, candidate) == merge


def test_git_locks_of_a_killed_proposal_go_but_work_in_the_tree_stays(repo: HarnessRepo) -> None:
    (repo.path / "recipe.toml").write_text("mine")
    lock = repo.git.git_dir / "refs/heads/cand/0001-a-change.lock"
    lock.parent.mkdir()
    lock.touch()
    with pytest.raises(GitError, match="update-ref"):
        propose(repo)
    propose(repo)
    assert (repo.path / "recipe.toml").read_text() == "mine"


def test_a_half_made_repository_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = Git.raw

    def dying(self: Git, *args: str, **kwargs: Any) -> bytes:
        if args[0] == "update-ref":
            raise Killed
        return raw(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Git, "raw", dying)
        HarnessRepo.create(tmp_path / "harness", SEED, {"rollout.n": 4}, "run-1")
    assert not (tmp_path / "harness").exists()
    made = HarnessRepo.create(tmp_path / "harness", SEED, {"rollout.n": 4}, "run-1")
    assert len(made.story()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["harness", "harness.lock"]


def test_a_git_that_outlives_its_run_keeps_the_lock(repo: HarnessRepo) -> None:
    lock = repo.path.parent / "harness.lock"
    code = (
        "import sys; from pathlib import Path\n"
        "from trainer.gitio import exclusive, holding\nfrom trainer.harness import HarnessRepo\n"
        "repo = HarnessRepo(Path(sys.argv[1]))\n"
        "with exclusive(Path(sys.argv[2])) as hold:\n"
        "    holding(repo.git, hold)('-c', 'alias.wait=!f() { echo $$ > \"$1\"; exec sleep 600; }; f', 'wait', sys.argv[3])\n"
    )
    pid_file = repo.path.parent / "pid"
    os.mkfifo(pid_file)
    run = subprocess.Popen([sys.executable, "-c", code, repo.path, lock, pid_file], cwd=Path(__file__).parents[2])
    git_child = int(pid_file.read_text())
    try:
        run.kill()
        run.wait()
        with lock.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(git_child, signal.SIGKILL)
    with exclusive(lock):
        pass
