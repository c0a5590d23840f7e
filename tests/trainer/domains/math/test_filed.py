import json
from pathlib import Path

import pytest

from trainer.domains import load_domain
from trainer.domains.filesplits import LEAST
from trainer.domains.math.filed import GATE_INSTRUCTION
from trainer.types import Domain, InputError


def rows(count: int, domain: str = "math") -> list[str]:
    return [
        json.dumps({"messages": [{"role": "user", "content": f"{i}+{i}"}], "domain": domain, "answer": str(2 * i)})
        for i in range(count)
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(rows(200)), "utf-8")
    return file


@pytest.fixture
def domain(path: Path) -> Domain:
    return load_domain("math", path)


def test_splits_divide_the_file_whatever_its_order(domain: Domain, path: Path) -> None:
    ids = [{t.id for t in domain.tasks(split, 1000)} for split in ("train", "validation", "sealed")]
    assert sum(map(len, ids)) == len(set.union(*ids)) == 200
    assert all(len(part) >= LEAST for part in ids)
    path.write_text("\n".join(reversed(rows(200))), "utf-8")
    assert load_domain("math", path).tasks("train", 1000) == domain.tasks("train", 1000)
    assert len(domain.tasks("train", 10)) == 10


def test_gate_tasks_ask_the_same_under_another_line(domain: Domain) -> None:
    validation = domain.tasks("validation", 10)
    for task, gate in zip(validation, domain.gate_tasks(validation), strict=True):
        assert gate.messages[0].content == f"{GATE_INSTRUCTION}\n{task.messages[0].content}"
        assert gate.answer == task.answer
        assert gate.id != task.id


def test_answers_of_digit_policies_and_chat_models_count(domain: Domain) -> None:
    task = domain.tasks("train", 1)[0].model_copy(update={"answer": "1,234"})
    for reply in ("#1234", "so\n#### 1,234", "thus $\\boxed{1234}$."):
        assert domain.judge([task], [reply])[0].outcome == 1.0
    for reply in ("1234", "#### 1234 or so", "\\boxed{1234} #1234", "#12345", "#### "):
        assert domain.judge([task], [reply])[0].outcome == 0.0
    assert tuple(domain.judge([task], [""])[0].features) == domain.feature_names


def test_demonstrations_come_from_the_generators(domain: Domain) -> None:
    assert domain.demonstrations(5, seed=0) == load_domain("math").demonstrations(5, seed=0)
    assert domain.demonstrations(5, 0, 0.9) == load_domain("math").demonstrations(5, 0, 0.9)


def test_what_cannot_be_used_is_refused(domain: Domain, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(rows(20)), "utf-8")
    with pytest.raises(InputError, match=r"few\.jsonl: its 20 tasks leave \d+ for the \w+ split, .*; add tasks"):
        load_domain("math", few)
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(rows(200, domain="code")), "utf-8")
    with pytest.raises(InputError, match=r"other\.jsonl: field domain .* 'code'"):
        load_domain("math", other)
    with pytest.raises(InputError, match="use 0"):
        domain.tasks("sealed", 5, shard=1)


def test_the_prompt_hint_bounds_every_prompt(domain: Domain) -> None:
    assert all(len(task.messages[0].content) < domain.prompt_length_hint for task in domain.tasks("train", 1000))
