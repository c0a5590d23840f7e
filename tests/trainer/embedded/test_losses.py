"""Losses against references written as loops over plain floats (float64)."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainer.embedded.losses import (
    agg_loss,
    entropy_from_logits,
    kl_penalty,
    logprobs_from_logits,
    masked_mean,
    policy_losses,
)
from trainer.types import ActorRecipe, KlKind, LossAggMode

# The functions run in float64 here, so that differences are the rounding of a few hundred additions
# of numbers up to e^3 · 10: about 300 · 2^-53 · 200 = 7e-12.
TOLERANCE = 1e-10
MODES = get_args(LossAggMode)


def compute_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    loss_agg_mode: LossAggMode = "token-mean",
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``(pg_loss, pg_clipfrac, ppo_kl, pg_clipfrac_lower)`` as verl's function of this name gives them."""
    actor = ActorRecipe(**options)
    losses, *rest = policy_losses(old_log_prob, log_prob, advantages, response_mask, actor)
    clipped, kl, lower = (masked_mean(values, response_mask) for values in rest)
    return agg_loss(losses, response_mask, loss_agg_mode), clipped, kl, lower


shapes = st.tuples(st.integers(1, 4), st.integers(1, 6))


def matrix(low: float, high: float) -> st.SearchStrategy[Tensor]:
    cell = st.floats(low, high, allow_subnormal=False)
    return shapes.flatmap(lambda shape: rows_of(shape, cell))


def rows_of(shape: tuple[int, int], cell: st.SearchStrategy[float]) -> st.SearchStrategy[Tensor]:
    row = st.lists(cell, min_size=shape[1], max_size=shape[1])
    return st.lists(row, min_size=shape[0], max_size=shape[0]).map(lambda rows: torch.tensor(rows, dtype=torch.float64))


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Tensor]:
    """Old and new log-probabilities, advantages and a mask with at least one token, all [B, T]."""
    shape = draw(shapes)
    old = draw(rows_of(shape, st.floats(-5, 0)))
    new = old + draw(rows_of(shape, st.sampled_from([0.0, *(s * x for x in (1e-3, 0.11, 0.7, 2.9) for s in (-1, 1))])))
    advantages = draw(rows_of(shape, st.sampled_from([0.0, *(s * a for a in (0.3, 1.1, 2.7) for s in (-1, 1))])))
    mask = draw(rows_of(shape, st.sampled_from([0.0, 1.0])))
    mask[0, 0] = 1.0
    return {"old_log_prob": old, "log_prob": new, "advantages": advantages, "response_mask": mask}


def reference_aggregate(losses: list[list[float]], mask: list[list[float]], mode: str) -> float:
    per_sequence = []
    for loss_row, mask_row in zip(losses, mask, strict=True):
        chosen = [loss for loss, used in zip(loss_row, mask_row, strict=True) if used]
        if chosen:
            per_sequence.append(chosen)
    everything = [loss for chosen in per_sequence for loss in chosen]
    width = len(mask[0])
    match mode:
        case "token-mean":
            return math.fsum(everything) / len(everything)
        case "token-sum":
            return math.fsum(everything)
        case "seq-mean-token-mean":
            return math.fsum(math.fsum(c) / len(c) for c in per_sequence) / len(per_sequence)
        case "seq-mean-token-sum":
            return math.fsum(math.fsum(c) for c in per_sequence) / len(per_sequence)
    return math.fsum(math.fsum(c) for c in per_sequence) / len(per_sequence) / width


def reference_token_loss(old: float, new: float, advantage: float, low: float, high: float, c: float) -> float:
    ratio = math.exp(new - old)
    objective = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if advantage < 0:
        objective = max(objective, c * advantage)
    return -objective


