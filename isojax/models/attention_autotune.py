"""Chooses the fastest implementation of attention: each that this backend has is timed at the run's
own shapes.

One that fails to compile, or is further from float32's answer than rounding explains, is left out
with a warning.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.shapes import layers_are_unrolled
from isojax.distributed.device_probe import seconds_per_call
from isojax.distributed.sharding import axes_that_split, count_parts, positions_are_split
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

log = logging.getLogger(__name__)


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

    def random_inputs(self, rows: int, implementation: str) -> tuple[Any, ...]:
        """q, k, v, prefix keys and values, and lengths of prefixes that rise to the whole; for any
        implementation."""
        K, H = self.kv_heads, self.head_dim
        kv_shapes = [(rows, K, self.positions, H)] * 2 + [(rows, K, self.prefix_length, H)] * 2
        shapes = [(rows, self.positions, self.heads, H), *kv_shapes]
        lengths = (jnp.arange(rows) + 1) * self.prefix_length // rows
        return *(_random_normal(i, shape, self.dtype) for i, shape in enumerate(shapes)), lengths

    def call(self, implementation: str, inputs: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The outputs that must be right, and the inputs of the next call in a timed program."""
        *arrays, lengths = inputs

        def attention(q: Any, k: Any, v: Any, *prefix: Any) -> Any:
            return self_attention(implementation, q, k, v, PrefixKV(*prefix, lengths))

        out, vjp = jax.vjp(attention, *arrays)
        gradients = vjp(out)
        next_arrays = [
            x + gradient.astype(x.dtype) / 8 for x, gradient in zip(arrays, gradients, strict=True)
        ]
        return (out, gradients), (*next_arrays, lengths)


