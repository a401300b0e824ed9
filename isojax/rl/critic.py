"""PPO's critic: how much reward each token of a response may still expect, and the advantages that follow.

Its parameters are the base policy's, with a value head in place of the unembedding. It is trained together with the
policy, by its own AdamW. Its values are computed before the update, for the whole batch; a prompt is read once for its
group.
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

from isojax.distributed.sharding import ROLLOUT_AXES, manual_specs, partition_spec
from isojax.models.fsdp import all_gather_weight
from isojax.models.transformer import Decoder, Params, PrefixCache
from isojax.rl.gradient import GradientAccumulator, ResponseBatch, build_gradient
from isojax.rl.metric import Metrics, Reduction
from isojax.rl.objective import (
    Coefficients,
    MetricSums,
    Microbatch,
    PromptTokens,
    UpdateInputs,
    hidden_states,
    sum_over_tokens,
)
from isojax.sampling.batch import ProblemArrays, SamplerShapes


class ValueEstimates(NamedTuple):
    """For each response token, f32[S rows T]: its value before the update, and the return that it should have been."""

    values: Array
    returns: Array


class CriticInputs(NamedTuple):
    """What the critic's objective reads of each response: its estimates f32[m T], and its weight f32[m]."""

    values: Array
    returns: Array
    weight: Array


def critic_params(decoder: Decoder, params: Params) -> Params:
    """A critic that starts from a policy, its values all 0."""
    trunk = {k: jax.tree.map(jnp.copy, v) for k, v in params.items() if k != "unembed"}
    return {**trunk, "value": jnp.zeros(decoder.config.width), "value_bias": jnp.zeros(1)}


def critic_logical_axes(decoder: Decoder) -> Params:
    """The logical axes of a critic's parameters."""
    return {
        **{k: v for k, v in decoder.logical_axes().items() if k != "unembed"},
        "value": ("embed",),
        "value_bias": (None,),
    }


def critic_param_shapes(decoder: Decoder) -> Params:
    """ShapeDtypeStruct of each of a critic's parameters."""
    return jax.eval_shape(lambda p: critic_params(decoder, p), decoder.shapes())


def critic_param_shardings(decoder: Decoder, mesh: Mesh) -> Params:
    """NamedSharding of each of a critic's parameters."""
    return jax.tree.map(
        lambda shape, axes: NamedSharding(mesh, partition_spec(axes, shape.shape, mesh)),
        critic_param_shapes(decoder),
        critic_logical_axes(decoder),
        is_leaf=lambda x: isinstance(x, tuple),
    )


