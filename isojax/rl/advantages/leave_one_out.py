"""RLOO's advantage (arXiv:2402.14740): reward - mean of the other rewards of the group."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.advantages import RewardedBatch, advantage, group_centered


@advantage(needs_group=True)
def leave_one_out(batch: RewardedBatch) -> Float[Array, "*r"]:
    """n / (n - 1) times (reward - mean of the group), which is the same number."""
    return group_centered(batch) * batch.n / jnp.maximum(batch.n - 1, 1)
