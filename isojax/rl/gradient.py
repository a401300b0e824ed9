"""The gradient of a batch of rollouts: each prompt goes forward and backward once, its n responses
in microbatches.

For each block of g prompts:

    prefix, pullback = vjp(prefill)(params)          keys and values of the prompts, once
    for each microbatch of m responses to them:
        d params, d prefix += gradient of the objective, which reads the prefix
    d params += pullback(d prefix)

Where no block has more than one microbatch, prompts and responses go through the layers together
instead (`PromptTokens`), and there is no prefix.

- A block's responses are sorted, longest first, and each microbatch is computed at the smallest of
  a few static widths that holds it.
- All of it adds to one float32 gradient through references (`VJP.with_refs`): a loop that carried
  the gradient as a value would hold it twice.
- Loops have traced trip counts, so one program serves every B_p and n."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

from isojax.core import program_scopes
from isojax.core.shapes import SamplerShapes, bucket_widths
from isojax.distributed import sharding
from isojax.distributed.sharding import (
    PARAM_AXIS,
    ROLLOUT_AXES,
    manual_specs,
    map_over_shards,
    shard_count,
)
from isojax.models.fsdp import GradAnchor, resolve_anchors
from isojax.models.lora import policy_params
from isojax.models.routing import RoutingSums, add_layers
from isojax.models.stack import is_stack
from isojax.models.transformer import Params, PrefixCache
from isojax.rl.experts import ROUTING, Routers, expert_loads, routing_metrics, weigh_prompt_tokens
from isojax.rl.metric import Metric, Metrics, combine
from isojax.rl.objective import (
    MetricSums,
    Microbatch,
    Objective,
    Prefix,
    PromptTokens,
    UpdateInputs,
    balance_term,
    hidden_states,
)
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.layout import Layout, ShardSlice


class ResponseBatch(NamedTuple):
    """A batch of responses to be differentiated, by shard.

    S shards (data x fsdp) have `rows` rows each, laid out by sampling/layout.py: a shard's
    rollouts in their order from row 0 on, then padding. All arrays have these two axes first.
    """

    tokens: Array  # i32[S rows T]
    mask: Array  # bool[S rows T], the tokens that count in the loss
    objective_inputs: Any  # what the objective reads of each response, such as PolicyInputs
    # [S rows P l k]: the k experts that the sampler chose in each of l layers, for the tokens of
    # each response's prompt; None where they are not recorded
    prompt_experts: Array | None = None
    experts: Array | None = None  # [S rows T l k], for its own tokens


class ShardBatch(NamedTuple):
    """A shard's rollouts, each block's longest first, and the batch they are a part of.

    A group is the n rollouts of one problem, counted through the batch; a block is g groups that
    follow each other on a shard. Row r of `responses`, `group` and `lengths` is one rollout.
    """

    shard_slice: ShardSlice
    all_shard_slices: ShardSlice  # the same of all shards, arrays i32[S]
    responses: ResponseBatch  # arrays [rows ...]
    group: Array  # i32[rows], the row of each rollout's problem in the batch; padding has any
    lengths: Array  # i32[rows], of `response_lengths`
    n: Array  # i32[], rollouts of a problem


class PromptBlock(NamedTuple):
    """g prompts of a shard, and the rows [low, high) of the responses to them; i32[] each."""

    first_group: Array  # the row of the first prompt in the batch's problems
    low: Array  # rows of ShardBatch's arrays
    high: Array
    num_microbatches: Array  # the most that any shard has for its block of this number


def response_lengths(mask: Bool[Array, "rows T"]) -> Int[Array, " rows"]:
    """How many positions of each response are needed: up to its last token that counts."""
    return jnp.where(mask, jnp.arange(1, mask.shape[-1] + 1)[None], 0).max(-1)


def sort_by_length(
    lengths: Int[Array, " rows"], shard_slice: ShardSlice, n: Int[Array, ""], g: int, T: int
) -> Int[Array, " rows"]:
    """The order in which a shard computes its rows: entry i is the row that comes i-th.

    Blocks keep their order; within a block the longest response is first; padding rows are last.
    lengths: of `response_lengths`, 0 .. T. g: prompts of a block.
    """
    row = jnp.arange(len(lengths))
    group = (shard_slice.first_rollout + row) // n
    block = (group - shard_slice.first_group) // g

    # Lengths are 0 .. T, T + 1 values, so that no two blocks overlap.
    by_block_then_length = block * (T + 1) + T - lengths
    last = jnp.iinfo(jnp.int32).max
    sort_key = jnp.where(row < shard_slice.rollout_count, by_block_then_length, last)
    return jnp.argsort(sort_key, stable=True)


def microbatch_buckets(
    lengths: Int[Array, " rows"], block: PromptBlock, shapes: SamplerShapes, widths: tuple[int, ...]
) -> Int[Array, " _"]:
    """For each microbatch of a block, in order, the index of the width that it is computed at.

    lengths: of a shard's rows, in each block from long to short. widths: rising, such as
    (32, 64, 128), the last one T. The width is the smallest that holds the longest response of
    this microbatch on any shard: all shards take the same one, because a model split over
    `tensor` communicates inside. Microbatches past the block's last count as of length 0.
    """
    most_microbatches = -(-len(lengths) // shapes.microbatch)
    starts = block.low + shapes.microbatch * jnp.arange(most_microbatches)

    # The longest response of a microbatch is its first.
    first_row = jnp.minimum(starts, len(lengths) - 1)
    longest = jnp.where(starts < block.high, lengths[first_row], 0)
    return jnp.searchsorted(jnp.array(widths), _over_shards(lax.pmax, longest, shapes.shards))


@dataclass(frozen=True)
class GradientAccumulator:
    """Adds up the gradient of an objective over a shard's rollouts, block by block.

    Its methods are called inside a shard_map, where arrays are one shard's. References are
    `jax.new_ref` arrays: a trace adds to them in place, and they are read at the end.
    """

    objective: Objective
    shapes: SamplerShapes

    @property
    def bucket_widths(self) -> tuple[int, ...]:
        """The widths in tokens of microbatches, rising, such as (32, 64, 128); the last is T."""
        return bucket_widths(self.shapes.response_length)

    def shard_batch(
        self, responses: ResponseBatch, shard: Array, B_p: Array, n: Array
    ) -> ShardBatch:
        """A shard's rollouts in the order of computation (`sort_by_length`).

        responses: arrays [1 rows ...], the shard's. shard: i32[1], its number. Where microbatches
        have one width alone, sorting would save nothing, and no row moves.
        """
        responses = jax.tree.map(lambda x: x[0], responses)
        layout = Layout(B_p, n, self.shapes.shards)
        shard_slice = layout.shard_slice(shard[0])
        all_shard_slices = layout.shard_slice(jnp.arange(self.shapes.shards))

        row = jnp.arange(self.shapes.buffer_rows)
        row_lengths = response_lengths(responses.mask)
        if len(self.bucket_widths) > 1:
            row = sort_by_length(
                row_lengths, shard_slice, n, self.shapes.prefill_batch, self.bucket_widths[-1]
            )
            responses = jax.tree.map(lambda x: x[row], responses)
            row_lengths = row_lengths[row]

        # row[i] is where the i-th rollout of the new order was, from which its group follows.
        group = (shard_slice.first_rollout + row) // n
        return ShardBatch(shard_slice, all_shard_slices, responses, group, row_lengths, n)

    def num_blocks(self, shard_batch: ShardBatch) -> Array:
        """How many blocks the shard with the most has."""
        g = self.shapes.prefill_batch
        return ((shard_batch.all_shard_slices.group_count + g - 1) // g).max()

    def block(self, shard_batch: ShardBatch, index: Array) -> PromptBlock:
        """The `index`-th block of the shard (i32[]); of no rows where it has fewer than others.

        Other shards may have more blocks, and all loop over as many, because they communicate.
        """
        g, m, n = self.shapes.prefill_batch, self.shapes.microbatch, shard_batch.n

        def row_bounds(shard_slice: ShardSlice) -> tuple[Array, Array]:
            """[low, high) of a shard's block, or of those of all shards."""
            low = (shard_slice.first_group + index * g) * n - shard_slice.first_rollout
            high = low + g * n
            count = shard_slice.rollout_count
            return jnp.clip(low, 0, count), jnp.clip(high, 0, count)

        # All shards loop over as many microbatches, because they communicate inside.
        lows, highs = row_bounds(shard_batch.all_shard_slices)
        num_microbatches = ((highs - lows + m - 1) // m).max()

        # A batch has at most Q_cap problems. Its arrays have g more rows, of padding
        # (`problem_rows`), so that a block of g may begin there.
        first_group = shard_batch.shard_slice.first_group + index * g
        first_group = jnp.minimum(first_group, self.shapes.Q_cap)
        low, high = row_bounds(shard_batch.shard_slice)
        return PromptBlock(first_group, low, high, num_microbatches)

    def block_prompts(
        self, problems: ProblemArrays, shard_batch: ShardBatch, block: PromptBlock
    ) -> PromptTokens:
        """The block's g prompts, with the experts that the sampler chose for them, if recorded.

        problems: the batch's, [problem_rows ...]. A prompt without a response here gets the
        experts of row 0; its tokens count for nothing.
        """
        g = self.shapes.prefill_batch
        prompts = lax.dynamic_slice_in_dim(problems.prompts, block.first_group, g)
        lengths = lax.dynamic_slice_in_dim(problems.lengths, block.first_group, g)
        prompt_experts = shard_batch.responses.prompt_experts
        if prompt_experts is None:
            return PromptTokens(prompts, lengths)

        # Each response has recorded those of its prompt: the first that continues it says them.
        first_response = self.continues(shard_batch, block).argmax(-1)
        return PromptTokens(prompts, lengths, prompt_experts[first_response])

    def continues(self, shard_batch: ShardBatch, block: PromptBlock) -> Bool[Array, "g rows"]:
        """Which of the shard's responses continue each prompt of a block, and count.

        A response counts if it is in the block's rows and has a token in the loss.
        """
        groups = block.first_group + jnp.arange(self.shapes.prefill_batch)
        row = jnp.arange(len(shard_batch.group))
        is_counted = (row >= block.low) & (row < block.high) & (shard_batch.lengths > 0)
        return (shard_batch.group[None] == groups[:, None]) & is_counted[None]

    def take_microbatch(
        self, shard_batch: ShardBatch, block: PromptBlock, index: Array | int
    ) -> Microbatch:
        """The `index`-th m rows of a block; those that are not of the block do not count.

        Arrays of the Microbatch are [m ...], at full width T; the caller crops them.
        """
        m, g = self.shapes.microbatch, self.shapes.prefill_batch
        # `buffer_rows` has at least m rows of padding, so that rows of the block are never cut.
        # Only a microbatch that no rollout is in is moved back by the minimum.
        start = jnp.minimum(block.low + index * m, self.shapes.buffer_rows - m)
        of_rows = shard_batch.responses._replace(prompt_experts=None), shard_batch.group
        responses, group = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, m), of_rows)

        # Rows of other blocks, and padding, count for nothing, and continue any prompt.
        row = start + jnp.arange(m)
        mask = responses.mask & (row < block.high)[:, None] & (row >= block.low)[:, None]
        group = jnp.clip(group, block.first_group, block.first_group + g - 1)
        return Microbatch(
            tokens=responses.tokens,
            mask=mask,
            objective_inputs=responses.objective_inputs,
            group=group,
            prefix_entry=group - block.first_group,
            experts=responses.experts,
        )

    def add_microbatch(
        self,
        refs: tuple,
        inputs: UpdateInputs,
        prefix: Prefix,
        base_prefix: Prefix | None,
        microbatch: Microbatch,
    ) -> MetricSums:
        """Adds the gradient of a microbatch to the references, and returns its metrics.

        refs: trees of references to float32 arrays, with the shapes of what they are for, in this
        order: (d params,) where `prefix` is PromptTokens, whose prompts go through the layers here;
        (d params, d prefix) where it is a PrefixCache. d params is of `inputs.params`, the trained
        ones. base_prefix: the base policy's, for the KL term; None where nothing reads it.
        """

        def anchored_objective(
            params: Params, *prefix_anchors: PrefixCache
        ) -> tuple[Array, MetricSums]:
            """The objective of anchors, one tree of them for each entry of `differentiated`."""
            anchored_prefix = prefix
            if prefix_anchors:
                anchored_prefix = jax.tree.map(GradAnchor, *prefix_anchors, prefix)
            anchored_params = _attach_anchors(params, inputs)
            return self.objective(anchored_params, anchored_prefix, base_prefix, inputs, microbatch)

        # An anchor is a float32 array of zeros, paired with a weight or key by `GradAnchor`. Its
        # value is never read; the gradient of the paired array arises at it, in float32. The
        # pullback adds this to the references at once, so that it is held once. Anchors and `refs`
        # must be for the same trees in the same order.
        is_joint = isinstance(prefix, PromptTokens)
        differentiated = (inputs.params,) if is_joint else (inputs.params, prefix)
        anchors = jax.tree.map(_make_anchor, differentiated)
        pullback: Any
        loss, pullback, metrics = jax.vjp(anchored_objective, *anchors, has_aux=True)
        pullback.with_refs(*refs)(jnp.ones_like(loss))
        return metrics

    def add_responses(
        self,
        sums: MetricSums,
        refs: tuple,
        inputs: UpdateInputs,
        prefix: Prefix,
        base_prefix: Prefix | None,
        shard_batch: ShardBatch,
        block: PromptBlock,
    ) -> MetricSums:
        """Adds all responses to a block's prompts to the references and to `sums`; returns `sums`.

        refs, prefix and base_prefix: as in `add_microbatch`. There is one loop over microbatches
        for each width, the widest first. Branches in one loop would copy the gradient in every
        layer.
        """

        def add(width: int, i: Array, sums: MetricSums) -> MetricSums:
            """Adds the i-th microbatch, arrays [m T] cropped to [m width]; [m] and [m 1] stay."""
            microbatch = self.take_microbatch(shard_batch, block, i)
            cropped = jax.tree.map(lambda x: x[:, :width] if x.ndim > 1 else x, microbatch)
            metrics = self.add_microbatch(refs, inputs, prefix, base_prefix, cropped)
            return self.add_sums(sums, metrics)

        # Responses are sorted, so that `buckets`, indices of widths, fall from microbatch to
        # microbatch, and each width has the microbatches [first, last). The narrowest (bucket 0)
        # ends at `num_microbatches`: `buckets` has further entries, without a rollout.
        buckets = microbatch_buckets(shard_batch.lengths, block, self.shapes, self.bucket_widths)
        first: Any = 0
        for bucket, width in reversed(list(enumerate(self.bucket_widths))):
            last = (buckets >= bucket).sum() if bucket else block.num_microbatches
            with jax.named_scope(program_scopes.MICROBATCHES):
                sums = lax.fori_loop(first, last, partial(add, width), sums)
            first = last
        return sums

    def add_block(
        self,
        index: Array,
        sums: MetricSums,
        d_params: Params,
        inputs: UpdateInputs,
        shard_batch: ShardBatch,
    ) -> MetricSums:
        """Adds a block of g prompts and all responses to them to `d_params`, and to `sums`.

        index: i32[], of the block. d_params: a tree of references, f32, like `inputs.params`.
        """
        block = self.block(shard_batch, index)
        prompts = self.block_prompts(inputs.problems, shard_batch, block)
        if self.is_joint:
            base_prompts = prompts if self.objective.needs_base else None
            return self.add_responses(
                sums, (d_params,), inputs, prompts, base_prompts, shard_batch, block
            )

        def prefill(anchors: Params) -> tuple[tuple[PrefixCache, Array | None], RoutingSums | None]:
            """Return ((keys and values of the prompts, their load-balancing loss), sums).

            The sums are the routers', and not differentiated; without routers that are read, the
            loss and the sums are None.
            """
            params = _attach_anchors(anchors, inputs)
            prefix, routing = self.prefill_prompts(params, prompts, shard_batch, block)
            if routing is None:
                return (prefix, None), None
            return (prefix, balance_term(routing, inputs)), lax.stop_gradient(routing)

        # Forward through the prompts.
        anchors = jax.tree.map(_make_anchor, inputs.params)
        pullback: Any
        (prefix, balance), pullback, routing = jax.vjp(prefill, anchors, has_aux=True)
        if routing is not None:
            sums = sums | {ROUTING: add_trees(sums[ROUTING], routing)}
        base_prefix = None
        if self.objective.needs_base:
            base_prefix = self.objective.decoder.prefill(
                inputs.base_params, prompts.prompts, prompts.lengths
            )

        # Forward and backward through the responses.
        d_prefix = jax.tree.map(lambda x: jax.new_ref(_make_anchor(x)), prefix)
        sums = self.add_responses(
            sums, (d_params, d_prefix), inputs, prefix, base_prefix, shard_batch, block
        )

        # Backward through the prompts, of gradients in the precision that the prefix has. The loss
        # has the prompts' load-balancing term as it is, so that the gradient of that is 1.
        d_prefix = jax.tree.map(lambda d, x: jax.freeze(d).astype(x.dtype), d_prefix, prefix)
        d_balance = jax.tree.map(jnp.ones_like, balance)
        pullback.with_refs(d_params)((d_prefix, d_balance))
        return sums

    @property
    def is_joint(self) -> bool:
        """Whether a block's prompts and responses go through the layers together."""
        mesh = jax.sharding.get_abstract_mesh()
        return self.shapes.joint_forward(sharding.positions_are_split(mesh))

    def prefill_prompts(
        self, params: Params, prompts: PromptTokens, shard_batch: ShardBatch, block: PromptBlock
    ) -> tuple[PrefixCache, RoutingSums | None]:
        """The keys and values of a block's prompts, and the sums of their routers, or None.

        None where the model has no experts, or where devices split the prompts' positions. A
        prompt's token counts in the sums once for each response to it.
        """
        decoder, routers = self.objective.decoder, self.objective.routers
        if routers is None or sharding.positions_are_split(jax.sharding.get_abstract_mesh()):
            return decoder.prefill(params, prompts.prompts, prompts.lengths), None

        responses = self.continues(shard_batch, block).sum(-1)
        weights = weigh_prompt_tokens(prompts.lengths, responses, prompts.prompts.shape[1])
        routers_read = routers.read(weights, prompts.experts)
        prefix = decoder.prefill(params, prompts.prompts, prompts.lengths, routers_read)
        # `routed` has the sums of each layer, which no response reads.
        return prefix._replace(routed=None), add_layers(prefix.routed)

    def count_experts(
        self, inputs: UpdateInputs, shard_batch: ShardBatch, routers: Routers
    ) -> RoutingSums:
        """The sums of the shard's routers over all of its tokens, in a pass without a gradient."""
        params = policy_params(inputs.params, inputs.base_params)
        decoder = self.objective.decoder

        def add_block(index: Array, sums: RoutingSums) -> RoutingSums:
            """Adds the sums of the `index`-th block's prompts and responses."""
            block = self.block(shard_batch, index)
            prompts = self.block_prompts(inputs.problems, shard_batch, block)
            # Prompts are counted here, or else together with the responses of each microbatch.
            prefix: Prefix = prompts
            if not self.is_joint:
                prefix, routing = self.prefill_prompts(params, prompts, shard_batch, block)
                sums = add_trees(sums, routing)

            def add_microbatch(i: Array, sums: RoutingSums) -> RoutingSums:
                microbatch = self.take_microbatch(shard_batch, block, i)
                hidden = hidden_states(
                    decoder, params, prefix, inputs.problems, microbatch, routers
                )
                return add_trees(sums, hidden.routing)

            with jax.named_scope(program_scopes.MICROBATCHES):
                return lax.fori_loop(0, block.num_microbatches, add_microbatch, sums)

        with jax.named_scope(program_scopes.GRADIENT_BLOCKS):
            return lax.fori_loop(0, self.num_blocks(shard_batch), add_block, routers.zero_sums())

    def zero_sums(self) -> MetricSums:
        sums: MetricSums = {name: jnp.float32(0) for name in self.objective.metric_reductions}
        routers = self.objective.routers
        return sums if routers is None else sums | {ROUTING: routers.zero_sums()}

    def add_sums(self, sums: MetricSums, of_microbatch: MetricSums) -> MetricSums:
        """Both together: of metrics by their reductions, of routers their sums."""
        reductions = self.objective.metric_reductions
        added = {
            name: combine(reductions[name], sums[name], of_microbatch[name]) for name in reductions
        }
        if ROUTING in sums:
            added[ROUTING] = add_trees(sums[ROUTING], of_microbatch[ROUTING])
        return added

    def __call__(self, inputs: UpdateInputs, shard_batch: ShardBatch) -> tuple[Params, MetricSums]:
        """Sums over the shard's rollouts: the gradient in float32, and the metrics."""
        sums = self.zero_sums()
        d_params = jax.tree.map(lambda p: jax.new_ref(_make_anchor(p)), inputs.params)
        add_block = partial(
            self.add_block, d_params=d_params, inputs=inputs, shard_batch=shard_batch
        )
        with jax.named_scope(program_scopes.GRADIENT_BLOCKS):
            sums = lax.fori_loop(0, self.num_blocks(shard_batch), add_block, sums)
        return jax.tree.map(jax.freeze, d_params), sums


