"""A policy's sizes, for the planner, from its description: nothing is allocated or compiled.
Weights are the Specs'; a sampler's weights and cache are what the sampler itself makes, as shapes;
what a layer keeps for its gradient is what JAX finds when it differentiates the described layer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from isojax.core.config import ModelConfig, PrecisionConfig
from isojax.core.policy_sizes import (
    AttentionSizes,
    CacheShape,
    KeptBytes,
    LayerSizes,
    PolicySizes,
    SizedAxes,
    Split,
    WeightSizes,
)
from isojax.distributed.sharding import traced_for, traced_platform
from isojax.models.architecture import find_ropes
from isojax.models.decode import Decoding
from isojax.models.layers.mixture import EXPERTS_TARGET
from isojax.models.remat import remat_policy
from isojax.models.routing import recorded_dtype, sparse_layers
from isojax.models.spec import LayerDescription, Spec, param, spec_of
from isojax.models.stack import Stack, is_stack
from isojax.models.transformer import ComputeOptions, Decoder

TRACED_TOKENS = (1024, 2048)  # of which a layer is traced; what differs is the tokens'
KEPT_ANSWERS = 64  # that are remembered: a plan asks few questions, many times


def describe_sizes(model: ModelConfig, vocab: int | None = None) -> PolicySizes:
    """`vocab`: None is the model's own. InputError where the model fits no family."""
    return DescribedPolicy(Decoder(model, vocab))


def count_parameters(model: ModelConfig, vocab: int | None = None) -> int:
    """Of the policy, without adapters."""
    base = Decoder(model, vocab).base
    return sum(math.prod(spec.shape) for spec in jax.tree.leaves(base.specs()))


@dataclass(frozen=True)
class DescribedPolicy:
    decoder: Decoder

    @property
    def vocab(self) -> int:
        return self.decoder.vocab

    @property
    def width(self) -> int:
        return self.decoder.config.width

    @property
    def recorded_bytes(self) -> int:
        router = self.decoder.router
        if router is None:
            return 0
        layers = len(sparse_layers(self.decoder.stacks))
        return layers * router.top_k * np.dtype(recorded_dtype(router.experts)).itemsize

    @property
    def weights(self) -> tuple[WeightSizes, ...]:
        return described_weights(self.decoder)

    @property
    def attention(self) -> tuple[AttentionSizes, ...]:
        sizes = []
        for stack in self.decoder.stacks:
            shape = stack.attention
            sizes.append(
                AttentionSizes(
                    len(stack.layers), shape.heads, shape.kv_heads, shape.head_dim, shape.window
                )
            )
        return tuple(sizes)

    def sampler_weights(self, precision: PrecisionConfig) -> tuple[WeightSizes, ...]:
        return stored_weights(self.decoder, precision.compute, precision.rollout_weights)

    def layer_sizes(self, compute: str, platform: str, split: Split) -> tuple[LayerSizes, ...]:
        return layer_sizes(self.decoder, compute, platform, split)

    def cache_bytes(
        self, shape: CacheShape, precision: PrecisionConfig, attention: str, split: Split
    ) -> int:
        # Rows are alike, so that a plan that tries many numbers of them asks for one.
        one_group = replace(shape, slots=shape.slots_per_prefix, prefix_entries=1)
        rows = cache_row_bytes(
            self.decoder, one_group, precision.compute, precision.cache, attention, split
        )
        prefix_groups = shape.slots // shape.slots_per_prefix
        return prefix_groups * rows.prefix_group + shape.prefix_entries * rows.prefix_entry


def named_specs(decoder: Decoder) -> Iterator[tuple[str, Spec]]:
    """Each parameter's Spec, and the stack that it is in; "" outside of layers."""
    for name, entry in decoder.specs().items():
        if is_stack(entry):
            yield from ((name, spec) for spec in entry.values())
        else:
            yield "", entry


def weight_sizes(spec: Spec, stack: str) -> WeightSizes:
    return WeightSizes(
        name=spec.name,
        axes=one_layer_axes(spec),
        stack=stack,
        layers=max(len(spec.layers), 1),
        is_adapter=spec.is_adapter,
        share=spec.share,
        dtype=spec.dtype,
    )


def one_layer_axes(spec: Spec) -> SizedAxes:
    axes = spec.stacked + spec.inputs + spec.outputs
    return tuple((name, size) for name, size in axes if name != "layer")


@lru_cache(KEPT_ANSWERS)
def described_weights(decoder: Decoder) -> tuple[WeightSizes, ...]:
    return tuple(weight_sizes(spec, stack) for stack, spec in named_specs(decoder))


