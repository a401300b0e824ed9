"""A batch without the rollouts that the gradient is not taken of, and without groups whose gradient is exactly 0.

What remains moves to the front of the buffers, and the gradient's loops run over that alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from isojax.sampling.batch import ProblemArrays, SamplerShapes, buffer_row_groups


class CompactedBatch(NamedTuple):
    """The remaining batch of B_p problems. `columns` are the given arrays [S rows ...]; their rows mean something only
    where `valid` bool[S rows] is true."""

    problems: ProblemArrays
    columns: Any
    valid: Array
    B_p: Array


def groups_with_any(
    mask: Bool[Array, "S rows"], groups: Int[Array, "S rows"], num_groups: int
) -> Bool[Array, " num_groups"]:
    """Whether any row of a group is in the mask."""
    return jax.ops.segment_max(mask.astype(jnp.int32).reshape(-1), groups.reshape(-1), num_groups) > 0


def drop_groups(
    shapes: SamplerShapes,
    problems: ProblemArrays,
    columns: Any,
    train_mask: Bool[Array, "S rows"],
    B_p: Int[Array, ""],
    n: Int[Array, ""],
    group_size: Any,
) -> CompactedBatch:
    """The rows in `train_mask` (of each group of n rollouts `group_size` or none), in their order, as a batch of its
    own."""
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
    return CompactedBatch(remaining_problems, remaining_columns, valid, num_groups)