def build_gradient(
    objective: Objective,
    shapes: SamplerShapes,
    mesh: Mesh,
    logical_axes: Params,
    param_shapes: Params,
) -> Callable[[UpdateInputs, ResponseBatch, Array, Array], tuple[Params, Metrics]]:
    """Build `gradient(inputs, responses, B_p, n) -> (gradient, metrics)`, for use inside a jit.

    The gradient is a float32 tree like `inputs.params`, summed over all shards and sharded as they
    are. logical_axes, param_shapes: two trees like that of the trained parameters, which hold for
    each the names of its axes, such as ("embed", "vocab") or (None,), and its ShapeDtypeStruct.
    """
    # For each parameter, how data and fsdp split it; axes that XLA handles itself, as tensor, are
    # left out.
    param_specs = manual_specs(param_shapes, logical_axes, mesh)
    shard_gradient = ShardGradient(GradientAccumulator(objective, shapes), param_specs, mesh)

    # The base policy's parameters are read by the KL term, and under adapters (LoRA). Where nothing
    # reads them `inputs.base_params` is {}, and the spec P() stands for no array.
    decoder = objective.decoder
    base_specs: Any = P()
    if objective.needs_base or decoder.config.lora is not None:
        base_axes = decoder.base.logical_axes()
        base_specs = manual_specs(decoder.frozen_shapes(), base_axes, mesh)
    return map_update_over_shards(
        shard_gradient, mesh, (param_specs, base_specs), out_specs=(param_specs, P())
    )


