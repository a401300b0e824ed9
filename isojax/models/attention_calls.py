"""The calls of attention that a run makes on one device, and how long they take."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from isojax.distributed.device_probe import seconds_per_call
from isojax.models.attention import self_attention
from isojax.models.cache_attention import (
    SlotPositions,
    cache_positions,
    decode_attention,
    live_blocks,
    move_positions,
    position_axes,
    to_cache_dtype,
)
from isojax.models.kernels.prefix import PrefixKV

CALLS_PER_PROGRAM = 16  # of attention in one timed program, so that its launch hardly counts


@dataclass(frozen=True)
class SelfAttentionShape:
    """One call of `self_attention` with its gradient on one device: `rows` of `positions` after a
    prefix."""

    # which a platform has in addition to `plain`
    platform_kernels: ClassVar = {"tpu": "pallas", "gpu": "cudnn"}

    rows: int
    positions: int
    prefix_length: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    window: int | None = None  # positions that a token sees, its own included; None: all
    layers: int = 1  # that make such a call

    def __str__(self) -> str:
        return (
            f"the update's attention ({self.rows} x {self.positions} positions after"
            f" {self.prefix_length}, {describe_heads(self)})"
        )

    def random_inputs(self, rows: int, implementation: str) -> tuple[Any, ...]:
        """Make q, k, v, keys and values of prompts, and the prompts' lengths.

        They serve any implementation. The lengths rise from prefix_length / rows to the whole
        prefix_length."""
        K, H = self.kv_heads, self.head_dim
        kv_shape = (rows, K, self.positions, H)
        prefix_shape = (rows, K, self.prefix_length, H)
        q = random_normal(0, (rows, self.positions, self.heads, H), self.dtype)
        k = random_normal(1, kv_shape, self.dtype)
        v = random_normal(2, kv_shape, self.dtype)
        prefix_keys = random_normal(3, prefix_shape, self.dtype)
        prefix_values = random_normal(4, prefix_shape, self.dtype)
        lengths = (jnp.arange(rows) + 1) * self.prefix_length // rows
        return q, k, v, prefix_keys, prefix_values, lengths

    def next_inputs(self, implementation: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run one call; return the inputs of the next one.

        `inputs`: as `random_inputs` orders them, lengths last."""
        *arrays, lengths = inputs

        def attention(q: Any, k: Any, v: Any, prefix_keys: Any, prefix_values: Any) -> Any:
            prefix = PrefixKV(prefix_keys, prefix_values, lengths)
            return self_attention(implementation, q, k, v, prefix, self.window)

        out, vjp = jax.vjp(attention, *arrays)
        gradients = vjp(out)

        # The next call needs all of this one, so that XLA leaves none of it out; of gradients an
        # eighth, so that the numbers stay small.
        next_arrays = []
        for x, gradient in zip(arrays, gradients, strict=True):
            next_arrays.append(x + gradient.astype(x.dtype) / 8)
        return (*next_arrays, lengths)


