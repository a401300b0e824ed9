"""PPO's advantage: generalised advantage estimates of each token (arXiv:1506.02438, by the critic's
values: rl/critic.py), standardised over the batch's tokens as PPO's implementations do."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.advantages import RewardedBatch, advantage, standardize


@advantage(needs_critic=True)
def gae(batch: RewardedBatch) -> Float[Array, "*r T"]:
    """One number for each token that the policy drew, 0 elsewhere."""
    assert batch.token_advantages is not None and batch.token_mask is not None
    is_drawn = batch.token_mask
    advantages = standardize(batch.token_advantages, is_drawn.astype(jnp.float32))
    return jnp.where(is_drawn, advantages, 0.0)
