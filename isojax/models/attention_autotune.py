"""Chooses the fastest implementation of attention: each that this backend has is timed at the run's
own shapes.

One that fails to compile, or is further from float32's answer than rounding explains, is left out
with a warning; one that a config or a resumed run names is refused then.
"""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.policy_sizes import AttentionSizes
from isojax.core.shapes import layers_are_unrolled
from isojax.distributed.sharding import axes_that_split, count_parts, positions_are_split
from isojax.models.attention_calls import (
    AttentionShape,
    DecodeAttentionShape,
    SelfAttentionShape,
    attention_seconds,
    implementations,
    unsupported_reason,
)
from isojax.models.describe_sizes import describe_sizes
from isojax.models.kernel_checks.attention_cases import case_of
from isojax.models.kernel_checks.expert_cases import experts_case, grouped_case
from isojax.models.kernel_checks.kernel_errors import KernelCase, kernel_error

# What to do where a kernel that is set cannot be used: of a new run; of a run that has begun with
# it, whose bits it decides; and where nothing else fits in memory.
CHANGE_SETTING = "Set it to null or plain."
CHANGE_MACHINE = (
    "This run began with it: go on with the versions of jax, and of the accelerator's library, that"
    " it began with, or start a new run under another name=NAME."
)
CHANGE_SIZES = "Set it to plain, and smaller sizes are chosen."

log = logging.getLogger(__name__)


class AttentionShapes(NamedTuple):
    """The calls of a sweep on one device: one for each kind of layer."""

    of_update: tuple[SelfAttentionShape, ...]
    of_sampler: tuple[DecodeAttentionShape, ...]


def attention_shapes(cell: CellConfig, sweep: SweepConfig, mesh: Mesh) -> AttentionShapes:
    """Return the calls of attention in a sweep, as one device of the mesh has them.

    Of `sweep` microbatch and decode_slots are read; unset ones count as 1 row. Both are already per
    shard (a part of the rollouts): each device of a shard has all of its rows and a part of the
    heads, so that only heads are divided here."""
    platform = mesh.devices.flat[0].platform
    precision = cell.precision.for_platform(platform)  # "auto" decided: "float32", "bfloat16"
    P = cell.sampling.prompt_length
    T = cell.sampling.response_length

    # Layers that differ in nothing but their place in the model are one kind.
    layers_of_kind: dict[AttentionSizes, int] = {}
    for attention in describe_sizes(cell.model, cell.model.vocab or 1).attention:
        kind = replace(attention, layers=1)
        layers_of_kind[kind] = layers_of_kind.get(kind, 0) + attention.layers

    of_update, of_sampler = [], []
    for attention, layers in layers_of_kind.items():
        head_axes = axes_that_split("kv_heads", attention.kv_heads, mesh.shape)
        head_shards = count_parts(head_axes, mesh.shape)  # devices that share the heads
        heads = attention.heads // head_shards
        kv_heads = attention.kv_heads // head_shards
        of_update.append(
            SelfAttentionShape(
                rows=sweep.microbatch or 1,
                positions=max(T - 1, 1),  # no loss needs what follows the last token
                prefix_length=P,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=attention.head_dim,
                dtype=precision.compute,
                window=attention.window,
                layers=layers,
            )
        )
        of_sampler.append(
            DecodeAttentionShape(
                rows=sweep.decode_slots or 1,
                positions=P + T,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=attention.head_dim,
                dtype=precision.compute,
                cache_dtype=precision.cache,
                # decides whether the timed cache is one layer's, or a stack read by an index
                unrolled=layers_are_unrolled(platform, precision.cache),
                window=attention.window,
                layers=layers,
            )
        )
    return AttentionShapes(tuple(of_update), tuple(of_sampler))


def select_attention(
    cell: CellConfig, sweep: SweepConfig, mesh: Mesh, fix: str = CHANGE_SETTING
) -> SweepConfig:
    """Return the sweep with its attention chosen where it is not set, on a device of the mesh.

    `sweep.forward_attention` is the trainer's, `sweep.decode_attention` the sampler's.
    `fix`: what to do where the one that is set is wrong here. InputError as in `autotune`."""
    shapes = attention_shapes(cell, sweep, mesh)
    forward = autotune(
        shapes.of_update, Request("sweep.forward_attention", sweep.forward_attention, fix), mesh
    )
    decode = "plain"  # slots that share prompts have an attention of their own (`attend_slots`)
    if positions_are_split(mesh) or sweep.slots_per_prefix in (None, 1):
        decode = autotune(
            shapes.of_sampler, Request("sweep.decode_attention", sweep.decode_attention, fix), mesh
        )
    decode = _without_wrong_experts(cell, sweep, mesh, decode, fix)
    return sweep.model_copy(update={"decode_attention": decode, "forward_attention": forward})


