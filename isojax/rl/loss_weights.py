"""From per-token losses to one number: how much each response counts in each term of the loss.

    loss = sum over responses [ policy * sum_t loss_t + kl_coefficient * kl * sum_t kl_t
                                - entropy_coefficient * entropy * sum_t H_t ]

The weights `policy`, `kl` and `entropy` hold the whole aggregation, denominators and filters included, so that sums
over microbatches, padding and shards are all that is left to do.
"""

from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from isojax.core.config import RLConfig
from isojax.rl.advantages import RewardedBatch, zero_variance
from isojax.rl.aggregations import CountedResponses
from isojax.sampling.logits import rollout_keys, uniforms

SUBSET_STREAM = 1  # of random numbers, within an update's, that choose n_train of n rollouts


class LossWeights(NamedTuple):
    """What each response brings to the loss: its weight f32[S rows] in each term, 0 where it has none."""

    advantages: Array  # f32[S rows], or one for each token, f32[S rows T]
    policy: Array
    kl: Array
    entropy: Array


def response_weights(
    aggregation: ModuleType, batch: RewardedBatch, counted: Bool[Array, "*r"], T: int
) -> Float[Array, "*r"]:
    """The weight of each response's sum over its tokens by an aggregation (rl/aggregations); 0 where not `counted`."""
    responses = CountedResponses(
        lengths=batch.lengths,
        tokens=jnp.where(counted, batch.lengths, 0).astype(jnp.float32),
        groups=batch.groups,
        counted=counted,
        num_counted=jnp.maximum(counted.sum(), 1).astype(jnp.float32),
        num_groups=batch.num_groups,
        response_length=T,
    )
    return jnp.where(counted, aggregation.weight(responses), 0.0)


def choose_train_rollouts(
    key: PRNGKeyArray, ids: Int[Array, " r"], batch: RewardedBatch, n_train: int
) -> Bool[Array, "*r"]:
    """A random choice of n_train rollouts of each group, by draws that belong to (problem id, rollout), so that neither
    the mesh nor padding changes it. `ids`: the problem id of each row."""
    valid, groups = batch.valid.reshape(-1), batch.groups.reshape(-1)
    rollout = jnp.cumsum(valid) - 1  # rows are in the order of rollout numbers
    keys = rollout_keys(jax.random.fold_in(key, SUBSET_STREAM), ids, rollout % batch.n)
    uniform = uniforms(keys, jnp.zeros_like(rollout))
    random_order = jnp.lexsort((uniform, jnp.where(valid, groups, batch.num_groups)))
    rank = jnp.zeros_like(rollout).at[random_order].set(jnp.arange(len(rollout), dtype=rollout.dtype))
    return (valid & (rank - groups * batch.n < n_train)).reshape(batch.valid.shape)


def make_loss_weights(
    rl: RLConfig,
    aggregation: ModuleType,
    advantages: Array,
    batch: RewardedBatch,
    train_mask: Bool[Array, "*r"],
    T: int,
) -> LossWeights:
    """The weights of the responses in `train_mask`; a term that filters zero-variance groups leaves those out."""
    has_advantage = train_mask & ~zero_variance(batch)

    def term_weights(term: str) -> Array:
        counted = has_advantage if term in rl.zero_variance_filter else train_mask
        return response_weights(aggregation, batch, counted, T)

    return LossWeights(advantages, term_weights("policy"), term_weights("kl"), term_weights("entropy"))
