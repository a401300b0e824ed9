"""One compiled program for an update: prefill, sample, verify, advantages, gradient, AdamW. A call does up to U of them in a loop.
(Where the host verifies, the same parts make two programs: rl/hosted.py.)

B_p, n, the seed, the update's number and every coefficient are traced, so one program serves a whole sweep; which problems an
update takes comes from the host as indices into the training table.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Int

from isojax.config import CellConfig
from isojax.config_rl import CriticConfig, RLConfig
from isojax.models.decoder import Decoder, Params
from isojax.rl import critic
from isojax.rl.advantages import ADVANTAGES, Rewarded, silent
from isojax.rl.compact import compact
from isojax.rl.objective import MAX, Coefficients, PolicyObjective, Sampled, Sums, merge
from isojax.rl.recipe import resolve
from isojax.rl.schedule import learning_rate
from isojax.rl.terms import Terms, make_terms, subset
from isojax.rl.update import Responses, build_gradient
from isojax.sampling.batch import Geometry, Problems, Rollouts, batch_rows
from isojax.sampling.sampler import build_sampler
from isojax.sharding import compiler_options, replicated
from isojax.tasks.base import DeviceTask
from isojax.tasks.stops import Stops

TRAIN, EVAL, LABEL, EXTRA = 0, 1, 2, 3  # streams of random numbers; the i-th extra problem set has EXTRA + i
UPDATES_A_CALL = 64
RIGHT = "right/"  # the one metric that is no scalar, f32[D]: the sum of the rewards of each problem of the table
TAUGHT = "taught/"  # opens a metric that is a mean over the tokens of groups with an advantage, times the share of these tokens


class Critic(NamedTuple):
    """PPO's critic: its float32 parameters and Adam's moments."""

    params: Params
    moments: Any


class State(NamedTuple):
    """All of a run that training changes (or, of the same shape, its shardings): float32 parameters, Adam's moments, updates done, the
    critic where the recipe has one, and how many of the last updates in a row were skipped."""

    params: Params
    moments: Any
    step: Any
    critic: Critic | None = None
    skipped: Any = np.int32(0)


class Weighed(NamedTuple):
    """What is known of each rollout before the update: its terms, whether the gradient is taken of it bool[S rows], and the critic's
    estimates where there is one."""

    terms: Terms
    taken: Array
    estimates: critic.Estimates | None


def coefficients(config: RLConfig) -> Coefficients:
    """The recipe's numbers as scalars to trace."""
    recipe, of_critic = resolve(config), config.critic or CriticConfig()
    values = (recipe.clip, recipe.clip_high, config.kl, config.entropy, config.tis_cap)
    values += (config.learning_rate, config.weight_decay, config.max_grad_norm)
    values += (of_critic.learning_rate, of_critic.clip, of_critic.gamma, of_critic.gae_lambda)
    return Coefficients(*(np.float32(v) for v in values))


B1, B2, EPS = 0.9, 0.999, 1e-8  # Adam's


def adam() -> optax.GradientTransformation:
    """Adam's moments; clipping, decay and the learning rate, which are traced, are applied around it."""
    return optax.scale_by_adam(b1=B1, b2=B2, eps=EPS)


def state_shardings(decoder: Decoder, mesh: Mesh, with_critic: bool = False) -> State:
    """Shardings of a State: moments lie as their parameters do."""
    everywhere: Any = replicated(mesh)

    def moments(params: Params) -> Any:
        return optax.ScaleByAdamState(count=everywhere, mu=params, nu=params)

    params, of_critic = decoder.shardings(mesh), critic.shardings(decoder, mesh)
    return State(params, moments(params), everywhere, Critic(of_critic, moments(of_critic)) if with_critic else None, everywhere)


def build_init(decoder: Decoder, mesh: Mesh, with_critic: bool = False) -> Callable[[Params], State]:
    """The jitted `init(params) -> State`: a copy of the parameters, empty moments, step 0; and a critic that starts from the same."""

    def init(params: Params) -> State:
        copied = jax.tree.map(jnp.copy, params)  # the state is donated later, the base policy must outlive it
        values = critic.critic_params(decoder, params) if with_critic else None
        new_critic = None if values is None else Critic(values, adam().init(values))
        return State(copied, adam().init(params), jnp.int32(0), new_critic, jnp.int32(0))

    return jax.jit(init, out_shardings=state_shardings(decoder, mesh, with_critic))


def apply(
    params: Params, moments: Any, gradient: Params, norm: Array, rate: Array, skip: Array, numbers: Coefficients
) -> tuple[Params, Any]:
    """AdamW (arXiv:1711.05101) on a gradient of this global norm, clipped by it: new parameters and moments, or the old ones.

    The new moments are whole before anything reads them: else XLA works out the parameters from the old ones once more, and keeps a copy of
    all moments for that.
    """
    shrink = jnp.minimum(1.0, numbers.max_grad_norm / jnp.maximum(norm, 1e-30))
    _, new = adam().update(jax.tree.map(lambda g: g * shrink, gradient), moments)
    moments = lax.optimization_barrier(jax.tree.map(partial(jnp.where, skip), moments, new))
    means, squares = optax.tree.bias_correction(moments.mu, B1, moments.count), optax.tree.bias_correction(moments.nu, B2, moments.count)

    def step(p: Array, m: Array, v: Array) -> Array:
        return jnp.where(skip, p, p - rate * (m / (jnp.sqrt(v) + EPS) + numbers.weight_decay * p))

    return jax.tree.map(step, params, means, squares), moments


