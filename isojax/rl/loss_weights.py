"""From per-token losses to one number: how much each response counts in each term of the loss.

    loss = sum over responses [ policy * sum_t loss_t  +  kl coefficient * kl * sum_t kl_t  -  entropy coefficient *
    entropy * sum_t H_t ]

The weights `policy`, `kl` and `entropy` hold the whole aggregation, denominators and filters included, so that
microbatches, padding and shards only ever add up.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from isojax.core.config import RLConfig
from isojax.rl.advantages import RewardedBatch, zero_variance
from isojax.sampling.logits import rollout_keys, uniforms

# the stream of random numbers, within an update's, that chooses n_train of n; the sampler's own draws are not folded by
# it
SUBSET_STREAM = 1


class LossWeights(NamedTuple):
    """What each response brings to the loss.

    Attributes:
        gains: its advantage f32[S rows], or one a token f32[S rows T].
        policy, kl, entropy: f32[S rows], its weight in each term; 0 where it has none.
    """

    advantages: Array
    policy: Array
    kl: Array
    entropy: Array


def aggregate(
    aggregation: str,
    lengths: Int[Array, "*r"],
    groups: Int[Array, "*r"],
    counted: Bool[Array, "*r"],
    num_groups: int,
    T: int,
) -> Float[Array, "*r"]:
    """The weight of each response's sum over its tokens; 0 where it is not `counted`, nor counts in what follows.

    token: 1 / all tokens. sequence: 1 / (its tokens * responses). prompt: 1 / (its group's tokens * groups). constant:
    1 / (T * responses).
    """
    tokens = jnp.where(counted, lengths, 0).astype(jnp.float32)
    num_responses = jnp.maximum(counted.sum(), 1).astype(jnp.float32)
    if aggregation == "token":
        denominator = jnp.maximum(tokens.sum(), 1)
    elif aggregation == "sequence":
        denominator = jnp.maximum(lengths, 1) * num_responses
    elif aggregation == "constant":
        denominator = T * num_responses
    else:
        assert aggregation == "prompt", aggregation
        group_tokens = jax.ops.segment_sum(tokens.reshape(-1), groups.reshape(-1), num_groups)
        denominator = jnp.maximum(group_tokens, 1)[groups] * jnp.maximum((group_tokens > 0).sum(), 1)
    return jnp.where(counted, 1.0 / denominator, 0.0)


def choose_train_rollouts(
    key: PRNGKeyArray, ids: Int[Array, " r"], batch: RewardedBatch, n_train: int
) -> Bool[Array, "*r"]:
    """A random choice of n_train rollouts of each group, by draws that belong to (problem id, rollout): no mesh or
    padding changes it.

    Rollouts lie in the order of their numbers, r // n being the group's; `ids` are the rows' problems', flat.
    """
    valid, groups = batch.valid.reshape(-1), batch.groups.reshape(-1)
    rollout = jnp.cumsum(valid) - 1
    uniform = uniforms(
        rollout_keys(jax.random.fold_in(key, SUBSET_STREAM), ids, rollout % batch.n), jnp.zeros_like(rollout)
    )
    random_order = jnp.lexsort((uniform, jnp.where(valid, groups, batch.num_groups)))
    rank = jnp.zeros_like(rollout).at[random_order].set(jnp.arange(len(rollout), dtype=rollout.dtype))
    return (valid & (rank - groups * batch.n < n_train)).reshape(batch.valid.shape)


def make_loss_weights(
    rl: RLConfig, aggregation: str, advantages: Array, batch: RewardedBatch, train_mask: Bool[Array, "*r"], T: int
) -> LossWeights:
    """The terms of the responses that are `chosen`, with zero-variance groups left out of those that filter them."""
    has_advantage = train_mask & ~zero_variance(batch)

    def term_weight(term: str) -> Array:
        counted = has_advantage if term in rl.zero_variance_filter else train_mask
        return aggregate(aggregation, batch.lengths, batch.groups, counted, batch.num_groups, T)

    return LossWeights(advantages, term_weight("policy"), term_weight("kl"), term_weight("entropy"))
