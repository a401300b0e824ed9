"""One decoding step: the decoder as the sampler runs it, one token per slot, over a cache of keys
and values.

Layers are laid out in one of these ways, by what a device is fastest at:

    unrolled            each layer's weights and cache are arrays of their own: a scan would copy
                        each out of its stack every token
    unrolled, transposed    the same, with matrices as CPUs multiply few rows by (`OutputMajor`)
    scanned             one layer after the other out of their stack: on a TPU, and with an int8
                        cache

The R slots are Z prefix groups of W. Where W > 1, or a mesh splits prompts, a group's prompt is
held once, separately, with Z = R / W:

    together    keys [R K H C], values [R K C H], C = P + T; or as a kernel has its positions
                (`position_axes`)
    separate    prefix keys [Z K H P], values [Z K P H]; keys [R K H T], values [R K T H]

A layer that slides holds at most its window of each, in a ring (kv_ring.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from isojax.core.shapes import PALLAS
from isojax.distributed.sharding import with_logical_constraint
from isojax.models import cache_attention, cpu
from isojax.models.cache_attention import SlotHeads, SlotInts, SlotQueries, SlotSegment
from isojax.models.kv_ring import held_positions, positions_in_cache, take_last_positions
from isojax.models.layers.mixture import EXPERTS_TARGET, MAX_ROWS_OF_ALL_EXPERTS
from isojax.models.layers.unembedding import VOCAB
from isojax.models.lora import merge_adapters
from isojax.models.routing import RouterPass, join_choices, run_with_router, to_recorded
from isojax.models.spec import LayerDescription
from isojax.models.stack import Segment, Stack
from isojax.models.transformer import KV, Decoder, Params
from isojax.models.weight_forms import (
    LAYER_OF_EXPERTS,
    expert_names,
    int8_layer,
    output_major_layer,
    stacked_experts_layer,
    to_int8,
    to_output_major,
    to_stacked_matrices,
)

LayerKV = tuple[Array, ...]  # keys, values, and of int8 ones their scales
RECORDING = RouterPass(to_recorded)


class KVCache(NamedTuple):
    """Of slots, and of separate prefixes (else empty): one `LayerKV` for each unrolled layer; or
    one for each stack, by itself where there is one stack."""

    slot_kv: Any
    prefix_kv: Any


class TokenPositions(NamedTuple):
    positions: SlotInts  # in their sequences
    t: SlotInts  # in their responses


class LayerCache(NamedTuple):
    """What a layer attends to, in its own arrays or at index `layer` in those of its stack."""

    slot_kv: LayerKV
    prefix_kv: LayerKV  # of separate prefixes, else empty
    layer: Array | None
    live: tuple[Array, ...]  # cache_attention.live_blocks


class Prefilled(NamedTuple):
    """What a prefill makes of g prompts."""

    entries: Any  # keys and values, as a prefix table has them
    last_hidden: Float[Array, "g D"]
    experts: Int[Array, "g P l k"] | None  # of each token in the sparse layers, if recorded


class DecodedToken(NamedTuple):
    """What a step makes of one token per slot."""

    hidden: Float[Array, "R D"]
    cache: KVCache  # with the token in it
    experts: Int[Array, "R l k"] | None  # in the sparse layers, if recorded


class LayersOutput(NamedTuple):
    """What one layer, or all of them, make of one token per slot."""

    x: Float[Array, "R 1 D"]
    slot_kv: Any  # the layer's `LayerKV`; of all layers, as in `KVCache`
    routed: Any  # what the layer's router shows; of all layers, a list by stack


class ScanState(NamedTuple):
    """What goes from one repeat of a segment's layers to the next."""

    x: Float[Array, "R 1 D"]
    slot_kv: list[LayerKV]  # of each of the segment's stacks, all of its layers
    layer: Int[Array, ""]  # the next one's index in its stack