def take(table: Problems, index: Int[Array, " Q"]) -> Problems:
    """The batch of problems at these rows of the table."""
    return Problems(*(x[index] for x in table))


class Step:
    """The parts of an update, each to be called inside a jit; between `sample` and `weigh` stands the verifier.

    sample(params, problems, B_p, n, key) -> rollouts
    """

    def __init__(self, cell: CellConfig, decoder: Decoder, stops: Stops, geometry: Geometry, mesh: Mesh):
        self.rl, self.geometry, self.recipe = cell.rl, geometry, resolve(cell.rl)
        self.interrupts = stops.interruption is not None
        self.sample = build_sampler(decoder, geometry, mesh, cell.sampling, stops)
        objective = PolicyObjective(decoder, cell.rl, cell.sampling, split=mesh.shape["tensor"] > 1)
        self._gradient = build_gradient(objective, geometry, mesh, decoder.logical_axes(), decoder.shapes())
        if cell.rl.critic:
            self._values, self._critic_gradient = critic.build_critic(decoder, geometry, mesh)

    @property
    def skips_silent(self) -> bool:
        """Whether a group without any advantage has no part in any term."""
        rl, quiet = self.rl, self.rl.zero_variance_filter
        regularised = (rl.kl > 0 and "kl" not in quiet) or (rl.entropy > 0 and "entropy" not in quiet)
        return vars(self.recipe.loss).get("ADVANTAGE_ONLY", False) and not regularised and not rl.critic

    def weigh(
        self, state: State, problems: Problems, rollouts: Rollouts, rewards: Array, B_p: Array, n: Array, key: Array, numbers: Coefficients
    ) -> tuple[Weighed, Sums]:
        """What each rollout brings to the update, from rewards f32[S rows]; and metrics of the batch. `key`: the update's."""
        groups, live = batch_rows(self.geometry, B_p, n)
        rewards, lengths, drawn = (jnp.where(live, x, 0) for x in (rewards, rollouts.lengths, rollouts.mask.sum(-1)))
        batch, estimates = Rewarded(rewards, drawn, groups, live, n, self.geometry.problem_rows), None
        if state.critic is not None:
            mask = rollouts.mask & live[..., None]
            values = self._values(state.critic.params, problems, rollouts.tokens, mask, B_p, n, numbers)
            advantages = critic.advantages_around_gaps if self.interrupts else critic.advantages
            gains, estimates = advantages(rewards, values, mask, numbers)
        else:
            gains = ADVANTAGES[self.recipe.advantage](batch)
        taken = live if self.rl.n_train is None else subset(key, problems.ids[groups.reshape(-1)], batch, self.rl.n_train)
        terms = make_terms(self.rl, self.recipe.aggregation, gains, batch, taken, self.geometry.response_length)
        total = (B_p * n).astype(jnp.float32)
        means = {"reward": rewards, "truncated": live & ~rollouts.ended, "response_length": lengths, "zero_variance": silent(batch)}
        if self.interrupts:
            means["interrupted"] = drawn < lengths
        metrics = {name: x.sum() / total for name, x in means.items()} | {"tokens": lengths.sum().astype(jnp.float32)}
        return Weighed(terms, taken, estimates), metrics

    def update(
        self,
        state: State,
        base: Params,
        problems: Problems,
        rollouts: Rollouts,
        weighed: Weighed,
        B_p: Array,
        n: Array,
        numbers: Coefficients,
    ) -> tuple[State, Sums]:
        """The gradient's step; metrics of what it was taken of. Where loss or gradient is not finite the step is skipped: parameters and
        moments stay, these metrics count as 0, and `not_finite` as 1."""
        rl, (terms, taken, estimates) = self.rl, weighed
        B, total = B_p * n, jnp.maximum(rollouts.mask.sum(), 1)
        rows = Responses(rollouts.tokens, rollouts.mask, Sampled(rollouts.logps, rollouts.kept, terms))
        taught = None
        if self.skips_silent or rl.n_train is not None:
            if self.skips_silent:
                taken = taken & self._speaks(taken, terms, B_p, n)
            n_left = n if rl.n_train is None else jnp.int32(rl.n_train)
            problems, given, kept, B_p = compact(self.geometry, problems, (rows, estimates), taken, B_p, n, n_left)
            (rows, estimates), n = given, n_left
            rows = rows._replace(mask=rows.mask & kept[..., None])
            taught = rows.mask.sum() / total
        gradient, metrics = self._gradient(state.params, base, problems, rows, B_p, n, numbers)
        learned = jnp.maximum(state.step - (rl.critic.warmup if rl.critic else 0), 0)  # the policy's own updates
        rate = learning_rate(learned, B, numbers.learning_rate, rl.anchor_batch, rl.warmup, rl.lr_scaling)
        norm = optax.tree.norm(gradient)
        metrics = weighted(metrics, taught) | {"grad_norm": norm}
        bad, warming, new_critic = ~jnp.isfinite(norm + metrics["loss"]), jnp.bool_(False), None
        if rl.critic and state.critic is not None and estimates is not None:
            columns = critic.Columns(estimates.values, estimates.returns, rows.own.terms.policy)
            of_critic, found = self._critic_gradient(state.critic.params, {}, problems, rows._replace(own=columns), B_p, n, numbers)
            critic_norm = optax.tree.norm(of_critic)
            bad, warming = bad | ~jnp.isfinite(critic_norm + found["loss"]), state.step < rl.critic.warmup
            critic_rate = learning_rate(state.step, B, numbers.critic_learning_rate, rl.anchor_batch, rl.warmup, rl.lr_scaling)
            new_critic = Critic(*apply(state.critic.params, state.critic.moments, of_critic, critic_norm, critic_rate, bad, numbers))
            metrics |= {f"critic_{k}": v for k, v in (found | {"grad_norm": critic_norm}).items()}
        params, moments = apply(state.params, state.moments, gradient, norm, rate, bad | warming, numbers)
        metrics = {name: jnp.where(bad, 0.0, value) for name, value in metrics.items()}
        skipped = jnp.where(bad, state.skipped + 1, 0)
        return State(params, moments, state.step + 1, new_critic, skipped), metrics | {"not_finite": bad.astype(jnp.float32)}

    def _speaks(self, taken: Array, terms: Terms, B_p: Array, n: Array) -> Array:
        """Of each row, whether a rollout of its group that is taken has an advantage."""
        groups = batch_rows(self.geometry, B_p, n)[0].reshape(-1)
        has = (taken & (terms.gains != 0)).astype(jnp.int32).reshape(-1)
        return (jax.ops.segment_max(has, groups, self.geometry.problem_rows) > 0)[groups].reshape(taken.shape)


