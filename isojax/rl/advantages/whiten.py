"""REINFORCE++'s advantage (arXiv:2501.03262): (reward - mean) / std over all response tokens of the
batch, where each token has its response's reward. It compares no rollouts of one problem, so n may
be 1."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.advantages import RewardedBatch, advantage, standardize


@advantage
def whiten(batch: RewardedBatch) -> Float[Array, "*r"]:
    """A response counts as many times as it has tokens."""
    weight = jnp.where(batch.valid, batch.lengths, 0).astype(jnp.float32)
    advantages = standardize(batch.rewards, weight)
    return jnp.where(batch.valid, advantages, 0.0)
