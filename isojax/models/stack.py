"""A plan of layers: periods of kinds that repeat, each scanned over its repeats' stacked
weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.core.errors import InputError
from isojax.models.architecture import Kind, find_ropes
from isojax.models.layers.mixture import RouterShape, find_mixture
from isojax.models.spec import LayerDescription, Spec

FIRST_STACK = "blocks"


@dataclass(frozen=True)
class AttentionShape:
    """What a layer asks of attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None  # positions that a token sees, its own included; None: all before

    def ring_size(self, positions: int) -> int:
        """How many positions a cache holds at once of rows of `positions`."""
        return positions if self.window is None else min(positions, self.window)


@dataclass(frozen=True)
class Stack:
    """Layers that are alike, whose weights are stacked: one layer of each repeat of a
    period."""

    name: str  # in the parameters' tree: "blocks", "blocks_1", ...
    layers: range  # of the model's
    described: LayerDescription  # with adapters, where there are any
    base: LayerDescription  # without
    attention: AttentionShape
    router: RouterShape | None  # of a layer with experts
    specs: tuple[Spec, ...]  # of one layer, in the order in which their values are drawn


@dataclass(frozen=True)
class Segment:
    """A period of layers, one after the other, and how often it comes."""

    stacks: tuple[Stack, ...]
    repeats: int


def plan(kinds: Sequence[Kind]) -> list[tuple[Sequence[Kind], int]]:
    """Split the layers into periods of kinds that repeat: (period, repeats) pairs, in order.

    At each layer it takes the period whose repeats save most descriptions, and of these the
    shortest. `kinds`: what layers of one kind share, such as "sliding", for each layer of the
    model. For example 26 layers, five sliding ones to a full one: (S S S S S F) x 4, (S) x 2.

    A run's checkpoints have the stacks that follow from it, so it must not change."""
    periods: list[tuple[Sequence[Kind], int]] = []
    first = 0
    while first < len(kinds):
        rest = kinds[first:]
        best_size, best_repeats = 1, count_repeats(rest, 1)
        for size in range(2, len(rest) + 1):
            repeats = count_repeats(rest, size)
            # layers that need no description of their own; of equally many the shorter period
            if (repeats - 1) * size > (best_repeats - 1) * best_size:
                best_size, best_repeats = size, repeats

        periods.append((rest[:best_size], best_repeats))
        first += best_size * best_repeats
    return periods


def count_repeats(kinds: Sequence[Kind], size: int) -> int:
    """Count how often the first `size` kinds come one time after the other, at least 1."""
    repeats = 1
    while kinds[repeats * size : (repeats + 1) * size] == kinds[:size]:
        repeats += 1
    return repeats


def is_stack(entry: Any) -> bool:
    """Whether an entry of the parameters' tree holds the weights of layers."""
    return isinstance(entry, (dict, list))


def stacks_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a tree of parameters, or of what is known of them, that are layers'."""
    return {name: entry for name, entry in tree.items() if is_stack(entry)}


def router_shape(described: LayerDescription) -> RouterShape | None:
    mixture = find_mixture(described.layer)
    return None if mixture is None else mixture.shape


def probe_attention(described: LayerDescription, width: int) -> AttentionShape:
    """Find what a layer asks of attention, by tracing it on one token at position 0.

    `width`: D of the hidden states. The layer's sizes are read off the queries and keys with which
    it calls `attend`. InputError unless it calls it exactly once."""
    calls: list[AttentionShape] = []

    # notes each call in `calls`; k has the heads on axis 1, q on axis 2
    def attend(
        q: Float[Array, "1 1 N H"],
        k: Float[Array, "1 K 1 H"],
        v: Float[Array, "1 K 1 H"],
        window: int | None,
    ) -> tuple[Array, None]:
        calls.append(
            AttentionShape(
                heads=q.shape[2], kv_heads=k.shape[1], head_dim=k.shape[3], window=window
            )
        )
        return jnp.zeros_like(q), None

    def run(weights: dict[str, Array], x: Array) -> Array:
        position = jnp.zeros((1, 1), jnp.int32)
        rotations = {rope: rope.cos_sin(position) for rope in find_ropes(described.layer)}
        x, _ = described.bind(weights)(x, rotations, attend)
        return x

    weights = {}
    for name, spec in described.specs.items():
        weights[name] = jax.ShapeDtypeStruct(spec.shape, jnp.float32)
    jax.eval_shape(run, weights, jax.ShapeDtypeStruct((1, 1, width), jnp.float32))

    if len(calls) != 1:
        raise InputError(
            found=f"a layer of the model calls `attend` {len(calls)} times",
            expected="once (docs/extending.md)",
        )
    return calls[0]