@settings(deadline=None)
@given(batches(), st.sampled_from(MODES), st.floats(0.05, 0.5), st.floats(0.05, 0.9), st.floats(1.1, 5.0))
def test_policy_loss_equals_the_written_out_objective(
    batch: dict[str, Tensor], mode: LossAggMode, low: float, high: float, c: float
) -> None:
    loss, clipfrac, kl, lower = compute_policy_loss(
        **batch, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=c, loss_agg_mode=mode
    )
    old, new, advantages, mask = (batch[name].tolist() for name in batch)
    rows, columns = range(len(old)), range(len(old[0]))
    losses = [
        [reference_token_loss(old[i][t], new[i][t], advantages[i][t], low, high, c) for t in columns] for i in rows
    ]
    assert loss.item() == pytest.approx(reference_aggregate(losses, mask, mode), abs=TOLERANCE)
    tokens = [(i, t) for i in rows for t in columns if mask[i][t]]
    drift = [old[i][t] - new[i][t] for i, t in tokens]
    assert kl.item() == pytest.approx(math.fsum(drift) / len(tokens), abs=TOLERANCE)
    ratios = {(i, t): math.exp(new[i][t] - old[i][t]) for i, t in tokens}
    clipped = [
        r > 1 + high if advantages[i][t] > 0 else r < 1 - low and advantages[i][t] < 0 for (i, t), r in ratios.items()
    ]
    cut = [advantages[i][t] < 0 and r > c for (i, t), r in ratios.items()]
    assert clipfrac.item() == pytest.approx(sum(clipped) / len(tokens))
    assert lower.item() == pytest.approx(sum(cut) / len(tokens))