def _without_wrong_experts(
    cell: CellConfig, sweep: SweepConfig, mesh: Mesh, decode: str, fix: str
) -> str:
    """Return the sampler's attention: `decode`, or "plain" where its kernel for experts is wrong.

    On a TPU alone, where `pallas` also multiplies the sampler's experts. The update's kernel for
    experts has no setting that turns it off: InputError where it is wrong, and where the setting
    asks for the other one."""
    device = mesh.devices.flat[0]
    if device.platform != "tpu":
        return decode
    policy = describe_sizes(cell.model, cell.model.vocab or 1)
    dtype = cell.precision.for_platform(device.platform).compute

    grouped = grouped_case(policy, dtype)
    reason = grouped and _wrong_reason("the update's products of experts", grouped, "pallas")
    if reason:
        raise InputError(
            where="cell.model",
            found=reason,
            fix="No setting turns this kernel off: take other versions of jax and libtpu.",
        )

    experts = experts_case(policy, sweep.decode_slots or 1, dtype)
    if experts is None or decode != "pallas":
        return decode
    reason = _wrong_reason("the sampler's products of experts", experts, decode)
    if reason and sweep.decode_attention is not None:
        raise InputError(where=f"sweep.decode_attention={decode}", found=reason, fix=fix)
    if reason:
        log.warning("pallas is left out of the sampler: %s", reason)
    return "plain" if reason else decode


@dataclass(frozen=True)
class Request:
    """What a setting asks for."""

    setting: str  # such as "sweep.decode_attention"
    implementation: str | None  # such as "plain" or "pallas"; None: the fastest
    fix: str = CHANGE_SETTING  # what to do where it cannot be had


def autotune(shapes: Sequence[AttentionShape], request: Request, mesh: Mesh) -> str:
    """Return the implementation for these calls on a device of the mesh: as requested, or the
    fastest.

    `shapes`: those of all kinds of layers, which have one implementation. Where none is requested,
    each that the device has is timed, which must not happen while something is traced. InputError
    where the backend, a shape, or a mesh that splits positions lacks the requested one, and where
    it computes wrongly here."""
    device = mesh.devices.flat[0]
    if positions_are_split(mesh):
        where = "a mesh with sequence > 1"
        names = implementations(shapes[0], "cpu")  # array code alone, which shards attend by
    else:
        where = f"this backend ({device.platform})"
        names = implementations(shapes[0], device.platform)

    requested = request.implementation
    if requested is None:
        return _fastest(tuple(shapes), names, device) if len(names) > 1 else "plain"
    if requested not in names:
        raise InputError(
            found=f"{request.setting}={requested}: {where} has {', '.join(names)}",
            fix="Set it to one of these, or to null, which measures and keeps the fastest.",
        )
    for shape in shapes:
        with jax.default_device(device):
            reason = _unusable_reason(shape, requested)
        if reason:
            raise InputError(
                where=f"{request.setting}={requested}",
                found=reason,
                fix=request.fix,
            )
    return requested


@functools.cache
def _fastest(shapes: tuple[AttentionShape, ...], names: tuple[str, ...], device: Any) -> str:
    """Time the implementations `names` that serve all shapes, and return the fastest; else "plain".

    Remembered by its arguments. One that fails, cannot serve a shape, differs from float32 or is
    slower than plain attention is left out, with a warning in the log."""
    seconds: dict[str, float] = {}  # of all layers
    with jax.default_device(device):
        for name in names:
            # empty where the implementation will do
            reason = next(filter(None, (_unusable_reason(shape, name) for shape in shapes)), "")
            if not reason:
                try:
                    seconds[name] = sum(
                        shape.layers * attention_seconds(shape, name) for shape in shapes
                    )
                # plain attention at lengths that only kernels can serve does not fit the device
                except Exception as error:
                    reason = _first_line(error)
            if reason:
                log.warning("%s is left out: %s", name, reason)

    fastest = min(seconds, key=lambda name: seconds[name], default="plain")
    times = ", ".join(f"{name} {1e6 * s:.0f} us" for name, s in seconds.items())
    log.info(
        "%s on %s: %s in all layers; %s is taken",
        shapes[0],
        device.device_kind,
        times or "nothing could be timed",
        fastest,
    )
    for name in seconds:
        if fastest == "plain" and name != "plain":
            log.warning("%s is left out: it is slower in %s (%s)", name, shapes[0], times)
    return fastest


def _unusable_reason(shape: AttentionShape, implementation: str) -> str:
    """Say why an implementation must not serve a shape; empty where it may.

    It cannot serve it, it fails to compile or to run, or it is too far from float32."""
    if implementation == "plain":
        return ""
    unsupported = unsupported_reason(shape, implementation)
    if unsupported:
        return unsupported
    return _wrong_reason(str(shape), case_of(shape), implementation)


def _wrong_reason(what: str, case: KernelCase, implementation: str) -> str:
    """Say why a kernel must not be used; empty where it is right. `what`: it computes this."""
    try:
        error = kernel_error(case, implementation)
    # whatever a compiler or a device says of a kernel, a run can go on without it
    except Exception as e:
        return f"{what}: {_first_line(e)}"
    return "" if error.is_right else f"{what} is {error}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
