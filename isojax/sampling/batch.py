"""A batch of problems and their rollouts: the arrays that hold it, and the buffer row of each rollout.

Rollout r = 0 .. B-1 belongs to group r // n; shard s owns rollouts [s b, (s+1) b) with b = ceil(B / S), so a group may
span two shards. Buffers have padding rows, because XLA would shift a dynamic slice that passes the end of an array.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import ROLLOUT_AXES, replicated, shape_on

# A run's PRNG key is folded with one of these: draws for one use never depend on how many another use makes.
TRAIN_STREAM = 0
EVAL_STREAM = 1
LABEL_STREAM = 2
EXTRA_STREAM = 3  # the i-th extra evaluation set uses EXTRA_STREAM + i


class ProblemArrays(NamedTuple):
    prompts: Array | np.ndarray  # i32[Q P], padded on the right
    lengths: Array | np.ndarray  # i32[Q], tokens of each prompt
    answers: Array | np.ndarray  # i32[Q T]
    ids: Array | np.ndarray  # i32[Q]


class Rollouts(NamedTuple):
    """Sampled responses, by shard."""

    tokens: Array  # i32[S rows T]
    logps: Array  # f32[S rows T], log-probabilities of the tokens at the sampling temperature and top-p
    mask: Array  # bool[S rows T], the tokens in the loss: those that the policy drew, not context's
    nucleus_mass: Array  # f32[S rows T], probability mass of each token's nucleus; [S rows 1], all ones, without top-p
    stopped: Array  # bool[S rows], whether a stop condition ended the response (otherwise it was cut at T)
    lengths: Array  # i32[S rows], tokens in each response

    @property
    def response_mask(self) -> Array:
        """bool[S rows T], the tokens of the response that the verifier judges."""
        return length_mask(self.lengths, self.tokens.shape[-1])


class RoutedRollouts(NamedTuple):
    """Rollouts of a model with experts, with those of each token in the l layers that have some."""

    tokens: Array  # these six: as in Rollouts
    logps: Array
    mask: Array
    nucleus_mass: Array
    stopped: Array
    lengths: Array
    prompt_experts: Array  # u8 or u16 [S rows P l k], of the prompt's tokens
    experts: Array  # [S rows T l k], of the response's, but not of its last, which no layer reads

    @property
    def response_mask(self) -> Array:
        return length_mask(self.lengths, self.tokens.shape[-1])


class RolloutBatch(NamedTuple):
    """All that the update of one batch reads in addition to the training state."""

    problems: ProblemArrays  # padded to `problem_rows`
    rollouts: Rollouts | RoutedRollouts  # n responses to each of the first B_p problems
    rewards: Any  # f32[S rows], one for each rollout; rows without a rollout are ignored
    B_p: Any  # i32[]
    n: Any  # i32[]
    key_data: Any  # u32[2], the data of the batch's PRNG key


class ShardSlice(NamedTuple):
    """The contiguous rollouts and groups of a batch that one shard owns."""

    first_rollout: Array
    rollout_count: Array
    first_group: Array
    group_count: Array


class SamplingBatch(NamedTuple):
    """What a shard samples: its share of n rollouts of each problem, drawn with one `key` or one per problem. An
    endless batch (rl/async_rl/rollout_buffer.py) also has the sizes of its buffers in groups and rollouts."""

    problems: ProblemArrays
    share: ShardSlice
    n: Int[Array, ""]
    key: PRNGKeyArray
    ring_groups: Int[Array, ""] | None = None
    ring_rows: Int[Array, ""] | None = None

    @property
    def skipped_rollouts(self) -> Int[Array, ""]:
        """Rollouts of the share's first problem that another shard owns."""
        return self.share.first_rollout - self.share.first_group * self.n

    def problem_row(self, problem: Int[Array, "*z"]) -> Int[Array, "*z"]:
        """The row of `problems` of a problem, which is counted within the share."""
        group = self.share.first_group + problem
        return group if self.ring_groups is None else group % self.ring_groups

    def buffer_row(self, row: Int[Array, "*r"]) -> Int[Array, "*r"]:
        """The row of the buffers of a rollout, which is counted within the share."""
        return row if self.ring_rows is None else row % self.ring_rows


def gather_problems(table: ProblemArrays, index: Int[Array, " Q"]) -> ProblemArrays:
    return ProblemArrays(*(x[index] for x in table))


class RecordedExperts(NamedTuple):
    """What is recorded of each token."""

    layers: int  # l, those with experts
    top_k: int
    dtype: str

    def shape(self, *leading: int) -> tuple[int, ...]:
        return (*leading, self.layers, self.top_k)


def rollout_shapes(
    shapes: SamplerShapes, mesh: Mesh, nucleus: bool, recorded: RecordedExperts | None = None
) -> Rollouts | RoutedRollouts:
    """ShapeDtypeStructs of a batch's rollouts, split over the shards. nucleus: whether top_p is below 1."""
    rows, T = (shapes.shards, shapes.buffer_rows), shapes.response_length
    sharding = NamedSharding(mesh, P(ROLLOUT_AXES))
    rollouts = Rollouts(
        tokens=shape_on(sharding, (*rows, T)),
        logps=shape_on(sharding, (*rows, T), "float32"),
        mask=shape_on(sharding, (*rows, T), "bool"),
        nucleus_mass=shape_on(sharding, (*rows, T if nucleus else 1), "float32"),
        stopped=shape_on(sharding, rows, "bool"),
        lengths=shape_on(sharding, rows),
    )
    if recorded is None:
        return rollouts
    return RoutedRollouts(
        *rollouts,
        prompt_experts=shape_on(sharding, recorded.shape(*rows, shapes.prompt_length), recorded.dtype),
        experts=shape_on(sharding, recorded.shape(*rows, T), recorded.dtype),
    )


