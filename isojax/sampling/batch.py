"""A batch of problems and their rollouts: the static shapes that hold it, and where each rollout lies.

Rollouts are numbered r = 0 .. B_p n - 1, group = r // n; shard s owns the contiguous block [s b, (s+1) b), b = ceil(B /
S), so a group may lie on two shards. Buffers carry padding rows, because a dynamic slice past the end of an array is
moved back in silence.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from isojax.core.shapes import SamplerShapes as SamplerShapes
from isojax.core.shapes import make_sampler_shapes as make_sampler_shapes


class ProblemArrays(NamedTuple):
    """A batch of problems, padded to `problem_rows`: prompts i32[Q P] right-padded, lengths i32[Q], answers i32[Q T],
    ids i32[Q].
    """

    prompts: Array | np.ndarray
    lengths: Array | np.ndarray
    answers: Array | np.ndarray
    ids: Array | np.ndarray


class Rollouts(NamedTuple):
    """What was sampled, by shard.

    Attributes:
        tokens: i32[S rows T].
        logps: f32[S rows T], their log-probabilities at the sampling temperature and top-p.
        mask: bool[S rows T], which tokens the policy drew: those of the loss. An interruption's are there and not among
        them.
        kept: f32[S rows T], the probability mass of each token's nucleus; [S rows 1], all ones, where top_p is 1.
        ended: bool[S rows], whether a stop ended the response (else it was cut at T).
        lengths: i32[S rows], how many tokens are there.
    """

    tokens: Array
    logps: Array
    mask: Array
    nucleus_mass: Array
    stopped: Array
    lengths: Array

    @property
    def response_mask(self) -> Array:
        """bool[S rows T], which tokens are there: the response that is judged."""
        return length_mask(self.lengths, self.tokens.shape[-1])


def length_mask(lengths: Int[Array, "*r"], T: int) -> Bool[Array, "*r T"]:
    """The first `lengths` of T places."""
    return jnp.arange(T).reshape(*(1,) * lengths.ndim, T) < lengths[..., None]


class ShardSlice(NamedTuple):
    """A shard's part of a batch: its rollouts are first .. first+count-1, its groups group .. group+groups-1."""

    first_rollout: Array
    rollout_count: Array
    first_group: Array
    group_count: Array


def make_shard_slice(shard: Int[Array, ""], shards: int, B_p: Int[Array, ""], n: Int[Array, ""]) -> ShardSlice:
    """The contiguous block of rollouts that a shard owns."""
    B = B_p * n
    rollouts_per_shard = (B + shards - 1) // shards
    first_rollout = shard * rollouts_per_shard
    rollout_count = jnp.clip(B - first_rollout, 0, rollouts_per_shard)
    first_group = jnp.minimum(first_rollout // n, B_p)
    last_group = (first_rollout + jnp.maximum(rollout_count, 1) - 1) // n
    return ShardSlice(
        first_rollout, rollout_count, first_group, jnp.where(rollout_count > 0, last_group - first_group + 1, 0)
    )


def buffer_row_groups(
    shapes: SamplerShapes, B_p: Int[Array, ""], n: Int[Array, ""]
) -> tuple[Int[Array, "S rows"], Bool[Array, "S rows"]]:
    """For every row of the rollout buffers: the group it belongs to (0 where none does) and whether it holds a
    rollout.
    """
    shard_slice = make_shard_slice(jnp.arange(shapes.shards), shapes.shards, B_p, n)
    row = jnp.arange(shapes.buffer_rows)[None]
    valid = row < shard_slice.rollout_count[:, None]
    return jnp.where(valid, (shard_slice.first_rollout[:, None] + row) // n, 0), valid


def row_index(B: int, shards: int) -> tuple[np.ndarray, np.ndarray]:
    """(shard, row) in the rollout buffers of rollouts 0 .. B-1, each i32[B]."""
    return np.divmod(np.arange(B), max(1, -(-B // shards)))


def rollout_index(rows: np.ndarray, B: int, shard_ids: np.ndarray, shards: int) -> np.ndarray:
    """The inverse of `places`: rows i32[k R] of the buffers of the shards i[k], of so many, as rollouts of a batch of
    B.
    """
    return shard_ids[:, None] * max(1, -(-B // shards)) + rows


def response_tokens(rollouts: Rollouts, B: int) -> list[np.ndarray]:
    """On the host, the response tokens of rollouts 0 .. B-1, each i32[its length]."""
    index = row_index(B, rollouts.tokens.shape[0])
    tokens, lengths = np.asarray(rollouts.tokens)[index], np.asarray(rollouts.lengths)[index]
    return [row[:length] for row, length in zip(tokens, lengths, strict=True)]


def rewards_to_buffer(shapes: SamplerShapes, rewards: np.ndarray) -> np.ndarray:
    """Rewards of rollouts 0 .. B-1 in the rows of the rollout buffers, f32[S rows]; 0 elsewhere."""
    buffer = np.zeros((shapes.shards, shapes.buffer_rows), np.float32)
    buffer[row_index(len(rewards), shapes.shards)] = rewards
    return buffer
