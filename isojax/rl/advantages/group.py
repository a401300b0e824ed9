"""GRPO's advantage (DeepSeekMath, arXiv:2402.03300): (reward - mean) / (std + 1e-6) of the
rollout's group, with the sample's standard deviation (n - 1), as in verl and TRL."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.advantages import EPS, RewardedBatch, advantage, group_centered


@advantage(needs_group=True)
def group(batch: RewardedBatch) -> Float[Array, "*r"]:
    """0 in a group whose rewards are all equal."""
    centered = group_centered(batch)
    variance = batch.group_sum(centered**2) / jnp.maximum(batch.n - 1, 1)
    return centered / (jnp.sqrt(variance) + EPS)