def problem_shapes(shapes: SamplerShapes, mesh: Mesh, rows: int, answer_length: int) -> ProblemArrays:
    """ShapeDtypeStructs of so many problems, on all devices. answer_length: 0 where the host verifies."""
    on_all = replicated(mesh)
    return ProblemArrays(
        prompts=shape_on(on_all, (rows, shapes.prompt_length)),
        lengths=shape_on(on_all, (rows,)),
        answers=shape_on(on_all, (rows, answer_length)),
        ids=shape_on(on_all, (rows,)),
    )


def length_mask(lengths: Int[Array, "*r"], T: int) -> Bool[Array, "*r T"]:
    """True at the first `lengths` of T positions."""
    return jnp.arange(T).reshape(*(1,) * lengths.ndim, T) < lengths[..., None]


def count_turns(mask: Any) -> Any:
    """The turns i32[...] of responses whose drawn tokens are mask [... T]: runs of drawn tokens."""
    return mask[..., 0] + (mask[..., 1:] & ~mask[..., :-1]).sum(-1)


def make_shard_slice(shard: Int[Array, ""], shards: int, B_p: Int[Array, ""], n: Int[Array, ""]) -> ShardSlice:
    B = B_p * n
    rollouts_per_shard = (B + shards - 1) // shards
    first_rollout = shard * rollouts_per_shard
    rollout_count = jnp.clip(B - first_rollout, 0, rollouts_per_shard)
    first_group = jnp.minimum(first_rollout // n, B_p)
    last_group = (first_rollout + jnp.maximum(rollout_count, 1) - 1) // n
    group_count = jnp.where(rollout_count > 0, last_group - first_group + 1, 0)
    return ShardSlice(first_rollout, rollout_count, first_group, group_count)


def buffer_row_groups(
    shapes: SamplerShapes, B_p: Int[Array, ""], n: Int[Array, ""]
) -> tuple[Int[Array, "S rows"], Bool[Array, "S rows"]]:
    """The group of each row of the rollout buffers (0 for a padding row), and whether the row holds a rollout."""
    shard_slice = make_shard_slice(jnp.arange(shapes.shards), shapes.shards, B_p, n)
    row = jnp.arange(shapes.buffer_rows)[None]
    valid = row < shard_slice.rollout_count[:, None]
    return jnp.where(valid, (shard_slice.first_rollout[:, None] + row) // n, 0), valid


def row_index(B: int, shards: int) -> tuple[np.ndarray, np.ndarray]:
    """(shard, row) in the rollout buffers of rollouts 0 .. B-1, each i32[B]."""
    return np.divmod(np.arange(B), max(1, -(-B // shards)))


def rollout_index(rows: np.ndarray, B: int, shard_ids: np.ndarray, shards: int) -> np.ndarray:
    """The inverse of `row_index`: the rollout numbers of rows i32[k R] in the buffers of the shards i[k]."""
    return shard_ids[:, None] * max(1, -(-B // shards)) + rows


def response_tokens(rollouts: Rollouts | RoutedRollouts, B: int) -> list[np.ndarray]:
    """The response tokens of rollouts 0 .. B-1 as host arrays, each i32[its length]; context as ~token."""
    index = row_index(B, rollouts.tokens.shape[0])
    tokens, mask, lengths = (np.asarray(x)[index] for x in (rollouts.tokens, rollouts.mask, rollouts.lengths))
    return [row[:length] for row, length in zip(np.where(mask, tokens, ~tokens), lengths, strict=True)]


def response_logps(rollouts: Rollouts | RoutedRollouts, B: int) -> list[np.ndarray]:
    """The sampler's log-probabilities of the same tokens, each f32[its length]; 0 of context."""
    index = row_index(B, rollouts.tokens.shape[0])
    logps, mask, lengths = (np.asarray(x)[index] for x in (rollouts.logps, rollouts.mask, rollouts.lengths))
    return [row[:length] for row, length in zip(np.where(mask, logps, 0), lengths, strict=True)]


def response_nucleus_mass(rollouts: Rollouts | RoutedRollouts, B: int) -> list[np.ndarray]:
    """The nucleus's mass at each of the same tokens, each f32[its length]; ones without top-p."""
    shards, _, T = rollouts.tokens.shape
    index = row_index(B, shards)
    masses, lengths = np.asarray(rollouts.nucleus_mass)[index], np.asarray(rollouts.lengths)[index]
    by_token = np.broadcast_to(masses, (B, T))
    return [row[:length] for row, length in zip(by_token, lengths, strict=True)]


def rewards_to_buffer(shapes: SamplerShapes, rewards: np.ndarray) -> np.ndarray:
    """The rewards of rollouts 0 .. B-1 in their buffer rows, f32[S rows]; padding rows hold 0."""
    buffer = np.zeros((shapes.shards, shapes.buffer_rows), np.float32)
    buffer[row_index(len(rewards), shapes.shards)] = rewards
    return buffer
