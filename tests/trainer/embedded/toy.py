"""A domain and a policy small enough to learn within a test: copy the digit of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from trainer.embedded.llama import Decoder, LlamaPolicy, layout_of
from trainer.embedded.policy import Policy
from trainer.embedded.tokenizer import build_tokenizer, chat_tokenizer
from trainer.types import Demonstration, Judged, Message, Recipe, RewardTerm, Task, TrainSpec

DIGITS = "01234567"
OUTCOME = RewardTerm(name="outcome", description="the verifier", sql="outcome")
BREVITY = RewardTerm(name="brevity", description="short replies", sql="1.0 / (1 + response_length)")

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}


class CopyDomain:
    """Outcome 1 if the reply holds the prompt's digit."""

    name = "copy"
    note = ""
    feature_names: tuple[str, ...] = ("digits",)
    prompt_length_hint: int = 8

    def tasks(self, split: Literal["train", "validation", "sealed"], count: int, shard: int = 0) -> list[Task]:
        return [
            Task(
                id=f"{split}-{shard}-{number}",
                domain="copy",
                family="digit",
                level=number % 2,
                messages=(Message(role="user", content=DIGITS[number % len(DIGITS)]),),
                answer=DIGITS[number % len(DIGITS)],
            )
            for number in range(min(count, 64))
        ]

    def gate_tasks(self, validation: Sequence[Task]) -> list[Task]:
        return list(validation)

    def demonstrations(self, count: int, seed: int, worked: float = 0.0) -> list[Demonstration]:
        return [Demonstration(messages=t.messages, reply=t.answer, style="copy") for t in self.tasks("train", count)]

    def hint(self, task: Task) -> str:
        return task.answer + DIGITS.replace(task.answer, "")[:2]

    def judge(self, tasks: Sequence[Task], replies: Sequence[str]) -> list[Judged]:
        return [self.judge_one(task, reply) for task, reply in zip(tasks, replies, strict=True)]

    def judge_one(self, task: Task, reply: str) -> Judged:
        digits = sum(reply.count(digit) for digit in DIGITS)
        return Judged(outcome=float(task.answer in reply), answer=reply or None, features={"digits": float(digits)})

    def close(self) -> None:
        """Nothing is executed."""

    def observe(self, task: Task, turns: Sequence[str]) -> str | None:
        return None


def copy_policy(seed: int = 0) -> Policy:
    """An untrained policy, biased towards digits so that a reward is seen at all."""
    tokenizer = chat_tokenizer(build_tokenizer([DIGITS], max_words=0), max_length=64)
    config = CONFIG | {"vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.eos_id}
    layout = layout_of(config)
    assert layout is not None
    torch.manual_seed(seed)
    module = Decoder(layout).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.1)
        # Tied embeddings: one direction in which every state is positive and the wanted tokens are long.
        ids = [tokenizer.encode(digit)[0] for digit in DIGITS] + [tokenizer.eos_id]
        module.embedding.weight[:, 0] = 0.3
        module.embedding.weight[ids, 0] = 1.5
    return LlamaPolicy(module, tokenizer, config)


def copy_spec(out_dir: Path, recipe: Recipe | None = None, **changes: Any) -> TrainSpec:
    fields: dict[str, Any] = {
        "run_id": "run",
        "version": "v0000",
        "seed": 1,
        "domain": "copy",
        "harness_commit": "0" * 40,
        "recipe": recipe or copy_recipe(),
        "terms": {"outcome": OUTCOME, "brevity": BREVITY},
        "base_policy": out_dir / "base",
        "token_budget": 2000,
        "out_dir": out_dir,
    }
    return TrainSpec(**(fields | changes))


def copy_recipe(**sections: dict[str, Any]) -> Recipe:
    """A small recipe; ``sections`` are merged over it, ``data={"levels": [1]}``."""
    base: dict[str, dict[str, Any]] = {
        "optim": {"lr": 5e-3},
        "rollout": {"n": 4},
        "data": {"train_batch_size": 8, "max_response_length": 6},
        "actor": {"use_kl_loss": False},
    }
    for name, section in sections.items():
        base[name] = base.get(name, {}) | section
    return Recipe.model_validate(base)
