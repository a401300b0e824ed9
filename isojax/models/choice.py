"""Which implementation of attention is the fastest here: each that this backend has is timed at the run's own shapes, on its own device.

What fails to compile, or is further from float32's answer than the plain form may explain, is left out. What was measured, chosen and left
out is logged. A choice is remembered within the process; a run that must be resumed bit for bit keeps it and passes it as `wanted`.
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

from isojax.config import CellConfig, SweepConfig
from isojax.models.attention import Cache, cache_positions, cached, decode_attention, self_attention
from isojax.sharding import splits_positions
from isojax.types import InputError

KERNELS = {"tpu": ("pallas",), "gpu": ("cudnn",), "cpu": ()}  # by the platform of a device, beside `plain`
NAMES = ("auto", "plain", "pallas", "cudnn")
CALLS = 16  # of attention in one timed program, so that its launch is small beside them
ROUNDS = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SelfShape:
    """One call of `self_attention` on one device: `rows` of `positions` behind a prefix of `prefix` positions; `gradient`: and back."""

    rows: int
    positions: int
    prefix: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    gradient: bool = True

    def unfit(self, implementation: str) -> str:
        """Why an implementation cannot serve this shape; empty where it can."""
        return _cudnn_unfit(self.head_dim, self.dtype) if implementation == "cudnn" else ""

    def inputs(self, rows: int) -> tuple[Any, ...]:
        """Random arrays of so many rows, made on the device: q, k, v, prefix keys and values, live lengths spread up to the whole."""
        K, H = self.kv_heads, self.head_dim
        shapes = [(rows, self.positions, self.heads, H), *[(rows, K, self.positions, H)] * 2, *[(rows, K, self.prefix, H)] * 2]
        lengths = (jnp.arange(rows) + 1) * self.prefix // rows
        return *(_normal(i, shape, self.dtype) for i, shape in enumerate(shapes)), lengths

    def once(self, implementation: str, inputs: tuple[Any, ...]) -> Any:
        """What is computed, and is to be right."""
        *arrays, live = inputs

        def attention(q: Any, k: Any, v: Any, *prefix: Any) -> Any:
            return self_attention(implementation, q, k, v, (*prefix, live))

        if not self.gradient:
            return attention(*arrays)
        out, pull = jax.vjp(attention, *arrays)
        return out, pull(out)[: 5 if self.prefix else 3]

    def repeated(self, implementation: str, inputs: tuple[Any, ...]) -> Any:
        """What is timed: CALLS in a row, each on what the last one gave."""

        def call(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
            found = self.once(implementation, carry)
            moves = found[1] if self.gradient else (found,)
            return (*(x + y.astype(x.dtype) / 8 for x, y in zip(carry, moves, strict=False)), *carry[len(moves) :]), None

        return lax.scan(call, inputs, None, length=CALLS)[0]


@dataclass(frozen=True)
class DecodeShape:
    """One call of `decode_attention` on one device, with a cache of `positions` in `cache` precision (a dtype, or int8)."""

    slots: int
    positions: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    cache: str

    def unfit(self, implementation: str) -> str:
        """Why an implementation cannot serve this shape; empty where it can."""
        if implementation == "cudnn" and self.cache != self.dtype:
            return f"cuDNN attends in one precision, not with queries in {self.dtype} to a cache in {self.cache}"
        return _cudnn_unfit(self.head_dim, self.dtype) if implementation == "cudnn" else ""

    @property
    def rows(self) -> int:
        """Slots, as the rows of what is checked."""
        return self.slots

    def inputs(self, rows: int) -> tuple[Any, ...]:
        """Random queries, keys and values, a cache of two layers, and positions spread over the whole of it."""
        K, H = self.kv_heads, self.head_dim
        q, k, v = (_normal(i, (rows, heads, H), self.dtype) for i, heads in enumerate((self.heads, K, K)))
        length = max(cache_positions(name, self.positions) for name in NAMES)
        keys, values = (_normal(i, (2, rows, K, length, H), self.dtype) for i in (3, 4))
        keys, *rest = cached(keys, values, self.cache)
        return q, k, v, (keys.swapaxes(-1, -2), *rest), jnp.arange(rows) * self.positions // rows

    def once(self, implementation: str, inputs: tuple[Any, ...]) -> Any:
        """What is computed, and is to be right."""
        q, k, v, cache, positions = inputs
        return decode_attention(implementation, q, k, v, cache, jnp.int32(1), positions)[0]

    def repeated(self, implementation: str, inputs: tuple[Any, ...]) -> Any:
        """What is timed: CALLS in a row on two layers by turns, written in place as in the sampler's loop."""
        q, k, v, cache, positions = inputs

        def call(carry: tuple[Any, Cache], i: Any) -> tuple[tuple[Any, Cache], None]:
            return decode_attention(implementation, carry[0], k, v, carry[1], i % 2, positions), None

        q, cache = lax.scan(call, (q, cache), jnp.arange(CALLS))[0]
        return q, k, v, cache, positions


Shape = SelfShape | DecodeShape


