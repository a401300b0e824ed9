"""Where each rollout of a batch lies in the buffers [S rows ...] that shards hold their parts of.

Rollout r = 0 .. B-1 belongs to group r // n. Shard s owns rollouts [s b, (s+1) b) with b = ceil(B /
S), in their order, in its rows from 0 on; so a group may span two shards. The rows behind them are
padding: XLA would shift a dynamic slice that passes the end of an array."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


class ShardSlice(NamedTuple):
    """The contiguous rollouts and groups of a batch that one shard owns, each i32[]; of several
    shards, each i32[S]. A group, the n rollouts of one problem, that spans two shards is in the
    slices of both. With B_p = 3, n = 2 and two shards, shard 1 has (3, 3, 1, 2)."""

    first_rollout: Array  # of the batch's B
    rollout_count: Array
    first_group: Array  # of the batch's B_p
    group_count: Array


@dataclass(frozen=True)
class Layout:
    """The rollouts of a batch, n of each of B_p problems, on S shards. B_p and n are numbers, or
    traced."""

    B_p: Any
    n: Any
    shards: int

    @property
    def B(self) -> Any:
        return self.B_p * self.n

    @property
    def rollouts_per_shard(self) -> Any:
        """b, of every shard but the last ones, which may own fewer."""
        return (self.B + self.shards - 1) // self.shards

    def shard_slice(self, shard: Int[Array, "*S"]) -> ShardSlice:
        """What each of the shards owns."""
        first_rollout = shard * self.rollouts_per_shard
        rollout_count = jnp.clip(self.B - first_rollout, 0, self.rollouts_per_shard)

        # A last shard without rollouts begins behind the batch.
        first_group = jnp.minimum(first_rollout // self.n, self.B_p)
        last_rollout = first_rollout + jnp.maximum(rollout_count, 1) - 1
        last_group = last_rollout // self.n
        group_count = jnp.where(rollout_count > 0, last_group - first_group + 1, 0)
        return ShardSlice(first_rollout, rollout_count, first_group, group_count)

    # Rows to rollouts, and back: on the host, or traced.

    def rollout_at(self, shard: Any, row: Any) -> Any:
        """The rollout in a row of a shard, i32[...]; of a padding row, any number."""
        return shard * self.rollouts_per_shard + row

    def place(self, rollout: Any) -> tuple[Any, Any]:
        """(shard, row) of rollouts i32[...], which index buffers: the inverse of `rollout_at`."""
        return rollout // self.rollouts_per_shard, rollout % self.rollouts_per_shard

    def rollout_of_row(self, rows: int) -> Int[Array, "S rows"]:
        """The rollout in each row of the buffers; in a padding row, any number."""
        return self.rollout_at(jnp.arange(self.shards)[:, None], jnp.arange(rows)[None])

    def holds_rollout(self, rows: int) -> Bool[Array, "S rows"]:
        """Which rows of the buffers are no padding."""
        rollout_count = self.shard_slice(jnp.arange(self.shards)).rollout_count
        return jnp.arange(rows)[None] < rollout_count[:, None]

    def row_groups(self, rows: int) -> tuple[Int[Array, "S rows"], Bool[Array, "S rows"]]:
        """The group of each row of the buffers (0 for a padding row), and whether the row holds a
        rollout."""
        valid = self.holds_rollout(rows)
        groups = self.rollout_of_row(rows) // self.n
        return jnp.where(valid, groups, 0), valid

    # On the host.

    def in_order(self, buffer: Any) -> np.ndarray:
        """What belongs to rollouts 0 .. B-1, in their order, [B ...], of an array [S rows ...]."""
        return np.asarray(buffer)[self.place(np.arange(self.B))]

    def to_buffer(self, values: np.ndarray | Sequence[float], rows: int) -> np.ndarray:
        """The inverse of `in_order`: f32[S rows]; padding rows hold 0."""
        buffer = np.zeros((self.shards, rows), np.float32)
        buffer[self.place(np.arange(self.B))] = values
        return buffer
