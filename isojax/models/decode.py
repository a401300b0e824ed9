"""One decoding step: the decoder as the sampler runs it, one token per slot, over a cache of keys
and values.

Layers are scanned on a TPU or with an int8 cache, else unrolled: a scan would copy each out of its
stack every token. The R slots are Z prefix groups of W. Where W > 1, or a mesh splits prompts, a
group's prompt is held once, separately:

    together    keys [R K H C], values [R K C H], C = P + T; or as a kernel has its positions (`position_axes`)
    separate    prefix keys [Z K H P], values [Z K P H], Z = R / W;    keys [R K H T], values [R K T H]

A layer that slides holds at most its window of each: a ring, in which position p is at p mod the
ring's size.
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
from isojax.models import attention, cpu
from isojax.models.attention import SlotHeads, SlotInts, SlotPositions, SlotQueries, ring_positions
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
    live: tuple[Array, ...]  # attention.live_blocks


@dataclass(frozen=True)
class Decoding:
    """How R slots decode. Precision, and the attention of stacked layers and one cache, are the
    decoder's options."""

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
        return self.slots_per_prefix > 1 or self.shard_positions

    @property
    def prefix_groups(self) -> int:
        """Z, each of which holds one prompt."""
        return self.slots // self.slots_per_prefix

    @property
    def row_axis(self) -> int:
        """The axis of slots, prefix groups or table entries in each array of a cache: [R K ...], or
        [L R K ...]."""
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
        return attention.position_axes(self._attention, stack.attention.head_dim)

    @property
    def _merges_adapters(self) -> bool:
        """bfloat16 would round most of an adapter's product away."""
        return self.decoder.options.compute_dtype == "float32"

    @cached_property
    def _layers(self) -> dict[str, LayerDescription]:
        """A layer of each stack as `prepare_weights` stores it."""
        layers = {
            s.name: s.base if self._merges_adapters else s.described for s in self.sampled.stacks
        }
        if self.transpose_weights:
            return {name: output_major_layer(described) for name, described in layers.items()}
        if self._experts_stay_stacked:
            interpret = self.decoder.options.decode_attention == "interpret"
            return {
                name: stacked_experts_layer(described, interpret)
                for name, described in layers.items()
            }
        return layers

    @property
    def _experts_stay_stacked(self) -> bool:
        """Whether a kernel reads a layer's experts where they lie, as all multiply all slots. It
        knows no adapters."""
        has_kernels = self.decoder.options.decode_attention in PALLAS
        lora = self.decoder.config.lora
        has_adapters = (
            lora is not None and EXPERTS_TARGET in lora.targets and not self._merges_adapters
        )
        few_rows = self.slots <= MAX_ROWS_OF_ALL_EXPERTS
        return has_kernels and not self.unrolled_layers and few_rows and not has_adapters

    def cast_weights(self, params: Params) -> Params:
        """The parameters, with adapters merged in float32, in the precision that `step` reads them
        in. int8 values are made of the cast ones: trainers send those to samplers elsewhere, and
        all shall sample alike."""
        if self._merges_adapters:
            params = merge_adapters(params, self.decoder.config.lora)
        weights = self.decoder.cast_params(params)
        if not self.quantises_weights:
            return weights
        return weights | {
            s.name: to_int8(weights[s.name], s.described.specs) for s in self.decoder.stacks
        }

    def prepare_weights(self, params: Params) -> Params:
        """The policy's parameters as `step` reads them."""
        return self.lay_out(self.cast_weights(params))

    def lay_out(self, cast_weights: Params) -> Params:
        """With rotary tables, as `step` reads them: unrolled layers are a list, stacked ones
        matrices."""
        cos_sin = list(self.sampled.rotations(jnp.arange(self._positions)).values())
        weights = {**cast_weights, "cos_sin": cos_sin}
        for stack in self.sampled.stacks:
            stacked = weights[stack.name]
            if not self.unrolled_layers:
                weights[stack.name] = to_stacked_matrices(stacked, stack.described.specs)
                continue
            layers = [jax.tree.map(lambda w, i=i: w[i], stacked) for i in range(len(stack.layers))]
            if self.transpose_weights:
                layers = [to_output_major(layer, stack.described.specs) for layer in layers]
            weights[stack.name] = layers

        unembedding = self.decoder.architecture.unembedding
        if self.transpose_weights and unembedding.axes[0] != VOCAB:
            weights[unembedding.name] = weights[unembedding.name].T
        return weights

    def logits(self, weights: Params, hidden: Float[Array, "R D"]) -> Float[Array, "R V"]:
        """Float32 logits of hidden states from `step`."""
        if not self.transpose_weights:
            return self.decoder.logits(weights, hidden)
        output_major = weights[self.decoder.architecture.unembedding.name]
        return cpu.small_batch_matmul(hidden, output_major, dtype=jnp.float32)

    def _to_cache_layers(self, kv_by_stack: Sequence[KV]) -> Any:
        """Keys and values of each stack [L b K c H] as the cache has them."""
        stacks = self.sampled.stacks
        stacked = {}
        for stack, (keys, values) in zip(stacks, kv_by_stack, strict=True):
            in_cache_dtype = attention.to_cache_dtype(
                keys, values, self.decoder.options.cache_dtype
            )
            stacked[stack.name] = attention.move_positions(
                *in_cache_dtype, axes=self.position_axes(stack)
            )

        if self.unrolled_layers:
            return [tuple(x[i] for x in stacked[stack.name]) for stack, i in self.sampled.layers]
        return self._join_stacks(list(stacked.values()))

    def _join_stacks(self, kv_by_stack: list[LayerKV]) -> Any:
        return kv_by_stack[0] if len(kv_by_stack) == 1 else kv_by_stack

    def _split_stacks(self, stacked: Any) -> list[LayerKV]:
        return [stacked] if len(self.sampled.stacks) == 1 else stacked

    def _zero_cache(self, rows: int, positions: int, for_prefixes: bool = False) -> Any:
        kv_by_stack = []
        for stack in self.sampled.stacks:
            of_heads, held = stack.attention, stack.attention.ring_size(positions)
            if not for_prefixes:
                held = attention.cache_positions(self._attention, held)
            shape = (len(stack.layers), rows, of_heads.kv_heads, held, of_heads.head_dim)
            zeros = jnp.zeros(shape, self.decoder.options.compute_dtype)
            if for_prefixes:
                zeros = with_logical_constraint(
                    zeros, ("layer", None, "kv_heads", "position", "head_dim")
                )
            kv_by_stack.append((zeros, zeros))
        return self._to_cache_layers(kv_by_stack)

    def empty_cache(self) -> KVCache:
        if self.separate_prefix:
            prefix_table = self.empty_prefix_table(self.prefix_groups)
            return KVCache(self._zero_cache(self.slots, self.response_length), prefix_table)
        return KVCache(self._zero_cache(self.slots, self._positions), ())

    def empty_prefix_table(self, entries: int) -> Any:
        return self._zero_cache(entries, self.prefix_length, for_prefixes=True)

    def prefill(
        self, params: Params, prompts: Int[Array, "g P"], lengths: Int[Array, " g"]
    ) -> tuple[Any, Float[Array, "g D"]]:
        """Keys and values of g prompts as a table's entries, and last hidden states. `params`: of
        `prepare_weights`, or the policy's."""
        return self.prefill_with_experts(params, prompts, lengths, routers=None)[:2]

    def prefill_with_experts(
        self,
        params: Params,
        prompts: Int[Array, "g P"],
        lengths: Int[Array, " g"],
        routers: RouterPass | None = RECORDING,
    ) -> tuple[Any, Float[Array, "g D"], Int[Array, "g P l k"] | None]:
        """`prefill`, and the experts of each token in the layers that have some."""
        weights = {name: w for name, w in params.items() if name != "cos_sin"}
        is_prepared = "cos_sin" in params
        if self.quantises_weights and not is_prepared:
            weights = self.cast_weights(weights)
        elif not self.quantises_weights:
            weights = self.decoder.cast_params(weights)

        prefix = self.sampled.prefill(weights, prompts, lengths, routers)

        experts = None
        if routers is not None:
            of_rows = [
                x if x is None else x.reshape(len(x), *prompts.shape, -1) for x in prefix.routed
            ]
            experts = join_choices(self.sampled.stacks, of_rows)

        # A sliding layer continues from its last positions alone, where its ring is shorter than a
        # prompt.
        kv_by_stack = []
        for stack, kv in zip(self.sampled.stacks, prefix.kv, strict=True):
            ring = stack.attention.ring_size(self.prefix_length)
            kv_by_stack.append(
                kv if ring == self.prefix_length else take_last_positions(kv, lengths, ring)
            )
        return self._to_cache_layers(kv_by_stack), prefix.last_hidden, experts

    def store_entries(self, prefix_table: Any, entries: Any, first_entry: Int[Array, ""]) -> Any:
        """The table with these entries, from `first_entry` on."""
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
        """The cache, the table's entries copied into the groups of `admit_mask`, one by one: most
        calls admit few."""
        row_axis = self.row_axis
        groups = jnp.nonzero(admit_mask, size=len(admit_mask))[0]

        def admit_group(i: Array, layers: Any) -> Any:
            def copy_entry(to: Array, table: Array) -> Array:
                entry = lax.dynamic_slice_in_dim(table, table_entry[groups[i]], 1, row_axis)
                # its first positions
                return lax.dynamic_update_slice_in_dim(to, entry, groups[i], row_axis)

            return jax.tree.map(copy_entry, layers, prefix_table)

        destination = "prefix_kv" if self.separate_prefix else "slot_kv"
        admitted = lax.fori_loop(0, admit_mask.sum(), admit_group, getattr(cache, destination))
        return cache._replace(**{destination: admitted})

    def step(
        self, weights: Params, cache: KVCache, tokens: SlotInts, positions: SlotInts, t: SlotInts
    ) -> tuple[Float[Array, "R D"], KVCache]:
        """Hidden states of one token per slot, the t-th of its response, and the cache with the
        token in it."""
        return self.step_with_experts(weights, cache, tokens, positions, t, routers=None)[:2]

    def step_with_experts(
        self,
        weights: Params,
        cache: KVCache,
        tokens: SlotInts,
        positions: SlotInts,
        t: SlotInts,
        routers: RouterPass | None = RECORDING,
    ) -> tuple[Float[Array, "R D"], KVCache, Int[Array, "R l k"] | None]:
        """`step`, and the experts of each slot's token in the layers that have some."""
        rotations = {}
        for rope, table in zip(self.sampled.ropes, weights["cos_sin"], strict=True):
            rotations[rope] = jax.tree.map(lambda x: x[positions][:, None], table)
        at = TokenPositions(positions, t)

        def run_layer(
            stack: Stack, x: Array, layer: Params, layer_cache: LayerCache
        ) -> tuple[Array, LayerKV, Any]:
            def attend(q: Array, k: Array, v: Array, window: int | None) -> tuple[Array, LayerKV]:
                attention_out, slot_kv = self._attend(
                    stack, q[:, 0], k[:, :, 0], v[:, :, 0], layer_cache, at
                )
                return attention_out[:, None], slot_kv

            block = self._layers[stack.name].bind(layer)
            (x, slot_kv), routed = run_with_router(
                block, routers, None, partial(block, x, rotations, attend)
            )
            return x, slot_kv, routed

        x = self.decoder.embed(weights, tokens[:, None])
        if self.unrolled_layers:
            x, slot_kv, routed = self._step_unrolled(weights, x, cache, run_layer)
        else:
            x, slot_kv, routed = self._step_scanned(weights, x, cache, at, run_layer)

        experts = None
        if routers is not None:  # [L R k] of each stack, of one token
            of_tokens = [x if x is None else x[:, :, None] for x in routed]
            experts = join_choices(self.sampled.stacks, of_tokens)[:, 0]
        return self.decoder.final_norm(weights, x[:, 0]), KVCache(slot_kv, cache.prefix_kv), experts

    def _step_unrolled(
        self,
        weights: Params,
        x: Float[Array, "R 1 D"],
        cache: KVCache,
        run_layer: Callable[..., Any],
    ) -> tuple[Float[Array, "R 1 D"], Any, list[Any]]:
        slot_layers = []
        routed: dict[str, list[Any]] = {stack.name: [] for stack in self.sampled.stacks}
        for number, (stack, i) in enumerate(self.sampled.layers):
            prefix_kv = cache.prefix_kv[number] if self.separate_prefix else ()
            layer_cache = LayerCache(cache.slot_kv[number], prefix_kv, None, ())
            x, slot_kv, of_layer = run_layer(stack, x, weights[stack.name][i], layer_cache)
            slot_layers.append(slot_kv)
            routed[stack.name].append(of_layer)
        return (
            x,
            slot_layers,
            [jax.tree.map(lambda *layers: jnp.stack(layers), *of) for of in routed.values()],
        )

    def _step_scanned(
        self,
        weights: Params,
        x: Float[Array, "R 1 D"],
        cache: KVCache,
        at: TokenPositions,
        run_layer: Any,
    ) -> tuple[Float[Array, "R 1 D"], Any, list[Any]]:
        """The cache is carried, with an index: as an input and output of the scan it would be
        copied."""
        slot_kv = dict(zip(self.sampled.stacks, self._split_stacks(cache.slot_kv), strict=True))
        no_prefixes: Any = [()] * len(self.sampled.stacks)
        prefix_kv = self._split_stacks(cache.prefix_kv) if self.separate_prefix else no_prefixes
        prefix_of = dict(zip(self.sampled.stacks, prefix_kv, strict=True))
        live = {
            stack: attention.live_blocks(
                self._attention,
                positions_in_cache(at.positions, self._positions, stack).last,
                kv,
                stack.attention.head_dim,
            )
            for stack, kv in slot_kv.items()
        }

        stacked_experts: dict[str, Params] = {}
        for stack in self.sampled.stacks:
            names = expert_names(stack.base) if self._experts_stay_stacked else []
            stacked_experts[stack.name] = {name: weights[stack.name][name] for name in names}

        routed: list[Any] = []
        for segment in self.sampled.segments:

            def run_repeat(
                carry: Any, layers: Any, segment: Segment = segment
            ) -> tuple[Any, list[Any]]:
                x, kv_by_stack, i = carry
                new_kv, of_routers = [], []
                for stack, layer, kv in zip(segment.stacks, layers, kv_by_stack, strict=True):
                    layer_cache = LayerCache(kv, prefix_of[stack], i, live[stack])
                    stays = stacked_experts[stack.name] | {LAYER_OF_EXPERTS: i}
                    x, kv, of_layer = run_layer(stack, x, layer | stays, layer_cache)
                    new_kv.append(kv)
                    of_routers.append(of_layer)
                return (x, new_kv, i + 1), of_routers

            carry = (x, [slot_kv[stack] for stack in segment.stacks], jnp.int32(0))
            layers = [
                {
                    name: w
                    for name, w in weights[stack.name].items()
                    if name not in stacked_experts[stack.name]
                }
                for stack in segment.stacks
            ]
            (x, new_kv, _), of_routers = lax.scan(run_repeat, carry, layers)
            slot_kv |= dict(zip(segment.stacks, new_kv, strict=True))
            routed += of_routers
        return x, self._join_stacks(list(slot_kv.values())), routed

    def _attend(
        self,
        stack: Stack,
        q: SlotQueries,
        k: SlotHeads,
        v: SlotHeads,
        cache: LayerCache,
        at: TokenPositions,
    ) -> tuple[SlotQueries, LayerKV]:
        """A layer's attention, and its updated slot cache."""
        layer = cache.layer
        if not self.separate_prefix:
            in_cache = positions_in_cache(at.positions, self._positions, stack)
            return attention.decode_attention(
                self._attention, q, k, v, cache.slot_kv, layer, in_cache, cache.live
            )

        in_cache = positions_in_cache(at.t, self.response_length, stack)
        new_kv = attention.to_cache_dtype(k, v, cache.slot_kv[0].dtype)
        slot_kv = attention.write_token(
            cache.slot_kv, new_kv, self.position_axes(stack), layer, in_cache.write
        )

        def select_layer(kv: LayerKV) -> LayerKV:
            return kv if layer is None else tuple(c[layer] for c in kv)

        keys, values = select_layer(slot_kv)
        mask = jnp.arange(values.shape[2])[None] <= in_cache.last[:, None]
        segments = [
            (keys, values, mask),
            (*select_layer(cache.prefix_kv), self._prefix_mask(stack, at)),
        ]
        return attention.attend_slots(q, segments), slot_kv

    def _prefix_mask(self, stack: Stack, at: TokenPositions) -> Bool[Array, "R p"]:
        """Which of a separate prefix's entries a slot's token sees."""
        lengths, window = (at.positions - at.t)[:, None], stack.attention.window
        ring = stack.attention.ring_size(self.prefix_length)
        held = jnp.arange(ring)[None]  # the position that each entry holds
        if ring < self.prefix_length:
            held = held_positions(lengths[:, 0], ring)
        is_live = (held >= 0) & (held < lengths)
        if window is None:
            return is_live
        return is_live & (held > at.positions[:, None] - window)


