"""The ways of ``benchmarks.trainer`` that are others': TRL, a loop over transformers' ``generate``, its passes alone.

Runs in the environment that ``benchmarks.trainer`` makes for them, where our packages cannot be imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks.pacing import Pacer
from benchmarks.shapes import CLIP, GRAD_CLIP, GROUP, LEARNING_RATE, POLICY, PROMPTS, Shape, reward


def conversations(folder: Path) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] for text in json.loads((folder / PROMPTS).read_text("utf-8"))]


def batches(folder: Path, shape: Shape) -> Iterator[Tensor]:
    """Prompts in turn, GROUP rows of each: endlessly LongTensor[sequences, prompt tokens]. All are equally long."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder / POLICY)
    encoded = tokenizer.apply_chat_template(conversations(folder), add_generation_prompt=True, return_dict=True)
    prompts = torch.tensor(encoded["input_ids"])
    while True:
        for some in torch.split(prompts, shape.sequences // GROUP):
            yield some.repeat_interleave(GROUP, dim=0)


def trl(folder: Path, shape: Shape, pacer: Pacer) -> None:
    """TRL's GRPOTrainer at its quickest: one on-policy update of the whole batch, no reference model, no gradient
    checkpointing, nothing logged."""
    from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, unused-ignore]

    sampled_s = 0.0

    class Turns(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            pacer.wait()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            pacer.done(pacer.elapsed(), sampled_s)

    class Timed(GRPOTrainer):  # type: ignore[misc, unused-ignore]
        def _generate(self, prompts: list[Any]) -> Any:
            nonlocal sampled_s
            began = pacer.elapsed()
            generated = super()._generate(prompts)
            sampled_s = pacer.elapsed() - began
            return generated

    def judged(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
        return [reward(completion[0]["content"]) for completion in completions]

    with TemporaryDirectory() as out:
        settings = GRPOConfig(
            output_dir=out, use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, report_to=[],
            logging_strategy="no", save_strategy="no", per_device_train_batch_size=shape.sequences,
            num_generations=GROUP, max_completion_length=shape.tokens, max_steps=1 << 30, learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant", beta=0.0, epsilon=CLIP, temperature=1.0, max_grad_norm=GRAD_CLIP,
            shuffle_dataset=False,
        )  # fmt: skip
        Timed(
            model=str(folder / POLICY),
            reward_funcs=judged,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": conversations(folder)}),
            callbacks=[Turns()],
        ).train()


def generate(folder: Path, shape: Shape, pacer: Pacer) -> None:
    """The loop one writes first: transformers' ``generate``, rewards, advantages, the clipped loss, AdamW."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder / POLICY)
    tokenizer = AutoTokenizer.from_pretrained(folder / POLICY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    for prompts in batches(folder, shape):
        pacer.wait()
        begin = prompts.shape[1]
        with torch.inference_mode():
            sampled = model.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=shape.tokens, do_sample=True
            )
        rollout_s = pacer.elapsed()
        tokens = sampled.clone()  # an inference tensor cannot be saved for the backward pass
        texts = tokenizer.batch_decode(tokens[:, begin:], skip_special_tokens=True)
        scores = torch.tensor([reward(text) for text in texts]).view(-1, GROUP)
        advantages = ((scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        logits = model(tokens, logits_to_keep=shape.tokens + 1).logits[:, :-1]
        logprobs = logits.log_softmax(-1).gather(2, tokens[:, begin:, None])[..., 0]
        ratio = (logprobs - logprobs.detach()).exp()
        loss = -torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        pacer.done(pacer.elapsed(), rollout_s)


def passes(folder: Path, shape: Shape, pacer: Pacer) -> None:
    """transformers' decoder alone: the prompts, a token at a time through its cache, one forward and backward pass."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder / POLICY)
    for prompts in batches(folder, shape):
        reply = torch.randint(int(prompts.max()), (shape.sequences, shape.tokens))
        pacer.wait()
        with torch.inference_mode():
            state = model(prompts, use_cache=True, logits_to_keep=1)
            for at in range(shape.tokens - 1):
                state = model(reply[:, at : at + 1], past_key_values=state.past_key_values, use_cache=True)
        rollout_s = pacer.elapsed()
        model.zero_grad()
        logits = model(torch.cat([prompts, reply], dim=1), logits_to_keep=shape.tokens + 1).logits
        logits.backward(torch.ones_like(logits))
        pacer.done(pacer.elapsed(), rollout_s)


WAYS = {"trl": trl, "generate": generate, "transformers passes": passes}

if __name__ == "__main__":
    way, place, *shape = sys.argv[1:]
    WAYS[way](Path(place), Shape(*map(int, shape)), Pacer())
