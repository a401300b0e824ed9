"""How much better a rollout did than others: from rewards to advantages, f32 with the shape of the rewards.

Groups may have any size: sums over a group are segment sums over group = rollout // n, with n a traced number. One
entry of
`ADVANTAGES` an estimator; the critic's (gae) is in rl/critic.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

EPS = 1e-6
EPS_WHITEN = 1e-8


class RewardedBatch(NamedTuple):
    """A batch as estimators read it.

    Attributes:
        rewards: f32[*r], 0 where `live` is false.
        lengths: i32[*r], response tokens that were drawn.
        groups: i32[*r], the problem's place in the batch.
        live: bool[*r], whether the row holds a rollout.
        n: i32[], rollouts a group.
        num_groups: a static bound of the number of groups.
    """

    rewards: Float[Array, "*r"]
    lengths: Int[Array, "*r"]
    groups: Int[Array, "*r"]
    valid: Bool[Array, "*r"]
    n: Int[Array, ""]
    num_groups: int

    def group_sum(self, x: Array) -> Array:
        """Of each row, the sum of x over the rows of its group."""
        return jax.ops.segment_sum(jnp.where(self.valid, x, 0).reshape(-1), self.groups.reshape(-1), self.num_groups)[
            self.groups
        ]


def group_centered(rewarded: RewardedBatch) -> Float[Array, "*r"]:
    """reward - mean of its group; exactly 0 in a group whose rewards are all alike, whatever the mean was rounded
    to.
    """
    return jnp.where(
        rewarded.valid & ~zero_variance(rewarded),
        rewarded.rewards - rewarded.group_sum(rewarded.rewards) / rewarded.n,
        0.0,
    )


def zero_variance(rewarded: RewardedBatch) -> Bool[Array, "*r"]:
    """Whether all rollouts of the row's group got the same reward."""
    flat_rewards, groups = rewarded.rewards.reshape(-1), rewarded.groups.reshape(-1)
    min_reward, max_reward = (
        f(jnp.where(rewarded.valid.reshape(-1), flat_rewards, fill), groups, rewarded.num_groups)
        for f, fill in ((jax.ops.segment_min, jnp.inf), (jax.ops.segment_max, -jnp.inf))
    )
    return rewarded.valid & (max_reward - min_reward < EPS)[rewarded.groups]


def group(rewarded: RewardedBatch) -> Float[Array, "*r"]:
    """(reward - mean) / (std + 1e-6) of the group (DeepSeekMath, arXiv:2402.03300); std is the sample's (n - 1), as in
    verl and TRL.
    """
    advantages = group_centered(rewarded)
    return advantages / (jnp.sqrt(rewarded.group_sum(advantages**2) / jnp.maximum(rewarded.n - 1, 1)) + EPS)


def mean(rewarded: RewardedBatch) -> Float[Array, "*r"]:
    """reward - mean of the group (Dr. GRPO, arXiv:2503.20783)."""
    return group_centered(rewarded)


def leave_one_out(rewarded: RewardedBatch) -> Float[Array, "*r"]:
    """reward - mean of the group's other rewards (RLOO, arXiv:2402.14740): n / (n - 1) times reward - mean."""
    return group_centered(rewarded) * rewarded.n / jnp.maximum(rewarded.n - 1, 1)


def batch(rewarded: RewardedBatch) -> Float[Array, "*r"]:
    """(reward - mean of the group) / (std, with B - 1, of these over the whole batch + 1e-6) (ScaleRL,
    arXiv:2510.13786).
    """
    advantages = group_centered(rewarded)
    return advantages / (jnp.sqrt((advantages**2).sum() / jnp.maximum(rewarded.valid.sum() - 1, 1)) + EPS)


def whiten(rewarded: RewardedBatch) -> Float[Array, "*r"]:
    """(reward - mean) / std over all response tokens of the batch, each with its response's reward (REINFORCE++,
    arXiv:2501.03262).
    """
    weight = jnp.where(rewarded.valid, rewarded.lengths, 0).astype(jnp.float32)
    advantages = standardize(rewarded.rewards, weight)
    return jnp.where(rewarded.valid, advantages, 0.0)


def standardize(x: Float[Array, "*r"], weight: Float[Array, "*r"]) -> Float[Array, "*r"]:
    """x less its mean over its standard deviation (n - 1, as verl's masked whitening), with each entry counted `weight`
    times.
    """
    total_weight = weight.sum()
    deviation = x - (weight * x).sum() / jnp.maximum(total_weight, 1)
    variance = (weight * deviation**2).sum() / jnp.maximum(total_weight - 1, 1)
    return deviation * jax.lax.rsqrt(variance + EPS_WHITEN)


ADVANTAGES: dict[str, Callable[[RewardedBatch], Array]] = {
    f.__name__: f for f in (group, mean, leave_one_out, batch, whiten)
}
