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
BELOW_ONE = 1 - 2.0**-22
"""Keeps the largest uniform, 1 - 2^-24, times a sum below that sum after rounding."""


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
    record = _Record(unique[owner], limit)
    given = [list(hint)[: max_response_length - 1] for hint in hints] or [[] for _ in prompts]
    for row, hint in enumerate(given):
        record.force(row, width, hint)
    uniforms = torch.rand(len(prompts), max_response_length, generator=torch.Generator().manual_seed(seed)).to(device)
    uniforms = (uniforms * BELOW_ONE).t().contiguous()
    episodes = _Episodes(policy.tokenizer, observe, max_turns, limit, [width] * len(prompts))

    # ``live`` numbers the rows still in the batch; one that finishes turns inactive, and leaves when
    # enough have finished to pay for compacting the cache.
    live, active = list(range(len(prompts))), [True] * len(prompts)
    with torch.inference_mode():
        logits, cache = policy.prefill(unique, mask)
        cache.select(owner)
        logits = logits[owner]
        for at in range(width, limit):
            drawn, odds = _draw(logits, temperature, uniforms[at - width], greedy)
            token = record.put(at, drawn, odds)
            finished = False
            for index in record.sampled(at, token, policy.tokenizer.eos_id):
                if active[index]:
                    answer = episodes.end_turn(live[index], at, record.tokens[:, index])
                    if answer is None:
                        active[index], finished = False, True
                        record.close(index, at + 1)
                    else:
                        record.force(index, at + 1, answer)
            if finished and (remaining := sum(active)) <= COMPACT_BELOW * len(live):
                live = [row for row, still in zip(live, active, strict=True) if still]
                if remaining == 0:
                    break
                keep = torch.tensor([index for index, still in enumerate(active) if still], device=device)
                record.keep(keep)
                cache.select(keep)
                token, uniforms, active = token[keep], uniforms[:, keep], [True] * remaining
            if at + 1 < limit:
                logits = policy.step(token, cache)
    record.require_finite(width)
    for index, row in enumerate(live):
        if active[index]:
            episodes.truncate(row, record.tokens[:, index])
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    tokens, attention, response, logprobs, entropy = record.episodes(width, lengths)
    return Samples(
        tokens=tokens.masked_fill(~attention, policy.tokenizer.pad_id),
        attention=attention,
        response_mask=response,
        logprobs=logprobs,
        entropy=entropy,
        turns=episodes.turns,
        stop_reasons=episodes.stop_reasons,
        response_lengths=response.sum(1).tolist(),
        prompt_lengths=lengths.tolist(),
        hint_lengths=[len(hint) for hint in given],
    )