@dataclass(frozen=True, eq=False)  # a shard_map's function is hashed: this one by identity
class ShardGradient:
    """The gradient and the metrics of a whole batch, as one shard computes its part of them and
    adds up the others': to be called inside a shard_map."""

    accumulator: GradientAccumulator
    param_specs: Params  # PartitionSpecs of the trained parameters over data and fsdp
    mesh: Mesh

    def __call__(
        self, shard: Array, inputs: UpdateInputs, responses: ResponseBatch, B_p: Array, n: Array
    ) -> tuple[Params, Metrics]:
        """Compute (gradient, metrics) of the whole batch, from one shard's rollouts.

        shard: i32[1], its number. responses: the shard's, arrays [1 rows ...]. B_p, n: i32[]. The
        gradient of a parameter that fsdp splits is this shard's part of it, any other is whole.
        """
        objective = self.accumulator.objective
        shard_batch = self.accumulator.shard_batch(responses, shard, B_p, n)
        # At least 1: metrics are divided by it, and a batch may have no token in the loss.
        num_tokens = jnp.maximum(self._add_shards(responses.mask.sum()), 1).astype(jnp.float32)

        # Cast once, not in every microbatch.
        cast_params = objective.decoder.cast_params
        inputs = inputs._replace(
            params=cast_params(inputs.params), base_params=cast_params(inputs.base_params)
        )

        # With a load-balancing loss, the objective multiplies each expert's probabilities by a
        # factor, which follows from its load in the whole batch: counted before the gradient.
        coefficient = inputs.coefficients.expert_balance  # None: no such loss
        routers = objective.routers
        if coefficient is not None and routers is not None:
            of_shard = self.accumulator.count_experts(inputs, shard_batch, routers)
            counted = jax.tree.map(self._add_shards, of_shard)
            inputs = inputs._replace(expert_loads=expert_loads(counted, jnp.asarray(coefficient)))

        d_params, sums = self.accumulator(inputs, shard_batch)
        metrics = self._token_metrics(sums, num_tokens)
        if routers is not None:
            routing = jax.tree.map(self._add_shards, sums[ROUTING])
            of_routers = routing_metrics(routing, knows_sampler=responses.experts is not None)
            metrics |= of_routers
            if coefficient is not None:  # the metric "loss" lacks this term so far
                balance = coefficient * of_routers["expert_balance"].sum
                metrics["loss"] = replace(metrics["loss"], sum=metrics["loss"].sum + balance)

        gradient = jax.tree.map(
            lambda d, spec: _reduce_gradient(d, spec, self.mesh), d_params, self.param_specs
        )
        return gradient, metrics

    def _add_shards(self, x: Array) -> Array:
        return _over_shards(lax.psum, x, self.accumulator.shapes.shards)

    def _token_metrics(self, sums: MetricSums, num_tokens: Array) -> Metrics:
        """The objective's metrics over the tokens of all shards; num_tokens: f32[], how many."""
        shards = self.accumulator.shapes.shards
        metrics: Metrics = {}
        for name, reduction in self.accumulator.objective.metric_reductions.items():
            reduce = lax.pmax if reduction == "max" else lax.psum
            weight = num_tokens if reduction == "mean" else None
            metrics[name] = Metric(_over_shards(reduce, sums[name], shards), weight, reduction)
        return metrics