def generalised_advantages(
    rewards: Float[Array, "*r"], values: Float[Array, "*r T"], mask: Bool[Array, "*r T"], gamma: Any, gae_lambda: Any
) -> tuple[Float[Array, "*r T"], Float[Array, "*r T"]]:
    """(advantages, returns) of each token. The reward comes with a response's last token, after which the value is 0.

    A_t = delta_t + gamma lambda A_(t+1), delta_t = r_t + gamma V_(t+1) - V_t; return = A + V (arXiv:1506.02438,
    equations 11 to 16).
    """
    has_next = jnp.concatenate([mask[..., 1:], jnp.zeros_like(mask[..., :1])], -1)
    reward = jnp.where(mask & ~has_next, rewards[..., None], 0.0)
    next_values = jnp.where(has_next, jnp.roll(values, -1, -1), 0.0)
    delta = reward + gamma * next_values - values

    def backward_step(next_advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, has_next = step
        advantage = delta + gamma * gae_lambda * jnp.where(has_next, next_advantage, 0.0)
        return advantage, advantage

    steps = jnp.moveaxis(delta, -1, 0), jnp.moveaxis(has_next, -1, 0)
    advantages = jnp.moveaxis(lax.scan(backward_step, jnp.zeros_like(delta[..., 0]), steps, reverse=True)[1], 0, -1)
    return jnp.where(mask, advantages, 0.0), jnp.where(mask, advantages + values, 0.0)


def generalised_advantages_around_gaps(
    rewards: Float[Array, "*r"], values: Float[Array, "*r T"], mask: Bool[Array, "*r T"], gamma: Any, gae_lambda: Any
) -> tuple[Float[Array, "*r T"], Float[Array, "*r T"]]:
    """`generalised_advantages` where the policy did not draw every token of a response: a step leads from one token
    that it drew to the next, over the tokens in between.
    """
    packed_order = jnp.argsort(~mask, axis=-1, stable=True)
    packed_values, packed_mask = (jnp.take_along_axis(x, packed_order, -1) for x in (values, mask))
    packed = generalised_advantages(rewards, packed_values, packed_mask, gamma, gae_lambda)
    unpacked_order = jnp.argsort(packed_order, axis=-1)
    advantages, returns = (jnp.take_along_axis(x, unpacked_order, -1) for x in packed)
    return advantages, returns


@dataclass(frozen=True)
class CriticObjective:
    """The clipped squared error of values: the larger of (V - R)^2 / 2 and the same of V kept within `clip` of what it
    was.
    """

    decoder: Decoder
    needs_base: bool = False

    @property
    def metric_reductions(self) -> dict[str, Reduction]:
        """The metrics; weights in the loss hold its denominators, so that it is a total."""
        return {"loss": "total", "error": "mean", "value": "mean", "clip_fraction": "mean"}

    def values(
        self, params: Params, prefix: PrefixCache | PromptTokens, problems: ProblemArrays, microbatch: Microbatch
    ) -> Float[Array, "m T"]:
        """Values before each response token, in float32."""
        hidden = hidden_states(self.decoder, params, prefix, problems, microbatch).states
        value_head = all_gather_weight(params["value"], 0, self.decoder.config.width)
        values = jnp.einsum("mtd,d->mt", hidden, value_head, preferred_element_type=jnp.float32)
        return values + params["value_bias"][0].astype(jnp.float32)

    def __call__(
        self,
        params: Params,
        prefix: PrefixCache | PromptTokens,
        base_prefix: PrefixCache | PromptTokens | None,
        inputs: UpdateInputs,
        microbatch: Microbatch,
    ) -> tuple[Array, MetricSums]:
        """(the weighted sum of the error, the metrics)."""
        targets, clip = microbatch.objective_inputs, inputs.coefficients.critic_clip
        values = self.values(params, prefix, inputs.problems, microbatch)
        clipped_values = jnp.clip(values, targets.values - clip, targets.values + clip)
        squared_errors = (values - targets.returns) ** 2, (clipped_values - targets.returns) ** 2
        loss = 0.5 * targets.weight[:, None] * jnp.maximum(*squared_errors)
        metrics = {
            "loss": loss,
            "error": squared_errors[0],
            "value": values,
            "clip_fraction": (squared_errors[1] > squared_errors[0]).astype(jnp.float32),
        }
        mask = microbatch.mask
        return jnp.where(mask, loss, 0.0).sum(), sum_over_tokens(self.metric_reductions, metrics, mask)


def build_critic(
    decoder: Decoder, shapes: SamplerShapes, mesh: Mesh
) -> tuple[Callable[..., Array], Callable[..., tuple[Params, Metrics]]]:
    """Two functions to be called inside a jit.

    values(critic, problems, tokens i32[S rows T], mask bool[S rows T], B_p, n, coefficients) -> f32[S rows T]
    gradient(critic, {}, problems, responses with Columns, B_p, n, coefficients) -> gradient, metrics
    """
    objective = CriticObjective(decoder)
    gradient = build_gradient(objective, shapes, mesh, critic_logical_axes(decoder), critic_param_shapes(decoder))
    accumulator = GradientAccumulator(objective, shapes)
    T = shapes.response_length

    def shard_values(inputs: UpdateInputs, responses: ResponseBatch, shard: Array, B_p: Array, n: Array) -> Array:
        responses = jax.tree.map(lambda x: x[0], responses)
        shard_batch = accumulator.shard_batch(
            responses._replace(objective_inputs=jnp.arange(shapes.buffer_rows)), shard[0], B_p, n
        )
        cast_inputs = inputs._replace(params=decoder.cast_params(inputs.params))
        m, g = shapes.microbatch, shapes.prefill_batch

        def add_block_values(block: Array, values: Array) -> Array:
            first_group = jnp.minimum(shard_batch.shard_slice.first_group + block * g, shapes.Q_cap)
            prefix = decoder.prefill(cast_inputs.params, *accumulator.block_prompts(cast_inputs.problems, first_group))
            low, high = accumulator.row_bounds(shard_batch.shard_slice, shard_batch.n, block)
            lows, highs = accumulator.row_bounds(shard_batch.all_shard_slices, shard_batch.n, block)

            def add_microbatch_values(i: Array, values: Array) -> Array:
                microbatch = accumulator.take_microbatch(shard_batch, low + i * m, low, high, first_group)
                buffer_row = jnp.where(
                    microbatch.mask.any(-1), microbatch.objective_inputs, shapes.buffer_rows
                )  # those of another block, or beyond the batch, are dropped
                return values.at[buffer_row].set(
                    objective.values(cast_inputs.params, prefix, cast_inputs.problems, microbatch), mode="drop"
                )

            return lax.fori_loop(0, ((highs - lows + m - 1) // m).max(), add_microbatch_values, values)

        num_blocks = ((shard_batch.all_shard_slices.group_count + g - 1) // g).max()
        return lax.fori_loop(0, num_blocks, add_block_values, jnp.zeros((shapes.buffer_rows, T), jnp.float32))[None]

    shard_spec, replicated_spec = P(ROLLOUT_AXES), P()
    input_specs: Any = (
        manual_specs(critic_param_shapes(decoder), critic_logical_axes(decoder), mesh),
        replicated_spec,
        replicated_spec,
        replicated_spec,
    )
    sharded_values = shard_map(
        shard_values,
        mesh=mesh,
        in_specs=(UpdateInputs(*input_specs), shard_spec, shard_spec, P(), P()),
        out_specs=shard_spec,
        axis_names=set(ROLLOUT_AXES),
        check_vma=False,
    )

    def values(
        params: Params,
        problems: ProblemArrays,
        tokens: Array,
        mask: Array,
        B_p: Array,
        n: Array,
        coefficients: Coefficients,
    ) -> Float[Array, "S rows T"]:
        shard = jnp.arange(shapes.shards, dtype=jnp.int32)
        return sharded_values(
            UpdateInputs(params, {}, problems, coefficients), ResponseBatch(tokens, mask, ()), shard, B_p, n
        )

    return values, gradient
