from __future__ import annotations

import itertools
import multiprocessing
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agents.types import SkillDraft
from skills_db.format import parse, render
from skills_db.store import SEED_DIR, SkillStore
from skills_db.types import Evidence, Skill, SkillNote, check_name


def note(**fields: object) -> SkillNote:
    given = {
        "name": "collapse-optim-lr",
        "description": "When it collapses: lower the learning rate.",
        "domain": "math",
        "trigger": "performance_collapse",
        "factor": "optim.lr",
        "value": "0.0003",
        "outcome": "win",
        "evidence": "+0.100 [+0.050, +0.150] over 3 seeds",
        "expected_effect": "validation/mean +0.100",
        "body": "## Trigger\nperformance_collapse",
        "preconditions": ("optim.lr > 0.0006",),
        **fields,
    }
    return SkillNote.model_validate(given)


@pytest.fixture
def store(tmp_path: Path) -> SkillStore:
    return SkillStore([tmp_path / "a folder" / "skills", SEED_DIR])


def own(store: SkillStore) -> set[str]:
    return {path.parent.name for path in store.dirs[0].glob("*/SKILL.md")}


def test_the_seed_skills_are_sound_and_make_no_claim_of_own_runs() -> None:
    store = SkillStore([SEED_DIR])
    assert not store.problems()
    assert len(store.list()) >= 3
    for skill in store.list():
        assert skill.source and not skill.evidence
        assert render(skill) == (SEED_DIR / skill.name / "SKILL.md").read_text(encoding="utf-8")


def test_a_curators_draft_is_a_note() -> None:
    assert set(SkillDraft.model_fields) == set(SkillNote.model_fields)


def test_write_reads_back(store: SkillStore) -> None:
    assert not store.dirs[0].exists()
    folder = store.write(note(name="mine", trigger="headroom").model_dump(), "run/v1")
    assert folder == store.dirs[0] / "mine"
    skill = store.get("mine")
    assert skill is not None
    assert (skill.origin, skill.domains, skill.value, skill.wins, skill.losses) == ("math", ("math",), "0.0003", 1, 0)
    assert skill.preconditions == ("optim.lr > 0.0006",) and skill.body.startswith("## Trigger")
    assert [e.key for e in skill.evidence] == ["run/v1"]
    assert [path.name for path in folder.iterdir()] == ["SKILL.md"]


def test_the_file_is_an_agent_skill(store: SkillStore) -> None:
    text = (store.write(note(trigger="headroom"), "run/v1") / "SKILL.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    head = yaml.safe_load(front)
    assert set(head) == {"name", "description", "metadata"}
    assert all(isinstance(k, str) and isinstance(v, str) for k, v in head["metadata"].items())
    assert body.strip() == "## Trigger\nperformance_collapse"


def test_writing_twice_counts_once(store: SkillStore) -> None:
    file = store.write(note(trigger="headroom"), "run/v1") / "SKILL.md"
    before, stamp = file.read_bytes(), file.stat().st_mtime_ns
    store.write(note(trigger="headroom"), "run/v1")
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (before, stamp)


def test_evidence_merges_instead_of_duplicating(store: SkillStore) -> None:
    store.write(note(trigger="headroom"), "run/v1")
    store.write(note(trigger="headroom", name="another-name"), "run/v2")
    store.write(note(trigger="headroom", outcome="loss"), "run/v3")
    assert own(store) == {"collapse-optim-lr"}
    skill = store.get("collapse-optim-lr")
    assert skill and (skill.wins, skill.losses) == (2, 1)


def test_a_shipped_skill_is_copied_and_not_touched(store: SkillStore) -> None:
    shipped = (SEED_DIR / "collapse-lower-learning-rate" / "SKILL.md").read_bytes()
    store.write(note(), "run/v1")
    assert own(store) == {"collapse-lower-learning-rate"}
    assert (SEED_DIR / "collapse-lower-learning-rate" / "SKILL.md").read_bytes() == shipped
    skill = store.get("collapse-lower-learning-rate")
    assert skill and (skill.wins, skill.domains) == (1, ("code", "math"))
    assert skill.body.startswith("## Trigger\nReward falls")


def test_the_value_with_the_best_record_leads_and_losers_are_vetoed(store: SkillStore) -> None:
    mine = {"trigger": "headroom", "name": "lr"}
    store.write(note(**mine, value="0.001", outcome="loss"), "run/v1")
    store.write(note(**mine, value="0.0005", expected_effect="+0.05"), "run/v2")
    store.write(note(**mine, value="0.0004"), "run/v3")
    skill = store.get("lr")
    assert skill and (skill.value, skill.wins, skill.losses, skill.vetoes) == ("0.0005", 1, 0, ("0.001",))
    assert skill.expected_effect == "+0.05"


def test_a_skill_is_shared_only_after_it_won_in_another_domain(store: SkillStore) -> None:
    store.write(note(trigger="headroom"), "run/v1")
    store.write(note(trigger="headroom", domain="code", outcome="loss"), "run/v2")
    skill = store.get("collapse-optim-lr")
    assert skill and (skill.domains, skill.shared) == (("math",), False)
    store.write(note(trigger="headroom", domain="swe"), "run/v3")
    skill = store.get("collapse-optim-lr")
    assert skill and (skill.domains, skill.shared) == (("math", "swe"), True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "frontmatter"),
        (b"# only markdown\n", "frontmatter"),
        (b"---\nname: bad\n", "frontmatter"),
        (b"---\nname: [\n---\n", "not YAML"),
        (b"---\n- a\n---\n", "not a mapping"),
        (b"---\nname: other\ndescription: d\nmetadata: {}\n---\n", "differs from its folder"),
        (b"---\nname: bad\ndescription: d\n---\n", "metadata is missing"),
        (b"---\nname: bad\ndescription: d\nmetadata: {origin: math}\n---\n", "trigger"),
        (b"---\nname: bad\nmetadata: {origin: m, trigger: t, factor: f}\n---\n", "description"),
        (b"---\nname: bad\ndescription: d\nmetadata: {origin: m, trigger: t, factor: f, evidence: '{'}\n---\n", "JSON"),
        (
            b"---\nname: bad\ndescription: d\nmetadata: {origin: m, trigger: t, factor: f, schema-version: '9'}\n---\n",
            "schema_version",
        ),
        (b"---\nname: !!python/object/apply:os.system ['true']\n---\n", "not YAML"),
        (b"\xff\xfe\x00", "utf-8"),
        (b"x" * (1 << 19), "longer than"),
    ],
)
def test_a_damaged_skill_is_named_and_left_out(store: SkillStore, text: bytes, says: str) -> None:
    store.write(note(trigger="headroom", name="good"), "run/v1")
    folder = store.dirs[0] / "bad"
    folder.mkdir()
    (folder / "SKILL.md").write_bytes(text)
    assert "good" in {skill.name for skill in store.list()}
    assert "bad" not in {skill.name for skill in store.list()}
    (problem,) = store.problems()
    assert problem.path == str(folder / "SKILL.md") and says in problem.reason and "\n" not in problem.reason


