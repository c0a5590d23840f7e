from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal

import pytest
import torch

from trainer.embedded.files import MANIFEST
from trainer.embedded.policy import load_policy
from trainer.embedded.sampler import sample
from trainer.embedded.warmjob import wall_s
from trainer.embedded.warmstart import SftSettings, collate, new_policy, schedule, shuffled_batches, warm_start
from trainer.types import Demonstration, InputError, Judged, Message, Task

SMALL = SftSettings(
    steps=20, batch_size=16, demonstrations=200, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
    num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=32,
)  # fmt: skip


class Successor:
    """Name the next letter."""

    name = "successor"
    note = ""
    feature_names: tuple[str, ...] = ()
    prompt_length_hint: int = 8

    def tasks(self, split: Literal["train", "validation", "sealed"], count: int, shard: int = 0) -> list[Task]:
        random = Random(f"{split} {shard}")
        letters = [random.randrange(25) for _ in range(count)]
        return [
            Task(
                id=f"{split}-{i}",
                domain=self.name,
                family="letter",
                messages=(Message(role="user", content=f"after {chr(97 + n)}"),),
                answer=chr(98 + n),
            )
            for i, n in enumerate(letters)
        ]

    def gate_tasks(self, validation: Sequence[Task]) -> list[Task]:
        return list(validation)

    def demonstrations(self, count: int, seed: int, worked: float = 0.0) -> list[Demonstration]:
        """The letter, or, worked, letter and again letter."""
        return [
            Demonstration(messages=task.messages, reply=task.answer * (1 + (i < worked * count)), style="plain")
            for i, task in enumerate(self.tasks("train", count, seed))
        ]

    def hint(self, task: Task) -> str:
        return ""

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        return [self.judge_one(task, reply) for task, reply in zip(tasks, replies, strict=True)]

    def judge_one(self, task: Task, reply: str) -> Judged:
        return Judged(outcome=float(reply == task.answer), answer=reply)

    def close(self) -> None:
        """Nothing is executed."""

    def observe(self, task: Task, turns: Sequence[str]) -> str | None:
        return None