def test_clip_fractions_count_the_tokens_that_lost_their_gradient() -> None:
    ratios = torch.tensor([[1.0, 1.5, 0.5, 1.5, 0.5, 9.0]], dtype=torch.float64)
    advantages = torch.tensor([[1.0, 1.0, 1.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    log_prob = ratios.log().requires_grad_()
    loss, clipfrac, _, lower = compute_policy_loss(
        torch.zeros_like(ratios), log_prob, advantages, torch.ones_like(ratios), loss_agg_mode="token-sum"
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert log_prob.grad is not None
    # up: a gradient towards likelier; 1.5 with A > 0 and 0.5 with A < 0 are clipped; 9 is beyond c = 3.
    assert log_prob.grad.sign().tolist() == [[-1.0, 0.0, -1.0, 1.0, 0.0, 0.0]]
    assert clipfrac.item() == pytest.approx(2 / 6)
    assert lower.item() == pytest.approx(1 / 6)


def test_on_policy_gradient_is_that_of_reinforce() -> None:
    """At ratio 1 the gradient of the token mean is -A/N on every token."""
    log_prob = torch.full((2, 3), -1.0, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[1.0], [-2.0]], dtype=torch.float64).expand(2, 3)
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    loss, *_ = compute_policy_loss(log_prob.detach().clone(), log_prob, advantages, mask)
    loss.backward()  # type: ignore[no-untyped-call]
    assert log_prob.grad is not None
    torch.testing.assert_close(log_prob.grad, -advantages * mask / 5)


def test_clip_higher_only_widens_the_upper_side() -> None:
    batch = [torch.zeros(1, 1), torch.tensor([[1.25]]).log(), torch.ones(1, 1), torch.ones(1, 1)]
    assert compute_policy_loss(*batch, clip_ratio_high=0.2)[0].item() == pytest.approx(-1.2)
    assert compute_policy_loss(*batch, clip_ratio_high=0.28)[0].item() == pytest.approx(-1.25)


def test_extreme_ratios_stay_finite() -> None:
    old, new = torch.tensor([[-200.0, 0.0]]), torch.tensor([[0.0, -200.0]])
    for advantage in (1.0, -1.0):
        outputs = compute_policy_loss(old, new, torch.full((1, 2), advantage), torch.ones(1, 2))
        assert all(math.isfinite(value.item()) for value in outputs)


@given(batches(), st.floats(1e-4, 0.5), st.floats(1e-4, 0.9))
def test_gspo_has_one_ratio_per_sequence_and_its_gradient_at_every_token(
    batch: dict[str, Tensor], low: float, high: float
) -> None:
    """Against eq. 7 and the gradient of eq. 5 written out: A · s · mean of the tokens' gradients, 0 where clipped."""
    log_prob = batch["log_prob"].clone().requires_grad_()
    advantages = batch["advantages"][:, :1].expand_as(log_prob)  # one per sequence
    loss, *_ = compute_policy_loss(
        batch["old_log_prob"], log_prob, advantages, batch["response_mask"], loss_agg_mode="seq-mean-token-mean",
        policy_loss={"loss_mode": "gspo"}, clip_ratio_low=low, clip_ratio_high=high,
    )  # fmt: skip
    loss.backward()  # type: ignore[no-untyped-call]
    assert log_prob.grad is not None
    expected, gradients = [], []
    rows = list(zip(batch["old_log_prob"].tolist(), log_prob.tolist(), batch["response_mask"].tolist(), strict=True))
    filled = sum(any(mask) for *_, mask in rows)
    for (old, new, mask), advantage in zip(rows, advantages[:, 0].tolist(), strict=True):
        tokens = [t for t, used in enumerate(mask) if used]
        if not tokens:
            gradients.append([0.0] * len(mask))
            continue
        s = math.exp(math.fsum(new[t] - old[t] for t in tokens) / len(tokens))
        clipped = min(max(s, 1 - low), 1 + high)
        expected.append(-min(s * advantage, clipped * advantage))
        slope = -advantage * s / len(tokens) / filled if s * advantage <= clipped * advantage else 0.0
        gradients.append([slope if used else 0.0 for used in mask])
    assert loss.item() == pytest.approx(math.fsum(expected) / filled, abs=TOLERANCE)
    # At the bound itself either one-sided gradient is right.
    inside = [i for i, (old, new, mask) in enumerate(rows) if not _at_bound(old, new, mask, low, high)]
    torch.testing.assert_close(
        log_prob.grad[inside], torch.tensor(gradients, dtype=torch.float64)[inside], atol=1e-9, rtol=1e-9
    )


def _at_bound(old: list[float], new: list[float], mask: list[float], low: float, high: float) -> bool:
    tokens = [t for t, used in enumerate(mask) if used]
    s = math.exp(math.fsum(new[t] - old[t] for t in tokens) / max(1, len(tokens)))
    return min(abs(s - 1 + low), abs(s - 1 - high)) < 1e-9


def test_gspo_does_not_cut_a_negative_advantage_where_the_dual_clip_does() -> None:
    batch = [torch.zeros(1, 2), torch.full((1, 2), 2.0), torch.full((1, 2), -1.0), torch.ones(1, 2)]
    assert compute_policy_loss(*batch, clip_ratio_c=3.0)[0].item() == pytest.approx(3.0)
    loss, *_ = compute_policy_loss(*batch, policy_loss={"loss_mode": "gspo"}, clip_ratio_c=3.0)
    assert loss.item() == pytest.approx(math.exp(2.0))


@settings(deadline=None)
@given(batches(), st.sampled_from(MODES))
def test_parts_of_a_batch_add_up_to_the_whole(batch: dict[str, Tensor], mode: LossAggMode) -> None:
    losses, mask = batch["advantages"], batch["response_mask"]
    divisors = {
        "batch_num_tokens": float(mask.sum()),
        "global_batch_size": float(mask.any(-1).sum()),
        "loss_scale_factor": float(mask.shape[1]),
    }
    parts = [agg_loss(losses[i : i + 1], mask[i : i + 1], mode, **divisors).item() for i in range(len(losses))]
    assert math.fsum(parts) == pytest.approx(agg_loss(losses, mask, mode).item(), abs=TOLERANCE)


@given(batches(), st.sampled_from(MODES))
@settings(deadline=None)
def test_masked_tokens_do_not_count(batch: dict[str, Tensor], mode: LossAggMode) -> None:
    losses, mask = batch["advantages"], batch["response_mask"]
    changed = torch.where(mask > 0, losses, losses + 1000)
    assert agg_loss(changed, mask, mode).item() == agg_loss(losses, mask, mode).item()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        agg_loss(torch.ones(1, 1), torch.ones(1, 1), "median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k9"):
        kl_penalty(torch.ones(1), torch.ones(1), "k9")  # type: ignore[arg-type]


@given(st.floats(-30, 0), st.floats(-30, 0), st.sampled_from(get_args(KlKind)))
def test_kl_kinds_equal_their_formulas(logprob: float, ref: float, kind: KlKind) -> None:
    d = logprob - ref
    k3 = 10.0 if d < -20 else min(math.exp(-d) + d - 1, 10.0)
    expected = {"kl": d, "k1": d, "abs": abs(d), "mse": d * d / 2, "k2": d * d / 2, "low_var_kl": k3, "k3": k3}
    if d > 20:  # the log ratio is cut at -20, and with it the value: exp(-20) + 20 - 1
        expected |= dict.fromkeys(("low_var_kl", "k3"), 10.0)
    got = kl_penalty(torch.tensor([logprob], dtype=torch.float64), torch.tensor([ref], dtype=torch.float64), kind)
    assert got.item() == pytest.approx(expected[kind.removesuffix("+")], rel=1e-9, abs=1e-9)


def test_k1_and_k3_estimate_the_exact_divergence() -> None:
    """Weighted by the policy's own probabilities, k1 and k3 sum to KL(p||q) exactly; k2 does not."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    exact = (p * (p / q).log()).sum().item()
    expected = {kind: (p * kl_penalty(p.log(), q.log(), kind)).sum().item() for kind in get_args(KlKind)}
    assert expected["kl"] == pytest.approx(exact, abs=1e-12)
    assert expected["low_var_kl"] == pytest.approx(exact, abs=1e-12)
    assert expected["mse"] != pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("kind", [kind for kind in get_args(KlKind) if kind not in ("kl", "k1")])
def test_kl_loss_pulls_towards_the_reference(kind: KlKind) -> None:
    logprob = torch.tensor([-1.0, -3.0], requires_grad=True)
    kl_penalty(logprob, torch.tensor([-2.0, -2.0]), kind).sum().backward()  # type: ignore[no-untyped-call]
    assert logprob.grad is not None
    assert logprob.grad.sign().tolist() == [1.0, -1.0]


@pytest.mark.parametrize("kind", [kind for kind in get_args(KlKind) if kind.endswith("+")])
def test_straight_through_forms_have_the_gradient_of_the_divergence(kind: KlKind) -> None:
    """In expectation over the policy's own samples, which is exact on three outcomes. The plain k1 has none at all."""
    logits = torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    log_p = logits.log_softmax(0)
    exact = torch.autograd.grad((log_p.exp() * (log_p - q.log())).sum(), logits, retain_graph=True)[0]

    def sampled(name: KlKind) -> Tensor:
        expectation = (log_p.detach().exp() * kl_penalty(log_p, q.log(), name)).sum()
        return torch.autograd.grad(expectation, logits, retain_graph=True)[0]

    torch.testing.assert_close(sampled(kind), exact)
    torch.testing.assert_close(sampled("k1"), torch.zeros_like(exact))


@settings(deadline=None)
@given(matrix(-20, 20))
def test_entropy_and_logprobs_equal_the_sums(logits: Tensor) -> None:
    for row, entropy in zip(logits.tolist(), entropy_from_logits(logits).tolist(), strict=True):
        weights = [math.exp(x) for x in row]
        probabilities = [w / math.fsum(weights) for w in weights]
        assert entropy == pytest.approx(-math.fsum(p * math.log(p) for p in probabilities), abs=1e-9)
        labels = torch.arange(len(row))
        expected = [math.log(p) for p in probabilities]
        got = logprobs_from_logits(torch.tensor([row] * len(row), dtype=torch.float64), labels)
        assert got.tolist() == pytest.approx(expected, abs=1e-9)


def test_impossible_tokens_have_no_entropy_and_no_nan() -> None:
    assert entropy_from_logits(torch.tensor([0.0, 0.0, -math.inf])).item() == pytest.approx(math.log(2))


def test_masked_mean_of_nothing_is_zero() -> None:
    assert masked_mean(torch.ones(2, 2), torch.zeros(2, 2)).item() == 0.0
