"""What teaches nothing is not computed: rollouts that the gradient is not taken of, and groups that have no part in any term, whose
gradient is exactly 0. The others move to the front of the batch, and the gradient runs over as many as there are."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from isojax.sampling.batch import Geometry, Problems, batch_rows


class Compacted(NamedTuple):
    """The batch that is left, B_p problems; `rows`: the given columns [S rows ...], without meaning where `kept` bool[S rows] is false."""

    problems: Problems
    rows: Any
    kept: Array
    B_p: Array


def compact(
    geometry: Geometry, problems: Problems, rows: Any, taken: Bool[Array, "S rows"], B_p: Int[Array, ""], n: Int[Array, ""], n_left: Any
) -> Compacted:
    """The rows that are `taken`, in their order, as a batch of its own: of each group all `n_left` or none."""
    groups, _ = batch_rows(geometry, B_p, n)
    shards, per_shard = groups.shape
    stays = jax.ops.segment_max(taken.astype(jnp.int32).reshape(-1), groups.reshape(-1), geometry.problem_rows) > 0
    order, count = jnp.argsort(~stays, stable=True), stays.sum(dtype=jnp.int32)
    block = (count * n_left + shards - 1) // shards  # rollouts a shard will own
    row = jnp.arange(per_shard)[None]
    rollout = jnp.arange(shards)[:, None] * block + row
    kept = (row < block) & (rollout < count * n_left)
    source = jnp.argsort(~taken.reshape(-1), stable=True)[jnp.where(kept, rollout, 0)]  # rows lie in the order of their rollouts

    def move(x: Array) -> Array:
        return x.reshape(shards * per_shard, *x.shape[2:])[source]

    return Compacted(Problems(*(x[order] for x in problems)), jax.tree.map(move, rows), kept, count)