@dataclass(frozen=True)
class DecodeAttentionShape:
    """One call of `decode_attention` on one device; a row is a slot."""

    platform_kernels: ClassVar = {"tpu": "pallas", "gpu": "triton"}

    rows: int
    positions: int  # of a whole text, prompt and response
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    cache_dtype: str
    unrolled: bool = False  # whether each layer's cache is an array of its own, as on a GPU
    window: int | None = None  # positions that a token sees, its own included; None: all
    layers: int = 1  # that make such a call

    def __str__(self) -> str:
        cache = "" if self.cache_dtype == self.dtype else f", cache in {self.cache_dtype}"
        return (
            f"the sampler's attention ({self.rows} slots of {self.positions} positions,"
            f" {describe_heads(self)}{cache})"
        )

    @property
    def held_positions(self) -> int:
        """The positions that a cache holds: of a layer that slides a ring of its window."""
        return min(self.positions, self.window or self.positions)

    def random_inputs(self, rows: int, implementation: str) -> tuple[Any, ...]:
        """Make q, k, v, a cache of two layers or of one, and positions spread over the whole of it.

        `implementation`: decides the order of the cache's axes. Of two layers the second is used,
        so that an index is computed as in a stack."""
        K, H = self.kv_heads, self.head_dim
        q = random_normal(0, (rows, self.heads, H), self.dtype)
        k = random_normal(1, (rows, K, H), self.dtype)
        v = random_normal(2, (rows, K, H), self.dtype)

        # whole blocks for any implementation, so that all read a cache of one size
        length = cache_positions("pallas", self.held_positions)
        layers = () if self.unrolled else (2,)
        keys = random_normal(3, (*layers, rows, K, length, H), self.dtype)
        values = random_normal(4, (*layers, rows, K, length, H), self.dtype)
        cache = move_positions(
            *to_cache_dtype(keys, values, self.cache_dtype),
            axes=position_axes(implementation, self.head_dim),
        )
        return q, k, v, cache, jnp.arange(rows) * self.held_positions // rows

    def next_inputs(self, implementation: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run one call; return the inputs of the next one.

        `inputs`: as `random_inputs` orders them. The cache is written in place, and what comes out
        is the next call's queries."""
        q, k, v, cache, positions = inputs
        live = live_blocks(implementation, positions, cache, self.head_dim)
        layer = None if self.unrolled else jnp.int32(1)
        out, cache = decode_attention(
            implementation, q, k, v, cache, layer, SlotPositions(positions, positions), live
        )
        return out, k, v, cache, positions


AttentionShape = SelfAttentionShape | DecodeAttentionShape


def describe_heads(shape: AttentionShape) -> str:
    """Such as "16 heads of 128, 8 of keys, bfloat16, window 512"."""
    window = "" if shape.window is None else f", window {shape.window}"
    return (
        f"{shape.heads} heads of {shape.head_dim}, {shape.kv_heads} of keys, {shape.dtype}{window}"
    )


def implementations(shape: AttentionShape, platform: str) -> tuple[str, ...]:
    """Those of this attention that a platform has, `plain` first."""
    kernel = shape.platform_kernels.get(platform)
    return ("plain", kernel) if kernel else ("plain",)


def unsupported_reason(shape: AttentionShape, implementation: str) -> str:
    """Say why an implementation cannot serve a shape; empty where it can.

    Only the GPU's kernels, "cudnn" and "triton", have such limits."""
    if implementation not in ("cudnn", "triton"):
        return ""
    if isinstance(shape, DecodeAttentionShape) and shape.cache_dtype != shape.dtype:
        return (
            f"it attends in one precision, not with queries in {shape.dtype} "
            f"to a cache in {shape.cache_dtype}"
        )
    if shape.dtype not in ("bfloat16", "float16"):
        return f"it attends in bfloat16 and float16, not in {shape.dtype}"

    if implementation == "triton" and shape.head_dim not in (16, 32, 64, 128, 256):
        return f"it wants a head_dim of 16, 32, 64, 128 or 256, not {shape.head_dim}"
    if implementation == "cudnn" and shape.head_dim % 8:
        return f"it wants a head_dim that is a multiple of 8, not {shape.head_dim}"
    return ""


def attention_seconds(shape: AttentionShape, implementation: str) -> float:
    """Return the seconds of one call among CALLS_PER_PROGRAM in a row.

    Each call is on what the last one returned, so that none is left out by the compiler."""

    def call(inputs: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
        return shape.next_inputs(implementation, inputs), None

    def repeat(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        last_inputs, _ = lax.scan(call, inputs, None, CALLS_PER_PROGRAM)
        return last_inputs

    # `seconds_per_call` gives each call the result of the one before, so inputs can be donated
    timed_program = jax.jit(repeat, donate_argnums=0)
    inputs = shape.random_inputs(shape.rows, implementation)
    return seconds_per_call(timed_program, inputs) / CALLS_PER_PROGRAM


def random_normal(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    return jax.random.normal(jax.random.key(seed), shape, jnp.dtype(dtype))
