"""The ways of ``benchmarks.trainer`` that are ours: the policy they all share, a training, and its passes alone."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch

from benchmarks.pacing import Pacer
from benchmarks.shapes import GROUP, LEARNING_RATE, POLICY, PROMPTS, REWARD_SQL, Shape
from trainer.domains.math.domain import MathDomain
from trainer.embedded.grpo import train
from trainer.embedded.metrics import read_metrics
from trainer.embedded.policy import load_policy, save_policy
from trainer.embedded.update import MICRO_BATCH_ROWS
from trainer.embedded.warmstart import SftSettings, new_policy
from trainer.types import Message, Recipe, RewardTerm, StepProgress, Task, TrainSpec

PROMPT_COUNT = 32
"""Distinct prompts: those of the larger shape."""


class SomeTasks(MathDomain):
    """The math domain with a given list of training tasks."""

    def __init__(self, tasks: list[Task]) -> None:
        self._tasks = tasks

    def tasks(self, split: Literal["train", "validation", "sealed"], count: int, shard: int = 0) -> list[Task]:
        return self._tasks[:count]


def prepare(folder: Path) -> None:
    """Write the policy that all ways train, and the prompts: math tasks of the commonest length in tokens.

    The policy has the default layout and random weights, but never ends its turn: tied embeddings share a first
    coordinate that every state keeps positive, and the end token's is far below. So all replies have the full length,
    without an option that would cost one of the ways time.
    """
    domain = MathDomain()
    policy = new_policy(domain, 0, SftSettings())
    with torch.no_grad():
        policy.module.embedding.weight[:, 0] = 4.0
        policy.module.embedding.weight[policy.tokenizer.eos_id, 0] = -30.0
    save_policy(policy, folder / POLICY)
    tasks = domain.tasks("train", 20 * PROMPT_COUNT)
    lengths = [len(policy.tokenizer.encode_prompt(task.messages)) for task in tasks]
    commonest = Counter(lengths).most_common(1)[0][0]
    chosen = [task for task, length in zip(tasks, lengths, strict=True) if length == commonest][:PROMPT_COUNT]
    (folder / PROMPTS).write_text(json.dumps([task.messages[0].content for task in chosen]) + "\n", "utf-8")


def prompts(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / PROMPTS).read_text("utf-8"))
    return found


def whole_steps(folder: Path, shape: Shape, pacer: Pacer) -> None:
    """``trainer.embedded.grpo.train`` as a run calls it: rollouts, reward terms in SQL, advantages, update, and the
    step's metrics and Parquet file."""
    tasks = [
        Task(
            id=f"task-{i}",
            domain="math",
            family="chain_sum",
            messages=(Message(role="user", content=text),),
            answer="0",
        )
        for i, text in enumerate(prompts(folder))
    ]
    recipe = Recipe.model_validate(
        {
            "optim": {"lr": LEARNING_RATE},
            "actor": {"use_kl_loss": False},
            "rollout": {"n": GROUP},
            "data": {"train_batch_size": shape.sequences // GROUP, "max_response_length": shape.tokens},
            "reward": {"weights": {"spread": 1.0}},
        }
    )
    with TemporaryDirectory() as out:
        spec = TrainSpec(
            run_id="benchmark", version="v0000", seed=0, domain="math", harness_commit="0" * 40, recipe=recipe,
            terms={"spread": RewardTerm(name="spread", description="differs within every group", sql=REWARD_SQL)},
            base_policy=folder / POLICY, token_budget=1 << 40, out_dir=Path(out),
        )  # fmt: skip

        def report(progress: StepProgress) -> None:
            step_s = pacer.elapsed()
            (log,) = Path(out).glob("metrics-*.jsonl")
            pacer.done(step_s, read_metrics(log)[-1][1]["timing_s/gen"])
            pacer.wait()

        pacer.wait()
        train(spec, load_policy(spec.base_policy), SomeTasks(tasks), report)


def passes(folder: Path, shape: Shape, pacer: Pacer) -> None:
    """What cannot be left out, with the decoder that we train with: prompts of each group once, a token at a time
    through the cache, then one forward and backward pass. No sampling, reward, loss or optimiser."""
    policy = load_policy(folder / POLICY)
    ids = [
        policy.tokenizer.encode_prompt([Message(role="user", content=text)])
        for text in prompts(folder)[: shape.sequences // GROUP]
    ]
    unique = torch.tensor(ids)
    owner = torch.arange(len(ids)).repeat_interleave(GROUP)
    begin = unique.shape[1]
    reply = torch.randint(begin, policy.tokenizer.vocab_size, (shape.sequences, shape.tokens))
    tokens = torch.cat([unique[owner], reply], dim=1)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    predicts = torch.zeros_like(mask)
    predicts[:, begin - 1 : -1] = True
    while True:
        pacer.wait()
        with torch.inference_mode():
            _, cache = policy.prefill(unique, mask[: len(unique), :begin])
            cache.select(owner)
            for at in range(shape.tokens - 1):
                policy.step(reply[:, at], cache)
        rollout_s = pacer.elapsed()
        policy.module.zero_grad()
        for rows in torch.split(torch.arange(shape.sequences), MICRO_BATCH_ROWS):
            logits = policy.logits(tokens[rows], mask[rows], predicts[rows])
            logits.backward(torch.ones_like(logits))  # type: ignore[no-untyped-call]
        pacer.done(pacer.elapsed(), rollout_s)


WAYS = {"ours": whole_steps, "passes": passes}

if __name__ == "__main__":
    way, place, *shape = sys.argv[1:]
    if way == "prepare":
        prepare(Path(place))
    else:
        WAYS[way](Path(place), Shape(*map(int, shape)), Pacer())
