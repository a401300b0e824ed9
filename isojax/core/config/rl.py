"""`cell.rl`: what a recipe may set. What is left null is its loss's own (rl/algorithm.py). No jax here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from isojax.core.config.section import Fraction, Section


class CriticConfig(Section):
    """PPO's critic: a copy of the base policy that ends in one number a token, trained on returns by an AdamW of its
    own.

    For the first `warmup` updates the critic alone learns. `gamma` discounts rewards and `gae_lambda` weighs the steps
    of generalised advantage estimation (arXiv:1506.02438); a value is kept within `clip` of what it was before the
    update.
    """

    learning_rate: PositiveFloat = 1e-3
    warmup: int = Field(default=0, ge=0)
    gamma: Fraction = 1.0
    gae_lambda: Fraction = 1.0
    clip: PositiveFloat = 0.2


class RLConfig(Section):
    """One update of the policy.

    `loss`, `advantage`, `aggregation` and `kl_estimator` each name a file in isojax/rl/losses/, advantages/,
    aggregations/ or kl_estimators/, or a module path of a fork. `advantage`, `aggregation`, `clip`, `clip_high`: null
    takes the loss's own (clip_high, where it has none, clip). A ratio is kept within 1 - clip and 1 + clip_high.
    `aggregation`: token, a mean over the tokens of the batch; sequence, over responses of their means; prompt, over
    problems of the means over their responses' tokens; constant, the sum over B * T.
    `n_train`: of a group's n rollouts, which all count for its advantages, how many (a random choice) the gradient is
    taken of.
    `kl`, `entropy`: coefficients of the KL to the base policy (its estimate: `kl_estimator`) and of the entropy bonus.
    `measure_kl` tells the KL where its coefficient is 0; `reference`: none never holds the base policy beside the
    policy.
    `zero_variance_filter`: the terms that leave out groups whose rollouts all got the same reward.
    `tis`: weighs tokens, or whole responses, by the trainer's probability over the sampler's, and `tis_cap` truncates
    or masks larger ones.
    `no_positive_resampling`: a training problem of whose rollouts so far in this run that share or more were right when
    an epoch begins is left out from then on (arXiv:2510.13786); B_p problems stay in any case. Null: every epoch takes
    them all.
    `pipeline`: k, by how many updates at most the sampler runs ahead of the trainer (rl/async_rl/async_rollouts.py);
    null: it waits for each update.
    `max_consecutive_nonfinite`: an update whose loss or gradient is not finite is skipped and counted; after so many in
    a row the run breaks off. learning rate = learning_rate * s, with s = 1, B / lr_reference_batch or its square root
    by `lr_scaling`; reached linearly over `warmup` updates, then constant.
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