@lru_cache(KEPT_ANSWERS)
def stored_weights(decoder: Decoder, compute: str, rollout_weights: str) -> tuple[WeightSizes, ...]:
    """Return the sampler's weights as `Decoding.cast_weights` makes them, as shapes only.

    `compute`: the precision of products, such as "bfloat16". `rollout_weights`: "compute" or
    "int8". Their axes are those of the forms' own Specs (weight_forms.py), and int8's scales are
    weights too."""
    options = ComputeOptions(compute_dtype=compute, rollout_weights=rollout_weights)
    decoding = Decoding(
        decoder.with_options(options),
        # Sizes of slots and positions, which `cast_weights` does not read.
        slots=1,
        slots_per_prefix=1,
        prefix_length=1,
        response_length=1,
        unrolled_layers=False,
    )
    stored = jax.eval_shape(decoding.cast_weights, decoder.shapes())

    weights = []
    for stack, spec in named_specs(decoding.stored_decoder):
        array = stored[stack][spec.name] if stack else stored[spec.name]
        weights.append(replace(weight_sizes(spec, stack), dtype=array.dtype.name))
    return tuple(weights)


@dataclass(frozen=True)
class CacheRowBytes:
    """A device's bytes of the rows of a sampler's cache."""

    prefix_group: int  # slots that share a prompt, with it
    prefix_entry: int  # of the table of prompts


@lru_cache(KEPT_ANSWERS)
def cache_row_bytes(
    decoder: Decoder, shape: CacheShape, compute: str, cache: str, attention: str, split: Split
) -> CacheRowBytes:
    """Measure the rows of the sampler's empty cache and prefix table.

    `shape`: of one prefix group and one entry. `compute`, `cache`: precisions, such as "bfloat16"
    and "int8". `attention`: the sampler's, such as "plain" or "pallas". `split`: from the axes of
    an array to those of a device's part, here of the heads of keys, which devices share; all other
    axes are a device's already."""
    options = ComputeOptions(compute_dtype=compute, cache_dtype=cache, decode_attention=attention)
    decoding = Decoding(
        decoder.with_options(options),
        slots=shape.slots,
        slots_per_prefix=shape.slots_per_prefix,
        prefix_length=shape.prompt_positions,
        response_length=shape.response_length,
        unrolled_layers=False,
        shard_positions=shape.positions_split,
    )
    heads_axis = decoding.row_axis + 1

    def device_bytes(arrays: Any) -> int:
        total = 0
        for array in jax.tree.leaves(arrays):
            kv_heads = array.shape[heads_axis]
            ((_, device_heads),) = split((("kv_heads", kv_heads),))
            total += array.size // kv_heads * device_heads * array.dtype.itemsize
        return total

    slot_cache = jax.eval_shape(decoding.empty_cache)
    prefix_table = jax.eval_shape(lambda: decoding.empty_prefix_table(1))
    return CacheRowBytes(device_bytes(slot_cache), device_bytes(prefix_table))


@lru_cache(KEPT_ANSWERS)
def layer_sizes(
    decoder: Decoder, compute: str, platform: str, split: Split
) -> tuple[LayerSizes, ...]:
    """Return what a layer of each stack needs, as `stack_sizes` has it.

    Stacks of one kind share the description of a layer, which is differentiated once."""
    sizes_of: dict[LayerDescription, LayerSizes] = {}
    for stack in decoder.stacks:
        if stack.described not in sizes_of:
            sizes_of[stack.described] = stack_sizes(decoder, stack, compute, platform, split)
    return tuple(
        replace(sizes_of[stack.described], layers=len(stack.layers)) for stack in decoder.stacks
    )


def stack_sizes(
    decoder: Decoder, stack: Stack, compute: str, platform: str, split: Split
) -> LayerSizes:
    """Return what the layers of a stack need in an update, without their weights, on a device.

    `compute`: the precision of products, such as "bfloat16". `platform`: "cpu", "gpu" or "tpu",
    which decides how experts are computed. `split`: from the axes of a weight, (name, size) pairs,
    to those of a device's part."""
    rank = decoder.config.lora.rank if decoder.config.lora else None
    width = decoder.config.width
    # With a rank, outputs of LoRA's adapters are not kept.
    policy = remat_policy("none", rank)

    # as if a program were traced for it, whatever this process has
    with traced_for(platform):
        # an adapter puts no other values into an MLP
        base_specs = stack.base.specs.values()
        mlp_values = sum(values_inside_mlp(spec, split) for spec in base_specs)
        overcounted = sum(overcounted_values(spec, decoder, split) for spec in base_specs)
        # values and as many gradients
        mlp_gradient_values = 2 * mlp_values - overcounted

        try:
            kept = kept_bytes(device_layer(stack.described, split), width, compute, policy)
        except (TypeError, ValueError, ArithmeticError):
            # A family's layer may have sizes of its own, which parts of its weights do not fit. All
            # that the whole layer keeps is more than a device keeps.
            kept = kept_bytes(stack.described, width, compute, policy)

    # Under jax.checkpoint without a policy a layer keeps its arguments: weights and hidden states.
    kept_by_remat = KeptBytes(states=width * jnp.dtype(compute).itemsize, products=0)
    return LayerSizes(len(stack.layers), mlp_values, mlp_gradient_values, kept, kept_by_remat)


