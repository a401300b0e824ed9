"""One compiled program for an update: prefill, sample, verify, advantages, gradient, AdamW. A call does up to U of them in a loop.
(Where the host verifies, the same parts make two programs: rl/hosted.py.)

B_p, n, the seed, the update's number and every coefficient are traced, so one program serves a whole sweep; which problems an
update takes comes from the host as indices into the training table.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, Int

from isojax import registry
from isojax.config import CellConfig, RLConfig
from isojax.models.decoder import Decoder, Params
from isojax.rl import advantages
from isojax.rl.compact import compact
from isojax.rl.schedule import learning_rate
from isojax.rl.update import Coefficients, build_gradient
from isojax.sampling.batch import Geometry, Problems, Rollouts, batch_rows
from isojax.sampling.sampler import build_sampler
from isojax.sharding import replicated
from isojax.tasks.base import DeviceTask
from isojax.tasks.stops import Stops

TRAIN, EVAL, LABEL, EXTRA = 0, 1, 2, 3  # streams of random numbers; the i-th extra problem set has EXTRA + i
UPDATES_A_CALL = 64
TAUGHT = "taught/"  # opens a metric that is a mean over the tokens of groups with an advantage, times the share of these tokens


class State(NamedTuple):
    """All of a run that training changes (or, of the same shape, its shardings): float32 parameters, Adam's moments, updates done."""

    params: Params
    moments: Any
    step: Any


def coefficients(config: RLConfig) -> Coefficients:
    """The recipe's numbers as scalars to trace."""
    values = (config.clip, config.kl, config.entropy, config.learning_rate, config.weight_decay, config.max_grad_norm)
    return Coefficients(*(np.float32(v) for v in values))


def adam() -> optax.GradientTransformation:
    """Adam's direction; clipping, decay and the learning rate, which are traced, are applied around it."""
    return optax.scale_by_adam(b1=0.9, b2=0.999, eps=1e-8)


def state_shardings(decoder: Decoder, mesh: Mesh) -> State:
    """Shardings of a State: moments lie as their parameters do."""
    params = decoder.shardings(mesh)
    everywhere: Any = replicated(mesh)
    return State(params, optax.ScaleByAdamState(count=everywhere, mu=params, nu=params), everywhere)


def build_init(decoder: Decoder, mesh: Mesh) -> Callable[[Params], State]:
    """The jitted `init(params) -> State`: a copy of the parameters, empty moments, step 0."""

    def init(params: Params) -> State:
        copied = jax.tree.map(jnp.copy, params)  # the state is donated later, the base policy must outlive it
        return State(copied, adam().init(params), jnp.int32(0))

    return jax.jit(init, out_shardings=state_shardings(decoder, mesh))


def apply(state: State, gradient: Params, rate: Float[Array, ""], numbers: Coefficients) -> tuple[State, Float[Array, ""]]:
    """AdamW on a gradient clipped by its global norm; returns the norm before clipping."""
    norm = optax.tree.norm(gradient)
    shrink = jnp.minimum(1.0, numbers.max_grad_norm / jnp.maximum(norm, 1e-30))
    direction, moments = adam().update(jax.tree.map(lambda g: g * shrink, gradient), state.moments)
    params = jax.tree.map(lambda p, d: p - rate * (d + numbers.weight_decay * p), state.params, direction)
    return State(params, moments, state.step + 1), norm


def take(table: Problems, index: Int[Array, " Q"]) -> Problems:
    """The batch of problems at these rows of the table."""
    return Problems(*(x[index] for x in table))


