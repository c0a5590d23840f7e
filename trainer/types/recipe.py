"""The options of one training, named as in verl where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.types.base import Record, flatten


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


class AlgorithmRecipe(Record):
    """verl: ``algorithm``."""

    adv_estimator: Literal["grpo", "rloo"] = "grpo"
    norm_adv_by_std_in_grpo: bool = True
    filter_groups: FilterGroups = FilterGroups()


LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
KlKind = Literal["kl", "abs", "mse", "low_var_kl"]


class ActorRecipe(Record):
    """verl: ``actor_rollout_ref.actor``. ``ppo_mini_batch_size`` counts prompts; 0 means the whole batch."""

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


class RolloutRecipe(Record):
    """verl: ``actor_rollout_ref.rollout``."""

    n: Annotated[int, Field(ge=2, le=256)] = 8
    temperature: Annotated[float, Field(gt=0, le=5)] = 1.0


class DataRecipe(Record):
    """verl: ``data``. ``train_batch_size`` counts prompts; ``levels`` empty means all levels."""

    train_batch_size: Annotated[int, Field(ge=1, le=4096)] = 32
    max_response_length: Annotated[int, Field(ge=4, le=4096)] = 64
    levels: tuple[int, ...] = ()


class RewardRecipe(Record):
    """The training reward: the weighted sum of the harness's terms (files ``reward/<term>.toml``).

    ``tests`` says which verifier the terms see: ``visible`` pays for the tests a task shows, a weak verifier that can be
    gamed; the outcome that selects and reports stays with the hidden ones.
    """

    tests: Literal["hidden", "visible"] = "hidden"
    weights: Mapping[str, float] = Field(default_factory=lambda: {"outcome": 1.0})


class Recipe(Record):
    """All options of one training, as in the harness's ``recipe.toml``."""

    optim: OptimRecipe = OptimRecipe()
    algorithm: AlgorithmRecipe = AlgorithmRecipe()
    actor: ActorRecipe = ActorRecipe()
    rollout: RolloutRecipe = RolloutRecipe()
    data: DataRecipe = DataRecipe()
    reward: RewardRecipe = RewardRecipe()

    def options(self) -> dict[str, Any]:
        """All options by dotted path, reward weights included."""
        return dict(flatten(self.model_dump()))