@dataclass(frozen=True)
class DecodeAttentionShape:
    """One call of `decode_attention` on one device; a row is a slot."""

    platform_kernels: ClassVar = {"tpu": "pallas", "gpu": "triton"}

    rows: int
    positions: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    cache_dtype: str
    unrolled: bool = False  # whether each layer's cache is an array of its own, as on a GPU

    def random_inputs(self, rows: int, implementation: str) -> tuple[Any, ...]:
        """Queries, keys and values, a cache of two layers or of one, and positions spread over the
        whole of it."""
        K, H = self.kv_heads, self.head_dim
        q, k, v = (
            _random_normal(i, (rows, heads, H), self.dtype)
            for i, heads in enumerate((self.heads, K, K))
        )
        length = cache_positions("pallas", self.positions)
        layers = () if self.unrolled else (2,)
        keys, values = (
            _random_normal(i, (*layers, rows, K, length, H), self.dtype) for i in (3, 4)
        )
        cache = move_positions(
            *to_cache_dtype(keys, values, self.cache_dtype),
            axes=position_axes(implementation, self.head_dim),
        )
        return q, k, v, cache, jnp.arange(rows) * self.positions // rows

    def call(self, implementation: str, inputs: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The output that must be right, and the inputs of the next call, the cache written in
        place."""
        q, k, v, cache, positions = inputs
        live = live_blocks(implementation, positions, cache, self.head_dim)
        layer = None if self.unrolled else jnp.int32(1)
        out, cache = decode_attention(
            implementation, q, k, v, cache, layer, SlotPositions(positions, positions), live
        )
        return out, (out, k, v, cache, positions)


AttentionShape = SelfAttentionShape | DecodeAttentionShape


def implementations(shape: AttentionShape, platform: str) -> tuple[str, ...]:
    """Those of this attention that a platform has, `plain` first."""
    kernel = shape.platform_kernels.get(platform)
    return ("plain", kernel) if kernel else ("plain",)


def autotune(shape: AttentionShape, requested: str | None, mesh: Mesh, setting: str) -> str:
    """The implementation for one call on a device of the mesh: the requested one or the fastest
    (not while tracing). InputError, with the key `setting`, where the backend, the shape, or a mesh
    that splits positions lacks it."""
    device, positions_split = mesh.devices.flat[0], positions_are_split(mesh)
    names = implementations(shape, "cpu" if positions_split else device.platform)
    if requested not in (None, *names):
        where = (
            "a mesh with sequence > 1" if positions_split else f"this backend ({device.platform})"
        )
        problem = f"{setting}={requested}: {where} has {', '.join(names)}"
        raise InputError(
            f"{problem}. Set it to one of these, or to null, which measures and keeps the fastest."
        )
    if requested is not None and (reason := _unsupported_reason(shape, requested)):
        raise InputError(f"{setting}={requested}: {reason}. Set it to null or plain.")
    return requested or (_fastest(shape, names, device) if len(names) > 1 else "plain")


def attention_shapes(
    cell: CellConfig, sweep: SweepConfig, mesh: Mesh
) -> tuple[SelfAttentionShape, DecodeAttentionShape]:
    """The calls of a device of the mesh: the update's and the sampler's."""
    model, sampling = cell.model, cell.sampling
    platform = mesh.devices.flat[0].platform
    precision = cell.precision.for_platform(platform)
    unrolled = layers_are_unrolled(platform, precision.cache)
    head_axes = axes_that_split("kv_heads", model.kv_heads, mesh.shape)
    head_shards = count_parts(head_axes, mesh.shape)  # devices that share the heads
    head_sizes = (
        model.heads // head_shards,
        model.kv_heads // head_shards,
        model.head_dim,
        precision.compute,
    )
    P, T = sampling.prompt_length, sampling.response_length
    return (
        SelfAttentionShape(sweep.microbatch or 1, max(T - 1, 1), P, *head_sizes),
        DecodeAttentionShape(
            sweep.decode_slots or 1, P + T, *head_sizes, precision.cache, unrolled
        ),
    )


def select_attention(cell: CellConfig, sweep: SweepConfig, mesh: Mesh) -> SweepConfig:
    """The sweep with its attention chosen where it is not set, on a device of the mesh; InputError
    as in `autotune`."""
    forward_shape, decode_shape = attention_shapes(cell, sweep, mesh)
    forward = autotune(forward_shape, sweep.forward_attention, mesh, "sweep.forward_attention")
    decode = "plain"  # slots that share prompts have an attention of their own (`attend_slots`)
    if positions_are_split(mesh) or sweep.slots_per_prefix in (None, 1):
        decode = autotune(decode_shape, sweep.decode_attention, mesh, "sweep.decode_attention")
    return sweep.model_copy(update={"decode_attention": decode, "forward_attention": forward})


@functools.cache
def _fastest(shape: AttentionShape, names: tuple[str, ...], device: Any) -> str:
    seconds: dict[str, float] = {}
    with jax.default_device(device):
        for name in names:
            try:
                reason = _unsupported_reason(shape, name) or _mismatch(shape, name)
                if not reason:
                    seconds[name] = attention_seconds(shape, name)
            except Exception as error:  # whatever a compiler or a device says of a kernel, the run can go on without it
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if reason:
                log.warning("attention of %s: %s is left out: %s", shape, name, reason)
    best = min(seconds, key=lambda name: seconds[name], default="plain")
    times = (
        ", ".join(f"{name} {1e6 * s:.0f} us" for name, s in seconds.items())
        or "nothing could be timed"
    )
    log.info(
        "attention of %s on %s: %s per call; %s is taken", shape, device.device_kind, times, best
    )
    return best


def _mismatch(shape: AttentionShape, implementation: str) -> str:
    """How a kernel differs; empty where its error against float32 is at most twice the plain
    form's, and 1e-4 more."""
    if implementation == "plain":
        return ""
    for error, plain_error in zip(
        float32_errors(shape, implementation), float32_errors(shape, "plain"), strict=True
    ):
        tolerance = 2 * plain_error + 1e-4
        if not error <= tolerance:  # nor where it is not a number
            return f"it is {error:.2g} from the exact answer, where {tolerance:.2g} is allowed"
    return ""


def float32_errors(shape: AttentionShape, implementation: str) -> list[float]:
    """The distances (relative, L2) of an implementation's outputs from the plain form's in
    float32."""

    def outputs(name: str, cast: Callable[[Any], Any] = lambda x: x) -> Any:
        inputs = jax.tree.map(cast, shape.random_inputs(min(2, shape.rows), name))
        return jax.tree.leaves(jax.jit(lambda x: shape.call(name, x)[0])(inputs))

    with jax.default_matmul_precision("highest"):
        reference = outputs(
            "plain", lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x
        )
    return [
        _relative_distance(x, y) for x, y in zip(outputs(implementation), reference, strict=True)
    ]


def attention_seconds(shape: AttentionShape, implementation: str) -> float:
    """Of one call among CALLS_PER_PROGRAM in a row, each on what the last one returned."""

    def repeat(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return lax.scan(
            lambda x, _: (shape.call(implementation, x)[1], None), inputs, None, CALLS_PER_PROGRAM
        )[0]

    timed_program = jax.jit(repeat, donate_argnums=0)
    return (
        seconds_per_call(timed_program, shape.random_inputs(shape.rows, implementation))
        / CALLS_PER_PROGRAM
    )


def _relative_distance(actual: Any, expected: Any) -> float:
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(
        np.linalg.norm(actual - expected) / max(np.linalg.norm(expected), np.finfo(np.float32).tiny)
    )


def _random_normal(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    return jax.random.normal(jax.random.key(seed), shape, jnp.dtype(dtype))


def _unsupported_reason(shape: AttentionShape, implementation: str) -> str:
    """Why an implementation cannot serve a shape; empty where it can."""
    if implementation not in ("cudnn", "triton"):
        return ""
    if isinstance(shape, DecodeAttentionShape) and shape.cache_dtype != shape.dtype:
        return f"it attends in one precision, not with queries in {shape.dtype} to a cache in {shape.cache_dtype}"
    if shape.dtype not in ("bfloat16", "float16"):
        return f"it attends in bfloat16 and float16, not in {shape.dtype}"
    if implementation == "triton":
        is_served = shape.head_dim in (16, 32, 64, 128, 256)
        return (
            ""
            if is_served
            else f"it wants a head_dim of 16, 32, 64, 128 or 256, not {shape.head_dim}"
        )
    return (
        ""
        if shape.head_dim % 8 == 0
        else f"it wants a head_dim that is a multiple of 8, not {shape.head_dim}"
    )
