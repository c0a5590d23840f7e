from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.trainer.embedded.toy import copy_policy
from trainer.embedded.decode import CACHE_CHUNK
from trainer.embedded.generic import GenericPolicy
from trainer.embedded.llama import LlamaPolicy
from trainer.embedded.policy import Policy, load_policy, save_policy
from trainer.embedded.tokenizer import build_tokenizer, chat_tokenizer, save_tokenizer
from trainer.types import InputError

CHAT = chat_tokenizer(build_tokenizer(["the answer is"] * 9), 128)
SHAPE: dict[str, Any] = {
    "vocab_size": CHAT.vocab_size + 5, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "max_position_embeddings": 128, "initializer_range": 0.3,
}  # fmt: skip
TOLERANCE = 1e-4
"""Logits of the reference models are about 10 in size; float32 sums of 64 to 96 terms lose 1e-5 of that."""


def hugging_face(kind: str) -> Any:
    """A transformers model with large random weights (norms and biases too), in evaluation mode."""
    import transformers as hf

    llama = {**SHAPE, "num_attention_heads": 4, "head_dim": 32}
    configs: dict[str, Callable[[], Any]] = {
        "llama": lambda: hf.LlamaConfig(**llama, num_key_value_heads=2, tie_word_embeddings=True),
        "llama untied": lambda: hf.LlamaConfig(
            **llama, num_key_value_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 500.0}
        ),
        "qwen2": lambda: hf.Qwen2Config(**SHAPE, num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5),
        "llama with scaled positions": lambda: hf.LlamaConfig(
            **llama, num_key_value_heads=2, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
        ),
        "gpt2": lambda: hf.GPT2Config(
            vocab_size=SHAPE["vocab_size"], n_embd=64, n_layer=2, n_head=2, n_positions=128, initializer_range=0.3
        ),
    }
    torch.manual_seed(0)
    auto: Any = hf.AutoModelForCausalLM
    model = auto.from_config(configs[kind]())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def checkpoint(model: Any, directory: Path, **options: Any) -> Path:
    model.save_pretrained(directory, **options)
    save_tokenizer(CHAT, directory)
    return directory


def padded(side: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, SHAPE["vocab_size"], (3, 45), generator=generator)
    mask = torch.ones(3, 45, dtype=torch.bool)
    mask[1, slice(0, 7) if side == "left" else slice(-7, None)] = False
    return tokens, mask