def test_a_damaged_folder_is_neither_overwritten_nor_in_the_way(store: SkillStore) -> None:
    damaged = store.dirs[0] / "mine" / "SKILL.md"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("my notes", encoding="utf-8")
    for _ in range(2):
        assert store.write(note(trigger="headroom", name="mine"), "run/v1").name == "mine-2"
    assert damaged.read_text(encoding="utf-8") == "my notes"


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "/etc", "A", "a b", "a--b", "-a", "a-", "a" * 65, "a\n", "ä"]
)
def test_names_cannot_leave_the_library(store: SkillStore, name: str) -> None:
    with pytest.raises(ValueError, match="skill name"):
        check_name(name)
    for field in ("name", "merge_into"):
        with pytest.raises(ValidationError):
            store.write(note().model_dump() | {field: name}, "run/v1")
    assert not store.dirs[0].exists()


def test_a_folder_with_a_bad_name_is_a_problem(store: SkillStore) -> None:
    (store.dirs[0] / "Bad Name").mkdir(parents=True)
    (store.dirs[0] / "Bad Name" / "SKILL.md").write_text("x", encoding="utf-8")
    assert "skill name" in store.problems()[0].reason


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("truncated replies", "truncation-overlong-shaping"),
        ("dynamic sampling", "dead-groups-dynamic-sampling"),
        ("learning rate collapse", "collapse-lower-learning-rate"),
    ],
)
def test_search_finds_the_skill(query: str, first: str) -> None:
    assert SkillStore([SEED_DIR]).search(query)[0].name == first


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=30))
def test_search_takes_any_text(query: str) -> None:
    SkillStore([SEED_DIR]).search(query, limit=2)


# Anything in the frontmatter; in the body only what a text file keeps as it is.
wild = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn"]), max_size=12)
names = st.from_regex(r"[a-z0-9]{1,9}(-[a-z0-9]{1,9}){0,3}", fullmatch=True)
words = wild.map(lambda s: " ".join(s.split())).filter(bool)
skills = st.builds(
    Skill,
    name=names,
    description=wild.filter(bool),
    origin=wild.filter(bool),
    trigger=wild.filter(bool),
    factor=wild.filter(bool),
    value=wild,
    preconditions=st.lists(words, max_size=2).map(tuple),
    expected_effect=wild,
    source=wild,
    evidence=st.lists(
        st.builds(Evidence, key=wild.filter(bool), domain=wild.filter(bool), outcome=st.sampled_from(["win", "loss"]), value=wild, text=wild),
        max_size=2,
    ).map(tuple),
    body=st.lists(plain, max_size=4).map(lambda ls: "\n".join(ls).strip()),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(skills)
def test_any_skill_reads_back_from_its_text(skill: Skill) -> None:
    text = render(skill)
    assert parse(text, skill.name) == skill
    assert parse(text.replace("\n", "\r\n"), skill.name) == skill


def test_the_order_of_writes_does_not_matter(tmp_path: Path) -> None:
    notes = [
        (note(trigger="headroom", name="lr", value=value, outcome=outcome), f"run/v{i}")
        for i, (value, outcome) in enumerate([("1", "win"), ("2", "loss"), ("1", "loss")])
    ]
    seen = set()
    for number, order in enumerate(itertools.permutations(notes)):
        store = SkillStore([tmp_path / str(number)])
        for item, key in (*order, *order):
            store.write(item, key)
        skill = store.get("lr")
        assert skill
        seen.add((skill.value, skill.wins, skill.losses, skill.vetoes, skill.evidence))
    assert len(seen) == 1


def _write(arguments: tuple[Path, int]) -> None:
    SkillStore([arguments[0]]).write(note(trigger="headroom"), f"run/v{arguments[1]}")


def test_writers_in_several_processes_lose_nothing(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(_write, [(tmp_path, i) for i in range(12)])
    skill = SkillStore([tmp_path]).get("collapse-optim-lr")
    assert skill and skill.wins == 12


def test_a_store_needs_a_directory() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SkillStore([])
