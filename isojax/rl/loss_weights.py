"""Which rollouts the gradient is taken of, and how much each response counts in each term of the loss:

    loss = sum over responses [ policy * sum_t loss_t + kl_coefficient * kl * sum_t kl_t
                                - entropy_coefficient * entropy * sum_t H_t ]

`policy`, `kl` and `entropy` hold the whole aggregation, denominators and filters included."""

from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from isojax.core.config import RLConfig
from isojax.rl.advantages import RewardedBatch, zero_variance
from isojax.rl.aggregations import CountedResponses
from isojax.sampling.batch import ProblemArrays, SamplerShapes, buffer_row_groups
from isojax.sampling.logits import rollout_keys, uniforms

SUBSET_STREAM = 1  # of random numbers, within an update's, that choose n_train of n rollouts


class LossWeights(NamedTuple):
    """What each response brings to the loss: its weight f32[S rows] in each term, 0 where it has none."""

    advantages: Array  # not a weight; f32[S rows], or one for each token, f32[S rows T]
    policy: Array
    kl: Array
    entropy: Array


def response_weights(
    aggregation: ModuleType, batch: RewardedBatch, counted: Bool[Array, "*r"], T: int
) -> Float[Array, "*r"]:
    """The weight of each response's sum over its tokens (rl/aggregations); 0 where not `counted`."""
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


def groups_with_any(
    mask: Bool[Array, "S rows"], groups: Int[Array, "S rows"], num_groups: int
) -> Bool[Array, " num_groups"]:
    return jax.ops.segment_max(mask.astype(jnp.int32).reshape(-1), groups.reshape(-1), num_groups) > 0


def drop_groups(
    shapes: SamplerShapes,
    problems: ProblemArrays,
    columns: Any,
    train_mask: Bool[Array, "S rows"],
    B_p: Int[Array, ""],
    n: Int[Array, ""],
    group_size: Any,
) -> tuple[ProblemArrays, Any, Bool[Array, "S rows"], Int[Array, ""]]:
    """The rows in `train_mask` (of each group of n rollouts `group_size` or none), in their order, at the front of the
    buffers, so that the gradient's loops run over them alone: the remaining problems, the columns [S rows ...], which
    rows hold a rollout, and B_p."""
    groups, _ = buffer_row_groups(shapes, B_p, n)
    shards, rows_per_shard = groups.shape
    group_is_trained = groups_with_any(train_mask, groups, shapes.problem_rows)
    group_order, num_groups = jnp.argsort(~group_is_trained, stable=True), group_is_trained.sum(dtype=jnp.int32)
    rollouts_per_shard = (num_groups * group_size + shards - 1) // shards
    row = jnp.arange(rows_per_shard)[None]
    rollout = jnp.arange(shards)[:, None] * rollouts_per_shard + row
    valid = (row < rollouts_per_shard) & (rollout < num_groups * group_size)
    trained_rows = jnp.argsort(~train_mask.reshape(-1), stable=True)  # rows are in the order of their rollouts
    source_row = trained_rows[jnp.where(valid, rollout, 0)]
    remaining_columns = jax.tree.map(lambda x: x.reshape(shards * rows_per_shard, *x.shape[2:])[source_row], columns)
    remaining_problems = ProblemArrays(*(x[group_order] for x in problems))
    return remaining_problems, remaining_columns, valid, num_groups
