"""The harness repository against hostile names and texts, the user's own git set-up, and damage."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.harness_seed import (
    CLIP_HIGHER,
    DIAGNOSTIC,
    FORMAT_TERM,
    LOWER_LR,
    SEED,
    new_repo,
    promote,
    propose,
)
from trainer.commits import message, slug_of, subject_prefix
from trainer.harness import HarnessRepo
from trainer.types import HarnessEdit, InputError, SetOption, SetWeight


@pytest.fixture
def repo(tmp_path: Path) -> HarnessRepo:
    return new_repo(tmp_path / "a run – ünï 'quoted'")


def refs(repo: HarnessRepo) -> set[str]:
    return set(repo.git("for-each-ref", "--format=%(refname)").split())


def trailers(repo: HarnessRepo, commit: str) -> dict[str, str]:
    lines = repo.git("log", "-1", "--format=%(trailers:only,unfold)", commit).splitlines()
    return {key: value for key, _, value in (line.partition(": ") for line in lines if line)}


HOSTILE = [
    "--upload-pack=x",
    "-x",
    "..",
    "../x",
    "a/b",
    "a..b",
    ".hidden",
    "x.lock",
    "",
    "A",
    "a b",
    "a\n",
    "a~1",
    "a@{0}",
    "é",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_could_be_options_paths_or_revisions_are_refused(tmp_path: Path, name: str) -> None:
    repo = new_repo(tmp_path)
    good = {
        "version": "v1", "parent": repo.head(), "edit": LOWER_LR, "slug": "s", "subject": "s", "body": "",
        "trailers": {}, "author": "designer",
    }  # fmt: skip
    for argument in ("version", "slug", "author", "parent"):
        with pytest.raises(InputError) as caught:
            repo.propose(**{**good, argument: name})  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    for act in (
        lambda: repo.load(name),
        lambda: repo.diff(repo.head(), name),
        lambda: repo.metrics(name),
        lambda: promote(repo, name),
        lambda: promote(repo, repo.head(), name),
        lambda: repo.retire(name, repo.head(), "rejected", {}),
        lambda: repo.retire("v1", repo.head(), name, {}),
    ):
        with pytest.raises(InputError):
            act()
    assert refs(repo) == {"refs/heads/main"}


def test_a_commit_of_elsewhere_is_refused(repo: HarnessRepo) -> None:
    for commit in ("0" * 40, "1234567890" * 4):
        with pytest.raises(InputError, match="no readable commit"):
            repo.load(commit)
        with pytest.raises(InputError, match="no readable commit"):
            promote(repo, commit)


LINES = st.text(st.characters(exclude_categories=[]), max_size=40)
BODIES = st.lists(
    st.one_of(
        LINES,
        st.sampled_from(
            [
                "Version: v9999",
                "Verdict: promoted",
                "---",
                "# x",
                "",
                "# ------------------------ >8 ------------------------",
            ]
        ),
    ),
    max_size=6,
).map("\n".join)


@settings(deadline=None, max_examples=25)
@given(subject=LINES.filter(lambda s: any(c.isprintable() and not c.isspace() for c in s)), body=BODIES, value=LINES)
def test_only_given_trailers_are_trailers(repo_for_messages: HarnessRepo, subject: str, body: str, value: str) -> None:
    git = repo_for_messages.git
    text = message(subject, body, {"Skill": value, "Version": "v0001"})
    commit = git("commit-tree", "HEAD^{tree}", "-F", "-", stdin=text)
    found = trailers(repo_for_messages, commit)
    skill = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    assert found == {"Version": "v0001"} | ({"Skill": skill} if skill else {})
    assert git("log", "-1", "--format=%s", commit).strip() == text.splitlines()[0].strip()


@pytest.fixture(scope="module")
def repo_for_messages(tmp_path_factory: pytest.TempPathFactory) -> HarnessRepo:
    return new_repo(tmp_path_factory.mktemp("messages"))


def test_a_subject_cannot_smuggle_trailers_or_an_edit_id(repo: HarnessRepo) -> None:
    start = repo.head()
    real = propose(repo)
    edit_id = trailers(repo, real)["Edit-Id"]
    repo.retire("v0001", real, "rejected", {})
    subject = f"x\n\nVersion: v9\nEdit-Id: {edit_id}"
    body = f"Edit-Id: {edit_id}\n\nEdit-Id: {edit_id}"
    fake = repo.propose(
        "v0002", repo.head(), CLIP_HIGHER, "fake", subject, body, {"Agent": "a\nVersion: v9"}, "designer"
    )
    assert trailers(repo, fake)["Version"] == "v0002"
    assert trailers(repo, fake)["Agent"] == "a Version: v9"
    repo.promote("v0002", fake, "promote: v0002", "", {"Edit-Id": edit_id}, {})
    assert propose(repo, parent=start) == real, "the search for an earlier proposal is not fooled by a text"


def test_an_empty_subject_and_a_bad_trailer_are_refused() -> None:
    with pytest.raises(InputError, match="subject: empty"):
        message(" \n", "", {})
    with pytest.raises(InputError, match="trailer: expected letters"):
        message("x", "", {"A\nB": "x"})


def test_slugs_and_prefixes() -> None:
    assert slug_of("v0004", "Dynamic sampling: Über!") == "0004-dynamic-sampling-ber"
    assert len(slug_of("v0004", "x" * 500)) == 60
    options = {
        "optim.lr": "tune(optim)",
        "algorithm.filter_groups.enable": "tune(filter)",
        "actor.grad_clip": "tune(actor)",
    }
    for path, prefix in options.items():
        assert subject_prefix(HarnessEdit(change=SetOption(path=path, value=1))) == prefix
    assert subject_prefix(HarnessEdit(change=SetWeight(term="a", value=1))) == "reward"
    assert subject_prefix(FORMAT_TERM) == "reward"
    assert subject_prefix(DIAGNOSTIC) == "diag"


# ------------------------------------------------------------------------------ the outside world


def test_configuration_hooks_and_environment_of_the_user_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, fired, theirs = tmp_path / "home", tmp_path / "fired", tmp_path / "theirs"
    hooks = home / "templates" / "hooks"
    hooks.mkdir(parents=True)
    (home / ".config/git").mkdir(parents=True)
    for hook in ("pre-commit", "commit-msg", "post-commit", "post-checkout", "reference-transaction", "post-merge"):
        (hooks / hook).write_text(f"#!/bin/sh\necho {hook} >> '{fired}'\nexit 1\n")
        (hooks / hook).chmod(0o755)
    (home / ".config/git/ignore").write_text("*.toml\n")
    (home / ".config/git/attributes").write_text("* filter=upper text eol=crlf\n")
    (home / ".gitconfig").write_text(
        f"[init]\n\ttemplateDir = {home}/templates\n\tdefaultBranch = trunk\n[core]\n\thooksPath = {hooks}\n"
        "\tautocrlf = true\n[commit]\n\tgpgSign = true\n[tag]\n\tgpgSign = true\n[user]\n\tname = Somebody\n"
        "[filter \"upper\"]\n\tclean = tr a-z A-Z\n\tsmudge = tr a-z A-Z\n\trequired = true\n"
        "[alias]\n\tlog = !false\n[diff]\n\texternal = false\n\tnoprefix = true\n[log]\n\tshowSignature = true\n"
    )  # fmt: skip
    subprocess.run(["git", "init", "-q", theirs], check=True)
    before = sorted(p.relative_to(theirs) for p in theirs.rglob("*"))
    for key, value in {
        "HOME": home, "XDG_CONFIG_HOME": home / ".config", "GIT_CONFIG_GLOBAL": home / ".gitconfig",
        "GIT_DIR": theirs / ".git", "GIT_WORK_TREE": theirs, "GIT_INDEX_FILE": theirs / ".git/index",
        "GIT_OBJECT_DIRECTORY": theirs / ".git/objects", "GIT_AUTHOR_NAME": "Somebody", "GIT_COMMITTER_NAME": "Somebody",
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.hooksPath", "GIT_CONFIG_VALUE_0": hooks,
        "GIT_TEMPLATE_DIR": home / "templates", "GIT_NAMESPACE": "x",
    }.items():  # fmt: skip
        monkeypatch.setenv(key, str(value))
    repo = new_repo(tmp_path / "run")
    shutil.copytree(hooks, repo.git.git_dir / "hooks")
    merge = promote(repo, propose(repo))
    retired = propose(repo, CLIP_HIGHER, "v0002")
    repo.retire("v0002", retired, "rejected", {})
    repo.check_clean()
    repo.reset_stale_worktrees()
    assert not fired.exists()
    assert sorted(p.relative_to(theirs) for p in theirs.rglob("*")) == before
    assert {path: (repo.path / path).read_bytes().decode() for path in SEED} == repo.files(merge)
    assert set(repo.git("log", "--all", "--format=%cn %G?").splitlines()) == {"EvoTrainer N"}
    assert repo.git("tag", "-l", "--format=%(taggername)") == "EvoTrainer"
    assert repo.diff(merge, retired).patch.startswith("diff --git a/recipe.toml b/recipe.toml")


def test_a_repository_inside_another_never_falls_through_to_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "harness").mkdir()
    with pytest.raises(InputError, match="no harness repository; restore"):
        HarnessRepo.open(tmp_path / "harness")
    (tmp_path / "harness" / ".git").mkdir()
    with pytest.raises(InputError, match="damaged"):
        HarnessRepo.open(tmp_path / "harness")


def test_damage_is_one_line_with_a_remedy(repo: HarnessRepo) -> None:
    head = repo.head()
    blob = repo.git("rev-parse", f"{head}:recipe.toml")
    obj = repo.git.git_dir / "objects" / blob[:2] / blob[2:]
    obj.chmod(0o644)
    obj.write_bytes(b"garbage")
    with pytest.raises(InputError) as caught:
        HarnessRepo.open(repo.path)
    assert "\n" not in str(caught.value)
    obj.unlink()
    with pytest.raises(InputError):
        HarnessRepo.open(repo.path)
    (repo.git.git_dir / "HEAD").unlink()
    with pytest.raises(InputError, match=r"damaged .*; restore the folder or start a new run"):
        HarnessRepo.open(repo.path)


def test_a_harness_that_does_not_parse_names_its_file(repo: HarnessRepo) -> None:
    (repo.path / "recipe.toml").write_text("[optim]\nlrr = 1\n")
    repo.git("commit", "-q", "-am", "by hand")
    with pytest.raises(InputError, match=r"recipe\.toml: optim\.lrr: unknown key"):
        HarnessRepo.open(repo.path)


def test_links_and_binaries_in_a_commit_are_refused(repo: HarnessRepo) -> None:
    (repo.path / "link.md").symlink_to("/etc/passwd")
    repo.git("add", "link.md")
    repo.git("commit", "-q", "-m", "link")
    with pytest.raises(InputError, match=r"link\.md: mode 120000; a harness holds plain files only"):
        repo.load(repo.head())
    (repo.path / "link.md").unlink()
    (repo.path / "link.md").write_bytes(b"\xff\xfe")
    repo.git("commit", "-q", "-am", "binary")
    with pytest.raises(InputError, match=r"link\.md: not UTF-8 text"):
        repo.load(repo.head())
