"""One token a slot: the decoder as the sampler runs it, over a cache of keys and values.

Layers are either unrolled, with weights and a cache of each layer's own, or stacked and scanned. On a CPU the scan copies every
layer's weights and cache out of their stacks at every token; unrolled it does not (docs/performance.md). On an accelerator the scan
keeps the program small.

Slots sit in lanes of W. With W = 1 a slot's cache holds its prompt (copied there at admission) and its response, by position:

    keys [R K H C], values [R K C H], C = P + T

With W > 1 the W slots of a lane continue one prompt, whose keys and values the lane holds once; attention runs over the two parts and
merges them. That pays for long prompts; but a lane takes a new prompt only when all of its slots are free.

    prefix keys [Z K H P-1], values [Z K P-1 H], Z = R / W;    keys [R K H T], values [R K T H]

Keys lie with positions last: a score is then a product along rows of the cache.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from isojax.models.attention import NEVER
from isojax.models.decoder import Decoder, Params, rms_norm

POSITIONS = {"keys": -1, "values": -2}  # their axis of positions
Cache = Any  # of each layer (or of all, stacked) {"keys", "values"} and, where lanes share prompts, {"prefix_keys", "prefix_values"}


def fold(x: Float[Array, "R K G c"], lanes: int) -> Float[Array, "Z K WG c"]:
    """The W slots of each lane beside one another, so that they meet the lane's prefix in one product."""
    R, K, G, c = x.shape
    return x if lanes == R else x.reshape(lanes, R // lanes, K, G, c).swapaxes(1, 2).reshape(lanes, K, -1, c)


def unfold(x: Float[Array, "Z K WG c"], slots: int) -> Float[Array, "R K G c"]:
    """The inverse of `fold`."""
    Z, K, _, c = x.shape
    return x if slots == Z else x.reshape(Z, K, slots // Z, -1, c).swapaxes(1, 2).reshape(slots, K, -1, c)


def attend_slots(q: Float[Array, "R N H"], parts: list[tuple[Array, Array, Bool[Array, "R c"]]]) -> Float[Array, "R N H"]:
    """Attention of one query a slot over `parts`, each (keys [Z K H c], values [Z K c H], mask), of Z lanes of R / Z slots; in float32."""
    R, N, H = q.shape
    K = parts[0][0].shape[1]
    q = q.reshape(R, K, N // K, H) * H**-0.5
    scores = []
    for keys, _, seen in parts:
        s = jnp.einsum("zkgh,zkhc->zkgc", fold(q, len(keys)), keys, preferred_element_type=jnp.float32)
        scores.append(jnp.where(seen[:, None, None], unfold(s, R), NEVER))
    top = functools.reduce(jnp.maximum, [s.max(-1, keepdims=True) for s in scores])
    weights = [jnp.exp(s - top) for s in scores]
    total = functools.reduce(jnp.add, [w.sum(-1, keepdims=True) for w in weights])
    mixed = [
        unfold(jnp.einsum("zkgc,zkch->zkgh", fold(w.astype(v.dtype), len(v)), v, preferred_element_type=jnp.float32), R)
        for w, (_, v, _) in zip(weights, parts, strict=True)
    ]
    return (functools.reduce(jnp.add, mixed) / total).astype(q.dtype).reshape(R, N, H)


@dataclass(frozen=True)
class Decoding:
    """How R slots decode: the decoder, lanes of `width` slots (W), prompts of `prefix` positions before their last token, responses of
    `responses` tokens; `unrolled` or stacked layers; weights and cache in `dtype`."""

    decoder: Decoder
    slots: int
    width: int
    prefix: int
    responses: int
    unrolled: bool
    dtype: Any = jnp.float32

    @property
    def lanes(self) -> int:
        """Z: places that hold one prompt each."""
        return self.slots // self.width

    def weights(self, params: Params) -> Params:
        """The parameters as `step` reads them: cast once, a list of layers where they are unrolled; and a table of rotary positions."""
        turns = self.decoder.turned(jnp.arange(self.prefix + 1 + self.responses))
        params = {**jax.tree.map(lambda w: w.astype(self.dtype), params), "turns": turns}
        if not self.unrolled:
            return params
        layers = [jax.tree.map(lambda w, i=i: w[i], params["blocks"]) for i in range(self.decoder.config.layers)]
        return {**params, "blocks": layers}

    def _zeros(self, rows: int, positions: int, prefix: str = "") -> Cache:
        config = self.decoder.config
        shape = (rows, config.kv_heads)

        def layer(*stack: int) -> dict[str, Array]:
            keys, values = (*stack, *shape, config.head_dim, positions), (*stack, *shape, positions, config.head_dim)
            return {f"{prefix}keys": jnp.zeros(keys, self.dtype), f"{prefix}values": jnp.zeros(values, self.dtype)}

        return [layer() for _ in range(config.layers)] if self.unrolled else layer(config.layers)

    def empty_cache(self) -> Cache:
        """Of R slots, zeros."""
        if self.width == 1:
            return self._zeros(self.slots, self.prefix + 1 + self.responses)
        own, shared = self._zeros(self.slots, self.responses), self._zeros(self.lanes, self.prefix, "prefix_")
        return [a | b for a, b in zip(own, shared, strict=True)] if self.unrolled else own | shared

    def empty_table(self, entries: int) -> Cache:
        """A table of prompts' keys and values, zeros."""
        return self._zeros(entries, self.prefix)

    def prefill(self, params: Params, prompts: Int[Array, "g P"]) -> Cache:
        """Keys and values of g prompts but for their last tokens, as a table's entries; `params` stacked."""
        keys, values = self.decoder.prefix_cache(params, prompts)
        keys = keys.swapaxes(-1, -2)
        if self.unrolled:
            return [{"keys": k, "values": v} for k, v in zip(keys, values, strict=True)]
        return {"keys": keys, "values": values}

    @property
    def _rows(self) -> tuple[slice, ...]:
        """What stands before the axis of slots, lanes or entries."""
        return () if self.unrolled else (slice(None),)

    def store(self, table: Cache, entries: Cache, at: Int[Array, ""]) -> Cache:
        """The table with these entries from `at` on."""
        return jax.tree.map(lambda t, x: lax.dynamic_update_slice_in_dim(t, x, at, len(self._rows)), table, entries)

    def admit(self, cache: Cache, table: Cache, entry: Int[Array, " Z"], chosen: Bool[Array, " Z"]) -> Cache:
        """The cache with the table's entries copied into the lanes that are `chosen`."""
        prefix = "prefix_" if self.width > 1 else ""

        def layer(cache: dict[str, Array], table: dict[str, Array]) -> dict[str, Array]:
            admitted = dict(cache)
            for part, axis in POSITIONS.items():
                old = cache[prefix + part]
                kept = lax.slice_in_dim(old, 0, self.prefix, axis=old.ndim + axis)
                given = jnp.where(chosen.reshape(-1, 1, 1, 1), table[part][(*self._rows, entry)], kept)
                admitted[prefix + part] = lax.dynamic_update_slice_in_dim(old, given, 0, old.ndim + axis)
            return admitted

        return [layer(c, t) for c, t in zip(cache, table, strict=True)] if self.unrolled else layer(cache, table)

    def step(
        self, weights: Params, cache: Cache, tokens: Int[Array, " R"], positions: Int[Array, " R"], t: Int[Array, " R"]
    ) -> tuple[Float[Array, "R D"], Cache]:
        """One token a slot, at `positions` of its sequence, the t-th input of its response: hidden states, and the cache with it."""
        at = positions if self.width == 1 else t
        rows = jnp.arange(self.slots)
        own = jnp.arange(self.prefix + 1 + self.responses if self.width == 1 else self.responses)[None] <= at[:, None]
        shared = jnp.arange(self.prefix)[None] < (positions - t)[:, None]

        def attention(cache: dict[str, Array], q: Array) -> Array:
            parts = [(cache["keys"], cache["values"], own)]
            if self.width > 1 and self.prefix:
                parts.append((cache["prefix_keys"], cache["prefix_values"], shared))
            return attend_slots(q[:, 0], parts)[:, None]

        def layer(x: Array, weights: Params, cache: dict[str, Array], i: tuple[Any, ...]) -> tuple[Array, dict[str, Array]]:
            block = self.decoder.block(weights)
            q, k, v = block.project(x, turns)
            # Written before it is read: XLA then works in place, where reading first made it copy the whole cache in every layer.
            keys = cache["keys"].at[(*i, rows, slice(None), slice(None), at)].set(k[:, :, 0])
            values = cache["values"].at[(*i, rows, slice(None), at)].set(v[:, :, 0])
            cache = cache | {"keys": keys, "values": values}
            return block.finish(x, attention({k: c[i] for k, c in cache.items()} if i else cache, q)), cache

        turns = jax.tree.map(lambda table: table[positions][:, None], weights["turns"])
        x = weights["embed"][tokens][:, None]
        if self.unrolled:
            filled = []
            for layer_weights, layer_cache in zip(weights["blocks"], cache, strict=True):
                x, layer_cache = layer(x, layer_weights, layer_cache, ())
                filled.append(layer_cache)
            cache = filled
        else:

            def scanned(carry: tuple[Array, Cache, Array], weights: Params) -> tuple[tuple[Array, Cache, Array], None]:
                x, cache, i = carry
                return (*layer(x, weights, cache, (i,)), i + 1), None

            (x, cache, _), _ = lax.scan(scanned, (x, cache, jnp.int32(0)), weights["blocks"])
        return rms_norm(x[:, 0], weights["norm"], self.decoder.config.norm_eps), cache
