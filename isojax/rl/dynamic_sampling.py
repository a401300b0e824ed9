"""DAPO's dynamic sampling (arXiv:2503.14476, section 3.2): groups whose rewards are all equal,
which teach nothing, are replaced by those of further problems, batch after batch, until none is
left or as many batches are sampled as the recipe allows; what is equal then stays. All sampled
rollouts count in C. Groups that are not needed are dropped, as in verl, so that every update is on
rollouts of the newest policy.

Where a replaced group stood, the one that replaces it stands, with its problem."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import ROLLOUT_AXES, Program, replicated
from isojax.rl.advantages import EPS
from isojax.rl.metric import Metrics
from isojax.rl.train_step import measure_rollouts, rewarded_batch
from isojax.sampling.batch import RolloutBatch
from isojax.tasks.protocol import StopConditions


class ExaminedBatch(NamedTuple):
    """What is known of a batch before it is merged."""

    equal_groups: Array  # i32[], those whose rewards are all equal
    metrics: Metrics  # of all rollouts


class MergedBatch(NamedTuple):
    """A batch in which groups of equal rewards are replaced, as far as others were there."""

    batch: RolloutBatch
    equal_groups: Array  # i32[], of the batch


def has_equal_rewards(shapes: SamplerShapes, batch: RolloutBatch) -> Bool[Array, " problem_rows"]:
    """Whether all rollouts of a problem got the same reward; False of rows without a problem."""
    Q = shapes.problem_rows
    groups, valid = batch.layout.row_groups(shapes.buffer_rows)
    groups, valid = groups.reshape(-1), valid.reshape(-1)
    rewards = batch.rewards.reshape(-1)

    lowest = jax.ops.segment_min(jnp.where(valid, rewards, jnp.inf), groups, Q)
    highest = jax.ops.segment_max(jnp.where(valid, rewards, -jnp.inf), groups, Q)
    return (jnp.arange(Q) < batch.B_p) & (highest - lowest < EPS)


def replacements(
    is_equal: Bool[Array, " Q"], further_is_equal: Bool[Array, " Q"], B_p: Array
) -> Int[Array, " Q"]:
    """For each group, the number of the further batch's group that replaces it; -1: it stays.

    The first of the further batch whose rewards are unequal replace the first whose are equal.
    is_equal, further_is_equal: of `has_equal_rewards`. B_p: i32[], groups of either batch.
    """
    is_usable = (jnp.arange(len(is_equal)) < B_p) & ~further_is_equal
    usable_groups = jnp.argsort(~is_usable, stable=True)  # the usable ones first, in their order
    rank = jnp.cumsum(is_equal) - 1  # of a group among those that have equal rewards
    is_replaced = is_equal & (rank < is_usable.sum())
    # The rank is -1 before the first group of equal rewards, where nothing is replaced.
    return jnp.where(is_replaced, usable_groups[jnp.maximum(rank, 0)], -1)


def replace_groups(
    shapes: SamplerShapes,
    batch: RolloutBatch,
    further: RolloutBatch,
    replacement: Int[Array, " problem_rows"],
) -> RolloutBatch:
    """The batch with groups and problems of a further batch in the place of those they replace.

    Both batches have the same B_p and n, and so the same rows. replacement: of `replacements`.
    """
    layout = batch.layout
    groups, valid = layout.row_groups(shapes.buffer_rows)
    rollout = layout.rollout_of_row(shapes.buffer_rows)

    # Of each row, the rollout of the further batch that comes into it, and where that one is.
    source_group = replacement[groups]
    is_replaced = valid & (source_group >= 0)
    source_rollout = jnp.where(is_replaced, source_group * batch.n + rollout % batch.n, 0)
    source_shard, source_row = layout.place(source_rollout)

    def replace_rows(x: Array, of_further: Array) -> Array:
        mask = is_replaced.reshape(*is_replaced.shape, *(1,) * (x.ndim - 2))
        return jnp.where(mask, of_further[source_shard, source_row], x)

    def replace_problems(x: Array, of_further: Array) -> Array:
        mask = (replacement >= 0).reshape(-1, *(1,) * (x.ndim - 1))
        return jnp.where(mask, of_further[replacement], x)

    return batch._replace(
        problems=jax.tree.map(replace_problems, batch.problems, further.problems),
        rollouts=jax.tree.map(replace_rows, batch.rollouts, further.rollouts),
        rewards=replace_rows(batch.rewards, further.rewards),
    )


def build_examine(shapes: SamplerShapes, stops: StopConditions, mesh: Mesh) -> Program:
    """`examine(batch) -> ExaminedBatch`."""

    def examine(batch: RolloutBatch) -> ExaminedBatch:
        rewarded = rewarded_batch(shapes, batch, filters_zero_variance=False)
        return ExaminedBatch(
            equal_groups=has_equal_rewards(shapes, batch).sum(dtype=jnp.int32),
            metrics=measure_rollouts(stops, batch, rewarded),
        )

    return Program(jax.jit(examine, out_shardings=replicated(mesh)))


def build_merge(shapes: SamplerShapes, mesh: Mesh) -> Program:
    """Build `merge(batch, further) -> MergedBatch`; both batches have the same B_p and n."""

    def merge(batch: RolloutBatch, further: RolloutBatch) -> MergedBatch:
        is_equal = has_equal_rewards(shapes, batch)
        further_is_equal = has_equal_rewards(shapes, further)
        replacement = replacements(is_equal, further_is_equal, batch.B_p)
        merged = replace_groups(shapes, batch, further, replacement)
        return MergedBatch(merged, has_equal_rewards(shapes, merged).sum(dtype=jnp.int32))

    # As those of a batch that was sampled, so that either can be merged with a further one.
    by_row: Any = NamedSharding(mesh, P(ROLLOUT_AXES))
    on_all: Any = replicated(mesh)
    batch_shardings = RolloutBatch(
        problems=on_all, rollouts=by_row, rewards=on_all, B_p=on_all, n=on_all, key_data=on_all
    )
    return Program(jax.jit(merge, out_shardings=MergedBatch(batch_shardings, on_all)))