def positions_in_cache(positions: SlotInts, row_length: int, stack: Stack) -> SlotPositions:
    """Where a stack's cache of rows of this length has the slots' positions."""
    ring = stack.attention.ring_size(row_length)
    return (
        SlotPositions(positions, positions)
        if ring == row_length
        else ring_positions(positions, ring)
    )


def held_positions(lengths: Int[Array, " b"], ring: int) -> Int[Array, "b ring"]:
    """The position that each entry of a ring holds of rows of these lengths: the last that fell on
    it; negative where none has yet."""
    last = lengths[:, None] - 1
    return last - (last - jnp.arange(ring)[None]) % ring


def take_last_positions(kv: KV, lengths: Int[Array, " b"], ring: int) -> KV:
    """Of keys and values [L b K p H] of whole prompts, those that a ring holds, [L b K ring H]."""
    index = jnp.maximum(held_positions(lengths, ring), 0)[None, :, None, :, None]

    def take(x: Array) -> Array:
        # Where devices split positions: taken from a part, they would be fetched by a permutation,
        # for which shards that have left the loop are waited for.
        whole = with_logical_constraint(x, ("layer", None, "kv_heads", None, "head_dim"))
        return jnp.take_along_axis(whole, index, 3)

    keys, values = kv
    return take(keys), take(values)
