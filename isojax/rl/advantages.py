"""Group-normalised advantages over groups of any size, by segment sums: group = rollout // n, with n a traced number."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

EPS = 1e-6


def group(
    rewards: Float[Array, "*r"], groups: Int[Array, "*r"], live: Bool[Array, "*r"], n: Int[Array, ""], num_groups: int
) -> tuple[Float[Array, "*r"], dict[str, Float[Array, ""]]]:
    """(reward - mean) / (std + 1e-6) within each group of n rollouts; 0 where `live` is false (DeepSeekMath, arXiv:2402.03300).

    std is the sample standard deviation (n - 1), as verl and TRL compute it; a group of one has advantage 0. Metrics: the share of
    groups whose rollouts all got the same reward, and which teach nothing.
    """
    flat, ids = jnp.where(live, rewards, 0.0).reshape(-1), groups.reshape(-1)
    alive = live.reshape(-1)
    mean = jax.ops.segment_sum(flat, ids, num_groups) / n
    centred = jnp.where(alive, flat - mean[ids], 0.0)
    std = jnp.sqrt(jax.ops.segment_sum(centred**2, ids, num_groups) / jnp.maximum(n - 1, 1))
    used = jax.ops.segment_max(alive.astype(jnp.int32), ids, num_groups) > 0
    silent = (used & (std < EPS)).sum() / jnp.maximum(used.sum(), 1)
    gains = jnp.where(
        std[ids] < EPS, 0.0, centred / (std[ids] + EPS)
    )  # equal rewards differ from their mean by a rounding: it teaches nothing
    return gains.reshape(rewards.shape), {"zero_variance": silent}
