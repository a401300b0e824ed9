"""PPO's critic: how much reward each token of a response may still expect, and the advantages that follow.

Its parameters are the base policy's, with a value head in the place of the unembedding; it is trained beside the policy, by an AdamW of
its own. Values are read before the update, for the whole batch, prompts once a group.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from isojax.models.decoder import Decoder, Params, Prefix
from isojax.models.parts import whole
from isojax.rl.advantages import whitened
from isojax.rl.objective import Coefficients, Fixed, Rows, Sums, Unread, hidden_states
from isojax.rl.update import Accumulator, Responses, build_gradient
from isojax.sampling.batch import Geometry, Problems
from isojax.sharding import ROWS, manual_specs, partition


class Estimates(NamedTuple):
    """Of each response token, f32[S rows T]: its value before the update, and the return that the value should have been."""

    values: Array
    returns: Array


class Columns(NamedTuple):
    """What the critic's objective wants of each response: its estimates f32[m T], and its weight f32[m]."""

    values: Array
    returns: Array
    weight: Array


def critic_params(decoder: Decoder, params: Params) -> Params:
    """A critic that starts from a policy, its values all 0."""
    trunk = {k: jax.tree.map(jnp.copy, v) for k, v in params.items() if k != "unembed"}
    return {**trunk, "value": jnp.zeros(decoder.config.width), "value_bias": jnp.zeros(1)}


def logical_axes(decoder: Decoder) -> Params:
    """The logical axes of a critic's parameters."""
    return {**{k: v for k, v in decoder.logical_axes().items() if k != "unembed"}, "value": ("embed",), "value_bias": (None,)}


def shapes(decoder: Decoder) -> Params:
    """ShapeDtypeStruct of each of a critic's parameters."""
    return jax.eval_shape(lambda p: critic_params(decoder, p), decoder.shapes())


def shardings(decoder: Decoder, mesh: Mesh) -> Params:
    """NamedSharding of each of a critic's parameters."""
    return jax.tree.map(
        lambda shape, axes: NamedSharding(mesh, partition(axes, shape.shape, mesh)),
        shapes(decoder),
        logical_axes(decoder),
        is_leaf=lambda x: isinstance(x, tuple),
    )


