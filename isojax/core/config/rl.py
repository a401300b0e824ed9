"""`cell.rl`: what a recipe may set. Null takes the default of the recipe's loss (rl/algorithm.py)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from isojax.core.config.section import Fraction, Section


class CriticConfig(Section):
    """PPO's critic: a copy of the base policy with one output per token, trained on returns by an AdamW of its own.

    Attributes:
        learning_rate: of the critic.
        warmup: updates at the start of a run in which the critic alone is trained.
        gamma: the discount of rewards.
        gae_lambda: the weight of later steps in generalised advantage estimation (arXiv:1506.02438).
        clip: how far a value may move from what it was before the update.
    """

    learning_rate: PositiveFloat = 1e-3
    warmup: int = Field(default=0, ge=0)
    gamma: Fraction = 1.0
    gae_lambda: Fraction = 1.0
    clip: PositiveFloat = 0.2


class RLConfig(Section):
    """One update of the policy.

    `loss`, `advantage`, `aggregation` and `kl_estimator` each name a file in isojax/rl/losses/, advantages/,
    aggregations/ or kl_estimators/, or a module path of a fork; null takes the loss's own.

    Attributes:
        loss: the policy loss.
        advantage: how rewards become advantages.
        aggregation: token, a mean over the tokens of the batch; sequence, over responses of their means; prompt, over
            problems of the means over their responses' tokens; constant, the sum over B * T.
        clip: the ratio is kept above 1 - clip; null takes the loss's own.
        clip_high: the ratio is kept below 1 + clip_high; null takes the loss's own, or else `clip`.
        n_train: of a group's n rollouts, which all count for its advantages, how many (a random choice) the gradient is
            taken of; null: all.
        kl: the coefficient of the KL to the base policy.
        kl_estimator: k1, k2 or k3.
        measure_kl: whether the KL is measured where its coefficient is 0.
        reference: base keeps the base policy in memory for the KL; none never does.
        entropy: the coefficient of the entropy bonus.
        zero_variance_filter: the terms that leave out groups whose rollouts all got the same reward.
        tis: truncated importance sampling: what is weighted by the trainer's probability over the sampler's, single
            tokens or whole responses.
        tis_mode: what happens to a weight above `tis_cap`: it is truncated, or masked.
        tis_cap: the largest weight.
        critic: PPO's critic.
        no_positive_resampling: a training problem is left out from then on when, as an epoch begins, this share or more
            of its rollouts so far were correct (arXiv:2510.13786); B_p problems stay in any case. Null: every epoch has
            all problems.
        max_staleness: k, by how many updates at most the sampler runs ahead of the trainer
            (rl/async_rl/async_rollouts.py); null: it waits for each update.
        max_consecutive_nonfinite: an update whose loss or gradient is not finite is skipped and counted; after so many
            in a row the run breaks off.
        learning_rate: at B = lr_reference_batch; a task in text must set it.
        lr_scaling: by what the learning rate is multiplied at another batch B: 1 (constant), B / lr_reference_batch
            (linear) or its square root (sqrt).
        lr_reference_batch: rollouts per update.
        warmup: updates over which the learning rate rises linearly from 0; then it is constant.
        weight_decay: of AdamW.
        max_grad_norm: the gradient is scaled down to this norm.
    """

    loss: str = "grpo"
    advantage: str | None = None
    aggregation: str | None = None
    clip: PositiveFloat | None = None
    clip_high: PositiveFloat | None = None
    n_train: PositiveInt | None = None
    kl: NonNegativeFloat = 0.0
    kl_estimator: str = "k3"
    measure_kl: bool = False
    reference: Literal["base", "none"] = "base"
    entropy: NonNegativeFloat = 0.0
    zero_variance_filter: tuple[Literal["policy", "kl", "entropy"], ...] = ()
    tis: Literal["none", "token", "sequence"] = "none"
    tis_mode: Literal["truncate", "mask"] = "truncate"
    tis_cap: PositiveFloat = 2.0
    critic: CriticConfig | None = None
    no_positive_resampling: Annotated[float, Field(gt=0, le=1)] | None = None
    max_staleness: int | None = Field(default=None, ge=0, le=64)
    max_consecutive_nonfinite: PositiveInt = 8
    learning_rate: PositiveFloat = 1e-3
    lr_scaling: Literal["constant", "linear", "sqrt"] = "sqrt"
    lr_reference_batch: PositiveInt = 1024
    warmup: PositiveInt = 10
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
