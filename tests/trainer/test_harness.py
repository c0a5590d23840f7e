"""The harness repository on real git: the story, verdicts, refusals, and nothing from outside."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.harness_seed import (
    BREVITY,
    CLIP_HIGHER,
    DIAGNOSTIC,
    FORMAT_TERM,
    SEED,
    TRUNCATION,
    new_repo,
    promote,
    propose,
)
from trainer.gitio import GitError
from trainer.harness import HarnessRepo
from trainer.harness_files import parse_harness
from trainer.types import HarnessEdit, InputError, PutDiagnostic, PutTerm


@pytest.fixture
def repo(tmp_path: Path) -> HarnessRepo:
    return new_repo(tmp_path / "a run – ünï 'quoted'")


def refs(repo: HarnessRepo) -> set[str]:
    return set(repo.git("for-each-ref", "--format=%(refname)").split())


def fsck(repo: HarnessRepo) -> str:
    return repo.git("fsck", "--strict", "--full")


def trailers(repo: HarnessRepo, commit: str) -> dict[str, str]:
    lines = repo.git("log", "-1", "--format=%(trailers:only,unfold)", commit).splitlines()
    return {key: value for key, _, value in (line.partition(": ") for line in lines if line)}


def test_main_reads_as_the_story_and_nothing_is_lost(repo: HarnessRepo) -> None:
    first = propose(repo)
    promote(repo, first)
    second = propose(repo, CLIP_HIGHER, "v0002")
    assert (
        repo.retire("v0002", second, "rejected", {"delta": -0.02}, "Worse on validation.")
        == "refs/rejected/0002-a-change"
    )
    third = propose(repo, DIAGNOSTIC, "v0003")
    merge = repo.promote("v0003", third, "promote: v0003 diagnostic endless", "", {"Verdict": "promoted"}, {})

    assert [subject for _, subject in repo.story()] == [
        "promote: v0003 diagnostic endless",
        "promote: v0001 lower learning rate (+6.1 pp, CI 3.2..9.0)",
        "seed: the human reference",
    ]
    assert repo.head() == merge == repo.story()[0][0]
    assert refs(repo) == {
        "refs/heads/main",
        "refs/notes/metrics",
        "refs/rejected/0002-a-change",
        "refs/tags/rejected/v0002",
    }
    assert repo.git("cat-file", "-t", "rejected/v0002") == "tag"
    assert "Worse on validation." in repo.git("tag", "-n9", "-l", "rejected/v0002")
    assert repo.metrics(second) == {"delta": -0.02}
    assert repo.metrics(first) == {}, "metrics of a promotion are on the merge"
    assert fsck(repo) == ""
    repo.check_clean()
    assert (repo.path / "diagnostics/endless.toml").exists(), "the main work tree follows main"
    assert not any((repo.path.parent / "worktrees").iterdir())


def test_a_candidate_is_a_commit_of_its_factor_with_a_worktree(repo: HarnessRepo) -> None:
    parent = repo.head()
    commit = propose(repo, FORMAT_TERM)
    assert refs(repo) == {"refs/heads/main", "refs/heads/cand/0001-a-change"}
    diff = repo.diff(parent, commit)
    assert diff.factors == (FORMAT_TERM.factor,)
    assert diff.paths == ("recipe.toml", "reward/format.toml")
    assert "+format = 0.1" in diff.patch
    assert repo.load(commit).commit == commit
    assert repo.files(parent) == SEED, "the parent is as it was"
    worktree = repo.path.parent / "worktrees" / "0001-a-change"
    assert parse_harness({k: (worktree / k).read_text() for k in repo.files(commit)}, commit) == repo.load(commit)
    assert repo.git("log", "-1", "--format=%an <%ae> %cn <%ce>", commit) == (
        "designer <designer@evotrainer.invalid> EvoTrainer <service@evotrainer.invalid>"
    )
    assert list(trailers(repo, commit).items())[:4] == [
        ("Version", "v0001"),
        ("Parent-Version", "v0000"),
        ("Factor", "reward.term.format"),
        ("Agent", "designer"),
    ]
    repo.check_clean()


def test_diagnostics_come_on_branches_of_their_own(repo: HarnessRepo) -> None:
    propose(repo, DIAGNOSTIC)
    assert "refs/heads/diag/0001-a-change" in refs(repo)


def test_reads_see_commits_and_not_the_work_tree(repo: HarnessRepo) -> None:
    head = repo.head()
    (repo.path / "recipe.toml").write_text("[optim]\nlr = 0.5\n")
    assert repo.files(head) == SEED


def test_user_options_are_a_commit_of_their_own(tmp_path: Path) -> None:
    seed = {**SEED, "__init__.py": ""}
    made = HarnessRepo.create(tmp_path / "harness", seed, {"optim.lr": 2e-3, "rollout.n": 4}, "run-1")
    assert [subject for _, subject in made.story()] == [
        "tune(seed): optim.lr = 0.002, rollout.n = 4",
        "seed: the human reference",
    ]
    assert made.load(made.head()).recipe.optim.lr == 2e-3
    assert set(made.files(made.head())) == set(SEED), "only harness files are taken from the seed"
    made.check_clean()
    with pytest.raises(InputError, match=r"optim\.lrr: no such option"):
        HarnessRepo.create(tmp_path / "other", seed, {"optim.lrr": 1}, "run-1")
    assert not (tmp_path / "other").exists()


def test_create_opens_what_is_there_and_refuses_another_run(repo: HarnessRepo) -> None:
    head = propose_and_promote(repo)
    again = HarnessRepo.create(repo.path, SEED, {"optim.lr": 0.5}, "run-1")
    assert again == repo
    assert again.head() == head
    with pytest.raises(InputError, match="belongs to run 'run-1', not 'run-2'"):
        HarnessRepo.create(repo.path, SEED, {}, "run-2")


def propose_and_promote(repo: HarnessRepo) -> str:
    return promote(repo, propose(repo))


# -------------------------------------------------------------------------- promotion and verdicts


def test_main_may_move_by_diagnostics_but_not_by_training(repo: HarnessRepo) -> None:
    base = repo.head()
    candidate, rival, other_file = propose(repo), propose(repo, CLIP_HIGHER, "v0002"), propose(repo, term(), "v0003")
    repo.promote("v0004", propose(repo, DIAGNOSTIC, "v0004", base), "promote: v0004 diagnostic", "", {}, {})
    merge = promote(repo, candidate)
    assert repo.diff(candidate, merge).factors == (DIAGNOSTIC.factor,)
    for moved in (rival, other_file):
        with pytest.raises(InputError, match=r"main has moved since in recipe\.toml; propose the edit again from"):
            promote(repo, moved, "v0002")
    same = propose(repo, SAME_NAME, "v0005", base)
    with pytest.raises(InputError, match=r"main has moved since in the same file; propose"):
        promote(repo, same, "v0005")
    assert repo.head() == merge
    repo.check_clean()


SAME_NAME = HarnessEdit(change=PutDiagnostic(diagnostic=TRUNCATION.model_copy(update={"name": "endless", "warn": 0.2})))


def term() -> HarnessEdit:
    """Replaces a term and leaves the recipe alone."""
    weighted = BREVITY.model_copy(update={"sql": "0"})
    return HarnessEdit(change=PutTerm(term=weighted, weight=0.0))


def test_a_chain_of_candidates_is_promoted_by_its_tip(repo: HarnessRepo) -> None:
    first = propose(repo)
    second = propose(repo, CLIP_HIGHER, "v0002", first)
    merge = promote(repo, second, "v0002")
    assert repo.files(merge) == repo.files(second)
    with pytest.raises(InputError, match="already part of main"):
        promote(repo, first)


def test_provisional_steps_leave_main_and_are_certified_as_a_chain(repo: HarnessRepo) -> None:
    seed = repo.head()
    first = propose(repo)
    for _ in range(2):
        assert repo.advance("v0001", first, {"delta": 0.02}, "one standard error") == "refs/provisional/0001-a-change"
    second = propose(repo, CLIP_HIGHER, "v0002", first)
    repo.advance("v0002", second, {})
    assert repo.head() == seed
    assert repo.git("rev-list", "--reverse", "main..search").split() == [first, second]
    assert not any(ref.startswith("refs/heads/cand") for ref in refs(repo))

    merge = promote(repo, second, "v0002")
    assert [commit for commit, _ in repo.story()] == [merge, seed], "one claim, one line"
    assert repo.git("rev-list", "main..search") == ""
    assert {"refs/provisional/0001-a-change", "refs/tags/provisional/v0001"} <= refs(repo)

    third = propose(repo, DIAGNOSTIC, "v0003", second)
    repo.advance("v0003", third, {})
    other = propose(repo, FORMAT_TERM, "v0004", second)
    repo.advance("v0004", other, {})  # the search went back and on: the step it left stays reachable
    assert repo.git("rev-parse", "search") == other
    repo.git("gc", "--prune=now", "-q")
    assert repo.load(third)
    assert fsck(repo) == ""


@pytest.mark.parametrize("verdict", ["rejected", "undecided", "invalid", "no_information", "refused"])
def test_retired_candidates_stay_reachable(repo: HarnessRepo, verdict: str) -> None:
    one, two = propose(repo), propose(repo, CLIP_HIGHER, "v0001b")
    for commit in (one, two, one, two):
        repo.retire("v0001", commit, verdict, {"reason": float("nan")})
    assert repo.metrics(one) == {"reason": None}
    assert {
        f"refs/{verdict}/0001-a-change",
        f"refs/tags/{verdict}/v0001",
        f"refs/tags/{verdict}/0001b-a-change",
    } <= refs(repo)
    assert not any(ref.startswith("refs/heads/cand") for ref in refs(repo))
    repo.git("gc", "--prune=now", "-q")
    assert repo.load(one).recipe.optim.lr == 1e-4
    with pytest.raises(InputError, match="no open candidate"):
        repo.retire("v0001", one, "unconfirmed", {})


def test_promoted_is_no_verdict_to_retire_with(repo: HarnessRepo) -> None:
    with pytest.raises(InputError, match="verdict: expected one of rejected"):
        repo.retire("v0001", propose(repo), "promoted", {})


# ------------------------------------------------------------------------------- not our changes


def test_other_work_in_the_main_tree_is_named_and_left_alone(repo: HarnessRepo) -> None:
    candidate = propose(repo)
    head = repo.head()
    (repo.path / "recipe.toml").write_text("mine")
    (repo.path / "new file.md").write_text("mine")
    with pytest.raises(InputError, match=r"dirty harness tree: recipe\.toml, new file\.md; set aside with: ") as caught:
        promote(repo, candidate)
    assert repo.head() == head
    assert (repo.path / "recipe.toml").read_text() == "mine"
    remedy = shlex.split(str(caught.value).partition("set aside with: ")[2])
    subprocess.run(
        [*remedy[:1], "-c", "user.name=a", "-c", "user.email=b", *remedy[1:]], check=True, capture_output=True
    )
    promote(repo, candidate)


def test_another_head_is_named(repo: HarnessRepo) -> None:
    repo.git("checkout", "-q", "--detach")
    with pytest.raises(InputError, match=r"not on main; run: git -C .* switch main"):
        repo.check_clean()
    repo.git("checkout", "-q", "-b", "mine")
    with pytest.raises(InputError, match="HEAD is at ref: refs/heads/mine, not on main"):
        repo.check_clean()
    repo.git("switch", "-q", "main")
    repo.check_clean()


def test_a_lock_and_a_merge_of_somebody_else_are_named_and_left(repo: HarnessRepo) -> None:
    lock = repo.git.git_dir / "index.lock"
    lock.touch()
    for _ in range(2):
        with pytest.raises(InputError, match=r"lock files left: \.git/index\.lock; delete them once no git runs there"):
            repo.check_clean()
    lock.unlink()
    (repo.git.git_dir / "MERGE_HEAD").write_text(repo.head())
    with pytest.raises(InputError, match="a merge is under way"):
        repo.check_clean()


def test_main_moved_by_hand_during_a_promotion_loses_nothing(
    repo: HarnessRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = propose(repo)
    old = repo.head()
    by_hand = repo.git("commit-tree", f"{old}^{{tree}}", "-p", old, "-m", "by hand")
    monkeypatch.setattr(HarnessRepo, "head", lambda self: old)
    repo.git("update-ref", "refs/heads/main", by_hand)
    with pytest.raises(GitError, match="update-ref"):
        promote(repo, candidate)
    assert repo.git("rev-parse", "main") == by_hand


def test_two_processes_promoting_serialise_and_lose_nothing(repo: HarnessRepo) -> None:
    commits = [propose(repo), propose(repo, DIAGNOSTIC, "v0002"), propose(repo, CLIP_HIGHER, "v0003")]
    code = (
        "import sys; from pathlib import Path\n"
        "from trainer.harness import HarnessRepo\nfrom trainer.types import InputError\n"
        "from tests.trainer.harness_seed import promote\n"
        "repo = HarnessRepo.open(Path(sys.argv[1]))\nprint('ready', flush=True); sys.stdin.readline()\n"
        "try: promote(repo, sys.argv[2], sys.argv[3])\nexcept InputError as e: print(e); sys.exit(3)\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(repo.path), commit, f"v000{i + 1}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for i, commit in enumerate(commits)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    outcomes = [child.communicate("go\n") for child in children]
    codes = [child.returncode for child in children]
    assert codes[1] == 0, "a diagnostic merges with either"
    assert sorted([codes[0], codes[2]]) == [0, 3], "of two training changes one wins"
    assert "main has moved" in (outcomes[0] if codes[0] else outcomes[2])[0]
    assert len(repo.story()) == 3
    assert fsck(repo) == ""
    repo.check_clean()
