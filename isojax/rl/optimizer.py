"""The state that training changes, AdamW, and the learning rate: warmed up, then constant, and
growing with the batch, as its square root in the paper (IsoCompute Playbook, section 3, factor 3;
Fig. 4 compares the rules)."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from isojax.core.config import RLConfig
from isojax.distributed.sharding import replicated, shapes_with_shardings
from isojax.models.transformer import Decoder, Params
from isojax.rl import critic

LR_SCALINGS: dict[str, Callable[[Array], Array]] = {
    "constant": jnp.ones_like,
    "linear": jnp.asarray,
    "sqrt": jnp.sqrt,
}
# Adam's decay rates of its two means, and what is added to the root of the second
B1 = 0.9
B2 = 0.999
EPS = 1e-8
# Adam's moments. Clipping, weight decay and the learning rate are traced, and `adamw_update`
# applies them.
ADAM = optax.scale_by_adam(b1=B1, b2=B2, eps=EPS)
HOST_MEMORY = "pinned_host"  # as XLA names it


def learning_rate(
    rl: RLConfig, step: Int[Array, ""], B: Int[Array, ""], reference_lr: ArrayLike
) -> Float[Array, ""]:
    """reference_lr * s(B / lr_reference_batch) * min(1, (step + 1) / warmup); s(x) is 1, x or
    sqrt(x) by `lr_scaling`. step: updates done before this one. B: rollouts per update."""
    warmup_factor = jnp.minimum(1.0, (step + 1) / rl.warmup)
    batch_factor = LR_SCALINGS[rl.lr_scaling](B / rl.lr_reference_batch)
    return jnp.asarray(reference_lr) * batch_factor * warmup_factor


def adamw_update(
    params: Params,
    moments: Any,
    gradient: Params,
    *,
    grad_norm: Array,
    max_grad_norm: ArrayLike,
    lr: Array,
    weight_decay: ArrayLike,
    skip: Array,
) -> tuple[Params, Any]:
    """Return (parameters, moments) after a step of AdamW (arXiv:1711.05101), or as they are.

    params, gradient: trees of the same structure, float32. moments: of `ADAM.init(params)`.
    grad_norm: f32[], the gradient's global norm, by which it is clipped to `max_grad_norm`. lr:
    f32[], this step's, scaled and warmed up. skip: bool[]; where true, nothing changes.
    """
    # The bound 1e-30 avoids a division by 0.
    clip_scale = jnp.minimum(1.0, max_grad_norm / jnp.maximum(grad_norm, 1e-30))
    clipped_gradient = jax.tree.map(lambda g: g * clip_scale, gradient)
    # Adam's own step is not used: the one below reads the moments behind the barrier.
    _, new_moments = ADAM.update(clipped_gradient, moments)

    # Without the barrier XLA computes the parameters from the old moments, and keeps a copy of all
    # moments for that.
    moments = lax.optimization_barrier(jax.tree.map(partial(jnp.where, skip), moments, new_moments))

    means = optax.tree.bias_correction(moments.mu, B1, moments.count)
    squares = optax.tree.bias_correction(moments.nu, B2, moments.count)

    def step_parameter(p: Array, m: Array, v: Array) -> Array:
        return jnp.where(skip, p, p - lr * (m / (jnp.sqrt(v) + EPS) + weight_decay * p))

    return jax.tree.map(step_parameter, params, means, squares), moments


class CriticState(NamedTuple):
    """PPO's critic: its float32 parameters and Adam's moments."""

    params: Params
    moments: Any


class TrainState(NamedTuple):
    """All that an update changes."""

    params: Params  # the policy's, float32
    moments: Any  # Adam's of the policy
    step: Any  # i32[], updates done, skipped ones included
    critic: CriticState | None = None
    # i32[], how many of the last updates in a row were skipped
    consecutive_nonfinite: Any = np.int32(0)


def place_moments(state: TrainState, on_host: bool) -> TrainState:
    """The state with Adam's moments and the critic in the memory of the hosts, or of the
    devices."""
    kind = HOST_MEMORY if on_host else "device"
    moving = state.moments, state.critic
    shardings = jax.tree.map(lambda x: x.sharding.with_memory_kind(kind), moving)
    moments, new_critic = jax.device_put(moving, shardings)
    return state._replace(moments=moments, critic=new_critic)


def train_state_shardings(decoder: Decoder, mesh: Mesh, with_critic: bool = False) -> TrainState:
    """The sharding of each array of a TrainState; moments are sharded as their parameters are.

    with_critic: whether the recipe has a critic; else `critic` is None.
    """
    replicated_sharding: Any = replicated(mesh)

    def moment_shardings(params: Params) -> Any:
        return optax.ScaleByAdamState(count=replicated_sharding, mu=params, nu=params)

    param_shardings = decoder.trained(decoder.shardings(mesh))
    critic_state = None
    if with_critic:
        critic_shardings = critic.critic_param_shardings(decoder.base, mesh)
        critic_state = CriticState(critic_shardings, moment_shardings(critic_shardings))
    return TrainState(
        params=param_shardings,
        moments=moment_shardings(param_shardings),
        step=replicated_sharding,
        critic=critic_state,
        consecutive_nonfinite=replicated_sharding,
    )


def build_init_state(
    decoder: Decoder, mesh: Mesh, with_critic: bool = False
) -> Callable[[Params], TrainState]:
    """Build the jitted `init(base_params) -> TrainState`, the state before the first update.

    A critic (with_critic) starts from the base policy's parameters. With LoRA `params` are the
    adapters alone, which start from the same draws in every run.
    """

    def init_state(base_params: Params) -> TrainState:
        """Copies of the base policy's parameters, or new adapters, with moments of zeros."""
        params = base_params
        if decoder.config.lora is not None:
            params = decoder.trained(decoder.init(jax.random.key(0)))

        critic_state = None
        if with_critic:
            critic_params = critic.critic_params(decoder.base, base_params)
            critic_state = CriticState(critic_params, ADAM.init(critic_params))

        return TrainState(
            # updates donate the state, and the base policy must outlive it
            params=jax.tree.map(jnp.copy, params),
            moments=ADAM.init(params),
            step=jnp.int32(0),
            critic=critic_state,
            consecutive_nonfinite=jnp.int32(0),
        )

    return jax.jit(init_state, out_shardings=train_state_shardings(decoder, mesh, with_critic))


def train_state_shapes(decoder: Decoder, mesh: Mesh, with_critic: bool = False) -> TrainState:
    """ShapeDtypeStructs of a TrainState, with shardings."""
    shapes = jax.eval_shape(build_init_state(decoder, mesh, with_critic), decoder.base.shapes())
    return shapes_with_shardings(shapes, train_state_shardings(decoder, mesh, with_critic))
