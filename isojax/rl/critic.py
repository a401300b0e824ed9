"""PPO's critic, and the advantages that follow from its values. Its parameters are the base
policy's, with a value head in place of the unembedding, trained by an AdamW of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import ROLLOUT_AXES, manual_specs, param_shardings
from isojax.models.fsdp import all_gather_weight
from isojax.models.transformer import Decoder, Params
from isojax.rl.gradient import (
    GradientAccumulator,
    ResponseBatch,
    build_gradient,
    map_update_over_shards,
)
from isojax.rl.metric import Metrics, Reduction
from isojax.rl.objective import (
    MetricSums,
    Microbatch,
    Prefix,
    UpdateInputs,
    hidden_states,
    sum_over_tokens,
)
from isojax.sampling.batch import ProblemArrays


class ValueEstimates(NamedTuple):
    """Of each token, f32[S rows T]."""

    values: Array  # of the critic before the update
    returns: Array


class CriticInputs(NamedTuple):
    """What the critic's objective reads of each response: of its tokens f32[m T] the values before
    the update, and the returns that they should have been; and its weight f32[m]."""

    values: Array
    returns: Array
    weight: Array


def without_head(decoder: Decoder, tree: Params) -> Params:
    """A tree of the policy's parameters without the matrix that makes logits and nothing else."""
    head = decoder.architecture.head
    return {name: x for name, x in tree.items() if head is None or name != head.spec.name}


def critic_params(decoder: Decoder, params: Params) -> Params:
    """A critic that starts from a policy, its values all 0."""
    trunk = jax.tree.map(jnp.copy, without_head(decoder, params))
    return {**trunk, "value": jnp.zeros(decoder.config.width), "value_bias": jnp.zeros(1)}


def critic_logical_axes(decoder: Decoder) -> Params:
    return {
        **without_head(decoder, decoder.logical_axes()),
        "value": ("embed",),
        "value_bias": (None,),
    }


def critic_param_shapes(decoder: Decoder) -> Params:
    return jax.eval_shape(lambda p: critic_params(decoder, p), decoder.shapes())


def critic_param_shardings(decoder: Decoder, mesh: Mesh) -> Params:
    return param_shardings(critic_param_shapes(decoder), critic_logical_axes(decoder), mesh)


def generalised_advantages(
    rewards: Float[Array, "*r"],
    values: Float[Array, "*r T"],
    mask: Bool[Array, "*r T"],
    gamma: Any,
    gae_lambda: Any,
) -> tuple[Float[Array, "*r T"], Float[Array, "*r T"]]:
    """(advantages, returns) of each token that the policy drew; steps lead over tokens of an
    interruption phrase. The reward comes with the last token, after which the value is 0. A_t =
    delta_t + gamma lambda A_(t+1), delta_t = r_t + gamma V_(t+1) - V_t; return = A + V
    (arXiv:1506.02438, equations 11 to 16)."""
    drawn_first = jnp.argsort(~mask, axis=-1, stable=True)
    values, mask = (jnp.take_along_axis(x, drawn_first, -1) for x in (values, mask))
    has_next = jnp.concatenate([mask[..., 1:], jnp.zeros_like(mask[..., :1])], -1)
    reward = jnp.where(mask & ~has_next, rewards[..., None], 0.0)
    next_values = jnp.where(has_next, jnp.roll(values, -1, -1), 0.0)
    delta = reward + gamma * next_values - values

    def backward_step(next_advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta, has_next = step
        advantage = delta + gamma * gae_lambda * jnp.where(has_next, next_advantage, 0.0)
        return advantage, advantage

    steps = jnp.moveaxis(delta, -1, 0), jnp.moveaxis(has_next, -1, 0)
    advantages = jnp.moveaxis(
        lax.scan(backward_step, jnp.zeros_like(delta[..., 0]), steps, reverse=True)[1], 0, -1
    )
    original_order = jnp.argsort(drawn_first, axis=-1)
    advantages, returns = (
        jnp.take_along_axis(jnp.where(mask, x, 0.0), original_order, -1)
        for x in (advantages, advantages + values)
    )
    return advantages, returns


@dataclass(frozen=True)
class CriticObjective:
    """The clipped squared error: the larger of (V - R)^2 / 2 and the same with V kept within `clip`
    of the old one."""

    decoder: Decoder
    needs_base: bool = False
    routers: None = None

    @property
    def metric_reductions(self) -> dict[str, Reduction]:
        """The metrics; weights in the loss hold its denominators, so that it is a total."""
        return {"loss": "total", "error": "mean", "value": "mean", "clip_fraction": "mean"}

    def values(
        self, params: Params, prefix: Prefix, problems: ProblemArrays, microbatch: Microbatch
    ) -> Float[Array, "m T"]:
        """Values before each response token, in float32."""
        hidden = hidden_states(self.decoder, params, prefix, problems, microbatch).states(
            microbatch.tokens.shape[1]
        )
        value_head = all_gather_weight(params["value"], 0, self.decoder.config.width)
        values = jnp.einsum("mtd,d->mt", hidden, value_head, preferred_element_type=jnp.float32)
        return values + params["value_bias"][0].astype(jnp.float32)

    def __call__(
        self,
        params: Params,
        prefix: Prefix,
        base_prefix: Prefix | None,
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
        return jnp.where(mask, loss, 0.0).sum(), sum_over_tokens(
            self.metric_reductions, metrics, mask
        )


def build_critic(
    decoder: Decoder, shapes: SamplerShapes, mesh: Mesh
) -> tuple[Callable[..., Float[Array, "S rows T"]], Callable[..., tuple[Params, Metrics]]]:
    """Two functions (inputs, responses, B_p, n), to be called inside a jit: values of a batch's
    response tokens, and `build_gradient`'s gradient, whose responses come with CriticInputs."""
    objective = CriticObjective(decoder)
    axes = critic_logical_axes(decoder)
    param_shapes = critic_param_shapes(decoder)
    accumulator = GradientAccumulator(objective, shapes)

    def shard_values(
        shard: Array, inputs: UpdateInputs, responses: ResponseBatch, B_p: Array, n: Array
    ) -> Array:
        # each one's row
        responses = responses._replace(objective_inputs=jnp.arange(shapes.buffer_rows)[None])
        shard_batch = accumulator.shard_batch(responses, shard, B_p, n)
        params = decoder.cast_params(inputs.params)

        def add_block_values(block_index: Array, values: Array) -> Array:
            block = accumulator.block(shard_batch, block_index)
            prompts = accumulator.block_prompts(inputs.problems, shard_batch, block)
            prefix = decoder.prefill(params, prompts.prompts, prompts.lengths)

            def add_microbatch_values(i: Array, values: Array) -> Array:
                microbatch = accumulator.take_microbatch(shard_batch, block, i)
                # Rows that do not count go beyond the last, where they are dropped.
                row = jnp.where(
                    microbatch.mask.any(-1), microbatch.objective_inputs, shapes.buffer_rows
                )
                return values.at[row].set(
                    objective.values(params, prefix, inputs.problems, microbatch), mode="drop"
                )

            return lax.fori_loop(0, block.num_microbatches, add_microbatch_values, values)

        zeros = jnp.zeros((shapes.buffer_rows, shapes.response_length), jnp.float32)
        return lax.fori_loop(0, accumulator.num_blocks(shard_batch), add_block_values, zeros)[None]

    specs = manual_specs(param_shapes, axes, mesh), P()
    values = map_update_over_shards(shard_values, mesh, specs, out_specs=P(ROLLOUT_AXES))
    return values, build_gradient(objective, shapes, mesh, axes, param_shapes)