def values_inside_mlp(spec: Spec, split: Split) -> int:
    """Count the values of a token that a matrix puts into an MLP, on a device.

    They are its outputs, 0 where it has no axis "mlp" among these. Of experts, which take tokens in
    another order, also its inputs; and all of it for each expert that the token chose, whichever
    experts the device has. A CPU multiplies a token by all experts' matrices (layers/mixture.py).
    """
    if not spec.inputs or "mlp" not in dict(spec.outputs):
        return 0
    device_axes = dict(split(one_layer_axes(spec)))
    experts = dict(spec.stacked).get("expert")
    if experts is None:
        return device_axes["mlp"]
    if traced_platform() == "cpu":
        return device_axes["expert"] * device_axes["mlp"]
    return chosen_experts(spec, experts) * (device_axes["mlp"] + device_axes["embed"])


def chosen_experts(spec: Spec, experts: int) -> int:
    """How many of the experts a token chooses, k: `share` is k / E."""
    return round(spec.share * experts)


def overcounted_values(spec: Spec, decoder: Decoder, split: Split) -> int:
    """Count the values by which twice `values_inside_mlp` of a matrix is too much.

    Where experts are differentiated, gate and up read the same copies of a token, one for each of
    its experts, and add to one gradient of them. The copies are kept for the gradients of matrices
    or adapters alone, so only if any are trained. 0 for a matrix of no experts, and on a CPU, which
    makes no copies."""
    experts = dict(spec.stacked).get("expert")
    if experts is None or not values_inside_mlp(spec, split) or traced_platform() == "cpu":
        return 0
    copies = chosen_experts(spec, experts) * dict(split(one_layer_axes(spec)))["embed"]
    # Counted for gate and for up: the copies and their gradient, 4 times `copies` in all. There are
    # 2, or without the copies 1: half of what is too much, 2 or 3, falls on each of the matrices.
    lora = decoder.config.lora
    are_trained = lora is None or EXPERTS_TARGET in lora.targets
    return copies if are_trained else 3 * copies // 2


def device_layer(described: LayerDescription, split: Split) -> LayerDescription:
    """Describe the layer as a device has it, with the device's part of each axis.

    `split`: from the axes of a weight, (name, size) pairs, to those of a device's part, in the same
    order and number."""

    def part_of(x: Any) -> Any:
        """The described parameter x, with the device's sizes in its Spec."""
        spec = spec_of(x)
        # all together: a mesh axis splits one of them
        axes = tuple(split(spec.stacked + spec.inputs + spec.outputs))
        # as Spec.shape joins them: stacked axes, inputs, outputs
        first_input = len(spec.stacked)
        first_output = first_input + len(spec.inputs)
        part = replace(
            spec,
            stacked=axes[:first_input],
            inputs=axes[first_input:first_output],
            outputs=axes[first_output:],
        )
        return param(part)

    layer = jax.tree.map(part_of, described.layer, is_leaf=lambda x: isinstance(x, nnx.Param))
    return LayerDescription(layer)


def kept_bytes(described: LayerDescription, width: int, compute: str, policy: Any) -> KeptBytes:
    """Return the bytes that JAX keeps of each token of a layer for its gradient.

    `width`: D. `compute`: the precision of products, such as "bfloat16". `policy`: of remat.py.

    Found by differentiating the layer for two numbers of tokens: what is kept of more tokens, but
    for the weights, grows with them."""

    # A stand-in that needs queries, keys and values: what attention itself keeps depends on how it
    # is computed.
    def attend(q: Array, k: Array, v: Array, window: int | None) -> tuple[Array, None]:
        # [1 t N H] times [1 t 1 H]
        return q * (k.sum(1) * v.sum(1))[:, :, None], None

    def run(x: Array, weights: dict[str, Array]) -> Array:
        positions = jnp.arange(x.shape[1])[None]
        rotations = {rope: rope.cos_sin(positions) for rope in find_ropes(described.layer)}
        hidden, _ = described.bind(weights)(x, rotations, attend)
        return hidden

    def pullback(x: Array, weights: dict[str, Array]) -> Any:
        """A function whose leaves are the arrays that are kept."""
        checkpointed = jax.checkpoint(run, prevent_cse=False, policy=policy)
        _, vjp = jax.vjp(checkpointed, x, weights)
        return vjp

    weights = {}
    for name, spec in described.specs.items():
        weights[name] = jax.ShapeDtypeStruct(spec.shape, compute)

    few, many = (jax.ShapeDtypeStruct((1, tokens, width), compute) for tokens in TRACED_TOKENS)
    kept_of_few = jax.tree.leaves(jax.eval_shape(pullback, few, weights))
    kept_of_many = jax.tree.leaves(jax.eval_shape(pullback, many, weights))

    # Weights are kept too, and do not grow with the tokens.
    more_tokens = TRACED_TOKENS[1] - TRACED_TOKENS[0]
    states = products = 0
    # The same program twice, so the arrays that are kept come in the same order.
    for smaller, larger in zip(kept_of_few, kept_of_many, strict=True):
        more_bytes = (larger.size - smaller.size) * larger.dtype.itemsize
        bytes_per_token = more_bytes // more_tokens
        # shaped as the hidden states [1 tokens D], which devices share by tokens
        if smaller.shape == few.shape and larger.shape == many.shape:
            states += bytes_per_token
        else:
            products += bytes_per_token
    return KeptBytes(states, products)