def choose(shape: Shape, wanted: str = "auto", device: Any = None, key: str = "attention") -> str:
    """The implementation for one place of attention, by measurement where `wanted` is auto. Not to be called while something is traced.

    Args:
        shape: what one device computes (heads after they are split over `tensor`).
        wanted: auto, plain or a kernel's name.
        device: where it runs; by default the first.
        key: the setting that `wanted` is, for errors.

    Raises:
        InputError: no such implementation, none on this backend, or none for this shape.
    """
    device = device or jax.devices()[0]
    here = KERNELS.get(device.platform, ())
    if wanted not in NAMES:
        raise InputError(f"{key}={wanted!r}: expected one of {', '.join(NAMES[1:])}, or null, which measures and keeps the fastest.")
    if wanted not in ("auto", "plain", *here):
        has = ", ".join(("plain", *here))
        raise InputError(f"{key}={wanted}: this backend ({device.platform}) has {has}. Set it to null, or to one of these.")
    if wanted in here and (why := shape.unfit(wanted)):
        raise InputError(f"{key}={wanted}: {why}. Set it to null or plain.")
    if wanted != "auto" or not here:
        return "plain" if wanted == "auto" else wanted
    return _fastest(shape, here, device)


def with_kernels(cell: CellConfig, sweep: SweepConfig, mesh: Mesh) -> SweepConfig:
    """The sweep with its attention chosen, where it is not set: by measurement, at the run's own shapes on a device of the mesh.

    Where the mesh splits positions that is the plain form: a kernel wants them all.

    Raises:
        InputError: what is set cannot be had on this backend, on this mesh, or for these shapes.
    """
    model, sampling, device = cell.model, cell.sampling, mesh.devices.flat[0]
    precision, tensor = cell.precision.on(device.platform), mesh.shape["tensor"]
    if splits_positions(mesh):
        return _plain(sweep)
    apart = tensor if model.kv_heads % tensor == 0 else 1  # devices that share the heads
    heads = (model.heads // apart, model.kv_heads // apart, model.head_dim, precision.compute)
    P, T = sampling.prompt_length, sampling.response_length
    score = choose(
        SelfShape(sweep.microbatch or 1, max(T - 1, 1), P, *heads), sweep.score_attention or "auto", device, "sweep.score_attention"
    )
    decode = "plain"  # lanes that share prompts read them with products of their own
    if sweep.lane_width in (None, 1):
        shape = DecodeShape(sweep.slots or 1, P + T, *heads, precision.cache)
        decode = choose(shape, sweep.decode_attention or "auto", device, "sweep.decode_attention")
    return sweep.model_copy(update={"decode_attention": decode, "score_attention": score})


def _plain(sweep: SweepConfig) -> SweepConfig:
    """The sweep for a mesh that splits positions."""
    for name, wanted in (("decode_attention", sweep.decode_attention), ("score_attention", sweep.score_attention)):
        if wanted not in (None, "plain"):
            raise InputError(
                f"sweep.{name}={wanted} on a mesh with sequence > 1: kernels want all positions of a prompt. Expected plain or null; or "
                "a mesh without sequence."
            )
    return sweep.model_copy(update={"decode_attention": "plain", "score_attention": "plain"})


@functools.cache
def _fastest(shape: Shape, kernels: tuple[str, ...], device: Any) -> str:
    seconds: dict[str, float] = {}
    with jax.default_device(device):
        for name in ("plain", *kernels):
            try:
                why = shape.unfit(name) or _wrong(shape, name)
                if not why:
                    seconds[name] = _seconds(shape, name)
            except Exception as error:  # whatever a compiler or a device says of a kernel, the run can go on without it
                why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if why:
                log.warning("attention of %s: %s is left out: %s", shape, name, why)
    best = min(seconds, key=lambda name: seconds[name], default="plain")
    times = ", ".join(f"{name} {1e6 * s:.0f} us" for name, s in seconds.items())
    log.info("attention of %s on %s: %s a call; %s is taken", shape, device.device_kind, times or "nothing could be timed", best)
    return best


def _wrong(shape: Shape, implementation: str) -> str:
    """How a kernel differs from the plain form on two rows of random inputs; empty where it agrees.

    The measure is the plain form in float32 at the highest precision: a kernel may be twice as far from it (relative, L2) as the plain
    form in the run's own precision, and 1e-4 more.
    """
    if implementation == "plain":
        return ""
    inputs = shape.inputs(min(2, shape.rows))
    exact = jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, inputs)
    with jax.default_matmul_precision("highest"):
        truth = jax.jit(functools.partial(shape.once, "plain"))(exact)
    plain, kernel = (jax.jit(functools.partial(shape.once, name))(inputs) for name in ("plain", implementation))
    for want, near, got in zip(*map(jax.tree.leaves, (truth, plain, kernel)), strict=True):
        allowed, off = 2 * _distance(near, want) + 1e-4, _distance(got, want)
        if not off <= allowed:  # nor where it is not a number
            return f"it is {off:.2g} from the exact answer, where {allowed:.2g} is allowed"
    return ""


def _seconds(shape: Shape, implementation: str) -> float:
    """Of one call: the median of ROUNDS."""
    step: Callable[..., Any] = jax.jit(functools.partial(shape.repeated, implementation), donate_argnums=0)
    state = jax.block_until_ready(step(shape.inputs(shape.rows)))
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        state = jax.block_until_ready(step(state))
        times.append(time.perf_counter() - start)
    return statistics.median(times) / CALLS


def _distance(got: Any, want: Any) -> float:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), np.finfo(np.float32).tiny))


def _normal(seed: int, shape: tuple[int, ...], dtype: str) -> Any:
    return jax.random.normal(jax.random.key(seed), shape, jnp.dtype(dtype))


def _cudnn_unfit(head_dim: int, dtype: str) -> str:
    if dtype not in ("bfloat16", "float16"):
        return f"cuDNN attends in bfloat16 and float16, not in {dtype}"
    return "" if head_dim % 8 == 0 else f"cuDNN wants a head_dim that is a multiple of 8, not {head_dim}"
