"""Sampling episodes from a policy: one KV-cached batched loop for single- and multi-turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.embedded.policy import Policy
from trainer.embedded.tokenizer import ChatTokenizer
from trainer.types import InputError

Observe = Callable[[int, list[str]], str | None]
COMPACT_BELOW = 0.75
"""Finished rows leave the batch when at most this share of it is still active."""


class NonFinite(Exception):
    """The policy returned a logit that is NaN or infinite."""


@dataclass(frozen=True)
class Samples:
    """A batch of episodes, right-padded (B rows in the order of the prompts, T tokens)."""

    tokens: Tensor
    """LongTensor[B,T]: prompt and all turns."""
    attention: Tensor
    """BoolTensor[B,T]: True on tokens, False on padding."""
    response_mask: Tensor
    """BoolTensor[B,T]: True where the policy sampled the token, its end tokens included."""
    logprobs: Tensor
    """FloatTensor[B,T]: log-probability of the sampled token under the sampling distribution (at the
    temperature), at the token's own position; 0 elsewhere."""
    entropy: Tensor
    """FloatTensor[B,T]: entropy (nats) of the distribution the token was sampled from; 0 elsewhere."""
    turns: list[list[str]]
    """Text of each assistant turn."""
    stop_reasons: list[str]
    """``stop`` (the episode ended by itself), ``length`` (no token left) or ``turns`` (no turn left)."""
    response_lengths: list[int]
    """Sampled tokens (observations not counted)."""
    prompt_lengths: list[int]
    hint_lengths: list[int]
    """Tokens of the reply's beginning that were given, not sampled."""


def sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_response_length: int,
    seed: int,
    observe: Observe | None = None,
    max_turns: int = 1,
    greedy: bool = False,
    hints: Sequence[Sequence[int]] = (),
) -> Samples:
    """Sample one episode per prompt.

    A turn ends with the end token the policy samples. Then ``observe(row, turns)`` says what the
    environment answers (None: the episode is over); its answer is rendered as the next chat turn and
    forced through the same loop. ``max_response_length`` counts every token after the prompt,
    observations included (verl's ``response_length``); ``observe`` is not called on a truncated turn.

    Deterministic in (policy weights, prompts, seed and options): row i draws from stream i of
    ``seed``, by inversion of the cumulative distribution. ``greedy`` takes the likeliest token instead;
    its log-probability is still the one at ``temperature``. ``hints`` (one per prompt) are ids that begin the reply: they
    are forced, count as part of the reply's text and length, and are not in ``response_mask``; a hint that leaves no
    token to sample is cut.

    Raises NonFinite for a damaged policy, InputError where a prompt leaves no room for the response.
    """
    width = max(len(prompt) for prompt in prompts)
    if width + max_response_length > policy.max_positions:
        raise InputError(
            f"data.max_response_length: {max_response_length} after a prompt of {width} tokens exceeds the policy's "
            f"{policy.max_positions} positions; lower it or use a policy with more"
        )
    device = next(policy.module.parameters()).device
    limit = width + max_response_length
    unique, mask, owner = _left_padded(prompts, policy.tokenizer.pad_id, device)
    # Both the record and the queue of forced tokens: -1 stands where nothing is decided yet.
    tokens = torch.full((len(prompts), limit), -1, device=device)
    tokens[:, :width] = unique[owner]
    given = [list(hint)[: max_response_length - 1] for hint in hints] or [[] for _ in prompts]
    for row, hint in enumerate(given):
        tokens[row, width : width + len(hint)] = torch.tensor(hint, dtype=torch.long, device=device)
    logprobs, entropies = torch.zeros(2, len(prompts), limit, device=device).unbind()
    response = torch.zeros(len(prompts), limit, dtype=torch.bool, device=device)
    uniforms = torch.rand(len(prompts), max_response_length, generator=torch.Generator().manual_seed(seed)).to(device)
    episodes = _Episodes(policy.tokenizer, observe, max_turns, limit, [width] * len(prompts))

    # ``live`` numbers the rows still in the batch; one that finishes turns inactive, and leaves when
    # enough have finished to pay for compacting the cache.
    live = torch.arange(len(prompts), device=device)
    active = torch.ones(len(prompts), dtype=torch.bool, device=device)
    with torch.inference_mode():
        logits, cache = policy.prefill(unique, mask)
        cache.select(owner)
        logits = logits[owner]
        for at in range(width, limit):
            drawn, logprob, entropy = _draw(logits, temperature, uniforms[live, at - width], greedy)
            if not bool(torch.isfinite(entropy).all()):
                raise NonFinite(f"non-finite logits at token {at - width} of the response")
            forced = tokens[live, at]
            sampled = active & (forced < 0)
            token = torch.where(sampled, drawn, forced)
            tokens[live, at], response[live, at] = token, sampled
            logprobs[live, at], entropies[live, at] = logprob * sampled, entropy * sampled
            ended = (sampled & (token == policy.tokenizer.eos_id)).nonzero()[:, 0].tolist()
            for index in ended:
                row = int(live[index])
                answer = episodes.end_turn(row, at, tokens[row])
                if answer is None:
                    active[index] = False
                else:
                    tokens[row, at + 1 : at + 1 + len(answer)] = torch.tensor(answer, device=device)
            if ended and (remaining := int(active.sum())) <= COMPACT_BELOW * len(live):
                if remaining == 0:
                    break
                keep = active.nonzero()[:, 0]
                cache.select(keep)
                live, active, token = live[keep], active[keep], token[keep]
            if at + 1 < limit:
                logits = policy.step(token.clamp_min(0), cache)
    for row in live[active].tolist():
        episodes.truncate(row, tokens[row])

    # From left-padded prompts to right-padded episodes.
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    index = torch.arange(limit, device=device) + (width - lengths)[:, None]
    inside, index = index < limit, index.clamp_max(limit - 1)
    attention = (tokens.gather(1, index) >= 0) & inside
    attention = attention[:, : int(attention.sum(1).max())]
    index = index[:, : attention.shape[1]]
    response = response.gather(1, index) & attention
    return Samples(
        tokens=tokens.gather(1, index).masked_fill(~attention, policy.tokenizer.pad_id),
        attention=attention,
        response_mask=response,
        logprobs=logprobs.gather(1, index) * response,
        entropy=entropies.gather(1, index) * response,
        turns=episodes.turns,
        stop_reasons=episodes.stop_reasons,
        response_lengths=response.sum(1).tolist(),
        prompt_lengths=lengths.tolist(),
        hint_lengths=[len(hint) for hint in given],
    )


