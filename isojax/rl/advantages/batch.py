"""ScaleRL's advantage (arXiv:2510.13786): (reward - mean of the group) / (standard deviation of
these + 1e-6), this over the "effective batch" that the policy's loss counts: where
`cell.rl.zero_variance_filter` holds `policy`, the rollouts of groups whose rewards differ;
otherwise all, zeros included."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.advantages import EPS, RewardedBatch, advantage, group_centered, zero_variance


@advantage(needs_group=True)
def batch_standardized(batch: RewardedBatch) -> Float[Array, "*r"]:
    """The standard deviation is the sample's (B - 1, B the rollouts that count)."""
    centered = group_centered(batch)
    counted = batch.valid & ~(zero_variance(batch) & batch.filters_zero_variance)
    variance = (centered**2).sum() / jnp.maximum(counted.sum() - 1, 1)
    return centered / (jnp.sqrt(variance) + EPS)
