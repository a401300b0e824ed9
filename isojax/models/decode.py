"""One decoding step: the decoder as the sampler runs it, one token per slot, over a cache of keys and values.

Layers are scanned on a TPU or with an int8 cache, else unrolled: a scan would copy each out of its stack every token.
The R slots are Z prefix groups of W. Where W > 1, or a mesh splits prompts, a group's prompt is held once, separately:

    together    keys [R K H C], values [R K C H], C = P + T; or as a kernel has its positions (`position_axes`)
    separate    prefix keys [Z K H P], values [Z K P H], Z = R / W;    keys [R K H T], values [R K T H]
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from isojax.distributed.sharding import with_logical_constraint
from isojax.models import attention, cpu
from isojax.models.attention import SlotHeads, SlotInts, SlotQueries
from isojax.models.lora import merge_adapters
from isojax.models.spec import LayerDescription, Spec
from isojax.models.transformer import Decoder, Params
from isojax.models.weight_forms import output_major_layer, to_output_major, to_stacked_matrices

LayerKV = tuple[Array, ...]  # keys, values, and of int8 ones their scales


class KVCache(NamedTuple):
    """Of slots, and of separate prefixes (else empty): one `LayerKV` for each layer, or one of all, stacked."""

    slot_kv: Any
    prefix_kv: Any


class TokenPositions(NamedTuple):
    positions: SlotInts  # in their sequences
    t: SlotInts  # in their responses
    live: tuple[Array, ...]  # attention.live_blocks


@dataclass(frozen=True)
class Decoding:
    """How R slots decode. Precision, and the attention of stacked layers and one cache, are the decoder's options."""

    decoder: Decoder
    slots: int  # R
    slots_per_prefix: int  # W
    prefix_length: int  # P, positions of a prompt
    response_length: int  # T, tokens of a response
    unrolled_layers: bool  # or stacked
    shard_positions: bool = False  # whether devices split the positions of prompts
    allow_transposed: bool = True  # whether unrolled layers store their weights transposed, for products of few rows

    @property
    def transpose_weights(self) -> bool:
        return self.unrolled_layers and self.allow_transposed

    @property
    def prefills_stacked(self) -> bool:
        """Whether unrolled layers prefill with stacked ones: in float32 those are the policy's own."""
        return self.unrolled_layers and (self.allow_transposed or self.decoder.options.compute_dtype == "float32")

    @property
    def separate_prefix(self) -> bool:
        return self.slots_per_prefix > 1 or self.shard_positions

    @property
    def prefix_groups(self) -> int:
        """Z, each of which holds one prompt."""
        return self.slots // self.slots_per_prefix

    @property
    def row_axis(self) -> int:
        """The axis of slots, prefix groups or table entries in each array of a cache: [R K ...], or [L R K ...]."""
        return 0 if self.unrolled_layers else 1

    @property
    def _attention(self) -> str:
        return "plain" if self.separate_prefix else self.decoder.options.decode_attention

    @property
    def position_axes(self) -> tuple[int, ...]:
        """The axes of positions of the arrays of a `LayerKV`."""
        return attention.position_axes(self._attention, self.decoder.config.head_dim)

    @property
    def _merges_adapters(self) -> bool:
        """bfloat16 would round most of an adapter's product away."""
        return self.decoder.options.compute_dtype == "float32"

    @cached_property
    def _layer(self) -> LayerDescription:
        """A layer as `prepare_weights` stores it."""
        layer = self.decoder.base.layer if self._merges_adapters else self.decoder.layer
        return output_major_layer(layer) if self.transpose_weights else layer

    @cached_property
    def _layer_specs(self) -> dict[str, Spec]:
        return self.decoder.specs()["blocks"]

    def prepare_weights(self, params: Params) -> Params:
        """The cast parameters and rotary table as `step` reads them; unrolled layers are a list, stacked ones
        matrices."""
        decoder = self.decoder
        cos_sin = decoder.cos_sin(jnp.arange(self.prefix_length + self.response_length))
        if self._merges_adapters:
            params = merge_adapters(params, decoder.config.lora)
        weights = {**decoder.cast_params(params), "cos_sin": cos_sin}
        if not self.unrolled_layers:
            return {**weights, "blocks": to_stacked_matrices(weights["blocks"], self._layer_specs)}
        layers = [jax.tree.map(lambda w, i=i: w[i], weights["blocks"]) for i in range(decoder.config.layers)]
        if not self.transpose_weights:
            return {**weights, "blocks": layers}
        weights["blocks"] = [to_output_major(layer, self._layer_specs) for layer in layers]
        return weights if decoder.config.tied else {**weights, "unembed": weights["unembed"].T}

    def logits(self, weights: Params, hidden: Float[Array, "R D"]) -> Float[Array, "R V"]:
        """Float32 logits of hidden states from `step`."""
        if not self.transpose_weights:
            return self.decoder.logits(weights, hidden)
        output_major = weights["embed" if self.decoder.config.tied else "unembed"]
        return cpu.small_batch_matmul(hidden, output_major, dtype=jnp.float32)

    def _to_cache_layers(self, keys: Array, values: Array) -> Any:
        in_cache_dtype = attention.to_cache_dtype(keys, values, self.decoder.options.cache_dtype)
        stacked = attention.move_positions(*in_cache_dtype, axes=self.position_axes)
        return [tuple(x[i] for x in stacked) for i in range(len(stacked[0]))] if self.unrolled_layers else stacked

    def _zero_cache(self, rows: int, positions: int, for_prefixes: bool = False) -> Any:
        config = self.decoder.config
        shape = (config.layers, rows, config.kv_heads, positions, config.head_dim)
        zeros = jnp.zeros(shape, self.decoder.options.compute_dtype)
        if for_prefixes:
            zeros = with_logical_constraint(zeros, ("layer", None, "kv_heads", "position", "head_dim"))
        return self._to_cache_layers(zeros, zeros)

    def empty_cache(self) -> KVCache:
        if self.separate_prefix:
            prefix_table = self.empty_prefix_table(self.prefix_groups)
            return KVCache(self._zero_cache(self.slots, self.response_length), prefix_table)
        positions = self.prefix_length + self.response_length
        padded_positions = attention.cache_positions(self.decoder.options.decode_attention, positions)
        return KVCache(self._zero_cache(self.slots, padded_positions), ())

    def empty_prefix_table(self, entries: int) -> Any:
        return self._zero_cache(entries, self.prefix_length, for_prefixes=True)

    def prefill(
        self, params: Params, prompts: Int[Array, "g P"], lengths: Int[Array, " g"]
    ) -> tuple[Any, Float[Array, "g D"]]:
        """Keys and values of g prompts as a table's entries, and last hidden states."""
        params = self.decoder.cast_params({k: w for k, w in params.items() if k != "cos_sin"})
        prefix = self.decoder.prefill(params, prompts, lengths)
        return self._to_cache_layers(prefix.keys, prefix.values), prefix.last_hidden

    def store_entries(self, prefix_table: Any, entries: Any, first_entry: Int[Array, ""]) -> Any:
        """The table with these entries, from `first_entry` on."""
        store = partial(lax.dynamic_update_slice_in_dim, start_index=first_entry, axis=self.row_axis)
        return jax.tree.map(store, prefix_table, entries)

    def admit(
        self, cache: KVCache, prefix_table: Any, table_entry: Int[Array, " Z"], admit_mask: Bool[Array, " Z"]
    ) -> KVCache:
        """The cache, the table's entries copied into the groups of `admit_mask`, one by one: most calls admit few."""
        row_axis, groups = self.row_axis, jnp.nonzero(admit_mask, size=len(admit_mask))[0]

        def admit_group(i: Array, layers: Any) -> Any:
            def copy_entry(to: Array, table: Array) -> Array:
                entry = lax.dynamic_slice_in_dim(table, table_entry[groups[i]], 1, row_axis)
                return lax.dynamic_update_slice_in_dim(to, entry, groups[i], row_axis)  # its first positions

            return jax.tree.map(copy_entry, layers, prefix_table)

        destination = "prefix_kv" if self.separate_prefix else "slot_kv"
        admitted = lax.fori_loop(0, admit_mask.sum(), admit_group, getattr(cache, destination))
        return cache._replace(**{destination: admitted})

    def step(
        self, weights: Params, cache: KVCache, tokens: SlotInts, positions: SlotInts, t: SlotInts
    ) -> tuple[Float[Array, "R D"], KVCache]:
        """Hidden states of one token per slot, the t-th of its response, and the cache with the token in it."""
        cos_sin = jax.tree.map(lambda table: table[positions][:, None], weights["cos_sin"])
        live = attention.live_blocks(self._attention, positions, cache.slot_kv, self.decoder.config.head_dim)
        at = TokenPositions(positions, t, live)

        def run_layer(x: Array, layer: Params, cache: KVCache, index: Array | None) -> tuple[Array, LayerKV]:
            def attend(q: Array, k: Array, v: Array) -> tuple[Array, LayerKV]:
                attention_out, slot_kv = self._attend(q[:, 0], k[:, :, 0], v[:, :, 0], cache, index, at)
                return attention_out[:, None], slot_kv

            return self._layer.bind(layer)(x, cos_sin, attend)

        def scan_layer(carry: tuple[Array, LayerKV, Array], layer: Params) -> tuple[tuple[Array, LayerKV, Array], None]:
            x, slot_kv, i = carry
            x, slot_kv = run_layer(x, layer, KVCache(slot_kv, cache.prefix_kv), i)
            return (x, slot_kv, i + 1), None

        x = weights["embed"][tokens][:, None]
        if self.unrolled_layers:
            slot_layers = []
            for i, (layer, slot_kv) in enumerate(zip(weights["blocks"], cache.slot_kv, strict=True)):
                prefix_kv = cache.prefix_kv[i] if self.separate_prefix else ()
                x, slot_kv = run_layer(x, layer, KVCache(slot_kv, prefix_kv), None)
                slot_layers.append(slot_kv)
        else:
            (x, slot_layers, _), _ = lax.scan(scan_layer, (x, cache.slot_kv, jnp.int32(0)), weights["blocks"])
        return self.decoder.final_norm(weights, x[:, 0]), KVCache(slot_layers, cache.prefix_kv)

    def _attend(
        self, q: SlotQueries, k: SlotHeads, v: SlotHeads, cache: KVCache, index: Any, at: TokenPositions
    ) -> tuple[SlotQueries, LayerKV]:
        """A layer's attention, and its updated slot cache. `cache`: the layer's own, or of all layers, at `index`."""
        slot_kv, prefix_kv = cache
        if not self.separate_prefix:
            return attention.decode_attention(self._attention, q, k, v, slot_kv, index, at.positions, at.live)
        new_kv = attention.to_cache_dtype(k, v, slot_kv[0].dtype)
        slot_kv = attention.write_token(slot_kv, new_kv, self.position_axes, index, at.t)

        def select_layer(kv: LayerKV) -> LayerKV:
            return kv if index is None else tuple(c[index] for c in kv)

        keys, values = select_layer(slot_kv)
        mask = jnp.arange(values.shape[2])[None] <= at.t[:, None]
        prefix_mask = jnp.arange(self.prefix_length)[None] < (at.positions - at.t)[:, None]
        segments = [(keys, values, mask), (*select_layer(prefix_kv), prefix_mask)]
        return attention.attend_slots(q, segments), slot_kv
