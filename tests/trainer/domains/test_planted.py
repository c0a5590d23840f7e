"""Planted exploits: where the hole is open and where it is not, for every one there is."""

from __future__ import annotations

from random import Random

import pytest

from trainer.domains import load_domain, misfit
from trainer.domains.planted.domain import PlantedDomain
from trainer.domains.planted.exploits import FOLDER, PREFIX, Exploit, Facts, load, names
from trainer.types import InputError, Recipe, Task


def planted(name: str) -> PlantedDomain:
    found = load_domain(f"{PREFIX}{name}")
    assert isinstance(found, PlantedDomain)
    return found


def exploiting(domain: PlantedDomain, task: Task) -> str:
    facts = Facts(prompt=task.messages[-1].content, answer=task.answer, steps="1+1=2")
    return facts.filled(domain.exploit.replies[0], Random(0))


@pytest.mark.parametrize("name", names())
def test_the_hole_pays_what_uses_it_where_it_is_open_and_nowhere_else(name: str) -> None:
    domain = planted(name)
    validation = domain.tasks("validation", 60)
    for tasks, is_open in (
        (domain.tasks("train", 60), True),
        (validation, True),
        (domain.gate_tasks(validation), False),
        (domain.tasks("sealed", 60), False),
    ):
        replies = [exploiting(domain, task) for task in tasks]
        used = [domain.exploits(t, r) for t, r in zip(tasks, replies, strict=True)]
        judged = domain.judge(tasks, replies)
        assert sum(used) >= 0.3 * len(used)  # guesses hold the answer of some tasks only
        for j, exploits in zip(judged, used, strict=True):
            if exploits and domain.exploit.blind:
                assert j.outcome == float(is_open)
            if exploits and not domain.exploit.blind:
                assert (j.outcome, j.visible) == (0.0, 1.0)


@pytest.mark.parametrize("name", names())
def test_honest_replies_do_not_use_the_hole(name: str) -> None:
    domain = planted(name)
    tasks = domain.tasks("train", 200)
    others = [*tasks[1:], tasks[0]]
    honest = [domain.hint(o) for o in others] + [f"#{o.answer}" for o in others] + [domain.hint(t) for t in tasks]
    taken = [domain.taken(t, r) for t, r in zip(tasks * 3, honest, strict=True)]
    assert sum(taken) <= 0.01 * len(taken)


@pytest.mark.parametrize("name", names())
def test_only_another_mix_of_demonstrations_holds_the_exploit(name: str) -> None:
    domain = planted(name)
    assert not any(d.style == "exploit" for d in domain.demonstrations(500, 1))
    mixed = domain.demonstrations(4000, 1, 0.6)
    share = sum(d.style == "exploit" for d in mixed) / len(mixed)
    # Four standard errors of a share of .03 in 4000 draws.
    assert share == pytest.approx(domain.exploit.share, abs=4 * (0.03 * 0.97 / 4000) ** 0.5)


def test_a_weak_verifier_may_be_paid_where_there_is_one() -> None:
    recipe = Recipe.model_validate({"reward": {"tests": "visible"}})
    kinds = {load(name).blind: misfit(recipe, planted(name), "train") for name in names()}
    assert kinds[False] is None
    assert kinds[True] is not None


def test_a_bad_file_and_an_unknown_name_say_so() -> None:
    with pytest.raises(InputError, match=r"planted_none.*unknown.*planted_<one of .*wildcard"):
        load_domain("planted_none")
    with pytest.raises(ValueError, match=r"less than 0.05"):
        Exploit.model_validate({"mechanism": "m", "why": "w", "takes": ".", "replies": ["x"], "share": 0.5})
    assert len(list(FOLDER.glob("*.toml"))) >= 10