def reference(model: Any, tokens: Tensor, mask: Tensor) -> Tensor:
    positions = (mask.long().cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        logits: Tensor = model(tokens, attention_mask=mask.long(), position_ids=positions).logits
    return logits


KINDS = {
    "llama": LlamaPolicy, "llama untied": LlamaPolicy, "qwen2": LlamaPolicy,
    "llama with scaled positions": GenericPolicy, "gpt2": GenericPolicy,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model = hugging_face(kind)
    policy = load_policy(checkpoint(model, tmp_path))
    assert type(policy) is KINDS[kind]
    assert policy.max_positions == 128
    for side in ("left", "right"):
        tokens, mask = padded(side)
        expected = reference(model, tokens, mask)
        logits = policy.logits(tokens, mask)
        assert torch.isfinite(logits).all()
        torch.testing.assert_close(logits[mask], expected[mask], atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(policy.logits(tokens, mask, select=mask), logits[mask], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_cached_steps_equal_the_full_forward(kind: str, tmp_path: Path) -> None:
    """Over a growth of the cache, after rows were repeated, dropped and reordered."""
    policy = load_policy(checkpoint(hugging_face(kind), tmp_path))
    tokens, mask = padded("left")
    start = 8  # row 1 has a single token there
    assert start + CACHE_CHUNK < 45
    with torch.inference_mode():
        full = policy.logits(tokens, mask)
        logits, cache = policy.prefill(tokens[:, :start], mask[:, :start])
        rows = torch.tensor([0, 1, 2])
        for at in range(start, 45):
            torch.testing.assert_close(logits, full[rows, at - 1], atol=TOLERANCE, rtol=0)
            if at in (start + 2, 44):
                keep = torch.tensor([2, 0, 0, 1] if at != 44 else [3, 1])
                cache.select(keep)
                rows = rows[keep]
            logits = policy.step(tokens[rows, at], cache)
        torch.testing.assert_close(logits, full[rows, 44], atol=TOLERANCE, rtol=0)


def test_gradients_equal_those_of_transformers(tmp_path: Path) -> None:
    model = hugging_face("llama")
    policy = load_policy(checkpoint(model, tmp_path))
    tokens, mask = padded("right")
    for logits in (policy.logits(tokens, mask), model(tokens, attention_mask=mask.long()).logits):
        logits[mask].log_softmax(-1)[:, 7].sum().backward()
    qkv = policy.module.layers[0].qkv.weight.grad  # type: ignore[index, union-attr]
    attention = model.model.layers[0].self_attn
    expected = torch.cat([p.weight.grad for p in (attention.q_proj, attention.k_proj, attention.v_proj)])
    torch.testing.assert_close(qkv, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["llama", "llama untied", "qwen2", "gpt2"])
def test_saved_checkpoints_load_everywhere(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    model = hugging_face(kind)
    policy = load_policy(checkpoint(model, tmp_path / "a"))
    save_policy(policy, tmp_path / "b")
    tokens, mask = padded("right")
    expected = policy.logits(tokens, mask)
    assert torch.equal(load_policy(tmp_path / "b").logits(tokens, mask), expected)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    torch.testing.assert_close(reference(theirs, tokens, mask)[mask], expected[mask], atol=TOLERANCE, rtol=0)
    assert AutoTokenizer.from_pretrained(tmp_path / "b").eos_token_id == CHAT.eos_id
    assert GenerationConfig.from_pretrained(tmp_path / "b").eos_token_id == CHAT.eos_id


def test_sharded_checkpoints_load(tmp_path: Path) -> None:
    model = hugging_face("llama untied")
    directory = checkpoint(model, tmp_path, max_shard_size="100KB")
    assert len(list(directory.glob("*.safetensors"))) > 1
    tokens, mask = padded("right")
    torch.testing.assert_close(
        load_policy(directory).logits(tokens, mask)[mask], reference(model, tokens, mask)[mask], atol=TOLERANCE, rtol=0
    )
    sorted(directory.glob("*.safetensors"))[0].unlink()
    with pytest.raises(InputError, match=r"safetensors: missing shard; download"):
        load_policy(directory)


def test_older_configs_name_the_rotary_base_at_the_top(tmp_path: Path) -> None:
    model = hugging_face("llama untied")
    directory = checkpoint(model, tmp_path)
    config = json.loads((directory / "config.json").read_text())
    assert config.pop("rope_parameters")["rope_theta"] == 500.0
    (directory / "config.json").write_text(json.dumps(config | {"rope_theta": 500.0, "rope_scaling": None}))
    tokens, mask = padded("right")
    torch.testing.assert_close(
        load_policy(directory).logits(tokens, mask)[mask], reference(model, tokens, mask)[mask], atol=TOLERANCE, rtol=0
    )


def test_a_copy_is_independent() -> None:
    """A frozen reference for the KL term."""
    policy = copy_policy()
    frozen = copy.deepcopy(policy)
    tokens = torch.tensor([[5, 6, 7]])
    mask = torch.ones_like(tokens, dtype=torch.bool)
    before = frozen.logits(tokens, mask).detach()
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.mul_(2.0)
    assert torch.equal(frozen.logits(tokens, mask), before)
    assert not torch.equal(policy.logits(tokens, mask), before)


def test_half_precision_loads(tmp_path: Path) -> None:
    save_policy(copy_policy(), tmp_path)
    policy = load_policy(tmp_path, torch.bfloat16)
    assert {p.dtype for p in policy.module.parameters()} == {torch.bfloat16}
    assert policy.logits(torch.tensor([[5]]), torch.tensor([[True]])).isfinite().all()


def config(**changes: Any) -> Callable[[Path], object]:
    def edit(directory: Path) -> None:
        path = directory / "config.json"
        merged = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))

    return edit


def weights(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], object]:
    def edit(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return edit


def pickled(directory: Path) -> None:
    torch.save({}, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


NORM = "model.norm.weight"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), r"config\.json: missing; give"),
    "config not JSON": (lambda d: (d / "config.json").write_text("{"), r"config\.json: not JSON"),
    "config a list": (lambda d: (d / "config.json").write_text("[]"), r"config\.json: not a JSON object"),
    "no model type": (config(model_type=None), r"config\.json: model_type is missing"),
    "no hidden size": (config(hidden_size=None), r"config\.json: field 'hidden_size' is missing"),
    "text for a number": (config(hidden_size="wide"), r"config\.json: field .*'wide' is missing or of the wrong kind"),
    "remote code": (config(auto_map={"AutoModelForCausalLM": "evil.py"}), r"auto_map asks for remote code"),
    "unknown architecture": (config(model_type="nonesuch"), r"transformers cannot load it"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), r"tokenizer\.json: missing"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), r"model\.safetensors: missing"),
    "pickled weights": (pickled, r"pytorch_model\.bin: pickled weights are never loaded"),
    "garbage": (lambda d: (d / "model.safetensors").write_bytes(b"\xff" * 64), r"unreadable safetensors .*; download"),
    "truncated": (
        lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-100]),
        r"unreadable safetensors",
    ),
    "missing tensor": (weights(lambda t: t.pop(NORM)), r"tensor model\.norm\.weight is missing \(1 in all\)"),
    "unexpected tensor": (weights(lambda t: t.update(extra=torch.ones(2))), r"unexpected tensor extra"),
    "wrong shape": (weights(lambda t: t.update({NORM: torch.ones(3)})), r"has shape \[3\], config\.json asks for \[32\]"),
    "NaN": (weights(lambda t: t[NORM].fill_(float("nan"))), r"model\.norm\.weight holds NaN or infinite"),
    "infinity": (weights(lambda t: t[NORM].fill_(float("inf"))), r"model\.norm\.weight holds NaN or infinite"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_line(name: str, tmp_path: Path) -> None:
    save_policy(copy_policy(), tmp_path)
    damage, line = DAMAGE[name]
    damage(tmp_path)
    with pytest.raises(InputError, match=line) as caught:
        load_policy(tmp_path)
    assert "\n" not in str(caught.value)


def test_damage_of_other_architectures(tmp_path: Path) -> None:
    directory = checkpoint(hugging_face("gpt2"), tmp_path)
    weights(lambda t: t["transformer.ln_f.weight"].fill_(float("nan")))(directory)
    with pytest.raises(InputError, match=r"ln_f.weight holds NaN"):
        load_policy(directory)
    weights(lambda t: t.pop("transformer.ln_f.weight"))(directory)
    with pytest.raises(InputError, match=r"missing keys transformer\.ln_f\.weight"):
        load_policy(directory)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    save_policy(copy_policy(), tmp_path)
    wider = build_tokenizer(["many more words than the model has rows"] * 9)
    save_tokenizer(chat_tokenizer(wider, 64), tmp_path)
    with pytest.raises(InputError, match=r"tokens but the model has"):
        load_policy(tmp_path)


def test_protocol() -> None:
    policy: Policy = copy_policy()
    assert policy.tokenizer.eos_id != policy.tokenizer.pad_id
