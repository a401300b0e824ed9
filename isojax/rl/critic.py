"""PPO's critic, and the advantages that follow from its values. Its parameters are the base
policy's, with a value head in place of the unembedding, trained by a second AdamW."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from isojax.core import program_scopes
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import ROLLOUT_AXES, manual_specs, param_shardings
from isojax.models.fsdp import all_gather_weight
from isojax.models.transformer import Decoder, Params
from isojax.rl.gradient import (
    GradientAccumulator,
    ResponseBatch,
    ShardBatch,
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
    returns: Array  # what they should have been (`generalised_advantages`)


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
    """Return (advantages, returns) of each token that the policy drew, 0 elsewhere.

    rewards: one for each response. values: before each token. mask: the tokens that the policy
    drew; those of an interruption phrase are not among them, and t + 1 is the next that was drawn.
    gamma, gae_lambda: 0 to 1. The reward comes with the last token, after which the value is 0
    (arXiv:1506.02438, equations 11 to 16):

        delta_t = r_t + gamma V_(t+1) - V_t
        A_t = delta_t + gamma lambda A_(t+1)
        return_t = A_t + V_t
    """
    # Drawn tokens first, in their order, so that the token after each is the next that was drawn.
    drawn_first = jnp.argsort(~mask, axis=-1, stable=True)
    values = jnp.take_along_axis(values, drawn_first, -1)
    mask = jnp.take_along_axis(mask, drawn_first, -1)

    has_next = jnp.concatenate([mask[..., 1:], jnp.zeros_like(mask[..., :1])], -1)
    reward = jnp.where(mask & ~has_next, rewards[..., None], 0.0)
    next_values = jnp.where(has_next, jnp.roll(values, -1, -1), 0.0)
    delta = reward + gamma * next_values - values

    def backward_step(next_advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        delta_t, has_next_t = step
        advantage = delta_t + gamma * gae_lambda * jnp.where(has_next_t, next_advantage, 0.0)
        return advantage, advantage

    # From the last token to the first; a scan runs over the first axis.
    steps = jnp.moveaxis(delta, -1, 0), jnp.moveaxis(has_next, -1, 0)
    after_last = jnp.zeros_like(delta[..., 0])
    _, by_token = lax.scan(backward_step, after_last, steps, reverse=True)
    advantages = jnp.moveaxis(by_token, 0, -1)
    returns = advantages + values

    original_order = jnp.argsort(drawn_first, axis=-1)

    def restore_order(x: Array) -> Array:
        return jnp.take_along_axis(jnp.where(mask, x, 0.0), original_order, -1)

    return restore_order(advantages), restore_order(returns)


@dataclass(frozen=True)
class CriticObjective:
    """PPO's loss of the values: of the squared error (V - R)^2 / 2, and the same with V kept within
    `critic_clip` of the value before the update, the larger one."""

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
        T = microbatch.tokens.shape[1]
        hidden = hidden_states(self.decoder, params, prefix, problems, microbatch).states(T)
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
        """Return (the weighted sum of the error f32[], the sums of metrics).

        params: the critic's. microbatch: with CriticInputs. base_prefix: not read.
        """
        targets: CriticInputs = microbatch.objective_inputs
        clip = inputs.coefficients.critic_clip
        values = self.values(params, prefix, inputs.problems, microbatch)
        clipped_values = jnp.clip(values, targets.values - clip, targets.values + clip)

        error = (values - targets.returns) ** 2
        clipped_error = (clipped_values - targets.returns) ** 2
        loss = 0.5 * targets.weight[:, None] * jnp.maximum(error, clipped_error)
        metrics = {
            "loss": loss,
            "error": error,
            "value": values,
            "clip_fraction": (clipped_error > error).astype(jnp.float32),
        }

        mask = microbatch.mask
        sums = sum_over_tokens(self.metric_reductions, metrics, mask)
        return jnp.where(mask, loss, 0.0).sum(), sums


class CriticFunctions(NamedTuple):
    """Functions (inputs, responses, B_p, n), to be called inside a jit; `inputs.params` are the
    critic's."""

    values: Callable[..., Float[Array, "S rows T"]]  # of each response token
    # `build_gradient`'s, whose responses come with CriticInputs
    gradient: Callable[..., tuple[Params, Metrics]]


def build_critic(decoder: Decoder, shapes: SamplerShapes, mesh: Mesh) -> CriticFunctions:
    """Build what an update reads of a critic. decoder: the base policy's, without adapters."""
    objective = CriticObjective(decoder)
    accumulator = GradientAccumulator(objective, shapes)
    axes = critic_logical_axes(decoder)
    param_shapes = critic_param_shapes(decoder)

    def shard_values(
        shard: Array, inputs: UpdateInputs, responses: ResponseBatch, B_p: Array, n: Array
    ) -> Float[Array, "1 rows T"]:
        """The values of one shard's rows, in the order of the buffers. shard: i32[1]."""
        # The shard's rows are sorted for computation; each keeps its number, to be put back.
        rows = jnp.arange(shapes.buffer_rows)
        responses = responses._replace(objective_inputs=rows[None])
        shard_batch = accumulator.shard_batch(responses, shard, B_p, n)
        return values_of_rows(objective, accumulator, inputs, shard_batch)[None]

    # Of the parameters, how data and fsdp split them; of base parameters, of which there are none.
    specs = manual_specs(param_shapes, axes, mesh), P()
    return CriticFunctions(
        values=map_update_over_shards(shard_values, mesh, specs, out_specs=P(ROLLOUT_AXES)),
        gradient=build_gradient(objective, shapes, mesh, axes, param_shapes),
    )


def values_of_rows(
    objective: CriticObjective,
    accumulator: GradientAccumulator,
    inputs: UpdateInputs,
    shard_batch: ShardBatch,
) -> Float[Array, "rows T"]:
    """The values of a shard's response tokens, 0 in rows that do not count.

    Prompts go through the layers block by block, as for the gradient. `objective_inputs` of the
    responses are not CriticInputs here, but i32[rows], the row that each one's values go to.
    """
    shapes = accumulator.shapes
    params = objective.decoder.cast_params(inputs.params)

    def add_block(index: Array, values: Array) -> Array:
        block = accumulator.block(shard_batch, index)
        prompts = accumulator.block_prompts(inputs.problems, shard_batch, block)
        prefix = objective.decoder.prefill(params, prompts.prompts, prompts.lengths)

        def add_microbatch(i: Array, values: Array) -> Array:
            microbatch = accumulator.take_microbatch(shard_batch, block, i)
            # Rows that do not count go beyond the last, where they are dropped.
            is_counted = microbatch.mask.any(-1)
            row = jnp.where(is_counted, microbatch.objective_inputs, shapes.buffer_rows)
            of_microbatch = objective.values(params, prefix, inputs.problems, microbatch)
            return values.at[row].set(of_microbatch, mode="drop")

        with jax.named_scope(program_scopes.MICROBATCHES):
            return lax.fori_loop(0, block.num_microbatches, add_microbatch, values)

    zeros = jnp.zeros((shapes.buffer_rows, shapes.response_length), jnp.float32)
    with jax.named_scope(program_scopes.GRADIENT_BLOCKS):
        return lax.fori_loop(0, accumulator.num_blocks(shard_batch), add_block, zeros)
