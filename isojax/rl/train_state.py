"""What training changes: the policy, Adam's moments, the critic, and two counters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from isojax.distributed.sharding import replicated
from isojax.models.transformer import Decoder, Params
from isojax.rl import critic
from isojax.rl.optimizer import adam


class CriticState(NamedTuple):
    """PPO's critic: its float32 parameters and Adam's moments."""

    params: Params
    moments: Any


class TrainState(NamedTuple):
    """All that an update changes.

    Attributes:
        params: the policy's float32 parameters.
        moments: Adam's moments of the policy.
        step: i32[], updates done, skipped ones included.
        critic: None where the recipe has no critic.
        consecutive_nonfinite: i32[], how many of the last updates in a row were skipped because loss or gradient
            were not finite.
    """

    params: Params
    moments: Any
    step: Any
    critic: CriticState | None = None
    consecutive_nonfinite: Any = np.int32(0)


def train_state_shardings(decoder: Decoder, mesh: Mesh, with_critic: bool = False) -> TrainState:
    """The sharding of each array of a TrainState; moments are sharded as their parameters are."""
    replicated_sharding: Any = replicated(mesh)

    def moment_shardings(params: Params) -> Any:
        return optax.ScaleByAdamState(count=replicated_sharding, mu=params, nu=params)

    param_shardings, critic_shardings = decoder.shardings(mesh), critic.critic_param_shardings(decoder, mesh)
    return TrainState(
        params=param_shardings,
        moments=moment_shardings(param_shardings),
        step=replicated_sharding,
        critic=CriticState(critic_shardings, moment_shardings(critic_shardings)) if with_critic else None,
        consecutive_nonfinite=replicated_sharding,
    )


def build_init_state(decoder: Decoder, mesh: Mesh, with_critic: bool = False) -> Callable[[Params], TrainState]:
    """The jitted `init(params) -> TrainState`: a copy of the parameters, zero moments, step 0, and a critic that starts
    from the same parameters.
    """

    def init_state(params: Params) -> TrainState:
        params_copy = jax.tree.map(jnp.copy, params)  # updates donate the state, and the base policy must outlive it
        critic_params = critic.critic_params(decoder, params) if with_critic else None
        new_critic = None if critic_params is None else CriticState(critic_params, adam().init(critic_params))
        return TrainState(params_copy, adam().init(params), jnp.int32(0), new_critic, jnp.int32(0))

    return jax.jit(init_state, out_shardings=train_state_shardings(decoder, mesh, with_critic))


def train_state_shapes(decoder: Decoder, mesh: Mesh, with_critic: bool = False) -> TrainState:
    """The ShapeDtypeStruct, with its sharding, of each array of a TrainState."""
    shapes = jax.eval_shape(build_init_state(decoder, mesh, with_critic), decoder.shapes())
    shardings = train_state_shardings(decoder, mesh, with_critic)
    return jax.tree.map(lambda x, on: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on), shapes, shardings)
