"""Chooses the fastest implementation of attention: each that this backend has is timed at the run's
own shapes.

One that fails to compile, or is further from float32's answer than rounding explains, is left out
with a warning.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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
        """Make q, k, v, keys and values of prompts, and the prompts' lengths.

        They serve any implementation. The lengths rise from prefix_length / rows to the whole
        prefix_length."""
        K, H = self.kv_heads, self.head_dim
        kv_shape = (rows, K, self.positions, H)
        prefix_shape = (rows, K, self.prefix_length, H)
        q = _random_normal(0, (rows, self.positions, self.heads, H), self.dtype)
        k = _random_normal(1, kv_shape, self.dtype)
        v = _random_normal(2, kv_shape, self.dtype)
        prefix_keys = _random_normal(3, prefix_shape, self.dtype)
        prefix_values = _random_normal(4, prefix_shape, self.dtype)
        lengths = (jnp.arange(rows) + 1) * self.prefix_length // rows
        return q, k, v, prefix_keys, prefix_values, lengths

    def call(self, implementation: str, inputs: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Run one call: the outputs that must be right, and the inputs of the next call.

        `inputs`: as `random_inputs` orders them, lengths last. The outputs are the mixed values,
        and the gradients of all inputs but the lengths."""
        *arrays, lengths = inputs

        def attention(q: Any, k: Any, v: Any, prefix_keys: Any, prefix_values: Any) -> Any:
            prefix = PrefixKV(prefix_keys, prefix_values, lengths)
            return self_attention(implementation, q, k, v, prefix)

        out, vjp = jax.vjp(attention, *arrays)
        gradients = vjp(out)

        # The next call needs all of this one, so that XLA leaves none of it out; of gradients an
        # eighth, so that the numbers stay small.
        next_arrays = []
        for x, gradient in zip(arrays, gradients, strict=True):
            next_arrays.append(x + gradient.astype(x.dtype) / 8)
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
        """Make q, k, v, a cache of two layers or of one, and positions spread over the whole of it.

        `implementation`: decides the order of the cache's axes. Of two layers `call` uses the
        second, so that an index is computed as in a stack."""
        K, H = self.kv_heads, self.head_dim
        q = _random_normal(0, (rows, self.heads, H), self.dtype)
        k = _random_normal(1, (rows, K, H), self.dtype)
        v = _random_normal(2, (rows, K, H), self.dtype)

        # whole blocks for any implementation, so that all read a cache of one size
        length = cache_positions("pallas", self.positions)
        layers = () if self.unrolled else (2,)
        keys = _random_normal(3, (*layers, rows, K, length, H), self.dtype)
        values = _random_normal(4, (*layers, rows, K, length, H), self.dtype)
        cache = move_positions(
            *to_cache_dtype(keys, values, self.cache_dtype),
            axes=position_axes(implementation, self.head_dim),
        )
        return q, k, v, cache, jnp.arange(rows) * self.positions // rows

    def call(self, implementation: str, inputs: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Run one call: the output that must be right, and the inputs of the next call.

        `inputs`: as `random_inputs` orders them. The cache is written in place, and what comes out
        is the next call's queries."""
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
    """Return the implementation for one call on a device of the mesh: as requested, or the fastest.

    `requested`: such as "plain", "pallas", "cudnn" or "triton"; None: each that the device has is
    timed, which must not happen while something is traced. `setting`: the key for messages, such as
    "sweep.decode_attention". InputError where the backend, the shape, or a mesh that splits
    positions lacks the requested one."""
    device = mesh.devices.flat[0]
    if positions_are_split(mesh):
        where = "a mesh with sequence > 1"
        names = implementations(shape, "cpu")  # array code alone, which shards attend by
    else:
        where = f"this backend ({device.platform})"
        names = implementations(shape, device.platform)

    if requested is None:
        return _fastest(shape, names, device) if len(names) > 1 else "plain"
    if requested not in names:
        raise InputError(
            found=f"{setting}={requested}: {where} has {', '.join(names)}",
            fix="Set it to one of these, or to null, which measures and keeps the fastest.",
        )
    reason = _unsupported_reason(shape, requested)
    if reason:
        raise InputError(
            where=f"{setting}={requested}",
            found=reason,
            fix="Set it to null or plain.",
        )
    return requested


class AttentionShapes(NamedTuple):
    """The calls of a sweep on one device."""

    of_update: SelfAttentionShape
    of_sampler: DecodeAttentionShape


def attention_shapes(cell: CellConfig, sweep: SweepConfig, mesh: Mesh) -> AttentionShapes:
    """Return the calls of attention in a sweep, as one device of the mesh has them.

    Of `sweep` microbatch and decode_slots are read; unset ones count as 1 row. Both are already per
    shard (a part of the rollouts): each device of a shard has all of its rows and a part of the
    heads, so that only heads are divided here."""
    model = cell.model
    platform = mesh.devices.flat[0].platform
    precision = cell.precision.for_platform(platform)  # "auto" decided: "float32", "bfloat16"
    P = cell.sampling.prompt_length
    T = cell.sampling.response_length

    head_axes = axes_that_split("kv_heads", model.kv_heads, mesh.shape)
    head_shards = count_parts(head_axes, mesh.shape)  # devices that share the heads
    heads = model.heads // head_shards
    kv_heads = model.kv_heads // head_shards

    of_update = SelfAttentionShape(
        rows=sweep.microbatch or 1,
        positions=max(T - 1, 1),  # no loss needs what follows the last token
        prefix_length=P,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=model.head_dim,
        dtype=precision.compute,
    )
    of_sampler = DecodeAttentionShape(
        rows=sweep.decode_slots or 1,
        positions=P + T,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=model.head_dim,
        dtype=precision.compute,
        cache_dtype=precision.cache,
        # decides whether the timed cache is one layer's, or a stack that is read by an index
        unrolled=layers_are_unrolled(platform, precision.cache),
    )
    return AttentionShapes(of_update, of_sampler)


def select_attention(cell: CellConfig, sweep: SweepConfig, mesh: Mesh) -> SweepConfig:
    """Return the sweep with its attention chosen where it is not set, on a device of the mesh.

    `sweep.forward_attention` is the trainer's, `sweep.decode_attention` the sampler's. InputError
    as in `autotune`."""
    shapes = attention_shapes(cell, sweep, mesh)
    forward = autotune(shapes.of_update, sweep.forward_attention, mesh, "sweep.forward_attention")
    decode = "plain"  # slots that share prompts have an attention of their own (`attend_slots`)
    if positions_are_split(mesh) or sweep.slots_per_prefix in (None, 1):
        decode = autotune(shapes.of_sampler, sweep.decode_attention, mesh, "sweep.decode_attention")
    return sweep.model_copy(update={"decode_attention": decode, "forward_attention": forward})


@functools.cache
def _fastest(shape: AttentionShape, names: tuple[str, ...], device: Any) -> str:
    """Time the implementations `names` that serve the shape, and return the fastest; else "plain".

    Remembered by its arguments. One that fails, cannot serve the shape or differs is left out, with
    a warning in the log."""
    seconds: dict[str, float] = {}
    with jax.default_device(device):
        for name in names:
            try:
                # both are empty where the implementation will do
                reason = _unsupported_reason(shape, name) or _mismatch(shape, name)
                if not reason:
                    seconds[name] = attention_seconds(shape, name)
            # whatever a compiler or a device says of a kernel, the run can go on without it
            except Exception as error:
                first_line = str(error).partition("\n")[0]
                reason = f"{type(error).__name__}: {first_line}"
            if reason:
                log.warning("attention of %s: %s is left out: %s", shape, name, reason)

    fastest = min(seconds, key=lambda name: seconds[name], default="plain")
    times = ", ".join(f"{name} {1e6 * s:.0f} us" for name, s in seconds.items())
    log.info(
        "attention of %s on %s: %s per call; %s is taken",
        shape,
        device.device_kind,
        times or "nothing could be timed",
        fastest,
    )
    return fastest


def _mismatch(shape: AttentionShape, implementation: str) -> str:
    """Say how a kernel's outputs differ; empty where they are near enough to float32's.

    Its error may be at most twice the plain form's in the same precision, and 1e-4 more."""
    if implementation == "plain":
        return ""

    errors = float32_errors(shape, implementation)
    plain_errors = float32_errors(shape, "plain")
    for error, plain_error in zip(errors, plain_errors, strict=True):
        tolerance = 2 * plain_error + 1e-4
        if not error <= tolerance:  # nor where it is not a number
            return f"it is {error:.2g} from the exact answer, where {tolerance:.2g} is allowed"
    return ""


def float32_errors(shape: AttentionShape, implementation: str) -> list[float]:
    """Return how far an implementation's outputs are from the plain form's in float32.

    One number for each output array, in the order of jax.tree.leaves: the L2 norm of the difference
    over that of the exact output. At most 2 rows are compared."""

    def outputs(name: str, cast: Callable[[Any], Any] = lambda x: x) -> Any:
        inputs = jax.tree.map(cast, shape.random_inputs(min(2, shape.rows), name))
        return jax.tree.leaves(jax.jit(lambda x: shape.call(name, x)[0])(inputs))

    # integers stay: lengths, positions and the values of an int8 cache
    def to_float32(x: Any) -> Any:
        return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x

    with jax.default_matmul_precision("highest"):
        exact = outputs("plain", to_float32)
    actual = outputs(implementation)
    return [_relative_distance(x, y) for x, y in zip(actual, exact, strict=True)]


def attention_seconds(shape: AttentionShape, implementation: str) -> float:
    """Return the seconds of one call among CALLS_PER_PROGRAM in a row.

    Each call is on what the last one returned, so that none is left out by the compiler."""

    def call(inputs: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
        _outputs, next_inputs = shape.call(implementation, inputs)
        return next_inputs, None

    def repeat(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        last_inputs, _ = lax.scan(call, inputs, None, CALLS_PER_PROGRAM)
        return last_inputs

    # `seconds_per_call` gives each call the result of the one before, so inputs can be donated
    timed_program = jax.jit(repeat, donate_argnums=0)
    inputs = shape.random_inputs(shape.rows, implementation)
    return seconds_per_call(timed_program, inputs) / CALLS_PER_PROGRAM


def _relative_distance(actual: Any, expected: Any) -> float:
    actual = np.asarray(actual, np.float64)
    expected = np.asarray(expected, np.float64)
    size = max(np.linalg.norm(expected), np.finfo(np.float32).tiny)
    return float(np.linalg.norm(actual - expected) / size)


def _random_normal(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    return jax.random.normal(jax.random.key(seed), shape, jnp.dtype(dtype))


def _unsupported_reason(shape: AttentionShape, implementation: str) -> str:
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
