"""The options of one training, named as in verl where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainer.types.base import Record, flatten

Share = Annotated[float, Field(ge=0, le=1)]


class OptimRecipe(Record):
    """AdamW options (verl: ``actor_rollout_ref.actor.optim``)."""

    lr: Annotated[float, Field(gt=0, le=1)] = 3e-4
    lr_warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01


class FilterGroups(Record):
    """DAPO's dynamic sampling (verl: ``algorithm.filter_groups``): drop groups without spread in
    ``metric`` and refill at most ``max_num_gen_batches`` times."""

    enable: bool = False
    metric: Literal["outcome", "score"] = "outcome"
    max_num_gen_batches: Annotated[int, Field(ge=1, le=20)] = 3


class VarianceFilter(Record):
    """RAGEN-2's reward-variance filter: keep the groups of largest variance in ``metric`` that hold ``top_p`` of the
    batch's variance together, so that the line moves with the batch."""

    enable: bool = False
    metric: Literal["outcome", "score"] = "outcome"
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9


LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KlKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "low_var_kl+", "k3+"]
"""verl's names of one estimator stand together; ``+`` takes the estimate's value and k2's gradient (straight through)."""


class KlCtrl(Record):
    """Coefficient of the KL in the reward (verl: ``algorithm.kl_ctrl``); ``adaptive`` steers it towards ``target_kl``
    (arXiv 1909.08593, section 2.2), ``horizon`` in rollouts."""

    type: Literal["fixed", "adaptive"] = "fixed"
    kl_coef: Annotated[float, Field(ge=0, le=10)] = 0.001
    horizon: Annotated[int, Field(ge=1)] = 10_000
    target_kl: Annotated[float, Field(gt=0)] = 0.1


class AlgorithmRecipe(Record):
    """verl: ``algorithm``. ``use_kl_in_reward`` takes the KL to the base policy off each rollout's score."""

    adv_estimator: Literal["grpo", "rloo"] = "grpo"
    norm_adv_by_std_in_grpo: bool = True
    use_kl_in_reward: bool = False
    kl_penalty: KlKind = "kl"
    kl_ctrl: KlCtrl = KlCtrl()
    filter_groups: FilterGroups = FilterGroups()
    variance_filter: VarianceFilter = VarianceFilter()

    @model_validator(mode="after")
    def _one_filter(self) -> AlgorithmRecipe:
        if self.filter_groups.enable and self.variance_filter.enable:
            raise ValueError("filter_groups and variance_filter both choose groups; enable one of them")
        return self


class PolicyLoss(Record):
    """verl: ``actor.policy_loss``. ``vanilla`` is PPO's ratio per token with the dual clip; ``gspo`` one ratio per
    sequence, without the dual clip (arXiv 2507.18071)."""

    loss_mode: Literal["vanilla", "gspo"] = "vanilla"


class Imitation(Record):
    """A supervised term beside the policy loss: ``coef`` times the mean negative log-likelihood of correct rollouts,
    the policy's own (``success``) or those that a hint helped to, hint included (``hinted``)."""

    coef: Annotated[float, Field(ge=0, le=10)] = 0.0
    on: Literal["success", "hinted"] = "success"


class ActorRecipe(Record):
    """verl: ``actor_rollout_ref.actor``. ``ppo_mini_batch_size`` counts prompts; 0 means the whole batch.

    ``mask_truncated`` leaves rollouts that ran out of tokens out of the loss (DAPO, section 3.4; TRL's
    ``mask_truncated_completions``); they still count in their group's advantages.
    """

    clip_ratio_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_ratio_high: Annotated[float, Field(gt=0, lt=10)] = 0.2
    clip_ratio_c: Annotated[float, Field(gt=1)] = 3.0
    loss_agg_mode: LossAggMode = "token-mean"
    entropy_coeff: Annotated[float, Field(ge=0, le=1)] = 0.0
    use_kl_loss: bool = True
    kl_loss_coef: Annotated[float, Field(ge=0, le=10)] = 0.001
    kl_loss_type: KlKind = "low_var_kl"
    ppo_epochs: Annotated[int, Field(ge=1, le=16)] = 1
    ppo_mini_batch_size: Annotated[int, Field(ge=0)] = 0
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    mask_truncated: bool = False
    policy_loss: PolicyLoss = PolicyLoss()
    imitation: Imitation = Imitation()


class RolloutRecipe(Record):
    """verl: ``actor_rollout_ref.rollout``. ``temperature`` moves to ``temperature_end`` in a straight line over the token
    budget; 0 keeps it."""

    n: Annotated[int, Field(ge=2, le=256)] = 8
    temperature: Annotated[float, Field(gt=0, le=5)] = 1.0
    temperature_end: Annotated[float, Field(ge=0, le=5)] = 0.0

    def temperature_at(self, fraction: float) -> float:
        """The sampling temperature when ``fraction`` (0 to 1) of the token budget is used."""
        return self.temperature + fraction * ((self.temperature_end or self.temperature) - self.temperature)


