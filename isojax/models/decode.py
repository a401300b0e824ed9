"""One token a slot: the decoder as the sampler runs it, over a cache of keys and values.

Layers are either unrolled, with weights and a cache of each layer's own, or stacked and scanned. On a CPU the scan
copies every layer's weights and cache out of their stacks at every token; unrolled it does not (docs/performance.md).
On an accelerator the scan keeps the program small.

Slots sit in lanes of W. With W = 1 a slot's cache holds its prompt (copied there at admission) and its response, by
position:

    keys [R K H C], values [R K C H], C = P + T

With W > 1 the W slots of a lane continue one prompt, whose keys and values the lane holds once; attention runs over the
two parts and merges them. That pays for long prompts; but a lane takes a new prompt only when all of its slots are
free.

    prefix keys [Z K H P], values [Z K P H], Z = R / W;    keys [R K H T], values [R K T H]

So they lie where a mesh splits the positions of prompts, whatever W: each device attends to its part of a prompt, and
what the devices add up are a token's sums. In a cache of prompt and response together, a token's place would be some
other device's.

Keys lie with positions last: a score is then a product along rows of the cache.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Bool, Float, Int

from isojax.distributed.sharding import with_logical_constraint
from isojax.models.attention import MASKED_SCORE, cache_positions, decode_attention, to_cache_dtype
from isojax.models.fsdp import matmul, small_batch_matmul
from isojax.models.transformer import Decoder, Params, rms_norm

LayerKV = tuple[Array, ...]  # keys, values, and of int8 ones their scales
POSITION_AXES = (-1, -2, -1, -1)  # their axes of positions
SMALL_HEAD_DIM, FEW_POSITIONS = 32, 32  # of heads up to the one, positions below the other, scores are sums of arrays


class KVCache(NamedTuple):
    """Of slots, and of lanes that share prompts (else empty): of each layer a `Layer`, or one of all layers,
    stacked.
    """

    slot_kv: Any
    prefix_kv: Any


def fold_slots(x: Float[Array, "R K G c"], prefix_groups: int) -> Float[Array, "Z K WG c"]:
    """The W slots of each lane beside one another, so that they meet the lane's prefix in one product."""
    R, K, G, c = x.shape
    return (
        x
        if prefix_groups == R
        else x.reshape(prefix_groups, R // prefix_groups, K, G, c).swapaxes(1, 2).reshape(prefix_groups, K, -1, c)
    )


def unfold_slots(x: Float[Array, "Z K WG c"], slots: int) -> Float[Array, "R K G c"]:
    """The inverse of `fold`."""
    Z, K, _, c = x.shape
    return x if slots == Z else x.reshape(Z, K, slots // Z, -1, c).swapaxes(1, 2).reshape(slots, K, -1, c)


def query_key_products(q: Float[Array, "Z K g H"], keys: Float[Array, "Z K H c"]) -> Float[Array, "Z K g c"]:
    """Each query's products with keys, in float32.

    Of small heads and few positions as sums of arrays, which XLA:CPU makes one loop of: a product of so small matrices
    takes longer.
    """
    H, c = keys.shape[2:]
    if H > SMALL_HEAD_DIM or c >= FEW_POSITIONS:
        return jnp.einsum("zkgh,zkhc->zkgc", q, keys, preferred_element_type=jnp.float32)
    q, keys = q.astype(jnp.float32), keys.astype(jnp.float32)
    return functools.reduce(jnp.add, [q[..., h, None] * keys[:, :, None, h] for h in range(H)])


def attend_slots(
    q: Float[Array, "R N H"], kv_segments: list[tuple[Array, Array, Bool[Array, "R c"]]]
) -> Float[Array, "R N H"]:
    """Attention of one query a slot over `parts`, each (keys [Z K H c], values [Z K c H], mask), of Z lanes of R / Z
    slots; in float32.
    """
    R, N, H = q.shape
    K = kv_segments[0][0].shape[1]
    q = q.reshape(R, K, N // K, H) * H**-0.5
    scores = []
    for keys, _, mask in kv_segments:
        s = query_key_products(fold_slots(q, len(keys)), keys)
        mask = jnp.broadcast_to(mask[:, None, None], (R, 1, N // K, mask.shape[-1]))
        scores.append(jnp.where(fold_slots(mask, len(keys)), s, MASKED_SCORE))
    max_score = functools.reduce(jnp.maximum, [unfold_slots(s.max(-1, keepdims=True), R) for s in scores])
    weighted_sums, normalizers = [], []
    for s, (_, values, _) in zip(scores, kv_segments, strict=True):
        w = jnp.exp(s - fold_slots(max_score, len(values)))
        normalizers.append(unfold_slots(w.sum(-1, keepdims=True), R))
        weighted_sums.append(
            unfold_slots(
                jnp.einsum("zkgc,zkch->zkgh", w.astype(values.dtype), values, preferred_element_type=jnp.float32), R
            )
        )
    return (
        (functools.reduce(jnp.add, weighted_sums) / functools.reduce(jnp.add, normalizers))
        .astype(q.dtype)
        .reshape(R, N, H)
    )


@dataclass(frozen=True)
class Decoding:
    """How R slots decode: lanes of `width` slots (W), prompts of `prefix` positions, responses of `responses` tokens,
    layers `unrolled` or stacked, prompts' positions `split` over devices or not, and where layers are unrolled their
    weights held `transposed` or not, for products of few rows on a CPU. Precision, and which attention where layers are
    stacked and a slot has one cache, are the decoder's options."""

    decoder: Decoder
    slots: int
    slots_per_prefix: int
    prefix_length: int
    response_length: int
    unrolled_layers: bool
    shard_positions: bool = False
    allow_transposed: bool = True

    @property
    def transpose_weights(self) -> bool:
        """Whether weights are held as their transposes."""
        return self.unrolled_layers and self.allow_transposed

    @property
    def separate_prefix(self) -> bool:
        """Whether prompts lie apart from responses."""
        return self.slots_per_prefix > 1 or self.shard_positions

    @property
    def prefix_groups(self) -> int:
        """Z: places that hold one prompt each."""
        return self.slots // self.slots_per_prefix

    def prepare_weights(self, params: Params) -> Params:
        """The parameters as `step` and `logits` read them: cast once; a table of rotary positions; and where layers are
        unrolled, a list of them, each matrix held as its transpose where slots are few."""
        cos_sin = self.decoder.cos_sin(jnp.arange(self.prefix_length + self.response_length))
        params = {**self.decoder.cast_params(params), "turns": cos_sin}
        if not self.unrolled_layers:
            return params
        layers = [jax.tree.map(lambda w, i=i: w[i], params["blocks"]) for i in range(self.decoder.config.layers)]
        params["blocks"] = (
            [self.decoder.to_output_major(layer) for layer in layers] if self.transpose_weights else layers
        )
        return (
            params
            if self.decoder.config.tied or not self.transpose_weights
            else {**params, "unembed": params["unembed"].T}
        )

    def weight_specs(self, param_specs: Params) -> Params:
        """How `weights` lie, by the PartitionSpecs of the parameters."""
        param_specs = {**param_specs, "turns": (Spec(), Spec())}
        if not self.unrolled_layers:
            return param_specs
        layer = {name: Spec(*spec[1:]) for name, spec in param_specs["blocks"].items()}
        param_specs["blocks"] = [
            self.decoder.output_major_specs(layer) if self.transpose_weights else layer
        ] * self.decoder.config.layers
        return (
            param_specs
            if self.decoder.config.tied or not self.transpose_weights
            else {**param_specs, "unembed": Spec(*reversed(param_specs["unembed"]))}
        )

    def logits(self, weights: Params, hidden: Float[Array, "R D"]) -> Float[Array, "R V"]:
        """Float32 logits of hidden states that `step` has made."""
        if not self.transpose_weights:
            return self.decoder.logits(weights, hidden)
        return small_batch_matmul(
            hidden, weights["embed" if self.decoder.config.tied else "unembed"].T, dtype=jnp.float32
        )

    def _to_cache_layers(self, keys: Array, values: Array) -> Any:
        """Keys and values [L b K c H] as layers of a cache."""
        k, v, *scales = to_cache_dtype(keys, values, self.decoder.options.cache_dtype)
        stacked = (k.swapaxes(-1, -2), v, *scales)
        return [tuple(x[i] for x in stacked) for i in range(len(k))] if self.unrolled_layers else stacked

    def _zero_cache(self, rows: int, positions: int, for_prefixes: bool = False) -> Any:
        config = self.decoder.config
        zeros = jnp.zeros(
            (config.layers, rows, config.kv_heads, positions, config.head_dim), self.decoder.options.compute_dtype
        )
        if for_prefixes:
            zeros = with_logical_constraint(zeros, ("layer", None, "kv_heads", "position", "head_dim"))
        return self._to_cache_layers(zeros, zeros)

    def empty_cache(self) -> KVCache:
        """Of R slots, zeros."""
        if not self.separate_prefix:
            return KVCache(
                self._zero_cache(
                    self.slots,
                    cache_positions(self.decoder.options.decode_attention, self.prefix_length + self.response_length),
                ),
                (),
            )
        return KVCache(
            self._zero_cache(self.slots, self.response_length),
            self._zero_cache(self.prefix_groups, self.prefix_length, for_prefixes=True),
        )

    def empty_prefix_table(self, entries: int) -> Any:
        """A table of prompts' keys and values, zeros."""
        return self._zero_cache(entries, self.prefix_length, for_prefixes=True)

    def prefill(
        self, params: Params, prompts: Int[Array, "g P"], lengths: Int[Array, " g"]
    ) -> tuple[Any, Float[Array, "g D"]]:
        """Keys and values of g prompts as a table's entries, and the hidden states of their last tokens; `params` as
        they came, stacked.
        """
        params = self.decoder.cast_params({k: w for k, w in params.items() if k != "turns"})
        prefix = self.decoder.prefill(params, prompts, lengths)
        return self._to_cache_layers(prefix.keys, prefix.values), prefix.last_hidden

    def store_entries(self, prefix_table: Any, entries: Any, first_entry: Int[Array, ""]) -> Any:
        """The table with these entries from `at` on."""
        axis = 0 if self.unrolled_layers else 1
        return jax.tree.map(
            lambda t, x: lax.dynamic_update_slice_in_dim(t, x, first_entry, axis), prefix_table, entries
        )

    def admit(
        self, cache: KVCache, prefix_table: Any, table_entry: Int[Array, " Z"], admit_mask: Bool[Array, " Z"]
    ) -> KVCache:
        """The cache with the table's entries copied into the lanes that are `chosen`."""
        rows = (table_entry,) if self.unrolled_layers else (slice(None), table_entry)

        def admit_layer(slot_layer: LayerKV, table_layer: LayerKV) -> LayerKV:
            admitted = []
            for old, new, positions in zip(slot_layer, table_layer, POSITION_AXES, strict=False):
                group_mask = admit_mask.reshape(-1, *(1,) * (new.ndim - len(rows)))
                current = lax.slice_in_dim(old, 0, self.prefix_length, axis=old.ndim + positions)
                admitted.append(
                    lax.dynamic_update_slice_in_dim(
                        old, jnp.where(group_mask, new[rows], current), 0, old.ndim + positions
                    )
                )
            return tuple(admitted)

        destination = cache.prefix_kv if self.separate_prefix else cache.slot_kv
        destination = (
            [admit_layer(c, t) for c, t in zip(destination, prefix_table, strict=True)]
            if self.unrolled_layers
            else admit_layer(destination, prefix_table)
        )
        return cache._replace(prefix_kv=destination) if self.separate_prefix else cache._replace(slot_kv=destination)

    def step(
        self,
        weights: Params,
        cache: KVCache,
        tokens: Int[Array, " R"],
        positions: Int[Array, " R"],
        t: Int[Array, " R"],
    ) -> tuple[Float[Array, "R D"], KVCache]:
        """One token a slot, at `positions` of its sequence, the t-th of its response: hidden states, and the cache with
        it.
        """
        cos_sin = jax.tree.map(lambda table: table[positions][:, None], weights["turns"])
        x = weights["embed"][tokens][:, None]
        attend = self._attend_separate_prefix if self.separate_prefix else self._attend_joint_cache
        product = small_batch_matmul if self.transpose_weights else matmul

        def run_layer(
            x: Array, weights: Params, slot_kv: LayerKV, prefix_kv: LayerKV, i: Array | None
        ) -> tuple[Array, LayerKV]:
            block = self.decoder.bind_block(
                self.decoder.from_output_major(weights) if self.transpose_weights else weights
            )
            q, k, v = block.project_qkv(x, cos_sin, product)
            attention_out, slot_kv = attend(q[:, 0], k[:, :, 0], v[:, :, 0], slot_kv, prefix_kv, i, positions, t)
            return block.attention_output_and_mlp(x, attention_out[:, None], product), slot_kv

        if self.unrolled_layers:
            new_layers = []
            for i, (layer_weights, slot_kv) in enumerate(zip(weights["blocks"], cache.slot_kv, strict=True)):
                x, slot_kv = run_layer(
                    x, layer_weights, slot_kv, cache.prefix_kv[i] if self.separate_prefix else (), None
                )
                new_layers.append(slot_kv)
        else:

            def scan_layer(
                carry: tuple[Array, LayerKV, Array], weights: Params
            ) -> tuple[tuple[Array, LayerKV, Array], None]:
                x, slot_kv, i = carry
                return (*run_layer(x, weights, slot_kv, cache.prefix_kv, i), i + 1), None

            (x, new_layers, _), _ = lax.scan(scan_layer, (x, cache.slot_kv, jnp.int32(0)), weights["blocks"])
        return rms_norm(x[:, 0], weights["norm"], self.decoder.config.norm_eps), KVCache(new_layers, cache.prefix_kv)

    def _attend_joint_cache(
        self,
        q: Array,
        k: Array,
        v: Array,
        slot_kv: LayerKV,
        prefix_kv: LayerKV,
        i: Array | None,
        positions: Array,
        t: Array,
    ) -> tuple[Array, LayerKV]:
        """With prompt and response in the slot's own cache, by position."""
        if i is not None:
            return decode_attention(self.decoder.options.decode_attention, q, k, v, slot_kv, i, positions)
        slot_kv = _write_token(slot_kv, k, v, None, positions)
        mask = jnp.arange(slot_kv[1].shape[2])[None] <= positions[:, None]
        return attend_slots(q, [(slot_kv[0], slot_kv[1], mask)]), slot_kv

    def _attend_separate_prefix(
        self,
        q: Array,
        k: Array,
        v: Array,
        slot_kv: LayerKV,
        prefix_kv: LayerKV,
        i: Array | None,
        positions: Array,
        t: Array,
    ) -> tuple[Array, LayerKV]:
        """With the response in the slot's own cache, and the prompt in the lane's."""
        slot_kv = _write_token(slot_kv, k, v, i, t)
        response_layer, prompt_layer = (
            (slot_kv, prefix_kv) if i is None else (tuple(c[i] for c in slot_kv), tuple(c[i] for c in prefix_kv))
        )
        response_segment = response_layer[0], response_layer[1], jnp.arange(self.response_length)[None] <= t[:, None]
        prompt_segment = (
            prompt_layer[0],
            prompt_layer[1],
            jnp.arange(self.prefix_length)[None] < (positions - t)[:, None],
        )
        return attend_slots(q, [response_segment, prompt_segment]), slot_kv


def _write_token(
    slot_kv: LayerKV, k: Float[Array, "R K H"], v: Float[Array, "R K H"], i: Array | None, positions: Int[Array, " R"]
) -> LayerKV:
    """The cache with each slot's new key and value at its place `at`.

    Written before it is read: XLA then works in place, where reading first made it copy the whole cache in every layer.
    """
    layer_index = () if i is None else (i,)
    rows = jnp.arange(len(positions))
    keys = slot_kv[0].at[(*layer_index, rows, slice(None), slice(None), positions)].set(k.astype(slot_kv[0].dtype))
    return keys, slot_kv[1].at[(*layer_index, rows, slice(None), positions)].set(v.astype(slot_kv[1].dtype))
