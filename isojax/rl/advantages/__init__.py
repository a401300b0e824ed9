"""Advantage estimators, one file each: `advantage(batch) -> f32[*r]`, or f32[*r T] for each
response token: how much better a rollout is than others. The rows *r are (shards, rows of a shard);
rows behind the last rollout are padding. A group's rows may lie in two shards.

n is a traced number, because one program serves every n: no `reshape(-1, n)`, Python `if` or NumPy
on it. Sums over a group are `batch.group_sum(x)`; others are `jax.ops.segment_*` over
`batch.groups`, all flattened by `reshape(-1)`.

A file has one function with the decorator `@advantage`, whose arguments are its
`AdvantageTraits`."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from isojax.core.plugins import PluginKind

EPS = 1e-6  # added to standard deviations; rewards that differ by less are equal
EPS_WHITEN = 1e-8  # added to the variance of `standardize`


@dataclass(frozen=True)
class AdvantageTraits:
    """What else is known of an advantage."""

    needs_group: bool = False  # it compares rollouts of one problem, so that n must be 2 or more
    needs_critic: bool = False  # it reads `batch.token_advantages`, which a critic computes


advantage = PluginKind("advantage", "rl.advantages", AdvantageTraits)


class RewardedBatch(NamedTuple):
    """What an advantage is computed of, by row of the buffers."""

    rewards: Float[Array, "*r"]  # 0 where `valid` is false
    lengths: Int[Array, "*r"]  # how many tokens of each response the policy drew
    # each rollout's problem, 0 to B_p - 1, each in n valid rows; 0 in padding rows too
    groups: Int[Array, "*r"]
    valid: Bool[Array, "*r"]  # whether the row holds a rollout
    n: Int[Array, ""]  # rollouts per problem
    num_groups: int  # static; at least the number of groups B_p
    # whether the policy's loss leaves out groups whose rewards are all equal
    filters_zero_variance: bool = False
    # With a critic: generalised advantages by its values, and which response tokens the policy
    # drew.
    token_advantages: Float[Array, "*r T"] | None = None
    token_mask: Bool[Array, "*r T"] | None = None

    def group_sum(self, x: Array) -> Array:
        """For each row, the sum of x over the rows of its group."""
        values = jnp.where(self.valid, x, 0).reshape(-1)
        return jax.ops.segment_sum(values, self.groups.reshape(-1), self.num_groups)[self.groups]


def group_centered(batch: RewardedBatch) -> Float[Array, "*r"]:
    """reward - mean of its group; exactly 0 where all rewards of a group are equal, however their
    mean was rounded."""
    group_mean = batch.group_sum(batch.rewards) / batch.n
    centered = batch.rewards - group_mean
    return jnp.where(batch.valid & ~zero_variance(batch), centered, 0.0)


def zero_variance(batch: RewardedBatch) -> Bool[Array, "*r"]:
    """Whether all rollouts of the row's group got the same reward."""
    rewards = batch.rewards.reshape(-1)
    groups = batch.groups.reshape(-1)
    valid = batch.valid.reshape(-1)
    lowest = jax.ops.segment_min(jnp.where(valid, rewards, jnp.inf), groups, batch.num_groups)
    highest = jax.ops.segment_max(jnp.where(valid, rewards, -jnp.inf), groups, batch.num_groups)
    is_equal = highest - lowest < EPS  # of each group
    return batch.valid & is_equal[batch.groups]


def standardize(x: Float[Array, "*r"], weight: Float[Array, "*r"]) -> Float[Array, "*r"]:
    """(x - mean) / standard deviation, each entry counted `weight` times (n - 1, as in verl's
    masked whitening)."""
    total_weight = weight.sum()
    mean = (weight * x).sum() / jnp.maximum(total_weight, 1)
    deviation = x - mean
    variance = (weight * deviation**2).sum() / jnp.maximum(total_weight - 1, 1)
    return deviation * jax.lax.rsqrt(variance + EPS_WHITEN)
