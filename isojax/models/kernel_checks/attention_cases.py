"""The two attentions on inputs that show mistakes at the borders of blocks, masks and windows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from isojax.models.attention import self_attention
from isojax.models.attention_calls import (
    AttentionShape,
    DecodeAttentionShape,
    SelfAttentionShape,
)
from isojax.models.cache_attention import (
    KVArrays,
    SlotPositions,
    cache_positions,
    decode_attention,
    live_blocks,
    move_positions,
    position_axes,
    to_cache_dtype,
)
from isojax.models.kernel_checks.kernel_errors import KernelCase
from isojax.models.kernels.prefix import PrefixKV
from isojax.models.kv_ring import ring_positions

UNIT = 128  # positions; blocks of all kernels are multiples of it
BORDER_SCALE = 16.0  # of values at the borders of blocks
UNSEEN_SCALE = 64.0  # of values that no query may see
MAX_ROWS = 8  # that are compared
MAX_SCORES = 2**27  # that array code holds in float32: half a GiB
MAX_CACHE_NUMBERS = 2**27  # of keys, and of values

TOKENS_PER_SLOT = 4  # that a slot decodes: from two before a border to one behind it
REFILL_AT = 2  # before which token the last slot starts again with another text


def case_of(shape: AttentionShape) -> KernelCase:
    """The comparison at a run's shape, with fewer rows and positions where those are many."""
    if isinstance(shape, SelfAttentionShape):
        return SelfAttentionCase(_smaller_update(shape))
    return DecodeCase(_smaller_cache(shape))


