"""What teaches nothing is not computed: rollouts that the gradient is not taken of, and groups that have no part in any
term, whose gradient is exactly 0. The others move to the front of the batch, and the gradient runs over as many as
there are."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from isojax.sampling.batch import ProblemArrays, SamplerShapes, buffer_row_groups


class CompactedBatch(NamedTuple):
    """The batch that is left, B_p problems; `rows`: the given columns [S rows ...], without meaning where `kept` bool[S
    rows] is false.
    """

    problems: ProblemArrays
    columns: Any
    valid: Array
    B_p: Array


def drop_groups(
    shapes: SamplerShapes,
    problems: ProblemArrays,
    columns: Any,
    train_mask: Bool[Array, "S rows"],
    B_p: Int[Array, ""],
    n: Int[Array, ""],
    group_size: Any,
) -> CompactedBatch:
    """The rows that are `taken`, in their order, as a batch of its own: of each group all `n_left` or none."""
    groups, _ = buffer_row_groups(shapes, B_p, n)
    shards, rows_per_shard = groups.shape
    group_is_trained = (
        jax.ops.segment_max(train_mask.astype(jnp.int32).reshape(-1), groups.reshape(-1), shapes.problem_rows) > 0
    )
    group_order, num_groups = jnp.argsort(~group_is_trained, stable=True), group_is_trained.sum(dtype=jnp.int32)
    rollouts_per_shard = (num_groups * group_size + shards - 1) // shards  # rollouts a shard will own
    row = jnp.arange(rows_per_shard)[None]
    rollout = jnp.arange(shards)[:, None] * rollouts_per_shard + row
    valid = (row < rollouts_per_shard) & (rollout < num_groups * group_size)
    source_row = jnp.argsort(~train_mask.reshape(-1), stable=True)[
        jnp.where(valid, rollout, 0)
    ]  # rows lie in the order of their rollouts

    def gather_rows(x: Array) -> Array:
        return x.reshape(shards * rows_per_shard, *x.shape[2:])[source_row]

    return CompactedBatch(
        ProblemArrays(*(x[group_order] for x in problems)), jax.tree.map(gather_rows, columns), valid, num_groups
    )