class _Episodes:
    """The text side of a batch of episodes: finished turns, why each stopped, where its open turn began."""

    def __init__(
        self, tokenizer: ChatTokenizer, observe: Observe | None, max_turns: int, limit: int, starts: list[int]
    ) -> None:
        self.tokenizer, self.observe, self.max_turns, self.limit, self.starts = (
            tokenizer, observe, max_turns, limit, starts,
        )  # fmt: skip
        self.turns: list[list[str]] = [[] for _ in starts]
        self.stop_reasons: list[str] = [""] * len(starts)

    def end_turn(self, row: int, at: int, tokens: Tensor) -> list[int] | None:
        """Close the turn whose end token stands at ``at``; the ids to force next, or None if the episode is over."""
        self.turns[row].append(self.tokenizer.decode(tokens[self.starts[row] : at].tolist()))
        observation = self.observe(row, self.turns[row]) if self.observe else None
        if observation is None:
            self.stop_reasons[row] = "stop"
        elif len(self.turns[row]) >= self.max_turns:
            self.stop_reasons[row] = "turns"
        else:
            ids = self.tokenizer.encode_observation(observation)
            self.starts[row] = at + 1 + len(ids)
            if self.starts[row] < self.limit:  # room for at least one token of an answer
                return ids
            self.stop_reasons[row] = "length"
        return None

    def truncate(self, row: int, tokens: Tensor) -> None:
        """Close an episode that ran out of tokens within a turn."""
        self.turns[row].append(self.tokenizer.decode(tokens[self.starts[row] :].tolist()))
        self.stop_reasons[row] = "length"


def _left_padded(prompts: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct prompts [U,P] with their mask [U,P], and for every prompt the row of its copy [B]:
    the copies of a GRPO group are prefilled once."""
    rows: dict[tuple[int, ...], int] = {}
    owner = [rows.setdefault(tuple(prompt), len(rows)) for prompt in prompts]
    width = max(map(len, rows))
    padded = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = torch.arange(width, device=device) >= (width - lengths)[:, None]
    return padded, mask, torch.tensor(owner, device=device)


def _draw(logits: Tensor, temperature: float, uniform: Tensor, greedy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Token, its log-probability and the distribution's entropy, each [B], from logits [B,V] and a
    uniform number in [0,1) per row."""
    scaled = logits.float() / temperature
    scaled = scaled - scaled.amax(-1, keepdim=True)
    weights = scaled.exp()
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    if greedy:
        token = logits.argmax(-1, keepdim=True)
    else:
        # The first token whose cumulative weight exceeds the drawn share: never one of weight zero.
        # The factor keeps the largest uniform, 1 - 2^-24, below the total after rounding.
        token = (cumulative <= uniform[:, None] * (1 - 2.0**-22) * total).sum(-1, keepdim=True)
    logprob = scaled.gather(1, token.clamp_max(logits.shape[1] - 1)) - total.log()
    entropy = total.log() - (weights * scaled).sum(-1, keepdim=True) / total
    return token[:, 0], logprob[:, 0], entropy[:, 0]
