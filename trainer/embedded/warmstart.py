"""The default policy: a small Llama, warm-started by supervised fine-tuning on demonstrations.

RL elicits what a policy already does now and then, so the demonstrations mix styles; the number of
steps is fixed, never the time, so that equal settings give equal weights on any machine's day.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import platformdirs
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from trainer.embedded import llama, muon, tokenizer
from trainer.embedded.files import MANIFEST
from trainer.embedded.llama import Decoder, Layout, LlamaPolicy
from trainer.embedded.muon import Muon
from trainer.embedded.policy import save_policy
from trainer.embedded.tokenizer import ChatTokenizer, build_tokenizer, chat_tokenizer
from trainer.types import Demonstration, Domain, InputError, Record

Progress = Callable[[int, int, float], None]
"""Called with (step, steps, loss)."""

TOKENIZER_CORPUS = 2000
"""Demonstrations of seed 0 that fix the vocabulary: the same for every seed, so that token counts compare."""


class SftSettings(Record):
    """Layout of the default policy and schedule of its warm start.

    ``demonstrations`` are drawn once and repeated in epochs until ``steps`` batches of
    ``batch_size`` are done. Matrices learn by Muon at ``matrix_lr``, embeddings and norms by AdamW at
    ``lr``; both rates rise linearly over ``warmup_steps`` and fall linearly. ``head_dim`` 32 is the
    least that vLLM serves.
    """

    steps: Annotated[int, Field(gt=0)] = 1400
    batch_size: Annotated[int, Field(gt=0)] = 48
    demonstrations: Annotated[int, Field(gt=0)] = 20_000
    matrix_lr: Annotated[float, Field(gt=0)] = 0.02
    lr: Annotated[float, Field(gt=0)] = 0.01
    warmup_steps: Annotated[int, Field(ge=0)] = 20
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    hidden_size: Annotated[int, Field(gt=0)] = 64
    intermediate_size: Annotated[int, Field(gt=0)] = 128
    num_hidden_layers: Annotated[int, Field(gt=0)] = 2
    num_attention_heads: Annotated[int, Field(gt=0)] = 2
    num_key_value_heads: Annotated[int, Field(gt=0)] = 2
    head_dim: Annotated[int, Field(gt=0, multiple_of=2)] = 32
    max_position_embeddings: Annotated[int, Field(gt=0)] = 512
    max_words: Annotated[int, Field(ge=0)] = 100


def warm_start(
    domain: Domain,
    seed: int,
    settings: SftSettings | None = None,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    worked: float = 0.0,
) -> Path:
    """Checkpoint directory of the warm-started default policy, from the cache where it is there and intact.

    Deterministic in (domain, seed, settings, worked); ``worked`` is a share of the demonstrations, see
    ``Domain.demonstrations``. ``cache_dir`` is the user's cache directory
    (``$XDG_CACHE_HOME/evotrainer``) by default. Built in a temporary directory and renamed, so an
    interrupted build leaves nothing that could be mistaken for a policy. About 80 s of one thread.
    """
    settings = settings or SftSettings()
    root = (cache_dir or platformdirs.user_cache_path("evotrainer")) / "warm_start"
    key = _key(domain, seed, settings, worked)
    target = root / key
    if _intact(target, key):
        return target
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{key}-", dir=root) as temporary, one_thread():
        built, started = Path(temporary) / key, time.monotonic()
        save_policy(train_sft(domain, seed, settings, progress, worked), built)
        manifest = {"key": key, "domain": domain.name, "seed": seed, "settings": settings.model_dump(), "worked": worked,
                    "wall_s": time.monotonic() - started,
                    "files": {path.name: _digest(path) for path in sorted(built.iterdir())}}  # fmt: skip
        (built / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
        if not _intact(target, key):  # another process may have been faster
            shutil.rmtree(target, ignore_errors=True)
            built.replace(target)
    return target


def train_sft(
    domain: Domain, seed: int, settings: SftSettings, progress: Progress | None = None, worked: float = 0.0
) -> LlamaPolicy:
    """Build the default policy and fit it to the domain's demonstrations (replies and end tokens only).

    Initialisation and vocabulary do not depend on ``worked``: only what is demonstrated differs.
    """
    policy = new_policy(domain, seed, settings)
    demonstrations = domain.demonstrations(settings.demonstrations, seed, worked)
    examples = [_encode(policy.tokenizer, demo) for demo in demonstrations]
    longest = max(len(prompt) + len(reply) for prompt, reply in examples)
    if longest > policy.max_positions:
        raise InputError(f"max_position_embeddings: {policy.max_positions} is less than the longest demonstration "
                         f"of domain {domain.name}, {longest} tokens; raise it")  # fmt: skip
    batches = shuffled_batches(len(examples), settings.batch_size, seed)
    optimizers = _optimizers(policy.module, settings)
    for step in range(settings.steps):
        tokens, mask, target = collate([examples[i] for i in next(batches)], policy.tokenizer.pad_id)
        for optimizer, rate in optimizers:
            optimizer.param_groups[0]["lr"] = rate * schedule(settings, step)
        logits = policy.logits(tokens[:, :-1], mask[:, :-1], select=target[:, 1:])
        loss = F.cross_entropy(logits, tokens[:, 1:][target[:, 1:]])
        policy.module.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.module.parameters(), settings.grad_clip)
        for optimizer, _ in optimizers:
            optimizer.step()
        if progress is not None:
            progress(step + 1, settings.steps, float(loss.detach()))
    return policy


def new_policy(domain: Domain, seed: int, settings: SftSettings) -> LlamaPolicy:
    """An untrained default policy with the tokenizer of the domain."""
    corpus = domain.demonstrations(TOKENIZER_CORPUS, 0)
    texts = (text for demo in corpus for text in (*(m.content for m in demo.messages), demo.reply))
    chat = chat_tokenizer(build_tokenizer(texts, settings.max_words), settings.max_position_embeddings)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": chat.vocab_size, "hidden_size": settings.hidden_size,
        "intermediate_size": settings.intermediate_size, "num_hidden_layers": settings.num_hidden_layers,
        "num_attention_heads": settings.num_attention_heads, "num_key_value_heads": settings.num_key_value_heads,
        "head_dim": settings.head_dim, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "max_position_embeddings": settings.max_position_embeddings, "initializer_range": 0.02,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": None,
        "eos_token_id": chat.eos_id, "pad_token_id": chat.pad_id,
    }  # fmt: skip
    layout = llama.layout_of(config)
    assert layout is not None
    return LlamaPolicy(initialised(layout, seed), chat, config)


def initialised(layout: Layout, seed: int) -> Decoder:
    """A decoder with random weights: embeddings at the config's range, matrices at 1/sqrt(fan-in), those
    that write into the residual stream scaled down by depth (GPT-2, section 2.3)."""
    module = Decoder(layout)
    generator = torch.Generator().manual_seed(seed)
    depth = math.sqrt(2 * layout.num_hidden_layers)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() == 2:
                std = layout.initializer_range if "embedding" in name else parameter.shape[1] ** -0.5
                residual = name.endswith(("out.weight", "down.weight"))
                parameter.normal_(0.0, std / depth if residual else std, generator=generator)
    return module.eval()


def schedule(settings: SftSettings, step: int) -> float:
    """Factor of the learning rates: a linear rise over the warm-up, a linear fall to a twentieth at the end."""
    return min(1.0, (step + 1) / max(1, settings.warmup_steps)) * (1.0 - 0.95 * step / settings.steps)


def shuffled_batches(count: int, batch_size: int, seed: int) -> Iterator[list[int]]:
    """Endless epochs of batches of indices in random order.

    Not sorted by length: that would also sort by style, and a batch of one style teaches less. The
    forward pass skips padding anyway.
    """
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(count, generator=generator).tolist()
        yield from (order[start : start + batch_size] for start in range(0, count, batch_size))


def collate(examples: Sequence[tuple[list[int], list[int]]], pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """(prompt, reply) pairs to right-padded tokens, mask and reply mask, each [B,T]."""
    width = max(len(prompt) + len(reply) for prompt, reply in examples)
    tokens = torch.tensor([[*p, *r, *[pad] * (width - len(p) - len(r))] for p, r in examples])
    at = torch.arange(width)
    begin = torch.tensor([len(p) for p, _ in examples])[:, None]
    mask = at < torch.tensor([len(p) + len(r) for p, r in examples])[:, None]
    return tokens, mask, mask & (at >= begin)


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread: sums in another order would give other weights, and small matrices gain nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _optimizers(module: Decoder, settings: SftSettings) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices, which halves the steps until the policy works; AdamW for the rest."""
    matrices = [
        p for name, p in module.named_parameters() if p.dim() == 2 and not name.startswith(("embedding", "head"))
    ]
    chosen = set(matrices)
    rest = [p for p in module.parameters() if p not in chosen]
    adamw = torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=settings.weight_decay, fused=True)
    return [(Muon(matrices, settings.matrix_lr), settings.matrix_lr), (adamw, settings.lr)]


def _encode(chat: ChatTokenizer, demo: Demonstration) -> tuple[list[int], list[int]]:
    return chat.encode_prompt(demo.messages), [*chat.encode(demo.reply), chat.eos_id]


def _key(domain: Domain, seed: int, settings: SftSettings, worked: float) -> str:
    """Hash of everything the weights depend on: settings, seed, demonstrations, code and torch."""
    digest = hashlib.sha256()
    for demo in domain.demonstrations(256, seed, worked):
        digest.update(demo.model_dump_json().encode())
    for source in (__file__, llama.__file__, muon.__file__, tokenizer.__file__):
        digest.update(Path(source).read_bytes())
    mix = [worked] if worked else []  # unset: the key of before there was a choice
    digest.update(json.dumps([settings.model_dump(), seed, domain.name, torch.__version__, *mix]).encode())
    return f"{domain.name}-{seed}-{digest.hexdigest()[:16]}"


def _intact(directory: Path, key: str) -> bool:
    """Is the checkpoint complete and unchanged since it was written?"""
    try:
        manifest = json.loads((directory / MANIFEST).read_text("utf-8"))
        files: dict[str, str] = manifest["files"]
        return bool(manifest["key"] == key) and all(_digest(directory / n) == d for n, d in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