def weighted(metrics: Sums, taught: Array | None) -> Sums:
    """Metrics of an update as they are added up over updates: where not all tokens were computed, means over those that were are
    weighted by their share of all."""
    if taught is None:
        return metrics
    whole = {k: v for k, v in metrics.items() if k == "loss" or k.startswith(MAX)}
    return whole | {TAUGHT + k: v * taught for k, v in metrics.items() if k not in whole} | {"taught": taught}


def build_train(
    cell: CellConfig, decoder: Decoder, task: DeviceTask, geometry: Geometry, mesh: Mesh
) -> Callable[..., tuple[State, dict[str, Array]]]:
    """The jitted `train(state, base, table, index, count, B_p, n, seed, coefficients) -> (state, sums of metrics over the updates)`.

    table: the training problems; index i32[U, problem_rows]: each update's problems, of which the first `count` updates are done.
    The state is donated. With `cell.rl.no_positive_resampling` the metrics hold `RIGHT`. After `cell.rl.max_skipped` skipped updates in a
    row no more are done.
    """
    step = Step(cell, decoder, task.stops, geometry, mesh)

    def train(
        state: State, base: Params, table: Problems, index: Array, count: Array, B_p: Array, n: Array, seed: Array, numbers: Coefficients
    ) -> tuple[State, dict[str, Array]]:
        key = jax.random.fold_in(jax.random.key(seed), TRAIN)

        @partial(jax.jit, inline=True)  # traced for its metrics' shapes, and no second time for the loop
        def one(i: Array, state: State) -> tuple[State, dict[str, Array]]:
            problems, own_key = take(table, index[i]), jax.random.fold_in(key, state.step)
            rollouts = step.sample(state.params, problems, B_p, n, own_key)
            groups, live = batch_rows(geometry, B_p, n)
            rewards = task.verify(problems.answers[groups], rollouts.tokens, rollouts.present)
            weighed, metrics = step.weigh(state, problems, rollouts, rewards, B_p, n, own_key, numbers)
            state, more = step.update(state, base, problems, rollouts, weighed, B_p, n, numbers)
            if cell.rl.no_positive_resampling is not None:
                more |= {RIGHT: jnp.zeros(len(table.ids)).at[index[i][groups]].add(jnp.where(live, rewards, 0.0))}
            return state, metrics | more

        def going(carry: tuple[Array, State, Sums]) -> Array:
            i, state, _ = carry
            return (i < count) & (state.skipped < cell.rl.max_skipped)

        def body(carry: tuple[Array, State, Sums]) -> tuple[Array, State, Sums]:
            i, state, sums = carry
            state, metrics = one(i, state)
            return i + 1, state, merge(sums, metrics)

        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(one, jnp.int32(0), state)[1])
        return lax.while_loop(going, body, (jnp.int32(0), state, zeros))[1:]

    out = state_shardings(decoder, mesh, cell.rl.critic is not None)
    return jax.jit(train, donate_argnums=0, out_shardings=(out, replicated(mesh)), compiler_options=compiler_options(mesh))
