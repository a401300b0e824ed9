"""What teaches nothing is not computed: groups whose rollouts all got the same reward have no advantage, and without KL and entropy
terms their gradient is exactly 0. The others move to the front of the batch, and the gradient runs over as many as there are."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from isojax.sampling.batch import Geometry, Problems, Rollouts, batch_rows


def compact(
    geometry: Geometry, problems: Problems, rollouts: Rollouts, gains: Float[Array, "S rows"], B_p: Int[Array, ""], n: Int[Array, ""]
) -> tuple[Problems, Rollouts, Float[Array, "S rows"], Int[Array, ""]]:
    """(problems, rollouts, advantages, B_p) of the groups with an advantage, in their order, laid out as a batch of their own."""
    groups, live = batch_rows(geometry, B_p, n)
    shards, rows = groups.shape
    teaching = (live & (gains != 0)).astype(jnp.int32).reshape(-1)
    teaches = jax.ops.segment_max(teaching, groups.reshape(-1), geometry.problem_rows) > 0
    order, count = jnp.argsort(~teaches, stable=True), teaches.sum(dtype=jnp.int32)
    before, after = ((B + shards - 1) // shards for B in (B_p * n, count * n))  # rollouts a shard owns
    row = jnp.arange(rows)[None]
    rollout = jnp.arange(shards)[:, None] * after + row
    kept = (row < after) & (rollout < count * n)
    source = jnp.where(kept, order[rollout // n] * n + rollout % n, 0)
    source = (source // before) * rows + source % before

    def move(x: Array) -> Array:
        return x.reshape(shards * rows, *x.shape[2:])[source]

    moved = Rollouts(*(move(x) for x in rollouts))
    moved = moved._replace(mask=moved.mask & kept[..., None], ended=moved.ended & kept)
    return Problems(*(x[order] for x in problems)), moved, jnp.where(kept, move(gains), 0.0), count