@dataclass(frozen=True)
class Decoding:
    """How the sampler's R slots decode: the layout of its weights and its cache, and its steps.

    A slot is a row that holds one rollout at a time. Precision, and the attention of stacked layers
    with one cache, are `decoder.options`. Of the methods' arguments, `params` are the policy's
    parameters as models/transformer.py lists them, and `weights` those that `prepare_weights` has
    made of them. slots_per_prefix divides slots."""

    decoder: Decoder
    slots: int  # R
    slots_per_prefix: int  # W
    prefix_length: int  # P, positions of a prompt
    response_length: int  # T, tokens of a response
    unrolled_layers: bool  # or stacked
    shard_positions: bool = False  # whether devices split the positions of prompts
    # whether unrolled layers store their weights transposed, for products of few rows
    allow_transposed: bool = True

    @property
    def quantises_weights(self) -> bool:
        return self.decoder.options.rollout_weights == "int8"

    @cached_property
    def sampled(self) -> Decoder:
        """The decoder whose layers the sampler runs, for prompts and for tokens."""
        if not self.quantises_weights:
            return self.decoder
        return self.decoder.with_layers(partial(int8_layer, stacked=not self.unrolled_layers))

    @property
    def stored_decoder(self) -> Decoder:
        """The decoder whose parameters are those of `cast_weights`."""
        return self.sampled.base if self._merges_adapters else self.sampled

    @property
    def transpose_weights(self) -> bool:
        """Whether layers store their matrices as [outputs, inputs], for products of few rows."""
        return self.unrolled_layers and self.allow_transposed and not self.quantises_weights

    @property
    def prefills_stacked(self) -> bool:
        """Whether unrolled layers prefill with stacked ones: in float32 those are the policy's own.
        int8 weights serve prompts too: what is sampled is then one policy, of which no second copy
        is held."""
        is_own_copy = self.allow_transposed or self.decoder.options.compute_dtype == "float32"
        return self.unrolled_layers and is_own_copy and not self.quantises_weights

    @property
    def separate_prefix(self) -> bool:
        """Whether prompts are held apart from the slots' responses, one for each prefix group."""
        return self.slots_per_prefix > 1 or self.shard_positions

    @property
    def prefix_groups(self) -> int:
        """Z, each of which holds one prompt."""
        return self.slots // self.slots_per_prefix

    @property
    def row_axis(self) -> int:
        """The axis of slots, prefix groups or table entries in each array of a cache.

        0 of a layer's own arrays [R K ...], 1 of those of a stack [L R K ...]."""
        return 0 if self.unrolled_layers else 1

    @property
    def _attention(self) -> str:
        """How attention is computed: no kernel knows separate prefixes."""
        return "plain" if self.separate_prefix else self.decoder.options.decode_attention

    @property
    def _positions(self) -> int:
        return self.prefix_length + self.response_length

    def position_axes(self, stack: Stack) -> tuple[int, ...]:
        """The axes of positions of the arrays of a stack's `LayerKV`."""
        return cache_attention.position_axes(self._attention, stack.attention.head_dim)

    @property
    def _merges_adapters(self) -> bool:
        """Whether adapters are added into the matrices that they adapt, for the sampler.

        In float32 alone: bfloat16 would round most of an adapter's product away."""
        return self.decoder.options.compute_dtype == "float32"

    @cached_property
    def _layers(self) -> dict[str, LayerDescription]:
        """A layer of each stack as `prepare_weights` stores it."""
        interpret = self.decoder.options.decode_attention == "interpret"
        layers = {}
        for stack in self.sampled.stacks:
            described = stack.base if self._merges_adapters else stack.described
            if self.transpose_weights:
                described = output_major_layer(described)
            elif self._experts_stay_stacked:
                described = stacked_experts_layer(described, interpret)
            layers[stack.name] = described
        return layers

    @property
    def _experts_stay_stacked(self) -> bool:
        """Whether a kernel reads a layer's experts where they are in the stack of all layers.

        All experts multiply all slots then, so slots must be few. The kernel knows no adapters."""
        lora = self.decoder.config.lora
        adapts_experts = lora is not None and EXPERTS_TARGET in lora.targets
        if adapts_experts and not self._merges_adapters:
            return False

        has_kernels = self.decoder.options.decode_attention in PALLAS
        few_rows = self.slots <= MAX_ROWS_OF_ALL_EXPERTS
        return has_kernels and few_rows and not self.unrolled_layers

    def cast_weights(self, params: Params) -> Params:
        """Return the parameters in the precision that `step` reads them in, by the same names.

        Where products are in float32, adapters are merged first, and have no entries. With int8
        weights, each matrix's scales are one more entry: "query" and "query_scale"."""
        if self._merges_adapters:
            params = merge_adapters(params, self.decoder.config.lora)
        weights = self.decoder.cast_params(params)
        if not self.quantises_weights:
            return weights

        # Of the cast values: trainers send those to samplers elsewhere, and all shall sample alike.
        quantised = {}
        for stack in self.decoder.stacks:
            quantised[stack.name] = to_int8(weights[stack.name], stack.described.specs)
        return weights | quantised

    def prepare_weights(self, params: Params) -> Params:
        """The policy's parameters as `step` reads them."""
        return self.lay_out(self.cast_weights(params))

    def lay_out(self, cast_weights: Params) -> Params:
        """Lay out the weights of `cast_weights` as `step` reads them, and add the rotary tables.

        Return: the same names, where a stack of layers ("blocks", ...) is a list of {name: weight},
        one for each layer, if layers are unrolled, else {name: [L ...]} with Linears' weights as
        matrices [L i o]. "cos_sin" is a list of (cosines, sines), each f32[P+T H/2], in the order
        of `sampled.ropes`."""
        cos_sin = list(self.sampled.rotations(jnp.arange(self._positions)).values())
        weights = {**cast_weights, "cos_sin": cos_sin}

        for stack in self.sampled.stacks:
            stacked = weights[stack.name]
            if self.unrolled_layers:
                weights[stack.name] = self._unroll(stacked, stack)
            else:
                weights[stack.name] = to_stacked_matrices(stacked, stack.described.specs)

        unembedding = self.decoder.architecture.unembedding
        # A tied table is [V D], which is output-major as it is.
        if self.transpose_weights and unembedding.axes[0] != VOCAB:
            weights[unembedding.name] = weights[unembedding.name].T
        return weights

    def _unroll(self, stacked: Params, stack: Stack) -> list[Params]:
        """Return the weights of each layer of a stack, in its order; `stacked`: {name: [L ...]}."""
        layers = [jax.tree.map(lambda w, i=i: w[i], stacked) for i in range(len(stack.layers))]
        if self.transpose_weights:
            layers = [to_output_major(layer, stack.described.specs) for layer in layers]
        return layers

    def logits(self, weights: Params, hidden: Float[Array, "R D"]) -> Float[Array, "R V"]:
        """Float32 logits of hidden states from `step`."""
        if not self.transpose_weights:
            return self.decoder.logits(weights, hidden)
        output_major = weights[self.decoder.architecture.unembedding.name]
        return cpu.small_batch_matmul(hidden, output_major, dtype=jnp.float32)

    def _to_cache_layers(self, kv_by_stack: Sequence[KV]) -> Any:
        """Bring keys and values [L b K c H] of each stack into the cache's precision and order.

        `kv_by_stack`: in the order of `sampled.stacks`. Return: of unrolled layers a list with the
        `LayerKV` of each layer of the model, in the model's order; else as `_join_stacks` says."""
        cache_dtype = self.decoder.options.cache_dtype
        stacked = {}
        for stack, (keys, values) in zip(self.sampled.stacks, kv_by_stack, strict=True):
            in_cache_dtype = cache_attention.to_cache_dtype(keys, values, cache_dtype)
            stacked[stack.name] = cache_attention.move_positions(
                *in_cache_dtype, axes=self.position_axes(stack)
            )

        if self.unrolled_layers:
            layers = []
            for stack, index_in_stack in self.sampled.layers:
                layers.append(tuple(x[index_in_stack] for x in stacked[stack.name]))
            return layers
        return self._join_stacks(stacked)

    def _join_stacks(self, kv_by_stack: dict[str, LayerKV]) -> Any:
        """As `KVCache` has stacked layers: a single stack by itself."""
        stacks = list(kv_by_stack.values())
        return stacks[0] if len(stacks) == 1 else stacks

    def _split_stacks(self, joined: Any) -> dict[str, LayerKV]:
        """The inverse of `_join_stacks`."""
        names = [stack.name for stack in self.sampled.stacks]
        stacks = [joined] if len(names) == 1 else joined
        return dict(zip(names, stacks, strict=True))

    def _zero_cache(self, rows: int, positions: int, for_prefixes: bool = False) -> Any:
        """Make keys and values of zeros for so many rows, in the layout of `KVCache`.

        `rows`: slots, or entries of a prefix table. `positions`: of a row; a layer that slides has
        at most its window of them. `for_prefixes`: a prefix table, whose positions devices may
        split, and no kernel reads."""
        kv_by_stack = []
        for stack in self.sampled.stacks:
            heads = stack.attention
            size = heads.ring_size(positions)
            if not for_prefixes:
                # a TPU's kernel wants whole blocks
                size = cache_attention.cache_positions(self._attention, size)

            shape = (len(stack.layers), rows, heads.kv_heads, size, heads.head_dim)
            zeros = jnp.zeros(shape, self.decoder.options.compute_dtype)
            if for_prefixes:
                zeros = with_logical_constraint(
                    zeros, ("layer", None, "kv_heads", "position", "head_dim")
                )
            kv_by_stack.append((zeros, zeros))
        return self._to_cache_layers(kv_by_stack)

    def empty_cache(self) -> KVCache:
        """Return the cache before any prompt is admitted: zeros, which no slot reads."""
        if self.separate_prefix:
            prefix_table = self.empty_prefix_table(self.prefix_groups)
            return KVCache(self._zero_cache(self.slots, self.response_length), prefix_table)
        return KVCache(self._zero_cache(self.slots, self._positions), ())

    def empty_prefix_table(self, entries: int) -> Any:
        """Return a table for so many prompts, in the layout of `KVCache.prefix_kv`."""
        return self._zero_cache(entries, self.prefix_length, for_prefixes=True)

    def prefill(
        self, params: Params, prompts: Int[Array, "g P"], lengths: Int[Array, " g"]
    ) -> tuple[Any, Float[Array, "g D"]]:
        """Return keys and values of g prompts as a table's entries, and their last hidden states.

        `params`: of `prepare_weights`, or the policy's. `lengths`: tokens of the prompts, at least
        1, which are padded on the right to P."""
        prefilled = self.prefill_with_experts(params, prompts, lengths, routers=None)
        return prefilled.entries, prefilled.last_hidden

    def prefill_with_experts(
        self,
        params: Params,
        prompts: Int[Array, "g P"],
        lengths: Int[Array, " g"],
        routers: RouterPass | None = RECORDING,
    ) -> Prefilled:
        """Run g prompts through the layers: their keys and values, last states and tokens' experts.

        `params`: the policy's, or those of `prepare_weights`, which are known by "cos_sin"; of the
        latter only those whose layers a pass over prompts can read (`prefills_stacked` is False).
        With adapters the policy's come as they are: a layer multiplies by both. `prompts`: token
        ids, padded on the right to P. `lengths`: at least 1. `routers`: how experts are recorded;
        None: they are not, and `experts` of what comes back is None. With RECORDING the model must
        have layers with experts."""
        weights = {name: w for name, w in params.items() if name != "cos_sin"}
        is_prepared = "cos_sin" in params
        if self.quantises_weights and not is_prepared:
            weights = self.cast_weights(weights)
        elif not self.quantises_weights:
            weights = self.decoder.cast_params(weights)  # which prepared ones are already

        prefix = self.sampled.prefill(weights, prompts, lengths, routers)

        experts = None
        if routers is not None:
            by_stack = []
            for of_tokens in prefix.routed:  # [L gP k]; None of dense layers
                if of_tokens is not None:
                    of_tokens = of_tokens.reshape(len(of_tokens), *prompts.shape, -1)
                by_stack.append(of_tokens)
            # [g P l k], over the l layers with experts
            experts = join_choices(self.sampled.stacks, by_stack)

        # A sliding layer continues from its last positions alone, where its ring is shorter than a
        # prompt.
        kv_by_stack = []
        for stack, kv in zip(self.sampled.stacks, prefix.kv, strict=True):
            ring = stack.attention.ring_size(self.prefix_length)
            if ring < self.prefix_length:
                kv = take_last_positions(kv, lengths, ring)
            kv_by_stack.append(kv)
        return Prefilled(self._to_cache_layers(kv_by_stack), prefix.last_hidden, experts)

    def store_entries(self, prefix_table: Any, entries: Any, first_entry: Int[Array, ""]) -> Any:
        """Return the table with these entries, from `first_entry` on.

        `entries`: of `prefill`, g of them; first_entry + g must be at most the table's entries,
        because dynamic_update_slice would move them back to fit."""
        store = partial(
            lax.dynamic_update_slice_in_dim, start_index=first_entry, axis=self.row_axis
        )
        return jax.tree.map(store, prefix_table, entries)

    def admit(
        self,
        cache: KVCache,
        prefix_table: Any,
        table_entry: Int[Array, " Z"],
        admit_mask: Bool[Array, " Z"],
    ) -> KVCache:
        """Copy entries of the prefix table into the cache, for the groups that `admit_mask` admits.

        `prefix_table`: of `empty_prefix_table`, filled by `store_entries`. `table_entry`: for each
        of the Z groups its entry, read only where the mask is true. Groups are copied one by one,
        because most calls admit few. Where prefixes are not separate, a group is one slot, Z = R,
        and the entry becomes the first P positions of the slot's own cache; those behind it keep
        what the last rollout left, which `step` overwrites before it reads."""
        row_axis = self.row_axis
        # Z numbers: behind the admitted groups comes filler, which the loop does not reach.
        groups = jnp.nonzero(admit_mask, size=len(admit_mask))[0]  # admitted ones first

        def admit_group(i: Array, layers: Any) -> Any:
            # `to`: an array of the cache, rows on `row_axis`; `table`: the same array of the prefix
            # table. Both have their other axes in the same order, so that tree.map pairs them.
            def copy_entry(to: Array, table: Array) -> Array:
                # An entry has the prompt's positions, which are the first of a slot's.
                entry = lax.dynamic_slice_in_dim(table, table_entry[groups[i]], 1, row_axis)
                return lax.dynamic_update_slice_in_dim(to, entry, groups[i], row_axis)

            return jax.tree.map(copy_entry, layers, prefix_table)

        num_admitted = admit_mask.sum()
        if self.separate_prefix:
            prefix_kv = lax.fori_loop(0, num_admitted, admit_group, cache.prefix_kv)
            return cache._replace(prefix_kv=prefix_kv)
        slot_kv = lax.fori_loop(0, num_admitted, admit_group, cache.slot_kv)
        return cache._replace(slot_kv=slot_kv)

    def step(
        self, weights: Params, cache: KVCache, tokens: SlotInts, positions: SlotInts, t: SlotInts
    ) -> tuple[Float[Array, "R D"], KVCache]:
        """Return hidden states of one token per slot, and the cache with the token in it.

        `weights`: of `prepare_weights`. `positions`: the tokens' in their sequences; `t`: their
        numbers in the responses, from 0. Both count, as a prompt is `positions - t` tokens long."""
        decoded = self.step_with_experts(weights, cache, tokens, positions, t, routers=None)
        return decoded.hidden, decoded.cache

    def step_with_experts(
        self,
        weights: Params,
        cache: KVCache,
        tokens: SlotInts,
        positions: SlotInts,
        t: SlotInts,
        routers: RouterPass | None = RECORDING,
    ) -> DecodedToken:
        """Decode one token per slot, as `step`, and say which experts each token chose.

        `weights`: of `prepare_weights`. `cache`: of `empty_cache`, with prompts admitted. `tokens`:
        ids. `t`: their numbers in the responses, from 0. `positions`: prompt length + t. `routers`:
        how experts are recorded; None: they are not. With RECORDING the model must have layers with
        experts."""
        # Of the tokens' positions, with an axis of one token: [R 1 H/2].
        rotations = {}
        for rope, table in zip(self.sampled.ropes, weights["cos_sin"], strict=True):
            rotations[rope] = jax.tree.map(lambda x: x[positions][:, None], table)
        at = TokenPositions(positions, t)

        def run_layer(
            stack: Stack, x: Array, layer_weights: Params, layer_cache: LayerCache
        ) -> LayersOutput:
            """Run one layer of `stack` on x [R 1 D]; the cache that comes back has the token in it.

            From outside: rotations, at and routers."""

            def attend(q: Array, k: Array, v: Array, window: int | None) -> tuple[Array, LayerKV]:
                # a layer's rows have one token: [R 1 N H], and keys and values [R K 1 H]
                attention_out, slot_kv = self._attend(
                    stack, q[:, 0], k[:, :, 0], v[:, :, 0], layer_cache, at
                )
                return attention_out[:, None], slot_kv

            block = self._layers[stack.name].bind(layer_weights)
            run_block = partial(block, x, rotations, attend)
            # the tokens choose their experts here: there are no earlier choices to replay
            output = run_with_router(block, routers, sampled=None, run=run_block)
            x, slot_kv = output.result
            return LayersOutput(x, slot_kv, output.routed)

        x = self.decoder.embed(weights, tokens[:, None])
        if self.unrolled_layers:
            after_layers = self._step_unrolled(weights, x, cache, run_layer)
        else:
            after_layers = self._step_scanned(weights, x, cache, at, run_layer)

        experts = None
        if routers is not None:
            by_stack = []
            for of_slots in after_layers.routed:  # [L R k]; None of dense layers
                by_stack.append(None if of_slots is None else of_slots[:, :, None])
            # from [R 1 l k], over the l layers with experts
            experts = join_choices(self.sampled.stacks, by_stack)[:, 0]

        hidden = self.decoder.final_norm(weights, after_layers.x[:, 0])
        return DecodedToken(hidden, KVCache(after_layers.slot_kv, cache.prefix_kv), experts)

    def _step_unrolled(
        self,
        weights: Params,
        x: Float[Array, "R 1 D"],
        cache: KVCache,
        run_layer: Callable[..., LayersOutput],
    ) -> LayersOutput:
        """Run the layers one after the other, each with its own arrays of weights and of cache.

        `weights`: stack name -> list of layers' weights. `cache.slot_kv`, and `cache.prefix_kv`
        where prefixes are separate: one `LayerKV` for each layer, in the model's order.
        `run_layer(stack, x, layer_weights, layer_cache)`: a layer's `LayersOutput`. Return: x after
        the last layer, slot_kv in the model's order, and what routers show by stack, [L ...]."""
        slot_kv = []
        routed: dict[str, list[Any]] = {stack.name: [] for stack in self.sampled.stacks}
        for number, (stack, index_in_stack) in enumerate(self.sampled.layers):
            prefix_kv = cache.prefix_kv[number] if self.separate_prefix else ()
            layer_cache = LayerCache(cache.slot_kv[number], prefix_kv, layer=None, live=())
            out = run_layer(stack, x, weights[stack.name][index_in_stack], layer_cache)
            x = out.x
            slot_kv.append(out.slot_kv)
            routed[stack.name].append(out.routed)

        by_stack = []
        for of_layers in routed.values():
            # of dense layers or without a RouterPass all are None, and so is the result
            by_stack.append(jax.tree.map(lambda *layers: jnp.stack(layers), *of_layers))
        return LayersOutput(x, slot_kv, by_stack)

    def _step_scanned(
        self,
        weights: Params,
        x: Float[Array, "R 1 D"],
        cache: KVCache,
        at: TokenPositions,
        run_layer: Callable[..., LayersOutput],
    ) -> LayersOutput:
        """Scan each segment, a period of layers, over its repeats.

        The slots' cache is carried through the scan, with an index: as an input and output of the
        scan it would be copied. `weights`: stack name -> {name: [L ...]}. `cache`: as
        `_join_stacks` says. `run_layer`: as in `_step_unrolled`. In what comes back, `slot_kv` and
        `routed` are in the order of the stacks, which is that of the segments."""
        stacks = self.sampled.stacks
        slot_kv = self._split_stacks(cache.slot_kv)
        prefix_kv: dict[str, LayerKV] = dict.fromkeys(slot_kv, ())
        if self.separate_prefix:
            prefix_kv = self._split_stacks(cache.prefix_kv)

        live = {}
        for stack in stacks:
            last = positions_in_cache(at.positions, self._positions, stack).last
            head_dim = stack.attention.head_dim
            live[stack.name] = cache_attention.live_blocks(
                self._attention, last, slot_kv[stack.name], head_dim
            )

        # Experts that a kernel reads in their stack are not scanned, but whole in each layer.
        scanned_weights: dict[str, Params] = {}
        stacked_experts: dict[str, Params] = {}
        for stack in stacks:
            names = expert_names(stack.base) if self._experts_stay_stacked else []
            of_stack = weights[stack.name]
            stacked_experts[stack.name] = {name: of_stack[name] for name in names}
            scanned_weights[stack.name] = {
                name: w for name, w in of_stack.items() if name not in names
            }

        routed: list[Any] = []
        for segment in self.sampled.segments:

            def run_repeat(
                so_far: ScanState, layers: list[Params], segment: Segment = segment
            ) -> tuple[ScanState, list[Any]]:
                """Run one layer of each of the segment's stacks, in their order.

                From outside: prefix_kv, live and stacked_experts by stack name, and run_layer.
                `layers`: of each stack the scanned weights of this repeat. All stacks of a segment
                have one layer in each repeat, so one index serves all."""
                x = so_far.x
                i = so_far.layer
                new_kv, routed_by_stack = [], []
                for stack, layer, kv in zip(segment.stacks, layers, so_far.slot_kv, strict=True):
                    name = stack.name
                    layer_cache = LayerCache(kv, prefix_kv[name], i, live[name])
                    # `bind` takes the names that the described layer has; LAYER_OF_EXPERTS is one
                    # of them only where experts stay stacked.
                    layer_weights = layer | stacked_experts[name] | {LAYER_OF_EXPERTS: i}
                    out = run_layer(stack, x, layer_weights, layer_cache)
                    x = out.x
                    new_kv.append(out.slot_kv)
                    routed_by_stack.append(out.routed)
                return ScanState(x, new_kv, i + 1), routed_by_stack

            names = [stack.name for stack in segment.stacks]
            begin = ScanState(x, [slot_kv[name] for name in names], jnp.int32(0))
            layers = [scanned_weights[name] for name in names]
            end, routed_by_stack = lax.scan(run_repeat, begin, layers)

            x = end.x
            slot_kv |= dict(zip(names, end.slot_kv, strict=True))
            routed += routed_by_stack
        return LayersOutput(x, self._join_stacks(slot_kv), routed)

    def _attend(
        self,
        stack: Stack,
        q: SlotQueries,
        k: SlotHeads,
        v: SlotHeads,
        cache: LayerCache,
        at: TokenPositions,
    ) -> tuple[SlotQueries, LayerKV]:
        """Attend in one layer from each slot's token, whose key and value go into the cache.

        `q` [R N H], `k` and `v` [R K H]. `cache`: the layer's; its `layer` is None where the arrays
        are the layer's own, else the index in its stack. `at`: where the tokens are. Return: the
        mixed values [R N H] and `cache.slot_kv` with the token in it."""
        layer = cache.layer
        if not self.separate_prefix:
            in_cache = positions_in_cache(at.positions, self._positions, stack)
            return cache_attention.decode_attention(
                self._attention, q, k, v, cache.slot_kv, layer, in_cache, cache.live
            )

        # The slots' own cache has their responses alone, so a token is at its number t there.
        in_cache = positions_in_cache(at.t, self.response_length, stack)
        new_kv = cache_attention.to_cache_dtype(k, v, cache.slot_kv[0].dtype)
        slot_kv = cache_attention.write_token(
            cache.slot_kv, new_kv, self.position_axes(stack), layer, in_cache.write
        )

        def select_layer(kv: LayerKV) -> LayerKV:
            return kv if layer is None else tuple(c[layer] for c in kv)

        # Two arrays: an int8 cache, which has scales too, is refused with separate prefixes
        # (sampling/engine.py, launch/planner.py).
        keys, values = select_layer(slot_kv)
        mask = jnp.arange(values.shape[2])[None] <= in_cache.last[:, None]
        prefix_keys, prefix_values = select_layer(cache.prefix_kv)
        segments = [
            SlotSegment(keys, values, mask),
            SlotSegment(prefix_keys, prefix_values, self._prefix_mask(stack, at)),
        ]
        return cache_attention.attend_slots(q, segments), slot_kv

    def _prefix_mask(self, stack: Stack, at: TokenPositions) -> Bool[Array, "R p"]:
        """Which of a separate prefix's entries a slot's token sees."""
        lengths = (at.positions - at.t)[:, None]  # of the slots' prompts
        ring = stack.attention.ring_size(self.prefix_length)
        held = jnp.arange(ring)[None]  # the position that each entry holds
        if ring < self.prefix_length:
            held = held_positions(lengths[:, 0], ring)

        is_live = (held >= 0) & (held < lengths)
        window = stack.attention.window
        if window is None:
            return is_live
        return is_live & (held > at.positions[:, None] - window)