class Counted:
    """A progress callback that remembers its calls."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def __call__(self, step: int, steps: int, loss: float) -> None:
        assert step == len(self.losses) + 1
        self.losses.append(loss)


def test_it_learns_the_demonstrations(tmp_path: Path) -> None:
    domain, progress = Successor(), Counted()
    path = warm_start(domain, 0, SMALL.model_copy(update={"steps": 300}), tmp_path, progress)
    policy, tasks = load_policy(path), domain.tasks("validation", 100)
    prompts = [policy.tokenizer.encode_prompt(task.messages) for task in tasks]
    samples = sample(policy, prompts, temperature=1.0, max_response_length=8, seed=0)
    outcomes = [domain.judge_one(task, turns[0]).outcome for task, turns in zip(tasks, samples.turns, strict=True)]
    # 25 facts in 300 steps: all but the rarest are certain by then, an untrained policy knows 1 in 25.
    assert sum(outcomes) > 90
    assert len(progress.losses) == 300
    assert progress.losses[-1] < 0.3 * progress.losses[0]


def test_only_replies_are_imitated() -> None:
    examples = [([5, 6], [7, 1]), ([5, 6, 8], [9, 1])]
    tokens, mask, target = collate(examples, pad=0)
    assert tokens.tolist() == [[5, 6, 7, 1, 0], [5, 6, 8, 9, 1]]
    assert mask.tolist() == [[True] * 4 + [False], [True] * 5]
    assert target.tolist() == [[False, False, True, True, False], [False, False, False, True, True]]


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def test_equal_inputs_give_equal_weights_and_any_other_input_does_not(tmp_path: Path) -> None:
    class Renamed(Successor):
        def demonstrations(self, count: int, seed: int, worked: float = 0.0) -> list[Demonstration]:
            replies = super().demonstrations(count, seed, worked)
            return [d.model_copy(update={"reply": d.reply.upper()}) for d in replies]

    first = warm_start(Successor(), 0, SMALL, tmp_path / "a")
    again = warm_start(Successor(), 0, SMALL, tmp_path / "b")
    assert weights(first) == weights(again)
    assert first.name == again.name
    others = [
        warm_start(Successor(), 1, SMALL, tmp_path / "a"),
        warm_start(Successor(), 0, SMALL.model_copy(update={"lr": 2e-3}), tmp_path / "a"),
        warm_start(Renamed(), 0, SMALL, tmp_path / "a"),
    ]
    assert len({weights(path) for path in (first, *others)}) == 4


def test_another_mix_is_another_policy_of_the_same_vocabulary_and_no_mix_is_the_policy_of_ever(tmp_path: Path) -> None:
    default = warm_start(Successor(), 0, SMALL, tmp_path)
    assert warm_start(Successor(), 0, SMALL, tmp_path, worked=0.0) == default, "unset: found in the cache"
    mixed = [warm_start(Successor(), 0, SMALL, tmp_path, worked=share) for share in (0.5, 0.501)]
    assert len({default.name, *(path.name for path in mixed)}) == 3, "its key tells near shares apart"
    assert len({weights(path) for path in (default, *mixed)}) == 3
    assert {(path / "tokenizer.json").read_bytes() for path in mixed} == {(default / "tokenizer.json").read_bytes()}
    assert all(wall_s(path) > 0 for path in (default, *mixed))
    assert wall_s(tmp_path) == 0


def test_the_threads_of_the_caller_do_not_matter(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two = warm_start(Successor(), 0, SMALL, tmp_path / "a")
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert weights(two) == weights(warm_start(Successor(), 0, SMALL, tmp_path / "b"))
    finally:
        torch.set_num_threads(before)


def test_a_second_start_comes_from_the_cache(tmp_path: Path) -> None:
    first, again = Counted(), Counted()
    path = warm_start(Successor(), 0, SMALL, tmp_path, first)
    assert warm_start(Successor(), 0, SMALL, tmp_path, again) == path
    assert (len(first.losses), len(again.losses)) == (20, 0)


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path / "evotrainer" in warm_start(Successor(), 0, SMALL).parents


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", MANIFEST])
@pytest.mark.parametrize("fault", ["changed", "gone"])
def test_a_damaged_cache_is_rebuilt(name: str, fault: str, tmp_path: Path) -> None:
    path = warm_start(Successor(), 0, SMALL, tmp_path)
    before = weights(path)
    if fault == "gone":
        (path / name).unlink()
    else:
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    again = Counted()
    assert warm_start(Successor(), 0, SMALL, tmp_path, again) == path
    assert len(again.losses) == 20
    assert weights(path) == before
    load_policy(path)


def test_an_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(step: int, steps: int, loss: float) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_start(Successor(), 0, SMALL, tmp_path, interrupt)
    assert list((tmp_path / "warm_start").iterdir()) == []


def test_the_faster_of_two_builders_wins(tmp_path: Path) -> None:
    """A second process that finishes meanwhile leaves its (equal) result in place."""
    inner: list[Path] = []

    def race(step: int, steps: int, loss: float) -> None:
        if step == steps and not inner:
            inner.append(warm_start(Successor(), 0, SMALL, tmp_path))

    path = warm_start(Successor(), 0, SMALL, tmp_path, race)
    assert inner == [path]
    load_policy(path)
    assert [p.name for p in (tmp_path / "warm_start").iterdir()] == [path.name]


def test_demonstrations_longer_than_the_policy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_position_embeddings: 4 is less than the longest demonstration"):
        warm_start(Successor(), 0, SMALL.model_copy(update={"max_position_embeddings": 4}), tmp_path)


def test_every_epoch_holds_every_example_once() -> None:
    batches = shuffled_batches(103, 8, seed=1)
    epochs = [list(islice(batches, 13)) for _ in range(2)]
    for epoch in epochs:
        assert Counter(i for batch in epoch for i in batch) == Counter(range(103))
        assert [len(batch) for batch in epoch] == [8] * 12 + [7]
    assert epochs[0] != epochs[1]


def test_the_learning_rate_rises_and_falls() -> None:
    settings = SftSettings(steps=100, warmup_steps=10)
    rates = [schedule(settings, step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[:10] == sorted(rates[:10])
    assert max(rates) == rates[9] == pytest.approx(1 - 0.95 * 0.09)
    assert rates[9:] == sorted(rates[9:], reverse=True)
    assert rates[100] == pytest.approx(0.05)
    assert schedule(settings.model_copy(update={"warmup_steps": 0}), 0) == 1.0


def test_the_default_layout_is_servable() -> None:
    """vLLM's attention kernels start at head_dim 32; about 100k parameters keep a step in milliseconds."""
    policy = new_policy(Successor(), 0, SftSettings())
    assert policy.module.layout.head_dim >= 32
    assert 80_000 < sum(p.numel() for p in policy.module.parameters()) < 130_000