class _Record:
    """What was drawn, one line per position and one column per episode; those still in the batch are the first ``live``.

    ``tokens`` LongTensor[limit, B] holds left-padded prompts, what was drawn and, ahead of it, what will be ``forced``
    (BoolTensor[limit, B]); ``odds`` is FloatTensor[limit, B, 3] as in ``_draw``. Where a column is past its end it goes
    on being written to, which ``ends`` hides.
    """

    def __init__(self, prompts: Tensor, limit: int) -> None:
        rows, width = prompts.shape
        self.live = rows
        self.tokens = torch.zeros(limit, rows, dtype=torch.long, device=prompts.device)
        self.tokens[:width] = prompts.t()
        self.forced = torch.zeros(limit, rows, dtype=torch.bool, device=prompts.device)
        self.odds = torch.zeros(limit, rows, 3, device=prompts.device)
        self.ends = torch.full((rows,), limit, device=prompts.device)
        self.columns = torch.arange(rows, device=prompts.device)
        self._forced_until = 0

    def force(self, index: int, at: int, ids: Sequence[int]) -> None:
        """Let ``ids`` follow from position ``at`` on, in place of what is drawn."""
        if ids:
            end = at + len(ids)
            self.tokens[at:end, index] = torch.tensor(ids, device=self.tokens.device)
            self.forced[at:end, index] = True
            self._forced_until = max(self._forced_until, end)

    def put(self, at: int, drawn: Tensor, odds: Tensor) -> Tensor:
        """Record position ``at``; returns its tokens: ``drawn`` [live] or what is forced."""
        if at < self._forced_until:
            drawn = torch.where(self.forced[at, : self.live], self.tokens[at, : self.live], drawn)
        self.tokens[at, : self.live] = drawn
        self.odds[at, : self.live] = odds
        return drawn

    def sampled(self, at: int, tokens: Tensor, wanted: int) -> list[int]:
        """Columns where ``wanted`` stands at position ``at`` and was not forced."""
        listed = tokens.tolist()
        if wanted not in listed:
            return []
        found = [index for index, token in enumerate(listed) if token == wanted]
        if at < self._forced_until:
            forced = self.forced[at].tolist()
            found = [index for index in found if not forced[index]]
        return found

    def close(self, index: int, end: int) -> None:
        """The episode in column ``index`` has no token from ``end`` on."""
        self.ends[index] = end

    def keep(self, columns: Tensor) -> None:
        """Only ``columns`` are still in the batch, in this order; the others move behind them."""
        leaving = torch.ones(self.live, dtype=torch.bool, device=columns.device)
        leaving[columns] = False
        order = torch.cat([columns, leaving.nonzero()[:, 0]])
        for lines in (self.tokens, self.forced, self.odds):
            lines[:, : self.live] = lines[:, order]
        for line in (self.ends, self.columns):
            line[: self.live] = line[order]
        self.live = len(columns)

    def require_finite(self, width: int) -> None:
        """Raise NonFinite for the first position, counted from ``width``, at which a logit was not finite."""
        finite = torch.isfinite(self.odds).flatten(1).all(1)
        if not bool(finite.all()):
            raise NonFinite(f"non-finite logits at token {int(finite.long().argmin()) - width} of the response")

    def episodes(self, width: int, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Right-padded and in the order of the prompts, each [B, T]: tokens, attention, response mask, log-probabilities and
        entropies; ``lengths`` [B] are those of the prompts, which end at ``width``."""
        order = self.columns.argsort()
        index = torch.arange(len(self.tokens), device=order.device) + (width - lengths)[:, None]
        attention = index < self.ends[order][:, None]
        attention = attention[:, : int(attention.sum(1).max())]
        index = index[:, : attention.shape[1]].clamp_max(len(self.tokens) - 1)
        place = index, order[:, None]
        response = attention & (index >= width) & ~self.forced[place]
        prob, logit, mean_logit = self.odds[place].unbind(-1)
        logprob = prob.log().masked_fill(~response, 0.0)
        # logit - logprob is the log of the normaliser.
        entropy = (logit - logprob - mean_logit).clamp_min(0.0).masked_fill(~response, 0.0)
        return self.tokens[place], attention, response, logprob, entropy


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


def _draw(logits: Tensor, temperature: float, uniform: Tensor, greedy: bool) -> tuple[Tensor, Tensor]:
    """Token [B], and [B, 3] its probability, its logit and the distribution's mean logit, all at ``temperature``, from
    logits [B, V] and a number in [0, BELOW_ONE) per row. Where a logit is not finite, neither is the mean."""
    scaled = logits.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    probs = scaled.softmax(-1)
    if greedy:
        token = logits.argmax(-1, keepdim=True)
    else:
        # The first token whose cumulative probability exceeds the drawn share: never one of probability zero.
        cumulative = probs.cumsum(-1)
        token = torch.searchsorted(cumulative, cumulative[:, -1:] * uniform[:, None], right=True)
        token.clamp_(max=logits.shape[1] - 1)  # NaN
    odds = torch.cat([probs.gather(1, token), scaled.gather(1, token), (probs * scaled).sum(-1, keepdim=True)], 1)
    return token[:, 0], odds
