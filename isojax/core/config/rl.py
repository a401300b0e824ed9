"""`cell.rl`: what a recipe may set.

Null takes the default of the recipe's loss (rl/algorithm.py).
"""

from typing import Annotated, Literal

from pydantic import Field

from isojax.core.config.marks import PluginName
from isojax.core.config.section import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)


class CriticConfig(Section):
    """PPO's critic: a copy of the base policy with one output per token, trained on returns by a
    separate AdamW."""

    learning_rate: PositiveFloat = 1e-3  # of the critic
    warmup: NonNegativeInt = 0  # updates at the start of a run in which the critic alone is trained
    gamma: Fraction = 1.0  # the discount of rewards
    # the weight of later steps in generalised advantage estimation (arXiv:1506.02438)
    gae_lambda: Fraction = 1.0
    clip: PositiveFloat = 0.2  # how far a value may move from what it was before the update


class RLConfig(Section):
    """One update of the policy. `loss`, `advantage`, `aggregation` and `kl_estimator` each name a
    file in the folder of isojax/rl/ for it, or a file or module of yours (docs/extending.md); null
    takes the loss's own."""

    loss: Annotated[str, PluginName(("rl.losses",))] = (
        "grpo"  # grpo, dapo, dr_grpo, gspo, cispo, rloo, reinforce_pp or ppo
    )
    advantage: Annotated[str, PluginName(("rl.advantages",))] | None = (
        None  # how rewards become advantages
    )
    # token: a mean over the tokens of the batch; sequence: over responses of their means; prompt:
    # over problems of the means over their responses' tokens; constant: the sum over B * T.
    aggregation: Annotated[str, PluginName(("rl.aggregations",))] | None = None
    clip: PositiveFloat | None = None  # the ratio is kept above 1 - clip; null takes the loss's own
    # the ratio is kept below 1 + clip_high; null: the loss's own, or else clip
    clip_high: PositiveFloat | None = None
    # Rollouts of a group, a random choice, in the gradient; null: all. For advantages all n count
    # in any case.
    n_train: PositiveInt | None = None
    kl: NonNegativeFloat = 0.0  # the coefficient of the KL to the base policy
    kl_estimator: Annotated[str, PluginName(("rl.kl_estimators",))] = "k3"  # k1, k2 or k3
    measure_kl: bool = False  # whether the KL is measured where its coefficient is 0
    entropy: NonNegativeFloat = 0.0  # the coefficient of the entropy bonus
    # The terms that leave out groups whose rollouts all got the same reward.
    zero_variance_filter: tuple[Literal["policy", "kl", "entropy"], ...] = ()
    # Truncated importance sampling: what is weighted by the trainer's probability over the
    # sampler's, single tokens or whole responses.
    tis: Literal["none", "token", "sequence"] = "none"
    # whether a weight above tis_cap is truncated or set to 0
    tis_mode: Literal["truncate", "mask"] = "truncate"
    tis_cap: PositiveFloat = 2.0  # the largest weight
    # With `mask`, weights below tis_low are set to 0 too, which is IcePop (arXiv:2510.18855:
    # tis=token, tis_low=0.5, tis_cap=5); null: none is.
    tis_low: PositiveFloat | None = None
    # Of models with experts: the coefficient of the load-balancing loss, 0 in most recipes of RL.
    expert_balance: NonNegativeFloat = 0.0
    # Of models with experts: whether the trainer's tokens meet the experts that the sampler chose
    # (arXiv:2510.11370).
    replay_experts: bool = False
    # Of models with experts: whether it is measured how often sampler and trainer choose the same.
    measure_expert_agreement: bool = True
    critic: CriticConfig | None = None  # PPO's critic
    # An epoch leaves out problems of whose rollouts so far this share or more were correct
    # (arXiv:2510.13786), and keeps B_p in any case; null: every epoch has all problems.
    no_positive_resampling: Annotated[float, Field(gt=0, le=1)] | None = None
    # Groups whose rewards are all equal are replaced by those of further problems, for which at
    # most so many batches of B_p problems are sampled in all (DAPO, arXiv:2503.14476); all of their
    # rollouts count in C; null: groups stay.
    dynamic_sampling: Annotated[int, Field(ge=2, le=64)] | None = None
    # k, by how many updates at most the sampler runs ahead of the trainer; null: it waits for each
    # update.
    max_staleness: int | None = Field(default=None, ge=0, le=64)
    # An update whose loss or gradient is not finite is skipped and counted; after so many in a row
    # the run breaks off.
    max_consecutive_nonfinite: PositiveInt = 8
    # At B = lr_reference_batch; a text task must set it, and null proposes a value for it.
    learning_rate: PositiveFloat = 1e-3
    # Times what the learning rate is at another B: 1 (constant), B / lr_reference_batch (linear),
    # or its root (sqrt).
    lr_scaling: Literal["constant", "linear", "sqrt"] = "sqrt"
    lr_reference_batch: PositiveInt = 1024  # rollouts per update
    # updates over which the learning rate rises linearly from 0; then it is constant
    warmup: PositiveInt = 10
    weight_decay: NonNegativeFloat = 0.0  # of AdamW
    max_grad_norm: PositiveFloat = 1.0  # the gradient is scaled down to this norm

    def rate_factor(self, B: float) -> float:
        """What a learning rate is multiplied by at B rollouts per update."""
        exponents = {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}
        return (B / self.lr_reference_batch) ** exponents[self.lr_scaling]
