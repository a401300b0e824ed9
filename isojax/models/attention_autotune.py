"""Which implementation of attention is the fastest here: each that this backend has is timed at the run's own shapes,
on its own device.

What fails to compile, or is further from float32's answer than the plain form may explain, is left out. What was
measured, chosen and left out is logged. A choice is remembered within the process; a run that must be resumed bit for
bit keeps it and passes it as `wanted`.
"""

import functools
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.distributed.sharding import positions_are_split
from isojax.models.attention import KVArrays, cache_positions, decode_attention, self_attention, to_cache_dtype

PLATFORM_KERNELS = {"tpu": ("pallas",), "gpu": ("cudnn",), "cpu": ()}  # by the platform of a device, beside `plain`
IMPLEMENTATIONS = ("auto", "plain", "pallas", "cudnn")
CALLS_PER_PROGRAM = 16  # of attention in one timed program, so that its launch is small beside them
ROUNDS = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SelfAttentionShape:
    """One call of `self_attention` on one device: `rows` of `positions` behind a prefix of `prefix` positions;
    `gradient`: and back.
    """

    rows: int
    positions: int
    prefix_length: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    gradient: bool = True

    def unsupported_reason(self, implementation: str) -> str:
        """Why an implementation cannot serve this shape; empty where it can."""
        return _cudnn_unsupported_reason(self.head_dim, self.dtype) if implementation == "cudnn" else ""

    def random_inputs(self, rows: int) -> tuple[Any, ...]:
        """Random arrays of so many rows, made on the device: q, k, v, prefix keys and values, live lengths spread up to
        the whole.
        """
        K, H = self.kv_heads, self.head_dim
        shapes = [
            (rows, self.positions, self.heads, H),
            *[(rows, K, self.positions, H)] * 2,
            *[(rows, K, self.prefix_length, H)] * 2,
        ]
        lengths = (jnp.arange(rows) + 1) * self.prefix_length // rows
        return *(_random_normal(i, shape, self.dtype) for i, shape in enumerate(shapes)), lengths

    def run_once(self, implementation: str, inputs: tuple[Any, ...]) -> Any:
        """What is computed, and is to be right."""
        *arrays, live = inputs

        def attention(q: Any, k: Any, v: Any, *prefix: Any) -> Any:
            return self_attention(implementation, q, k, v, (*prefix, live))

        if not self.gradient:
            return attention(*arrays)
        out, pull = jax.vjp(attention, *arrays)
        return out, pull(out)[: 5 if self.prefix_length else 3]

    def run_repeated(self, implementation: str, inputs: tuple[Any, ...]) -> Any:
        """What is timed: CALLS in a row, each on what the last one gave."""

        def call(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
            outputs = self.run_once(implementation, carry)
            updates = outputs[1] if self.gradient else (outputs,)
            return (
                *(x + y.astype(x.dtype) / 8 for x, y in zip(carry, updates, strict=False)),
                *carry[len(updates) :],
            ), None

        return lax.scan(call, inputs, None, length=CALLS_PER_PROGRAM)[0]


@dataclass(frozen=True)
class DecodeAttentionShape:
    """One call of `decode_attention` on one device, with a cache of `positions` in `cache` precision (a dtype, or
    int8).
    """

    slots: int
    positions: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    cache_dtype: str

    def unsupported_reason(self, implementation: str) -> str:
        """Why an implementation cannot serve this shape; empty where it can."""
        if implementation == "cudnn" and self.cache_dtype != self.dtype:
            return f"cuDNN attends in one precision, not with queries in {self.dtype} to a cache in {self.cache_dtype}"
        return _cudnn_unsupported_reason(self.head_dim, self.dtype) if implementation == "cudnn" else ""

    @property
    def rows(self) -> int:
        """Slots, as the rows of what is checked."""
        return self.slots

    def random_inputs(self, rows: int) -> tuple[Any, ...]:
        """Random queries, keys and values, a cache of two layers, and positions spread over the whole of it."""
        K, H = self.kv_heads, self.head_dim
        q, k, v = (_random_normal(i, (rows, heads, H), self.dtype) for i, heads in enumerate((self.heads, K, K)))
        length = max(cache_positions(name, self.positions) for name in IMPLEMENTATIONS)
        keys, values = (_random_normal(i, (2, rows, K, length, H), self.dtype) for i in (3, 4))
        keys, *rest = to_cache_dtype(keys, values, self.cache_dtype)
        return q, k, v, (keys.swapaxes(-1, -2), *rest), jnp.arange(rows) * self.positions // rows

    def run_once(self, implementation: str, inputs: tuple[Any, ...]) -> Any:
        """What is computed, and is to be right."""
        q, k, v, cache, positions = inputs
        return decode_attention(implementation, q, k, v, cache, jnp.int32(1), positions)[0]

    def run_repeated(self, implementation: str, inputs: tuple[Any, ...]) -> Any:
        """What is timed: CALLS in a row on two layers by turns, written in place as in the sampler's loop."""
        q, k, v, cache, positions = inputs

        def call(carry: tuple[Any, KVArrays], i: Any) -> tuple[tuple[Any, KVArrays], None]:
            return decode_attention(implementation, carry[0], k, v, carry[1], i % 2, positions), None

        q, cache = lax.scan(call, (q, cache), jnp.arange(CALLS_PER_PROGRAM))[0]
        return q, k, v, cache, positions


AttentionShape = SelfAttentionShape | DecodeAttentionShape


def autotune(shape: AttentionShape, requested: str = "auto", device: Any = None, setting: str = "attention") -> str:
    """The implementation for one place of attention, by measurement where `wanted` is auto. Not to be called while
    something is traced.

    Args:
        shape: what one device computes (heads after they are split over `tensor`).
        wanted: auto, plain or a kernel's name.
        device: where it runs; by default the first.
        key: the setting that `wanted` is, for errors.

    Raises:
        InputError: no such implementation, none on this backend, or none for this shape.
    """
    device = device or jax.devices()[0]
    kernels = PLATFORM_KERNELS.get(device.platform, ())
    if requested not in IMPLEMENTATIONS:
        raise InputError(
            f"{setting}={requested!r}: expected one of {', '.join(IMPLEMENTATIONS[1:])}, or null, which measures and "
            "keeps the fastest."
        )
    if requested not in ("auto", "plain", *kernels):
        available = ", ".join(("plain", *kernels))
        raise InputError(
            f"{setting}={requested}: this backend ({device.platform}) has {available}. Set it to null, or to one of "
            "these."
        )
    if requested in kernels and (reason := shape.unsupported_reason(requested)):
        raise InputError(f"{setting}={requested}: {reason}. Set it to null or plain.")
    if requested != "auto" or not kernels:
        return "plain" if requested == "auto" else requested
    return _fastest(shape, kernels, device)


def select_attention(cell: CellConfig, sweep: SweepConfig, mesh: Mesh) -> SweepConfig:
    """The sweep with its attention chosen, where it is not set: by measurement, at the run's own shapes on a device of
    the mesh.

    Where the mesh splits positions that is the plain form: a kernel wants them all.

    Raises:
        InputError: what is set cannot be had on this backend, on this mesh, or for these shapes.
    """
    model, sampling, device = cell.model, cell.sampling, mesh.devices.flat[0]
    precision, tensor = cell.precision.for_platform(device.platform), mesh.shape["tensor"]
    if positions_are_split(mesh):
        return _require_plain(sweep)
    head_shards = tensor if model.kv_heads % tensor == 0 else 1  # devices that share the heads
    head_sizes = (model.heads // head_shards, model.kv_heads // head_shards, model.head_dim, precision.compute)
    prompt_length, response_length = sampling.prompt_length, sampling.response_length
    forward_attention = autotune(
        SelfAttentionShape(sweep.microbatch or 1, max(response_length - 1, 1), prompt_length, *head_sizes),
        sweep.forward_attention or "auto",
        device,
        "sweep.forward_attention",
    )
    decode_attention = "plain"  # lanes that share prompts read them with products of their own
    if sweep.slots_per_prefix in (None, 1):
        shape = DecodeAttentionShape(
            sweep.decode_slots or 1, prompt_length + response_length, *head_sizes, precision.cache
        )
        decode_attention = autotune(shape, sweep.decode_attention or "auto", device, "sweep.decode_attention")
    return sweep.model_copy(update={"decode_attention": decode_attention, "forward_attention": forward_attention})


def _require_plain(sweep: SweepConfig) -> SweepConfig:
    """The sweep for a mesh that splits positions."""
    for name, requested in (
        ("decode_attention", sweep.decode_attention),
        ("forward_attention", sweep.forward_attention),
    ):
        if requested not in (None, "plain"):
            raise InputError(
                f"sweep.{name}={requested} on a mesh with sequence > 1: kernels want all positions of a prompt. "
                "Expected plain or null; or "
                "a mesh without sequence."
            )
    return sweep.model_copy(update={"decode_attention": "plain", "forward_attention": "plain"})


@functools.cache
def _fastest(shape: AttentionShape, kernels: tuple[str, ...], device: Any) -> str:
    seconds: dict[str, float] = {}
    with jax.default_device(device):
        for name in ("plain", *kernels):
            try:
                reason = shape.unsupported_reason(name) or _mismatch(shape, name)
                if not reason:
                    seconds[name] = _seconds_per_call(shape, name)
            except Exception as error:  # whatever a compiler or a device says of a kernel, the run can go on without it
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if reason:
                log.warning("attention of %s: %s is left out: %s", shape, name, reason)
    best = min(seconds, key=lambda name: seconds[name], default="plain")
    times = ", ".join(f"{name} {1e6 * s:.0f} us" for name, s in seconds.items())
    log.info(
        "attention of %s on %s: %s a call; %s is taken",
        shape,
        device.device_kind,
        times or "nothing could be timed",
        best,
    )
    return best


def _mismatch(shape: AttentionShape, implementation: str) -> str:
    """How a kernel differs from the plain form on two rows of random inputs; empty where it agrees.

    The measure is the plain form in float32 at the highest precision: a kernel may be twice as far from it (relative,
    L2) as the plain form in the run's own precision, and 1e-4 more.
    """
    if implementation == "plain":
        return ""
    inputs = shape.random_inputs(min(2, shape.rows))
    float32_inputs = jax.tree.map(
        lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, inputs
    )
    with jax.default_matmul_precision("highest"):
        reference = jax.jit(functools.partial(shape.run_once, "plain"))(float32_inputs)
    plain, kernel = (jax.jit(functools.partial(shape.run_once, name))(inputs) for name in ("plain", implementation))
    for want, near, got in zip(*map(jax.tree.leaves, (reference, plain, kernel)), strict=True):
        tolerance, error = 2 * _relative_distance(near, want) + 1e-4, _relative_distance(got, want)
        if not error <= tolerance:  # nor where it is not a number
            return f"it is {error:.2g} from the exact answer, where {tolerance:.2g} is allowed"
    return ""


def _seconds_per_call(shape: AttentionShape, implementation: str) -> float:
    """Of one call: the median of ROUNDS."""
    timed_program: Callable[..., Any] = jax.jit(functools.partial(shape.run_repeated, implementation), donate_argnums=0)
    state = jax.block_until_ready(timed_program(shape.random_inputs(shape.rows)))
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        state = jax.block_until_ready(timed_program(state))
        times.append(time.perf_counter() - start)
    return statistics.median(times) / CALLS_PER_PROGRAM


def _relative_distance(actual: Any, expected: Any) -> float:
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(actual - expected) / max(np.linalg.norm(expected), np.finfo(np.float32).tiny))


def _random_normal(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    return jax.random.normal(jax.random.key(seed), shape, jnp.dtype(dtype))


def _cudnn_unsupported_reason(head_dim: int, dtype: str) -> str:
    if dtype not in ("bfloat16", "float16"):
        return f"cuDNN attends in bfloat16 and float16, not in {dtype}"
    return "" if head_dim % 8 == 0 else f"cuDNN wants a head_dim that is a multiple of 8, not {head_dim}"
