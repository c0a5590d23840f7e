from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.trainer.embedded.toy import CONFIG
from trainer.embedded import sampler
from trainer.embedded.generic import load_generic
from trainer.embedded.llama import Decoder, LlamaPolicy, layout_of
from trainer.embedded.policy import Policy, save_policy
from trainer.embedded.sampler import NonFinite, Samples, sample
from trainer.embedded.tokenizer import build_tokenizer, chat_tokenizer
from trainer.types import InputError, Message

CHAT = chat_tokenizer(build_tokenizer(["compute 1 + 2 ="] * 9), 128)
PROMPTS = [CHAT.encode_prompt([Message(role="user", content=text)]) for text in ("1", "compute 1 + 2 =", "12", "1")]


def random_policy(end: float = 0.05) -> LlamaPolicy:
    """Random weights; the end token is sampled with a probability of about ``end``."""
    config = CONFIG | {"vocab_size": CHAT.vocab_size, "max_position_embeddings": 128, "num_hidden_layers": 2}
    layout = layout_of(config)
    assert layout is not None
    torch.manual_seed(0)
    module = Decoder(layout).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.2)
        # A state that every token shares (tied embeddings, coordinate 0) sets the end token apart.
        module.embedding.weight[:, 0] = 1.0
        module.norm[0] = 1.0
    policy = LlamaPolicy(module, CHAT, config)
    with torch.no_grad():
        tokens = torch.tensor([PROMPTS[0]])
        mask = torch.ones_like(tokens, dtype=torch.bool)
        for _ in range(60):  # bisecting would be shorter to run, this is shorter to read
            if policy.logits(tokens, mask)[0, -1].softmax(-1)[CHAT.eos_id] >= end:
                break
            module.embedding.weight[CHAT.eos_id, 0] += 0.2
    return policy


POLICY = random_policy()


def draws(policy: Policy = POLICY, prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any) -> Samples:
    return sample(policy, prompts, **{"temperature": 1.0, "max_response_length": 30, "seed": 5, **options})


