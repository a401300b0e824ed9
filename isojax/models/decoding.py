"""One token a slot: the decoder as the sampler runs it, over a cache of keys and values.

Layers are either unrolled, with weights and a cache of each layer's own, or stacked and scanned. On a CPU the scan copies every
layer's weights and cache out of their stacks at every token; unrolled it does not (docs/performance.md). On an accelerator the scan
keeps the program small.

Slots sit in lanes of W. With W = 1 a slot's cache holds its prompt (copied there at admission) and its response, by position:

    keys [R K H C], values [R K C H], C = P + T

With W > 1 the W slots of a lane continue one prompt, whose keys and values the lane holds once; attention runs over the two parts and
merges them. That pays for long prompts; but a lane takes a new prompt only when all of its slots are free.

    prefix keys [Z K H P], values [Z K P H], Z = R / W;    keys [R K H T], values [R K T H]

So they lie where a mesh splits the positions of prompts, whatever W: each device attends to its part of a prompt, and what the devices
add up are a token's sums. In a cache of prompt and response together, a token's place would be some other device's.

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

from isojax.models.attention import NEVER, cache_positions, cached, decode_attention
from isojax.models.decoder import Decoder, Params, rms_norm
from isojax.models.parts import product, product_of_few
from isojax.sharding import laid

Layer = tuple[Array, ...]  # keys, values, and of int8 ones their scales
POSITIONS = (-1, -2, -1, -1)  # their axes of positions
SMALL_HEAD, FEW_POSITIONS = 32, 32  # of heads up to the one, positions below the other, scores are sums of arrays


class Cache(NamedTuple):
    """Of slots, and of lanes that share prompts (else empty): of each layer a `Layer`, or one of all layers, stacked."""

    own: Any
    shared: Any


def fold(x: Float[Array, "R K G c"], lanes: int) -> Float[Array, "Z K WG c"]:
    """The W slots of each lane beside one another, so that they meet the lane's prefix in one product."""
    R, K, G, c = x.shape
    return x if lanes == R else x.reshape(lanes, R // lanes, K, G, c).swapaxes(1, 2).reshape(lanes, K, -1, c)


def unfold(x: Float[Array, "Z K WG c"], slots: int) -> Float[Array, "R K G c"]:
    """The inverse of `fold`."""
    Z, K, _, c = x.shape
    return x if slots == Z else x.reshape(Z, K, slots // Z, -1, c).swapaxes(1, 2).reshape(slots, K, -1, c)


def slot_scores(q: Float[Array, "Z K g H"], keys: Float[Array, "Z K H c"]) -> Float[Array, "Z K g c"]:
    """Each query's products with keys, in float32.

    Of small heads and few positions as sums of arrays, which XLA:CPU makes one loop of: a product of so small matrices takes longer.
    """
    H, c = keys.shape[2:]
    if H > SMALL_HEAD or c >= FEW_POSITIONS:
        return jnp.einsum("zkgh,zkhc->zkgc", q, keys, preferred_element_type=jnp.float32)
    q, keys = q.astype(jnp.float32), keys.astype(jnp.float32)
    return functools.reduce(jnp.add, [q[..., h, None] * keys[:, :, None, h] for h in range(H)])


def attend_slots(q: Float[Array, "R N H"], parts: list[tuple[Array, Array, Bool[Array, "R c"]]]) -> Float[Array, "R N H"]:
    """Attention of one query a slot over `parts`, each (keys [Z K H c], values [Z K c H], mask), of Z lanes of R / Z slots; in float32."""
    R, N, H = q.shape
    K = parts[0][0].shape[1]
    q = q.reshape(R, K, N // K, H) * H**-0.5
    scores = []
    for keys, _, seen in parts:
        s = slot_scores(fold(q, len(keys)), keys)
        seen = jnp.broadcast_to(seen[:, None, None], (R, 1, N // K, seen.shape[-1]))
        scores.append(jnp.where(fold(seen, len(keys)), s, NEVER))
    top = functools.reduce(jnp.maximum, [unfold(s.max(-1, keepdims=True), R) for s in scores])
    mixed, total = [], []
    for s, (_, values, _) in zip(scores, parts, strict=True):
        w = jnp.exp(s - fold(top, len(values)))
        total.append(unfold(w.sum(-1, keepdims=True), R))
        mixed.append(unfold(jnp.einsum("zkgc,zkch->zkgh", w.astype(values.dtype), values, preferred_element_type=jnp.float32), R))
    return (functools.reduce(jnp.add, mixed) / functools.reduce(jnp.add, total)).astype(q.dtype).reshape(R, N, H)


@dataclass(frozen=True)
class Decoding:
    """How R slots decode: lanes of `width` slots (W), prompts of `prefix` positions, responses of `responses` tokens, layers `unrolled` or
    stacked, prompts' positions `split` over devices or not, and where layers are unrolled their weights held `transposed` or not, for
    products of few rows on a CPU. Precision, and which attention where layers are stacked and a slot has one cache, are the decoder's
    options."""

    decoder: Decoder
    slots: int
    width: int
    prefix: int
    responses: int
    unrolled: bool
    split: bool = False
    transposed: bool = True

    @property
    def few(self) -> bool:
        """Whether weights are held as their transposes."""
        return self.unrolled and self.transposed

    @property
    def apart(self) -> bool:
        """Whether prompts lie apart from responses."""
        return self.width > 1 or self.split

    @property
    def lanes(self) -> int:
        """Z: places that hold one prompt each."""
        return self.slots // self.width

    def weights(self, params: Params) -> Params:
        """The parameters as `step` and `logits` read them: cast once; a table of rotary positions; and where layers are unrolled, a list
        of them, each matrix held as its transpose where slots are few."""
        turns = self.decoder.turned(jnp.arange(self.prefix + self.responses))
        params = {**self.decoder.cast(params), "turns": turns}
        if not self.unrolled:
            return params
        layers = [jax.tree.map(lambda w, i=i: w[i], params["blocks"]) for i in range(self.decoder.config.layers)]
        params["blocks"] = [self.decoder.outputs_first(layer) for layer in layers] if self.few else layers
        return params if self.decoder.config.tied or not self.few else {**params, "unembed": params["unembed"].T}

    def specs(self, given: Params) -> Params:
        """How `weights` lie, by the PartitionSpecs of the parameters."""
        given = {**given, "turns": (Spec(), Spec())}
        if not self.unrolled:
            return given
        layer = {name: Spec(*spec[1:]) for name, spec in given["blocks"].items()}
        given["blocks"] = [self.decoder.outputs_first_specs(layer) if self.few else layer] * self.decoder.config.layers
        return given if self.decoder.config.tied or not self.few else {**given, "unembed": Spec(*reversed(given["unembed"]))}

    def logits(self, weights: Params, hidden: Float[Array, "R D"]) -> Float[Array, "R V"]:
        """Float32 logits of hidden states that `step` has made."""
        if not self.few:
            return self.decoder.logits(weights, hidden)
        return product_of_few(hidden, weights["embed" if self.decoder.config.tied else "unembed"].T, dtype=jnp.float32)

    def _entries(self, keys: Array, values: Array) -> Any:
        """Keys and values [L b K c H] as layers of a cache."""
        k, v, *scales = cached(keys, values, self.decoder.options.cache)
        stacked = (k.swapaxes(-1, -2), v, *scales)
        return [tuple(x[i] for x in stacked) for i in range(len(k))] if self.unrolled else stacked

    def _zeros(self, rows: int, positions: int, of_prompts: bool = False) -> Any:
        config = self.decoder.config
        zeros = jnp.zeros((config.layers, rows, config.kv_heads, positions, config.head_dim), self.decoder.options.compute)
        if of_prompts:
            zeros = laid(zeros, ("layer", None, "kv_heads", "position", "head_dim"))
        return self._entries(zeros, zeros)

    def empty_cache(self) -> Cache:
        """Of R slots, zeros."""
        if not self.apart:
            return Cache(self._zeros(self.slots, cache_positions(self.decoder.options.decode, self.prefix + self.responses)), ())
        return Cache(self._zeros(self.slots, self.responses), self._zeros(self.lanes, self.prefix, of_prompts=True))

    def empty_table(self, entries: int) -> Any:
        """A table of prompts' keys and values, zeros."""
        return self._zeros(entries, self.prefix, of_prompts=True)

    def prefill(self, params: Params, prompts: Int[Array, "g P"], lengths: Int[Array, " g"]) -> tuple[Any, Float[Array, "g D"]]:
        """Keys and values of g prompts as a table's entries, and the hidden states of their last tokens; `params` as they came, stacked."""
        params = self.decoder.cast({k: w for k, w in params.items() if k != "turns"})
        prefix = self.decoder.prefill(params, prompts, lengths)
        return self._entries(prefix.keys, prefix.values), prefix.last

    def store(self, table: Any, entries: Any, at: Int[Array, ""]) -> Any:
        """The table with these entries from `at` on."""
        axis = 0 if self.unrolled else 1
        return jax.tree.map(lambda t, x: lax.dynamic_update_slice_in_dim(t, x, at, axis), table, entries)

    def admit(self, cache: Cache, table: Any, entry: Int[Array, " Z"], chosen: Bool[Array, " Z"]) -> Cache:
        """The cache with the table's entries copied into the lanes that are `chosen`."""
        rows = (entry,) if self.unrolled else (slice(None), entry)

        def layer(cache: Layer, table: Layer) -> Layer:
            admitted = []
            for old, new, positions in zip(cache, table, POSITIONS, strict=False):
                taken = chosen.reshape(-1, *(1,) * (new.ndim - len(rows)))
                kept = lax.slice_in_dim(old, 0, self.prefix, axis=old.ndim + positions)
                admitted.append(lax.dynamic_update_slice_in_dim(old, jnp.where(taken, new[rows], kept), 0, old.ndim + positions))
            return tuple(admitted)

        into = cache.shared if self.apart else cache.own
        into = [layer(c, t) for c, t in zip(into, table, strict=True)] if self.unrolled else layer(into, table)
        return cache._replace(shared=into) if self.apart else cache._replace(own=into)

    def step(
        self, weights: Params, cache: Cache, tokens: Int[Array, " R"], positions: Int[Array, " R"], t: Int[Array, " R"]
    ) -> tuple[Float[Array, "R D"], Cache]:
        """One token a slot, at `positions` of its sequence, the t-th of its response: hidden states, and the cache with it."""
        turns = jax.tree.map(lambda table: table[positions][:, None], weights["turns"])
        x = weights["embed"][tokens][:, None]
        attend = self._attend_apart if self.apart else self._attend_own
        multiply = product_of_few if self.few else product

        def layer(x: Array, weights: Params, own: Layer, shared: Layer, i: Array | None) -> tuple[Array, Layer]:
            block = self.decoder.block(self.decoder.inputs_first(weights) if self.few else weights)
            q, k, v = block.project(x, turns, multiply)
            attended, own = attend(q[:, 0], k[:, :, 0], v[:, :, 0], own, shared, i, positions, t)
            return block.finish(x, attended[:, None], multiply), own

        if self.unrolled:
            written = []
            for i, (layer_weights, own) in enumerate(zip(weights["blocks"], cache.own, strict=True)):
                x, own = layer(x, layer_weights, own, cache.shared[i] if self.apart else (), None)
                written.append(own)
        else:

            def scanned(carry: tuple[Array, Layer, Array], weights: Params) -> tuple[tuple[Array, Layer, Array], None]:
                x, own, i = carry
                return (*layer(x, weights, own, cache.shared, i), i + 1), None

            (x, written, _), _ = lax.scan(scanned, (x, cache.own, jnp.int32(0)), weights["blocks"])
        return rms_norm(x[:, 0], weights["norm"], self.decoder.config.norm_eps), Cache(written, cache.shared)

    def _attend_own(
        self, q: Array, k: Array, v: Array, own: Layer, shared: Layer, i: Array | None, positions: Array, t: Array
    ) -> tuple[Array, Layer]:
        """With prompt and response in the slot's own cache, by position."""
        if i is not None:
            return decode_attention(self.decoder.options.decode, q, k, v, own, i, positions)
        own = _written(own, k, v, None, positions)
        seen = jnp.arange(own[1].shape[2])[None] <= positions[:, None]
        return attend_slots(q, [(own[0], own[1], seen)]), own

    def _attend_apart(
        self, q: Array, k: Array, v: Array, own: Layer, shared: Layer, i: Array | None, positions: Array, t: Array
    ) -> tuple[Array, Layer]:
        """With the response in the slot's own cache, and the prompt in the lane's."""
        own = _written(own, k, v, i, t)
        here, prompt = (own, shared) if i is None else (tuple(c[i] for c in own), tuple(c[i] for c in shared))
        of_response = here[0], here[1], jnp.arange(self.responses)[None] <= t[:, None]
        of_prompt = prompt[0], prompt[1], jnp.arange(self.prefix)[None] < (positions - t)[:, None]
        return attend_slots(q, [of_response, of_prompt]), own


def _written(own: Layer, k: Float[Array, "R K H"], v: Float[Array, "R K H"], i: Array | None, at: Int[Array, " R"]) -> Layer:
    """The cache with each slot's new key and value at its place `at`.

    Written before it is read: XLA then works in place, where reading first made it copy the whole cache in every layer.
    """
    layer = () if i is None else (i,)
    rows = jnp.arange(len(at))
    keys = own[0].at[(*layer, rows, slice(None), slice(None), at)].set(k.astype(own[0].dtype))
    return keys, own[1].at[(*layer, rows, slice(None), at)].set(v.astype(own[1].dtype))
