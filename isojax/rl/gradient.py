"""The gradient of a batch of rollouts: each prompt goes forward and backward once, its n responses in microbatches.

For each block of g prompts, `decoder.prefill` runs under `jax.vjp`. An inner loop over microbatches of m responses adds
up d(params) and d(prefix); the pull-back of the latter follows at the end. That is P + n (T - 1) tokens per problem
instead of n (P + T - 1). Where no block has more than one microbatch, its prompts and responses go through the layers
together (`PromptTokens`), so that a weight is gathered and read, and its gradient added up, once for both.

All of it adds to one float32 gradient through references (`VJP.with_refs`), each layer in its place, so that a second
gradient of all parameters is never held. Loops have traced trip counts, so one program serves every B_p and n. Each
response comes with its weights in the whole batch's loss (rl/loss_weights.py), so microbatches, their widths
(rl/length_buckets.py), padding and shards change nothing but rounding. Parameters and their gradient are sharded over
fsdp; a weight is whole only where it is used (models/fsdp.py). What is differentiated is an objective: the policy's
(rl/objective.py) or the critic's (rl/critic.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.core.shapes import bucket_widths
from isojax.distributed.sharding import PARAM_AXIS, ROLLOUT_AXES, manual_specs, positions_are_split, shard_count
from isojax.models.fsdp import GradAnchor, resolve_anchors
from isojax.models.transformer import Params, PrefixCache
from isojax.rl.length_buckets import microbatch_buckets, response_lengths, sort_by_length
from isojax.rl.metric import Metric, Metrics
from isojax.rl.objective import (
    Coefficients,
    MetricSums,
    Microbatch,
    Objective,
    PromptTokens,
    UpdateInputs,
    merge_sums,
)
from isojax.sampling.batch import ProblemArrays, SamplerShapes, ShardSlice, make_shard_slice


class ResponseBatch(NamedTuple):
    """A batch of responses to be differentiated, by shard: tokens i32[S rows T], mask bool[S rows T], and what the
    objective wants of each, [S rows ...] arrays."""

    tokens: Array
    mask: Array
    objective_inputs: Any


class ShardBatch(NamedTuple):
    """A shard's rollouts, each block's longest first, and the batch they are a part of."""

    shard_slice: ShardSlice
    all_shard_slices: ShardSlice  # of all shards
    responses: ResponseBatch
    group: Array
    lengths: Array
    n: Array


@dataclass(frozen=True)
class GradientAccumulator:
    """Adds up the gradient of one shard's rollouts."""

    objective: Objective
    shapes: SamplerShapes

    @property
    def bucket_widths(self) -> tuple[int, ...]:
        """Those a microbatch may have."""
        return bucket_widths(self.shapes.response_length)

    @property
    def joint_forward(self) -> bool:
        """Whether prompts go through the layers with the responses to them."""
        positions_split = positions_are_split(jax.sharding.get_abstract_mesh())
        return self.shapes.joint_forward(positions_split)

    def shard_batch(self, responses: ResponseBatch, shard: Array, B_p: Array, n: Array) -> ShardBatch:
        """The shard's rollouts in the order in which they are computed. With one width alone nothing is moved."""
        shards = self.shapes.shards
        shard_slice, all_shard_slices = (
            make_shard_slice(shard, shards, B_p, n),
            make_shard_slice(jnp.arange(shards), shards, B_p, n),
        )
        row, row_lengths = jnp.arange(self.shapes.buffer_rows), response_lengths(responses.mask)
        if len(self.bucket_widths) > 1:
            row = sort_by_length(row_lengths, shard_slice, n, self.shapes.prefill_batch, self.bucket_widths[-1])
            responses, row_lengths = jax.tree.map(lambda x: x[row], responses), row_lengths[row]
        return ShardBatch(
            shard_slice, all_shard_slices, responses, (shard_slice.first_rollout + row) // n, row_lengths, n
        )

    def row_bounds(self, shard_slice: ShardSlice, n: Array, block: Array) -> tuple[Array, Array]:
        """Local rows [low, high) of the responses to the block's prompts."""
        low = (shard_slice.first_group + block * self.shapes.prefill_batch) * n - shard_slice.first_rollout
        return jnp.clip(low, 0, shard_slice.rollout_count), jnp.clip(
            low + self.shapes.prefill_batch * n, 0, shard_slice.rollout_count
        )

    def block_prompts(self, problems: ProblemArrays, first_group: Array) -> tuple[Array, Array]:
        """The prompts of a block, from this group on, and their lengths."""
        prompts, lengths = (
            lax.dynamic_slice_in_dim(x, first_group, self.shapes.prefill_batch)
            for x in (problems.prompts, problems.lengths)
        )
        return prompts, lengths

    def take_microbatch(
        self, shard_batch: ShardBatch, start: Array, low: Array, high: Array, first_group: Array
    ) -> Microbatch:
        """The m rows from `start` on, of which those inside [low, high) count."""
        m, g = self.shapes.microbatch, self.shapes.prefill_batch
        start = jnp.minimum(start, self.shapes.buffer_rows - m)
        row = start + jnp.arange(m)
        (tokens, mask, objective_inputs), group = jax.tree.map(
            lambda x: lax.dynamic_slice_in_dim(x, start, m), (shard_batch.responses, shard_batch.group)
        )
        mask = mask & (row < high)[:, None] & (row >= low)[:, None]
        group = jnp.clip(group, first_group, first_group + g - 1)
        return Microbatch(tokens, mask, objective_inputs, group, group - first_group)

    def add_microbatch(
        self,
        gradient_refs: tuple,
        inputs: UpdateInputs,
        prefix: PrefixCache | PromptTokens,
        base_prefix: PrefixCache | PromptTokens | None,
        microbatch: Microbatch,
        bucket: Array,
    ) -> MetricSums:
        """Adds d params and d prefix of a microbatch, at the width that `choice` says, to the references `totals`; its
        metrics. Of prompts that have not been read there is no d prefix."""

        def at_width(width: int, microbatch: Microbatch) -> MetricSums:
            cropped = jax.tree.map(lambda x: x[:, :width] if x.ndim > 1 else x, microbatch)

            def anchored_objective(params: Params, *prefix_anchors: PrefixCache) -> tuple[Array, MetricSums]:
                anchored_prefix = jax.tree.map(GradAnchor, *prefix_anchors, prefix) if prefix_anchors else prefix
                return self.objective(
                    _attach_anchors(params, inputs.params), anchored_prefix, base_prefix, inputs, cropped
                )

            differentiated = (inputs.params,) if isinstance(prefix, PromptTokens) else (inputs.params, prefix)
            loss, pullback, metrics = jax.vjp(
                anchored_objective, *jax.tree.map(_make_anchor, differentiated), has_aux=True
            )
            _pull_back(pullback, gradient_refs, jnp.ones_like(loss))
            return metrics

        return lax.switch(bucket, [partial(at_width, width) for width in self.bucket_widths], microbatch)

    def add_block(
        self, block: Array, sums: MetricSums, d_params: Params, inputs: UpdateInputs, shard_batch: ShardBatch
    ) -> MetricSums:
        """Adds a block of g prompts and all responses to them: the gradient to the references `d_params`, the metrics
        to `sums`.
        """
        m, decoder = self.shapes.microbatch, self.objective.decoder
        first_group = jnp.minimum(
            shard_batch.shard_slice.first_group + block * self.shapes.prefill_batch, self.shapes.Q_cap
        )
        prompts = self.block_prompts(inputs.problems, first_group)
        low, high = self.row_bounds(shard_batch.shard_slice, shard_batch.n, block)
        buckets = microbatch_buckets(shard_batch.lengths, low, high, m, self.bucket_widths, self.shapes.shards)
        if self.joint_forward:
            prompt_tokens, microbatch = (
                PromptTokens(*prompts),
                self.take_microbatch(shard_batch, low, low, high, first_group),
            )
            base_prompt_tokens = prompt_tokens if self.objective.needs_base else None
            return merge_sums(
                self.objective.metric_reductions,
                sums,
                self.add_microbatch((d_params,), inputs, prompt_tokens, base_prompt_tokens, microbatch, buckets[0]),
            )

        anchors = jax.tree.map(_make_anchor, inputs.params)
        prefix, pullback = jax.vjp(
            lambda params: decoder.prefill(_attach_anchors(params, inputs.params), *prompts), anchors
        )
        base_prefix = decoder.prefill(inputs.base_params, *prompts) if self.objective.needs_base else None
        d_prefix = jax.tree.map(lambda x: jax.new_ref(_make_anchor(x)), prefix)
        lows, highs = self.row_bounds(shard_batch.all_shard_slices, shard_batch.n, block)

        def add_one(i: Array, sums: MetricSums) -> MetricSums:
            microbatch = self.take_microbatch(shard_batch, low + i * m, low, high, first_group)
            return merge_sums(
                self.objective.metric_reductions,
                sums,
                self.add_microbatch((d_params, d_prefix), inputs, prefix, base_prefix, microbatch, buckets[i]),
            )

        sums = lax.fori_loop(0, ((highs - lows + m - 1) // m).max(), add_one, sums)
        _pull_back(pullback, (d_params,), jax.tree.map(lambda d, x: jax.freeze(d).astype(x.dtype), d_prefix, prefix))
        return sums

    def __call__(self, inputs: UpdateInputs, shard_batch: ShardBatch) -> tuple[Params, MetricSums]:
        """Sums over the shard's rollouts: the gradient in float32, and the metrics."""
        num_blocks = (
            (shard_batch.all_shard_slices.group_count + self.shapes.prefill_batch - 1) // self.shapes.prefill_batch
        ).max()
        sums = {name: jnp.float32(0) for name in self.objective.metric_reductions}
        d_params = jax.tree.map(lambda p: jax.new_ref(_make_anchor(p)), inputs.params)
        sums = lax.fori_loop(
            0, num_blocks, lambda b, sums: self.add_block(b, sums, d_params, inputs, shard_batch), sums
        )
        return jax.tree.map(jax.freeze, d_params), sums


def build_gradient(
    objective: Objective, shapes: SamplerShapes, mesh: Mesh, logical_axes: Params, param_shapes: Params
) -> Callable[..., tuple[Params, Metrics]]:
    """`gradient(params, base_params, problems, responses, B_p, n, coefficients) -> (gradient, metrics)`, inside a jit.

    logical_axes, param_shapes: of each parameter, its logical axes and its ShapeDtypeStruct. `base_params` is read only
    where the objective needs it.
    """
    shards = shapes.shards
    assert shards == shard_count(mesh), (shards, mesh)
    param_specs = manual_specs(param_shapes, logical_axes, mesh)
    shard_spec, replicated_spec = P(ROLLOUT_AXES), P()
    input_specs: Any = UpdateInputs(
        params=param_specs,
        base_params=param_specs if objective.needs_base else replicated_spec,  # pyright: ignore[reportArgumentType]
        problems=replicated_spec,  # pyright: ignore[reportArgumentType]
        coefficients=replicated_spec,  # pyright: ignore[reportArgumentType]
    )
    sharded_gradient = shard_map(
        partial(_shard_gradient, GradientAccumulator(objective, shapes), mesh, param_specs),
        mesh=mesh,
        in_specs=(input_specs, shard_spec, shard_spec, P(), P()),
        out_specs=(param_specs, P()),
        axis_names=set(ROLLOUT_AXES),
        check_vma=False,
    )

    def gradient(
        params: Params,
        base_params: Params,
        problems: ProblemArrays,
        responses: ResponseBatch,
        B_p: Array,
        n: Array,
        coefficients: Coefficients,
    ) -> tuple[Params, Metrics]:
        shard = jnp.arange(shards, dtype=jnp.int32)
        return sharded_gradient(UpdateInputs(params, base_params, problems, coefficients), responses, shard, B_p, n)

    return gradient


def _shard_gradient(
    accumulator: GradientAccumulator,
    mesh: Mesh,
    param_specs: Any,
    inputs: UpdateInputs,
    responses: ResponseBatch,
    shard: Array,
    B_p: Array,
    n: Array,
) -> tuple[Params, Metrics]:
    """A shard's part of the gradient, and the metrics of all shards."""
    decoder, shards = accumulator.objective.decoder, accumulator.shapes.shards
    shard_batch = accumulator.shard_batch(jax.tree.map(lambda x: x[0], responses), shard[0], B_p, n)
    num_tokens = jnp.maximum(_sum_over_shards(responses.mask.sum(), shards), 1).astype(jnp.float32)
    # Cast once, not in every microbatch.
    cast_inputs = inputs._replace(
        params=decoder.cast_params(inputs.params), base_params=decoder.cast_params(inputs.base_params)
    )
    d_params, sums = accumulator(cast_inputs, shard_batch)
    metrics = {}
    for name, reduction in accumulator.objective.metric_reductions.items():
        if reduction == "max":
            x = lax.pmax(sums[name], ROLLOUT_AXES) if shards > 1 else sums[name]
        else:
            x = _sum_over_shards(sums[name], shards)
        metrics[name] = Metric(x, num_tokens if reduction == "mean" else None, reduction)
    return jax.tree.map(lambda d, spec: _reduce_gradient(d, spec, mesh), d_params, param_specs), metrics


def _make_anchor(x: Array) -> Array:
    """What the gradient of x is of, and where it begins to be added up: in float32, whatever x is computed in."""
    return jnp.zeros(x.shape, jnp.float32)


def _attach_anchors(anchors: Params, params: Params) -> Params:
    """Parameters with the gradient of their anchors: layers' each in its own place, where it is used."""
    anchored = jax.tree.map(GradAnchor, anchors, params)
    return {name: pair if name == "blocks" else resolve_anchors(pair) for name, pair in anchored.items()}


def _pull_back(pullback: Any, gradient_refs: tuple, cotangents: Any) -> None:
    """Adds the gradient of what `jax.vjp` differentiated to references."""
    pullback.with_refs(*gradient_refs)(cotangents)


def _sum_over_shards(x: Array, shards: int) -> Array:
    """Summed over data and fsdp. Over one shard that is x: with tensor alone split, XLA cannot compile the sum."""
    return lax.psum(x, ROLLOUT_AXES) if shards > 1 else x


def _reduce_gradient(gradient: Array, spec: P, mesh: Mesh) -> Array:
    """`_add_up`; of a parameter in parts over what has not been added up yet (models/fsdp.py)."""
    if not any(spec):
        return _sum_over_shards(gradient, shard_count(mesh))
    unreduced_axes = tuple(axis for axis in ROLLOUT_AXES if axis != PARAM_AXIS and mesh.shape[axis] > 1)
    return lax.psum(gradient, unreduced_axes) if unreduced_axes else gradient