def generalised_advantages(
    rewards: Float[Array, "*r"], values: Float[Array, "*r T"], mask: Bool[Array, "*r T"], gamma: Any, gae_lambda: Any
) -> tuple[Float[Array, "*r T"], Float[Array, "*r T"]]:
    """(advantages, returns) of each token; the reward comes with a response's last token, beyond which the value is 0.

    A_t = delta_t + gamma lambda A_(t+1), delta_t = r_t + gamma V_(t+1) - V_t; return = A + V (arXiv:1506.02438, equations 11 to 16).
    """
    following = jnp.concatenate([mask[..., 1:], jnp.zeros_like(mask[..., :1])], -1)
    reward = jnp.where(mask & ~following, rewards[..., None], 0.0)
    next_values = jnp.where(following, jnp.roll(values, -1, -1), 0.0)
    delta = reward + gamma * next_values - values

    def back(after: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, following = step
        here = delta + gamma * gae_lambda * jnp.where(following, after, 0.0)
        return here, here

    steps = jnp.moveaxis(delta, -1, 0), jnp.moveaxis(following, -1, 0)
    gains = jnp.moveaxis(lax.scan(back, jnp.zeros_like(delta[..., 0]), steps, reverse=True)[1], 0, -1)
    return jnp.where(mask, gains, 0.0), jnp.where(mask, gains + values, 0.0)


def advantages(
    rewards: Float[Array, "*r"], values: Float[Array, "*r T"], mask: Bool[Array, "*r T"], numbers: Coefficients
) -> tuple[Float[Array, "*r T"], Estimates]:
    """The policy's advantages, standardised over the batch's tokens as PPO's implementations have them, and what the critic learns from."""
    gains, returns = generalised_advantages(rewards, values, mask, numbers.gamma, numbers.gae_lambda)
    return jnp.where(mask, whitened(gains, mask.astype(jnp.float32)), 0.0), Estimates(values, returns)


def advantages_around_gaps(
    rewards: Float[Array, "*r"], values: Float[Array, "*r T"], mask: Bool[Array, "*r T"], numbers: Coefficients
) -> tuple[Float[Array, "*r T"], Estimates]:
    """`advantages` where tokens that were not drawn may lie between those that were: a step leads from one of these to the next."""
    closed_up = jnp.argsort(~mask, axis=-1, stable=True)
    near, there = (jnp.take_along_axis(x, closed_up, -1) for x in (values, mask))
    gains, estimates = advantages(rewards, near, there, numbers)
    back = jnp.argsort(closed_up, axis=-1)
    gains, returns = (jnp.take_along_axis(x, back, -1) for x in (gains, estimates.returns))
    return gains, Estimates(values, returns)


@dataclass(frozen=True)
class CriticObjective:
    """The clipped squared error of values: the larger of (V - R)^2 / 2 and the same of V kept within `clip` of what it was."""

    decoder: Decoder
    needs_base: bool = False

    @property
    def names(self) -> list[str]:
        """The metrics'."""
        return ["loss", "error", "value", "clip_fraction"]

    def values(self, params: Params, prefix: Prefix | Unread, problems: Problems, rows: Rows) -> Float[Array, "m T"]:
        """Values before each response token, in float32."""
        hidden = hidden_states(self.decoder, params, prefix, problems, rows).states
        direction = whole(params["value"], 0, self.decoder.config.width)
        values = jnp.einsum("mtd,d->mt", hidden, direction, preferred_element_type=jnp.float32)
        return values + params["value_bias"][0].astype(jnp.float32)

    def __call__(
        self, params: Params, prefix: Prefix | Unread, base_prefix: Prefix | Unread | None, fixed: Fixed, rows: Rows
    ) -> tuple[Array, Sums]:
        """(the weighted sum of the error, the metrics)."""
        own, clip = rows.own, fixed.coefficients.critic_clip
        values = self.values(params, prefix, fixed.problems, rows)
        kept = jnp.clip(values, own.values - clip, own.values + clip)
        errors = (values - own.returns) ** 2, (kept - own.returns) ** 2
        loss = 0.5 * own.weight[:, None] * jnp.maximum(*errors)
        metrics = {"loss": loss, "error": errors[0], "value": values, "clip_fraction": (errors[1] > errors[0]).astype(jnp.float32)}
        return jnp.where(rows.mask, loss, 0.0).sum(), {k: jnp.where(rows.mask, v, 0.0).sum() for k, v in metrics.items()}


def build_critic(decoder: Decoder, geometry: Geometry, mesh: Mesh) -> tuple[Callable[..., Array], Callable[..., tuple[Params, Sums]]]:
    """Two functions to be called inside a jit.

    values(critic, problems, tokens i32[S rows T], mask bool[S rows T], B_p, n, coefficients) -> f32[S rows T]
    gradient(critic, {}, problems, responses with Columns, B_p, n, coefficients) -> gradient, metrics
    """
    objective = CriticObjective(decoder)
    gradient = build_gradient(objective, geometry, mesh, logical_axes(decoder), shapes(decoder))
    accumulate = Accumulator(objective, geometry)
    T = geometry.response_length

    def shard_values(fixed: Fixed, responses: Responses, shard: Array, B_p: Array, n: Array) -> Array:
        responses = jax.tree.map(lambda x: x[0], responses)
        own = accumulate.own(responses._replace(own=jnp.arange(geometry.rows)), shard[0], B_p, n)
        cast = fixed._replace(params=decoder.cast(fixed.params))
        m, g = geometry.microbatch, geometry.prompts

        def block(b: Array, out: Array) -> Array:
            first_group = jnp.minimum(own.part.group + b * g, geometry.Q_cap)
            prefix = decoder.prefill(cast.params, *accumulate.prompts(cast.problems, first_group))
            low, high = accumulate.bounds(own.part, own.n, b)
            lows, highs = accumulate.bounds(own.every, own.n, b)

            def read(i: Array, out: Array) -> Array:
                rows = accumulate.microbatch(own, low + i * m, low, high, first_group)
                row = jnp.where(rows.mask.any(-1), rows.own, geometry.rows)  # those of another block, or beyond the batch, are dropped
                return out.at[row].set(objective.values(cast.params, prefix, cast.problems, rows), mode="drop")

            return lax.fori_loop(0, ((highs - lows + m - 1) // m).max(), read, out)

        blocks = ((own.every.groups + g - 1) // g).max()
        return lax.fori_loop(0, blocks, block, jnp.zeros((geometry.rows, T), jnp.float32))[None]

    rows, everywhere = P(ROWS), P()
    lies: Any = (manual_specs(shapes(decoder), logical_axes(decoder), mesh), everywhere, everywhere, everywhere)
    sharded = shard_map(
        shard_values,
        mesh=mesh,
        in_specs=(Fixed(*lies), rows, rows, P(), P()),
        out_specs=rows,
        axis_names=set(ROWS),
        check_vma=False,
    )

    def values(
        critic: Params, problems: Problems, tokens: Array, mask: Array, B_p: Array, n: Array, coefficients: Coefficients
    ) -> Float[Array, "S rows T"]:
        shard = jnp.arange(geometry.shards, dtype=jnp.int32)
        return sharded(Fixed(critic, {}, problems, coefficients), Responses(tokens, mask, ()), shard, B_p, n)

    return values, gradient