def build_step(
    cell: CellConfig, decoder: Decoder, stops: Stops, geometry: Geometry, mesh: Mesh
) -> tuple[Callable[..., Rollouts], Callable[..., tuple[Array, dict[str, Array]]], Callable[..., tuple[State, dict[str, Array]]]]:
    """The three parts of an update, each to be called inside a jit; between the first two stands the verifier.

    sample(params, problems, B_p, n, key) -> rollouts
    weigh(rollouts, rewards f32[S rows], B_p, n) -> advantages f32[S rows], metrics
    update(state, base, problems, rollouts, advantages, B_p, n, coefficients) -> state, metrics
    """
    rl = cell.rl
    sample = build_sampler(decoder, geometry, mesh, cell.sampling, stops)
    loss = registry.load("rl.losses", rl.loss, "loss")
    gradient = build_gradient(decoder, geometry, mesh, loss, cell.sampling, use_kl=rl.kl > 0, use_entropy=rl.entropy > 0)
    compacting = rl.kl == 0 and rl.entropy == 0 and vars(loss).get("ADVANTAGE_ONLY", False)

    def weigh(rollouts: Rollouts, rewards: Array, B_p: Array, n: Array) -> tuple[Array, dict[str, Array]]:
        groups, live = batch_rows(geometry, B_p, n)
        rewards = jnp.where(live, rewards, 0.0)
        gains, metrics = advantages.group(rewards, groups, live, n, geometry.problem_rows)
        total = (B_p * n).astype(jnp.float32)
        cut = (live & ~rollouts.ended).sum()
        metrics |= {"reward": rewards.sum() / total, "truncated": cut / total, "tokens": rollouts.mask.sum().astype(jnp.float32)}
        return gains, metrics

    def update(
        state: State, base: Params, problems: Problems, rollouts: Rollouts, gains: Array, B_p: Array, n: Array, numbers: Coefficients
    ) -> tuple[State, dict[str, Array]]:
        total = rollouts.mask.sum()
        if compacting:
            problems, rollouts, gains, count = compact(geometry, problems, rollouts, gains, B_p, n)
        grads, metrics = gradient(state.params, base, problems, rollouts, gains, total, count if compacting else B_p, n, numbers)
        if compacting:  # means over the tokens that were computed, to be weighted by how many of all these are
            taught = rollouts.mask.sum() / jnp.maximum(total, 1)
            metrics = {k if k == "loss" else TAUGHT + k: v if k == "loss" else v * taught for k, v in metrics.items()} | {"taught": taught}
        rate = learning_rate(state.step, B_p * n, numbers.learning_rate, rl.anchor_batch, rl.warmup)
        state, norm = apply(state, grads, rate, numbers)
        bad = ~(jnp.isfinite(norm) & jnp.isfinite(metrics["loss"]))
        return state, metrics | {"grad_norm": norm, "not_finite": bad.astype(jnp.float32)}

    return sample, weigh, update


def build_train(
    cell: CellConfig, decoder: Decoder, task: DeviceTask, geometry: Geometry, mesh: Mesh
) -> Callable[..., tuple[State, dict[str, Array]]]:
    """The jitted `train(state, base, table, index, count, B_p, n, seed, coefficients) -> (state, sums of metrics over the updates)`.

    table: the training problems; index i32[U, problem_rows]: each update's problems, of which the first `count` updates are done.
    The state is donated.
    """
    sample, weigh, update = build_step(cell, decoder, task.stops, geometry, mesh)

    def train(
        state: State, base: Params, table: Problems, index: Array, count: Array, B_p: Array, n: Array, seed: Array, numbers: Coefficients
    ) -> tuple[State, dict[str, Array]]:
        key = jax.random.fold_in(jax.random.key(seed), TRAIN)

        def one(i: Array, state: State) -> tuple[State, dict[str, Array]]:
            problems = take(table, index[i])
            rollouts = sample(state.params, problems, B_p, n, jax.random.fold_in(key, state.step))
            groups, _ = batch_rows(geometry, B_p, n)
            gains, metrics = weigh(rollouts, task.verify(problems.answers[groups], rollouts.tokens, rollouts.mask), B_p, n)
            state, more = update(state, base, problems, rollouts, gains, B_p, n, numbers)
            return state, metrics | more

        def body(i: Array, carry: tuple[State, dict[str, Array]]) -> tuple[State, dict[str, Array]]:
            state, sums = carry
            state, metrics = one(i, state)
            return state, jax.tree.map(jnp.add, sums, metrics)

        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(one, jnp.int32(0), state)[1])
        return lax.fori_loop(0, count, body, (state, zeros))

    out = state_shardings(decoder, mesh)
    return jax.jit(train, donate_argnums=0, out_shardings=(out, NamedSharding(mesh, jax.sharding.PartitionSpec())))