def _smaller_update(shape: SelfAttentionShape) -> SelfAttentionShape:
    """The shape with MAX_ROWS at most, and halves of its positions until scores fit in memory."""
    rows = min(shape.rows, MAX_ROWS)
    positions = shape.positions
    prefix_length = shape.prefix_length
    while rows * shape.heads * positions * (positions + prefix_length) > MAX_SCORES:
        if rows > 2:
            rows //= 2
        else:
            positions, prefix_length = -(-positions // 2), prefix_length // 2
    return replace(shape, rows=rows, positions=positions, prefix_length=prefix_length)


def _smaller_cache(shape: DecodeAttentionShape) -> DecodeAttentionShape:
    """The shape with fewer rows: MAX_ROWS, and fewer where the cache is large."""
    row_numbers = shape.kv_heads * shape.head_dim * cache_positions("pallas", shape.held_positions)
    rows = min(shape.rows, MAX_ROWS, max(1, MAX_CACHE_NUMBERS // row_numbers))
    return replace(shape, rows=rows)


def border_scales(positions: int) -> Array:
    """The scale of each position's values: BORDER_SCALE at 0 and around multiples of UNIT."""
    index = np.arange(positions)
    from_border = np.minimum(index % UNIT, -index % UNIT)
    return jnp.asarray(np.where(from_border <= 1, BORDER_SCALE, 1.0), jnp.float32)


def scale_values(values: Float[Array, "*b c H"], scales: Float[Array, "*_ c"]) -> Array:
    """Multiply each position's values by its scale. Scales are [c], or [R 1 c] of values
    [(L) R K c H]."""
    leading = (1,) * (values.ndim - scales.ndim - 1)
    return values * scales.reshape(*leading, *scales.shape, 1)


def spread_lengths(rows: int, longest: int) -> Array:
    """A length for each row: the whole, those around borders of blocks, then others between."""
    borders = [UNIT * (longest // UNIT), UNIT * (longest // UNIT // 2), UNIT]
    candidates = [longest, 1]
    for border in borders:
        candidates += [border - 1, border, border + 1]
    candidates += [longest * (i + 1) // (rows + 1) for i in range(rows)]
    possible = dict.fromkeys(length for length in candidates if 1 <= length <= longest)
    # there may be fewer lengths than rows
    lengths = [list(possible)[i % len(possible)] for i in range(rows)] if possible else [0] * rows
    return jnp.asarray(lengths, jnp.int32)


@dataclass(frozen=True)
class SelfAttentionCase:
    """Rows after prompts of several lengths: what comes out, and the gradient of every input."""

    shape: SelfAttentionShape

    @property
    def is_float32(self) -> bool:
        return self.shape.dtype == "float32"

    def outputs(self, implementation: str, in_float32: bool, key: Array) -> Mapping[str, Array]:
        """As of `KernelCase`; vectors of head_dim numbers."""
        shape = self.shape
        P = shape.prefix_length
        lengths = spread_lengths(shape.rows, P)
        q, k, v, prefix_keys, prefix_values, cotangent = self._random_arrays(key)

        v = scale_values(v, border_scales(shape.positions))
        is_seen = jnp.arange(P)[None] < lengths[:, None]
        prefix_scales = jnp.where(is_seen, border_scales(P)[None], UNSEEN_SCALE)
        prefix_values = scale_values(prefix_values, prefix_scales[:, None])

        def attention(q: Array, k: Array, v: Array, prompt_k: Array, prompt_v: Array) -> Array:
            prefix = PrefixKV(prompt_k, prompt_v, lengths)
            return self_attention(implementation, q, k, v, prefix, shape.window)

        # Rounded to the run's precision in any case: float32 has the same inputs.
        dtype = jnp.dtype("float32" if in_float32 else shape.dtype)
        arrays = (q, k, v, prefix_keys, prefix_values, cotangent)
        *inputs, cotangent = (x.astype(shape.dtype).astype(dtype) for x in arrays)
        out, vjp = jax.vjp(attention, *inputs)
        gradients = vjp(cotangent)

        names = ("queries", "keys", "values", "prompt keys", "prompt values")
        outputs = {"mixed values": out}
        for name, gradient in zip(names, gradients, strict=True):
            if gradient.size:  # a prompt may have no positions
                outputs[f"gradient of {name}"] = gradient
        return outputs

    def _random_arrays(self, key: Array) -> list[Array]:
        """Queries, keys and values, those of prompts, and a cotangent of the queries' shape."""
        shape = self.shape
        queries = (shape.rows, shape.positions, shape.heads, shape.head_dim)
        of_rows = (shape.rows, shape.kv_heads, shape.positions, shape.head_dim)
        of_prompts = (shape.rows, shape.kv_heads, shape.prefix_length, shape.head_dim)
        shapes = (queries, of_rows, of_rows, of_prompts, of_prompts, queries)
        return [jax.random.normal(jax.random.fold_in(key, i), x) for i, x in enumerate(shapes)]


@dataclass(frozen=True)
class DecodePlan:
    """At which position each slot decodes, and where a slot starts again."""

    positions: np.ndarray  # of each token [TOKENS_PER_SLOT, rows]
    refilled_slot: int

    @property
    def prompt_length(self) -> int:
        """Of the text with which the slot starts again."""
        return int(self.positions[REFILL_AT, self.refilled_slot])


def plan_decoding(rows: int, positions: int) -> DecodePlan:
    """Begin slots at the text's start and end, and two before borders of blocks.

    The last slot is moved to a shorter text while it decodes."""
    last_start = max(0, positions - TOKENS_PER_SLOT)
    borders = range(UNIT, positions, UNIT)
    starts = [last_start, *(border - 2 for border in borders), 0, positions // 2]
    possible = [start for start in dict.fromkeys(starts) if 0 <= start <= last_start]
    # Evenly out of all of them where there are more than slots; the end is always there.
    stride = max(1, len(possible) // rows)
    chosen = possible[::stride]
    first = np.array([chosen[i % len(chosen)] for i in range(rows)])
    steps = np.arange(TOKENS_PER_SLOT)[:, None]
    plan = np.minimum(first[None] + steps, positions - 1)

    refilled_slot = 0  # it is at the end of the longest text
    shorter = min(UNIT + 1, plan[REFILL_AT, refilled_slot] // 2)
    plan[REFILL_AT:, refilled_slot] = np.minimum(
        shorter + np.arange(TOKENS_PER_SLOT - REFILL_AT), positions - 1
    )
    return DecodePlan(plan, refilled_slot)


@dataclass(frozen=True)
class DecodeCase:
    """Slots that decode some tokens each: what comes out of each, and what the cache holds then."""

    shape: DecodeAttentionShape

    @property
    def is_float32(self) -> bool:
        return self.shape.dtype == "float32"

    def outputs(self, implementation: str, in_float32: bool, key: Array) -> Mapping[str, Array]:
        """As of `KernelCase`; vectors of head_dim numbers, those of the cache by key head."""
        shape = self.shape
        plan = plan_decoding(shape.rows, shape.positions)
        keys_of_parts = jax.random.split(key, 3)
        precision = Precision(shape, in_float32)
        empty_cache = self._before_decoding(plan, keys_of_parts[0])
        cache = precision.to_cache(*empty_cache, implementation)
        prompt = precision.to_cache(*self._prompt(plan, keys_of_parts[1]), implementation)
        tokens = precision.round_all(self._tokens(keys_of_parts[2]))

        def decode(cache: KVArrays, token: Any) -> tuple[KVArrays, Array]:
            """One token of each slot; before it, one slot may start again."""
            step, positions, q, k, v = token
            cache = lax.cond(
                step == REFILL_AT,
                lambda x: self._refill(x, prompt, plan, implementation),
                lambda x: x,
                cache,
            )
            at = SlotPositions(positions, positions)
            if shape.held_positions < shape.positions:
                at = ring_positions(positions, shape.held_positions)
            layer = None if shape.unrolled else jnp.int32(1)
            live = live_blocks(implementation, at.last, cache, shape.head_dim)
            out, cache = decode_attention(implementation, q, k, v, cache, layer, at, live)
            return cache, out

        steps = jnp.arange(TOKENS_PER_SLOT)
        positions = jnp.asarray(plan.positions, jnp.int32)
        cache, mixed = lax.scan(decode, cache, (steps, positions, *tokens))

        axes = position_axes(implementation, shape.head_dim)
        outputs = {f"mixed values of token {i}": x for i, x in enumerate(mixed)}
        keys, values, *scales = move_positions(*cache, axes=axes)
        if scales:
            keys, values = keys * scales[0][..., None], values * scales[1][..., None]
        return outputs | {"keys in the cache": keys, "values in the cache": values}

    def _tokens(self, key: Array) -> list[Array]:
        """Queries [tokens R N H], keys and values [tokens R K H] of the slots' tokens."""
        shape = self.shape
        queries = (TOKENS_PER_SLOT, shape.rows, shape.heads, shape.head_dim)
        of_keys = (TOKENS_PER_SLOT, shape.rows, shape.kv_heads, shape.head_dim)
        q, k, v = (
            jax.random.normal(jax.random.fold_in(key, i), x)
            for i, x in enumerate((queries, of_keys, of_keys))
        )
        # As large as at a border: a token must see itself.
        return [q, k, v * BORDER_SCALE]

    def _before_decoding(self, plan: DecodePlan, key: Array) -> tuple[Array, Array]:
        """Keys and values [(layers) R K C H] of the cache before the plan's first token.

        Values that slots must not see are as large as UNSEEN_SCALE says."""
        shape = self.shape
        # whole blocks for any implementation, so that all read a cache of one size
        length = cache_positions("pallas", shape.held_positions)
        of_layer = (shape.rows, shape.kv_heads, length, shape.head_dim)
        size = of_layer if shape.unrolled else (2, *of_layer)
        keys = jax.random.normal(jax.random.fold_in(key, 0), size)
        values = jax.random.normal(jax.random.fold_in(key, 1), size)

        first = jnp.asarray(plan.positions[0])[:, None]
        is_seen = jnp.arange(length)[None] < jnp.minimum(first, shape.held_positions)
        scales = jnp.where(is_seen, border_scales(length)[None], UNSEEN_SCALE)
        return keys, scale_values(values, scales[:, None])

    def _prompt(self, plan: DecodePlan, key: Array) -> tuple[Array, Array]:
        """Keys and values [(layers) 1 K p H] of the text that replaces a slot's."""
        shape = self.shape
        held = min(plan.prompt_length, shape.held_positions)
        of_layer = (1, shape.kv_heads, held, shape.head_dim)
        size = of_layer if shape.unrolled else (2, *of_layer)
        keys = jax.random.normal(jax.random.fold_in(key, 0), size)
        values = jax.random.normal(jax.random.fold_in(key, 1), size)
        return keys, scale_values(values, border_scales(held))

    def _refill(
        self, cache: KVArrays, prompt: KVArrays, plan: DecodePlan, implementation: str
    ) -> KVArrays:
        """The cache with a prompt at the beginning of one slot; behind it stays what was there."""
        axes = position_axes(implementation, self.shape.head_dim)
        slot_axis = 0 if self.shape.unrolled else 1
        slot = plan.refilled_slot
        refilled = []
        for array, new, position_axis in zip(cache, prompt, axes, strict=False):
            index: list[Any] = [slice(None)] * array.ndim
            index[slot_axis] = slice(slot, slot + 1)
            index[position_axis] = slice(0, new.shape[position_axis])
            refilled.append(array.at[tuple(index)].set(new))
        return tuple(refilled)


@dataclass(frozen=True)
class Precision:
    """Rounds numbers as a run does, and casts them to float32 then, where that is asked for."""

    shape: DecodeAttentionShape
    in_float32: bool

    def round_all(self, arrays: list[Array]) -> list[Array]:
        """Of the precision of products."""
        rounded = [x.astype(self.shape.dtype) for x in arrays]
        return [x.astype(jnp.float32) for x in rounded] if self.in_float32 else rounded

    def to_cache(self, keys: Array, values: Array, implementation: str) -> KVArrays:
        """Keys and values [... C H] in the cache's precision and in the kernel's order of axes.

        Of int8, values and scales are the same in any precision of products."""
        keys, values = keys.astype(self.shape.dtype), values.astype(self.shape.dtype)
        cache = to_cache_dtype(keys, values, self.shape.cache_dtype)
        if self.in_float32 and self.shape.cache_dtype != "int8":
            cache = tuple(x.astype(jnp.float32) for x in cache)
        return move_positions(*cache, axes=position_axes(implementation, self.shape.head_dim))