def distributions(samples: Samples, temperature: float, policy: Policy = POLICY) -> tuple[Tensor, Tensor]:
    """Log-probability of every token and entropy of its distribution, from the training forward."""
    with torch.no_grad():
        logits = policy.logits(samples.tokens, samples.attention) / temperature
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    taken = logprobs[:, :-1].gather(2, samples.tokens[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(taken, (1, 0)), torch.nn.functional.pad(entropy[:, :-1], (1, 0))


def assert_consistent(samples: Samples, temperature: float, policy: Policy = POLICY) -> None:
    """The sampler's numbers are those of the training forward, on sampled tokens and nowhere else."""
    taken, entropy = distributions(samples, temperature, policy)
    sampled = samples.response_mask
    torch.testing.assert_close(samples.logprobs, taken * sampled, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(samples.entropy, entropy * sampled, atol=1e-4, rtol=1e-4)
    assert samples.response_lengths == sampled.sum(1).tolist()
    lengths = samples.attention.sum(1)
    assert torch.equal(samples.attention, torch.arange(samples.tokens.shape[1]) < lengths[:, None])
    assert int(lengths.max()) == samples.tokens.shape[1]


def assert_same(a: Samples, b: Samples) -> None:
    assert torch.equal(a.tokens, b.tokens)
    assert torch.equal(a.response_mask, b.response_mask)
    torch.testing.assert_close(a.logprobs, b.logprobs, atol=1e-4, rtol=1e-4)
    assert (a.turns, a.stop_reasons) == (b.turns, b.stop_reasons)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_numbers_equal_the_training_forward(temperature: float) -> None:
    samples = draws(prompts=PROMPTS * 8, temperature=temperature)
    assert_consistent(samples, temperature)
    assert {"stop", "length"} == set(samples.stop_reasons)
    for row, prompt in enumerate(PROMPTS * 8):
        n, m = samples.prompt_lengths[row], samples.response_lengths[row]
        reply = samples.tokens[row, n : n + m].tolist()
        assert samples.tokens[row, :n].tolist() == prompt
        assert bool(samples.response_mask[row, n : n + m].all())
        assert (reply[-1] == CHAT.eos_id) == (samples.stop_reasons[row] == "stop")
        assert CHAT.eos_id not in reply[:-1]
        assert (m == 30) or samples.stop_reasons[row] == "stop"
        assert samples.turns[row] == [CHAT.decode(reply)]


def test_equal_seeds_give_equal_samples_and_others_differ() -> None:
    assert_same(draws(), draws())
    assert not torch.equal(draws().tokens[:, :8], draws(seed=6).tokens[:, :8])


def test_copies_of_a_prompt_differ() -> None:
    samples = draws(prompts=[PROMPTS[0]] * 8)
    assert len({tuple(turn) for turn in samples.turns}) > 4


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_compaction_changes_nothing(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = draws(prompts=PROMPTS * 8)
    monkeypatch.setattr(sampler, "COMPACT_BELOW", share)
    assert_same(draws(prompts=PROMPTS * 8), expected)


def test_a_row_does_not_depend_on_the_rows_after_it() -> None:
    alone = draws(prompts=PROMPTS[1:2])
    beside = draws(prompts=PROMPTS[1:])
    assert alone.turns[0] == beside.turns[0]


def test_greedy_takes_the_likeliest_token() -> None:
    samples = draws(greedy=True, temperature=0.5)
    with torch.no_grad():
        likeliest = POLICY.logits(samples.tokens, samples.attention).argmax(-1)
    mask = samples.response_mask[:, 1:]
    assert torch.equal(samples.tokens[:, 1:][mask], likeliest[:, :-1][mask])
    assert_consistent(samples, 0.5)


def test_any_causal_lm_samples_the_same(tmp_path: Path) -> None:
    save_policy(POLICY, tmp_path)
    generic = load_generic(tmp_path, CHAT, torch.float32)
    assert_same(draws(generic, prompts=PROMPTS * 4), draws(prompts=PROMPTS * 4))


def ask_twice(row: int, turns: list[str]) -> str | None:
    """Even rows get two questions back, odd rows none."""
    return f"{len(turns)} + {row}" if row % 2 == 0 and len(turns) < 3 else None


def test_observations_are_forced_and_masked() -> None:
    policy = random_policy(end=0.3)
    samples = draws(policy, PROMPTS * 4, observe=ask_twice, max_turns=5, max_response_length=80)
    assert_consistent(samples, 1.0, policy)
    finished = [row for row, reason in enumerate(samples.stop_reasons) if reason == "stop"]
    assert {len(samples.turns[row]) for row in finished} == {1, 3}
    for row in finished:
        length, ids = int(samples.attention[row].sum()), list((PROMPTS * 4)[row])
        mask = [False] * len(ids)
        replies = split_replies(samples, row)
        for index, reply in enumerate(replies):
            observation = CHAT.encode_observation(f"{index + 1} + {row}") if index + 1 < len(replies) else []
            ids += [*reply, *observation]
            mask += [True] * len(reply) + [False] * len(observation)
        assert samples.tokens[row, :length].tolist() == ids
        assert samples.response_mask[row, :length].tolist() == mask
        assert samples.turns[row] == [CHAT.decode(reply) for reply in replies]


def split_replies(samples: Samples, row: int) -> list[list[int]]:
    """Runs of sampled tokens, each closed by its end token."""
    replies: list[list[int]] = [[]]
    for token in samples.tokens[row][samples.response_mask[row]].tolist():
        replies[-1].append(token)
        if token == CHAT.eos_id:
            replies.append([])
    return replies[:-1]


def test_compaction_changes_nothing_in_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = random_policy(end=0.3)
    options: dict[str, Any] = {"observe": ask_twice, "max_turns": 5, "max_response_length": 80}
    expected = draws(policy, PROMPTS * 4, **options)
    for share in (0.0, 1.0):
        monkeypatch.setattr(sampler, "COMPACT_BELOW", share)
        assert_same(draws(policy, PROMPTS * 4, **options), expected)


def test_why_episodes_stop() -> None:
    policy = random_policy(end=0.3)
    turns = draws(policy, PROMPTS * 4, observe=lambda row, turns: "1", max_turns=2, max_response_length=90)
    assert "turns" in turns.stop_reasons
    assert all(len(t) == 2 for t, r in zip(turns.turns, turns.stop_reasons, strict=True) if r == "turns")
    # An observation that leaves no room for an answer ends the episode; its tokens are not recorded.
    longest = draws(policy, PROMPTS * 4, observe=lambda row, turns: "1" * 40, max_turns=9, max_response_length=30)
    assert set(longest.stop_reasons) == {"length"}
    assert all(len(t) == 1 for t in longest.turns)
    assert longest.response_lengths == (longest.attention.sum(1) - torch.tensor(longest.prompt_lengths)).tolist()


def test_observe_sees_finished_turns_only() -> None:
    seen: list[tuple[int, list[str]]] = []
    samples = draws(observe=lambda row, turns: seen.append((row, list(turns))))
    assert sorted(seen) == sorted((r, t) for r, t in enumerate(samples.turns) if samples.stop_reasons[r] == "stop")


def test_a_response_of_one_token() -> None:
    samples = draws(max_response_length=1)
    assert samples.response_lengths == [1] * len(PROMPTS)
    assert_consistent(samples, 1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_logits_raise(value: float) -> None:
    policy = random_policy()
    with torch.no_grad():
        policy.module.embedding.weight[CHAT.encode("7")[0]] = value
    with pytest.raises(NonFinite):
        draws(policy)


def test_a_prompt_without_room_for_the_response_is_refused() -> None:
    with pytest.raises(InputError, match=r"data\.max_response_length: 120 after a prompt of 9 tokens .* 128 positions"):
        draws(max_response_length=120)


LOGITS = torch.tensor([0.0, 1.0, -1.0, -200.0, 2.0, -200.0])


def test_tokens_follow_the_distribution() -> None:
    """Inversion maps the unit interval onto the tokens in lengths equal to their probabilities: on an
    even grid of n points each count is off by at most one."""
    n = 20_000
    uniform = (torch.arange(n) + 0.5) / n
    token, odds = sampler._draw(LOGITS.expand(n, -1), 0.7, uniform, greedy=False)
    scaled = LOGITS / 0.7
    expected = scaled.softmax(-1)
    counts = torch.bincount(token, minlength=len(LOGITS))
    assert (counts - expected * n).abs().max() <= 2  # one more for float32 sums
    mean = (expected * scaled).sum().expand(n)
    torch.testing.assert_close(odds, torch.stack([expected[token], scaled[token], mean], 1))


@given(st.lists(st.floats(-300, 300, width=32), min_size=1, max_size=40), st.sampled_from([0.0, 0.5, 1 - 2.0**-24]))
def test_impossible_tokens_are_never_drawn(logits: list[float], uniform: float) -> None:
    """Also at the ends of the interval: the drawn token's weight did not underflow to zero."""
    row = torch.tensor([logits])
    token, odds = sampler._draw(row, 1.0, torch.tensor([uniform * sampler.BELOW_ONE]), greedy=False)
    assert 0 <= int(token) < len(logits)
    assert odds[0, 0] > 0
    assert torch.isfinite(odds).all()
