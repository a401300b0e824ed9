"""A batch of problems and their rollouts: the arrays that hold it. Rows of its buffers:
sampling/layout.py."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import ROLLOUT_AXES, replicated, shape_on
from isojax.sampling.layout import Layout, ShardSlice

# A run's PRNG key is folded with one of these: draws for one use never depend on how many another
# use makes.
TRAIN_STREAM = 0
EVAL_STREAM = 1
LABEL_STREAM = 2
EXTRA_STREAM = 3  # the i-th extra evaluation set uses EXTRA_STREAM + i


class ProblemArrays(NamedTuple):
    """Q problems as arrays."""

    prompts: Array | np.ndarray  # i32[Q P], padded on the right
    lengths: Array | np.ndarray  # i32[Q], tokens of each prompt
    answers: Array | np.ndarray  # i32[Q T] where a device verifies, else i32[Q 0]
    ids: Array | np.ndarray  # i32[Q]


class Rollouts(NamedTuple):
    """Sampled responses, by shard."""

    tokens: Array  # i32[S rows T]
    # f32[S rows T], log-probabilities of the tokens at the sampling temperature and top-p
    logps: Array
    mask: Array  # bool[S rows T], the tokens in the loss: those that the policy drew, not context's
    # f32[S rows T], probability mass of each token's nucleus; [S rows 1], all ones, without top-p
    nucleus_mass: Array
    # bool[S rows], whether a stop condition ended the response (otherwise it was cut at T)
    stopped: Array
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

    @property
    def layout(self) -> Layout:
        return Layout(self.B_p, self.n, shards=self.rollouts.tokens.shape[0])


class SamplingBatch(NamedTuple):
    """What a shard samples: its share of n rollouts of each problem, drawn with one `key` or one
    per problem. An endless batch (rl/async_rl/rollout_buffer.py) also has the sizes of its buffers
    in groups and rollouts: both, or neither."""

    problems: ProblemArrays  # of the whole batch, padded; of an endless one, of the shard's ring
    share: ShardSlice
    n: Int[Array, ""]
    key: PRNGKeyArray  # [], or of an endless batch [rows of `problems`]
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
    """What is recorded of each token: its k experts in each of l layers."""

    layers: int  # l, those with experts
    top_k: int  # k
    dtype: str

    def shape(self, *leading: int) -> tuple[int, ...]:
        return (*leading, self.layers, self.top_k)


def rollout_shapes(
    shapes: SamplerShapes, mesh: Mesh, nucleus: bool, recorded: RecordedExperts | None = None
) -> Rollouts | RoutedRollouts:
    """ShapeDtypeStructs, with shardings, of a batch's rollouts, split over the shards.

    nucleus: whether top_p is below 1. recorded: the experts' sizes; None gives Rollouts without.
    """
    rows = (shapes.shards, shapes.buffer_rows)
    T = shapes.response_length
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

    of_prompts = recorded.shape(*rows, shapes.prompt_length)
    of_responses = recorded.shape(*rows, T)
    return RoutedRollouts(
        *rollouts,
        prompt_experts=shape_on(sharding, of_prompts, recorded.dtype),
        experts=shape_on(sharding, of_responses, recorded.dtype),
    )


def problem_shapes(
    shapes: SamplerShapes, mesh: Mesh, rows: int, answer_length: int
) -> ProblemArrays:
    """ShapeDtypeStructs of `rows` problems, whole on all devices.

    answer_length: T where a device verifies, 0 where the host does.
    """
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
    begins_later = mask[..., 1:] & ~mask[..., :-1]
    return mask[..., 0] + begins_later.sum(-1)


def response_tokens(rollouts: Rollouts | RoutedRollouts, layout: Layout) -> list[np.ndarray]:
    """The response tokens of all rollouts as host arrays, in their order, each i32[its length];
    context as ~token."""
    tokens = layout.in_order(rollouts.tokens)
    mask = layout.in_order(rollouts.mask)
    return _cut(np.where(mask, tokens, ~tokens), rollouts, layout)


def response_logps(rollouts: Rollouts | RoutedRollouts, layout: Layout) -> list[np.ndarray]:
    """The sampler's log-probabilities of the same tokens, each f32[its length]; 0 of context."""
    logps = layout.in_order(rollouts.logps)
    mask = layout.in_order(rollouts.mask)
    return _cut(np.where(mask, logps, 0), rollouts, layout)


def response_nucleus_mass(rollouts: Rollouts | RoutedRollouts, layout: Layout) -> list[np.ndarray]:
    """The nucleus's mass at each of the same tokens, each f32[its length]; ones without top-p."""
    masses = layout.in_order(rollouts.nucleus_mass)
    T = rollouts.tokens.shape[-1]
    return _cut(np.broadcast_to(masses, (layout.B, T)), rollouts, layout)


def _cut(
    by_token: np.ndarray, rollouts: Rollouts | RoutedRollouts, layout: Layout
) -> list[np.ndarray]:
    """Of an array [B T] in the order of rollouts, each response's first `length` entries."""
    lengths = layout.in_order(rollouts.lengths)
    return [row[:length] for row, length in zip(by_token, lengths, strict=True)]
