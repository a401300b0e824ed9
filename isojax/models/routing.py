"""What comes out of a pass's routers, and what may go into them: each token's experts, sums over
tokens, and the choice of experts that a sampler made (`RouterPass`). Dense layers have no part in
it.

Letters: b rows, t tokens of a row, r = b t; E experts, of which a token has k; l of the model's
sparse layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from isojax.models.layers.mixture import Routing, find_mixture
from isojax.models.stack import Stack

StackChoices = Sequence[Int[Array, "L b t k"] | None]  # of each stack of layers; None of dense ones


class RoutingSums(NamedTuple):
    """Sums over tokens and sparse layers, in which each token counts by its weight."""

    tokens: Float[Array, ""]  # the weights themselves, once for each layer
    choices: Float[Array, " E"]  # how often each expert was chosen
    probabilities: Float[Array, " E"]  # of each expert by the router; the only ones with a gradient
    entropy: Float[Array, ""]  # of the router's distribution, in nats
    # tokens whose k experts are those of the sampler; 0 where these are not known
    agreeing: Float[Array, ""]


@dataclass(frozen=True)
class RouterPass:
    """What a pass over tokens [b t] reads of its routers, and gives them."""

    # From a layer's Routing, and the sampler's choices [r k] if there are any, to what comes out of
    # the layer.
    observe: Callable[[Routing, Array | None], Any]
    sampled: StackChoices | None = None
    replays: bool = False  # whether tokens meet the experts that the sampler chose


class RoutedResult(NamedTuple):
    """What a layer gives, and what its router shows."""

    result: Any
    routed: Any  # what `RouterPass.observe` makes of it; None of a dense layer, or without one


def run_with_router(
    layer: Any,
    routers: RouterPass | None,
    sampled: Int[Array, "b t k"] | None,
    run: Callable[[], Any],
) -> RoutedResult:
    """Call `run`, which calls the layer, and observe the layer's router.

    `layer`: bound to its weights. `routers`: None: nothing is observed, as in a dense layer.
    `sampled`: the experts that a sampler chose for these tokens in this layer, or None; where
    `routers` replays, the tokens meet those. Only the mixture that the layer holds is changed, so
    `run` must call this layer and no other."""
    mixture = find_mixture(layer)
    if mixture is None or routers is None:
        return RoutedResult(run(), None)

    chosen = None
    if sampled is not None:
        chosen = sampled.reshape(-1, sampled.shape[-1]).astype(jnp.int32)

    # The mixture's attributes are this call's alone: its layer was bound to its weights for it.
    if routers.replays:
        mixture.replayed = chosen
    result = run()
    assert mixture.routing is not None, "the layer's MLP was not called"
    return RoutedResult(result, routers.observe(mixture.routing, chosen))


def sum_routing(
    weights: Float[Array, "*b"], routing: Routing, sampled: Int[Array, "r k"] | None
) -> RoutingSums:
    """Sum what one layer's router decided over all tokens.

    `weights`: how often each of r tokens counts, such as a mask [b t]. `sampled`: the experts that
    a sampler chose, compared without regard to their order; None: unknown, and `agreeing` is 0."""
    weights = weights.reshape(-1)
    experts = routing.experts
    k = experts.shape[1]
    E = routing.logits.shape[1]

    log_p = jax.nn.log_softmax(routing.logits, -1)
    constant_log_p = lax.stop_gradient(log_p)
    entropy = -(jnp.exp(constant_log_p) * constant_log_p).sum(-1)

    agreeing = jnp.float32(0)
    if sampled is not None:
        # by the router's choice: `routing.experts` may be the sampler's, replayed
        _, chosen = lax.top_k(constant_log_p, k)
        agrees = (jnp.sort(chosen, -1) == jnp.sort(sampled, -1)).all(-1)
        agreeing = jnp.where(agrees, weights, 0.0).sum()

    # The sum over tokens [r] of values [r E], one choice after the other: all at once would be
    # [r k E].
    choices = sum((weights[:, None] * jax.nn.one_hot(experts[:, j], E)).sum(0) for j in range(k))
    return RoutingSums(
        tokens=weights.sum(),
        choices=jnp.asarray(choices),
        probabilities=(weights[:, None] * jnp.exp(log_p)).sum(0),
        entropy=(weights * entropy).sum(),
        agreeing=agreeing,
    )


def add_layers(by_stack: Sequence[RoutingSums | None]) -> RoutingSums:
    """Of all sparse layers together, from the sums [L ...] of each stack's layers."""
    of_sparse = [jax.tree.map(lambda x: x.sum(0), sums) for sums in by_stack if sums is not None]
    return jax.tree.map(lambda *parts: sum(parts), *of_sparse)


def zero_sums(experts: int) -> RoutingSums:
    zero = jnp.float32(0)
    by_expert = jnp.zeros(experts, jnp.float32)
    return RoutingSums(
        tokens=zero, choices=by_expert, probabilities=by_expert, entropy=zero, agreeing=zero
    )


def sparse_layers(stacks: Sequence[Stack]) -> list[int]:
    """The numbers of the model's layers with experts, in order."""
    return sorted(layer for stack in stacks if stack.router is not None for layer in stack.layers)


def split_choices(stacks: Sequence[Stack], experts: Int[Array, "b t l k"]) -> StackChoices:
    """The experts of all sparse layers, by stack."""
    place_of_layer = {layer: i for i, layer in enumerate(sparse_layers(stacks))}
    by_stack = []
    for stack in stacks:
        of_stack = None
        if stack.router is not None:
            places = [place_of_layer[layer] for layer in stack.layers]
            of_stack = jnp.moveaxis(experts[:, :, places], 2, 0)
        by_stack.append(of_stack)
    return by_stack


def join_choices(stacks: Sequence[Stack], by_stack: StackChoices) -> Int[Array, "b t l k"]:
    """The inverse of `split_choices`."""
    by_layer = {}
    for stack, experts in zip(stacks, by_stack, strict=True):
        if experts is not None:
            by_layer |= dict(zip(stack.layers, experts, strict=True))
    return jnp.stack([by_layer[layer] for layer in sorted(by_layer)], 2)


def to_recorded(routing: Routing, sampled: Array | None) -> Int[Array, "r k"]:
    """What a sampler records of a layer: the experts' numbers, as small as they may be stored."""
    return routing.experts.astype(recorded_dtype(routing.logits.shape[1]))


def recorded_dtype(experts: int) -> str:
    return "uint8" if experts <= 256 else "uint16"