class Curriculum(Record):
    """Which tasks come next, by the policy's own solve rates per family and level.

    ``solve_rate`` draws a level the more often, the nearer it is to one half solved (R-Zero, arXiv 2508.05004, eq. 3);
    ``range`` starts at the lowest level and opens the next one when ``open_at`` of the highest open one is solved
    (RLVE, arXiv 2511.07317). ``floor`` is the least weight of a level that may be drawn, relative to the largest.
    """

    mode: Literal["off", "solve_rate", "range"] = "off"
    open_at: Annotated[float, Field(gt=0, le=1)] = 0.8
    floor: Share = 0.1


class Hints(Record):
    """GHPO (arXiv 2507.10628): a task that a whole group failed is sampled once more, after the first ``ratio`` of a
    worked reply. The hint is no part of the policy loss. ``decay`` takes the ratio to 0 over the token budget."""

    enable: bool = False
    ratio: Annotated[float, Field(gt=0, lt=1)] = 0.5
    decay: bool = True

    def ratio_at(self, fraction: float) -> float:
        """The share of a worked reply given when ``fraction`` (0 to 1) of the token budget is used."""
        return self.ratio * (1 - fraction) if self.decay else self.ratio


class DataRecipe(Record):
    """verl: ``data``. ``train_batch_size`` counts prompts; ``levels`` empty means all levels."""

    train_batch_size: Annotated[int, Field(ge=1, le=4096)] = 32
    max_response_length: Annotated[int, Field(ge=4, le=4096)] = 64
    levels: tuple[int, ...] = ()
    curriculum: Curriculum = Curriculum()
    hints: Hints = Hints()

    @model_validator(mode="after")
    def _levels_to_choose_from(self) -> DataRecipe:
        if self.curriculum.mode == "range" and len(set(self.levels)) == 1:
            raise ValueError("curriculum.mode = 'range' opens level after level, but levels names a single one")
        return self


class OverlongBuffer(Record):
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13; verl: ``reward.reward_kwargs.overlong_buffer_cfg``): over
    the last ``len`` tokens before ``max_response_length`` the penalty grows from 0 to ``penalty_factor``."""

    enable: bool = False
    len: Annotated[int, Field(ge=1)] = 16
    penalty_factor: Annotated[float, Field(gt=0, le=10)] = 1.0


class RewardRecipe(Record):
    """The training reward: the weighted sum of the harness's terms (files ``reward/<term>.toml``).

    ``diversity`` divides a rollout's reward by one plus its similarity to the rest of its group (DRA-GRPO, arXiv
    2505.09655, eq. 6), so that a correct reply that differs earns more than one of many alike.

    ``tests`` says which verifier the terms see: ``visible`` pays for the tests a task shows, a weak verifier that can be
    gamed; the outcome that selects and reports stays with the hidden ones.
    """

    tests: Literal["hidden", "visible"] = "hidden"
    weights: Mapping[str, float] = Field(default_factory=lambda: {"outcome": 1.0})
    diversity: bool = False
    overlong_buffer: OverlongBuffer = OverlongBuffer()


class WarmStartRecipe(Record):
    """The demonstrations that the default policy is warm-started on, in as many steps as ever: ``worked`` is the share of
    them that work step by step (math) or write the program (code), 0 the domain's own mix."""

    worked: Share = 0.0


class Recipe(Record):
    """All options of one training, as in the harness's ``recipe.toml``."""

    optim: OptimRecipe = OptimRecipe()
    algorithm: AlgorithmRecipe = AlgorithmRecipe()
    actor: ActorRecipe = ActorRecipe()
    rollout: RolloutRecipe = RolloutRecipe()
    data: DataRecipe = DataRecipe()
    reward: RewardRecipe = RewardRecipe()
    warm_start: WarmStartRecipe = WarmStartRecipe()

    @model_validator(mode="after")
    def _possible(self) -> Recipe:
        """Combinations that could only disappoint are refused with the reason."""
        mini, prompts = self.actor.ppo_mini_batch_size, self.data.train_batch_size
        if mini > prompts:
            raise ValueError(f"actor.ppo_mini_batch_size = {mini} exceeds data.train_batch_size = {prompts} prompts")
        buffer, longest = self.reward.overlong_buffer, self.data.max_response_length
        if buffer.enable and buffer.len >= longest:
            raise ValueError(
                f"reward.overlong_buffer.len = {buffer.len} leaves nothing of data.max_response_length = {longest}"
            )
        imitation = self.actor.imitation
        if imitation.coef and imitation.on == "hinted" and not self.data.hints.enable:
            raise ValueError("actor.imitation.on = 'hinted' imitates hinted rollouts, and data.hints.enable is false")
        return self

    def options(self) -> dict[str, Any]:
        """All options by dotted path, reward weights included."""
        return dict(flatten(self.model_dump()))