def map_update_over_shards(
    function: Callable[..., Any], mesh: Mesh, input_specs: tuple[Any, Any], out_specs: Any
) -> Callable[[UpdateInputs, ResponseBatch, Array, Array], Any]:
    """Build `mapped(inputs, responses, B_p, n)`, which runs `function` on each shard.

    It calls `function(shard i32[1], inputs, responses, B_p, n)` with the shard's number and its
    responses [1 rows ...]; all else is given whole to each, but what input_specs split: a pair of
    trees of PartitionSpecs, of `inputs.params` and of `inputs.base_params`. out_specs: of what the
    function returns.
    """
    by_shard: Any = P(ROLLOUT_AXES)
    on_all: Any = P()
    params_spec, base_spec = input_specs
    inputs_spec = UpdateInputs(params_spec, base_spec, problems=on_all, coefficients=on_all)
    in_specs = (by_shard, inputs_spec, by_shard, on_all, on_all)
    mapped = map_over_shards(function, mesh, in_specs, out_specs)
    return partial(mapped, np.arange(shard_count(mesh), dtype=np.int32))


def add_trees(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


def _make_anchor(x: Array) -> Array:
    """Where the gradient of x is taken (`GradAnchor`), and where adding it up begins: zeros, in
    float32 whatever x is computed in."""
    return jnp.zeros(x.shape, jnp.float32)


def _attach_anchors(anchors: Params, inputs: UpdateInputs) -> Params:
    """The policy's parameters, of which the trained ones send their gradient to their anchors.

    anchors: a tree like `inputs.params`. Weights of layers stay pairs (GradAnchor), which the
    layer resolves where it uses them; the others, as the embedding, are resolved here.
    """
    anchored = jax.tree.map(GradAnchor, anchors, inputs.params)
    trained = {
        name: pair if is_stack(pair) else resolve_anchors(pair) for name, pair in anchored.items()
    }
    return policy_params(trained, inputs.base_params)


def _over_shards(reduce: Callable[..., Array], x: Array, shards: int) -> Array:
    """x reduced over data and fsdp. Over one shard that is x: with tensor alone split, XLA cannot
    compile the sum."""
    return reduce(x, ROLLOUT_AXES) if shards > 1 else x


def _reduce_gradient(gradient: Array, spec: P, mesh: Mesh) -> Array:
    """A parameter's gradient summed over shards.

    spec: of the parameter, over data and fsdp. Where it is split, models/fsdp.py has summed over
    fsdp already, and the other axes are left to sum over.
    """
    if not any(spec):
        return _over_shards(lax.psum, gradient, shard_count(mesh))
    others = (axis for axis in ROLLOUT_AXES if axis != PARAM_AXIS)
    unreduced_axes = tuple(axis for axis in others if mesh.shape[axis] > 1)
    return lax.psum(gradient, unreduced_axes) if unreduced_axes else gradient
