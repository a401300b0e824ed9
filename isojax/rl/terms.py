"""From per-token losses to one number: how much each response counts in each term of the loss.

    loss = sum over responses [ policy * sum_t loss_t  +  kl coefficient * kl * sum_t kl_t  -  entropy coefficient * entropy * sum_t H_t ]

The weights `policy`, `kl` and `entropy` hold the whole aggregation, denominators and filters included, so that microbatches, padding and
shards only ever add up.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from isojax.config import RLConfig
from isojax.rl.advantages import Rewarded, silent
from isojax.sampling.logits import rollout_keys, uniforms

SUBSET = 1  # the stream of random numbers, within an update's, that chooses n_train of n; the sampler's own draws are not folded by it


class Terms(NamedTuple):
    """What each response brings to the loss.

    Attributes:
        gains: its advantage f32[S rows], or one a token f32[S rows T].
        policy, kl, entropy: f32[S rows], its weight in each term; 0 where it has none.
    """

    gains: Array
    policy: Array
    kl: Array
    entropy: Array


def aggregate(
    kind: str, lengths: Int[Array, "*r"], groups: Int[Array, "*r"], counted: Bool[Array, "*r"], num_groups: int, T: int
) -> Float[Array, "*r"]:
    """The weight of each response's sum over its tokens; 0 where it is not `counted`, nor counts in what follows.

    token: 1 / all tokens. sequence: 1 / (its tokens * responses). prompt: 1 / (its group's tokens * groups). constant: 1 / (T * responses).
    """
    tokens = jnp.where(counted, lengths, 0).astype(jnp.float32)
    responses = jnp.maximum(counted.sum(), 1).astype(jnp.float32)
    if kind == "token":
        share = jnp.maximum(tokens.sum(), 1)
    elif kind == "sequence":
        share = jnp.maximum(lengths, 1) * responses
    elif kind == "constant":
        share = T * responses
    else:
        assert kind == "prompt", kind
        of_group = jax.ops.segment_sum(tokens.reshape(-1), groups.reshape(-1), num_groups)
        share = jnp.maximum(of_group, 1)[groups] * jnp.maximum((of_group > 0).sum(), 1)
    return jnp.where(counted, 1.0 / share, 0.0)


def subset(key: PRNGKeyArray, ids: Int[Array, " r"], batch: Rewarded, n_train: int) -> Bool[Array, "*r"]:
    """A random choice of n_train rollouts of each group, by draws that belong to (problem id, rollout): no mesh or padding changes it.

    Rollouts lie in the order of their numbers, r // n being the group's; `ids` are the rows' problems', flat.
    """
    live, groups = batch.live.reshape(-1), batch.groups.reshape(-1)
    number = jnp.cumsum(live) - 1
    u = uniforms(rollout_keys(jax.random.fold_in(key, SUBSET), ids, number % batch.n), jnp.zeros_like(number))
    by_group = jnp.lexsort((u, jnp.where(live, groups, batch.num_groups)))
    place = jnp.zeros_like(number).at[by_group].set(jnp.arange(len(number), dtype=number.dtype))
    return (live & (place - groups * batch.n < n_train)).reshape(batch.live.shape)


def make_terms(rl: RLConfig, aggregation: str, gains: Array, batch: Rewarded, chosen: Bool[Array, "*r"], T: int) -> Terms:
    """The terms of the responses that are `chosen`, with zero-variance groups left out of those that filter them."""
    speaking = chosen & ~silent(batch)

    def weight(term: str) -> Array:
        counted = speaking if term in rl.zero_variance_filter else chosen
        return aggregate(aggregation, batch.lengths, batch.groups, counted, batch.num_groups, T)

    return Terms(gains, weight("policy"), weight("kl"), weight("entropy"))
