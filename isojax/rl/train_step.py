"""One compiled program for an update: prefill, sample, verify, advantages, gradient, AdamW. A call does up to U of them
in a loop. (Where the host verifies, the same parts make two programs: rl/host_verified.py.)

B_p, n, the seed, the update's number and every coefficient are traced, so one program serves a whole sweep; which
problems an update takes comes from the host as indices into the training table.
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

from isojax.core.config import CellConfig
from isojax.core.config.rl import CriticConfig, RLConfig
from isojax.distributed.sharding import compiler_options, replicated
from isojax.models.transformer import Decoder, Params
from isojax.rl import critic
from isojax.rl.advantages import RewardedBatch, zero_variance
from isojax.rl.algorithm import resolve_algorithm
from isojax.rl.drop_groups import drop_groups
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.loss_weights import LossWeights, choose_train_rollouts, make_loss_weights
from isojax.rl.objective import MAX_SUFFIX, Coefficients, MetricSums, PolicyInputs, PolicyObjective, merge_metrics
from isojax.rl.optimizer import learning_rate
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplerShapes, buffer_row_groups
from isojax.sampling.engine import build_sampler
from isojax.tasks.protocol import DeviceTask
from isojax.tasks.stop_strings import StopConditions

TRAIN_STREAM, EVAL_STREAM, LABEL_STREAM, EXTRA_STREAM = (
    0,
    1,
    2,
    3,
)  # streams of random numbers; the i-th extra problem set has EXTRA + i
MAX_UPDATES_PER_CALL = 64
CORRECT = "right/"  # the one metric that is no scalar, f32[D]: the sum of the rewards of each problem of the table
# opens a metric that is a mean over the tokens of groups with an advantage, times the share of these tokens
TRAINED_TOKENS_PREFIX = "taught/"


class CriticState(NamedTuple):
    """PPO's critic: its float32 parameters and Adam's moments."""

    params: Params
    moments: Any


class TrainState(NamedTuple):
    """All of a run that training changes (or, of the same shape, its shardings): float32 parameters, Adam's moments,
    updates done, the critic where the recipe has one, and how many of the last updates in a row were skipped."""

    params: Params
    moments: Any
    step: Any
    critic: CriticState | None = None
    consecutive_nonfinite: Any = np.int32(0)


class BatchSignals(NamedTuple):
    """What is known of each rollout before the update: its terms, whether the gradient is taken of it bool[S rows], and
    the critic's estimates where there is one."""

    loss_weights: LossWeights
    train_mask: Array
    value_estimates: critic.ValueEstimates | None


def make_coefficients(config: RLConfig) -> Coefficients:
    """The recipe's numbers as scalars to trace."""
    algorithm, critic_config = resolve_algorithm(config), config.critic or CriticConfig()
    values = (algorithm.clip, algorithm.clip_high, config.kl, config.entropy, config.tis_cap)
    values += (config.learning_rate, config.weight_decay, config.max_grad_norm)
    values += (critic_config.learning_rate, critic_config.clip, critic_config.gamma, critic_config.gae_lambda)
    return Coefficients(*(np.float32(v) for v in values))


B1, B2, EPS = 0.9, 0.999, 1e-8  # Adam's


def adam() -> optax.GradientTransformation:
    """Adam's moments; clipping, decay and the learning rate, which are traced, are applied around it."""
    return optax.scale_by_adam(b1=B1, b2=B2, eps=EPS)


def train_state_shardings(decoder: Decoder, mesh: Mesh, with_critic: bool = False) -> TrainState:
    """Shardings of a State: moments lie as their parameters do."""
    replicated_sharding: Any = replicated(mesh)

    def moment_shardings(params: Params) -> Any:
        return optax.ScaleByAdamState(count=replicated_sharding, mu=params, nu=params)

    param_shardings, critic_shardings = decoder.shardings(mesh), critic.critic_param_shardings(decoder, mesh)
    return TrainState(
        param_shardings,
        moment_shardings(param_shardings),
        replicated_sharding,
        CriticState(critic_shardings, moment_shardings(critic_shardings)) if with_critic else None,
        replicated_sharding,
    )


def build_init_state(decoder: Decoder, mesh: Mesh, with_critic: bool = False) -> Callable[[Params], TrainState]:
    """The jitted `init(params) -> State`: a copy of the parameters, empty moments, step 0; and a critic that starts
    from the same.
    """

    def init_state(params: Params) -> TrainState:
        params_copy = jax.tree.map(jnp.copy, params)  # the state is donated later, the base policy must outlive it
        critic_params = critic.critic_params(decoder, params) if with_critic else None
        new_critic = None if critic_params is None else CriticState(critic_params, adam().init(critic_params))
        return TrainState(params_copy, adam().init(params), jnp.int32(0), new_critic, jnp.int32(0))

    return jax.jit(init_state, out_shardings=train_state_shardings(decoder, mesh, with_critic))


def adamw_update(
    params: Params, moments: Any, gradient: Params, grad_norm: Array, lr: Array, skip: Array, coefficients: Coefficients
) -> tuple[Params, Any]:
    """AdamW (arXiv:1711.05101) on a gradient of this global norm, clipped by it: new parameters and moments, or the old
    ones.

    The new moments are whole before anything reads them: else XLA works out the parameters from the old ones once more,
    and keeps a copy of all moments for that.
    """
    clip_scale = jnp.minimum(1.0, coefficients.max_grad_norm / jnp.maximum(grad_norm, 1e-30))
    _, new_moments = adam().update(jax.tree.map(lambda g: g * clip_scale, gradient), moments)
    moments = lax.optimization_barrier(jax.tree.map(partial(jnp.where, skip), moments, new_moments))
    means, squares = (
        optax.tree.bias_correction(moments.mu, B1, moments.count),
        optax.tree.bias_correction(moments.nu, B2, moments.count),
    )

    def step_parameter(p: Array, m: Array, v: Array) -> Array:
        return jnp.where(skip, p, p - lr * (m / (jnp.sqrt(v) + EPS) + coefficients.weight_decay * p))

    return jax.tree.map(step_parameter, params, means, squares), moments


def gather_problems(table: ProblemArrays, index: Int[Array, " Q"]) -> ProblemArrays:
    """The batch of problems at these rows of the table."""
    return ProblemArrays(*(x[index] for x in table))


class TrainStep:
    """The parts of an update, each to be called inside a jit; between `sample` and `weigh` stands the verifier.

    sample(params, problems, B_p, n, key) -> rollouts
    """

    def __init__(self, cell: CellConfig, decoder: Decoder, stops: StopConditions, shapes: SamplerShapes, mesh: Mesh):
        self.rl, self.shapes, self.algorithm = cell.rl, shapes, resolve_algorithm(cell.rl)
        self.has_interruption = stops.interruption is not None
        self.sample = build_sampler(decoder, shapes, mesh, cell.sampling, stops)
        objective = PolicyObjective(decoder, cell.rl, cell.sampling, vocab_split=mesh.shape["tensor"] > 1)
        self._gradient = build_gradient(objective, shapes, mesh, decoder.logical_axes(), decoder.shapes())
        if cell.rl.critic:
            self._values, self._critic_gradient = critic.build_critic(decoder, shapes, mesh)

    @property
    def drops_zero_variance(self) -> bool:
        """Whether a group without any advantage has no part in any term."""
        rl, filtered_terms = self.rl, self.rl.zero_variance_filter
        regularised = (rl.kl > 0 and "kl" not in filtered_terms) or (rl.entropy > 0 and "entropy" not in filtered_terms)
        return vars(self.algorithm.loss).get("ADVANTAGE_ONLY", False) and not regularised and not rl.critic

    def compute_advantages(
        self,
        state: TrainState,
        problems: ProblemArrays,
        rollouts: Rollouts,
        rewards: Array,
        B_p: Array,
        n: Array,
        key: Array,
        coefficients: Coefficients,
    ) -> tuple[BatchSignals, MetricSums]:
        """What each rollout brings to the update, from rewards f32[S rows]; and metrics of the batch. `key`: the
        update's.
        """
        groups, valid = buffer_row_groups(self.shapes, B_p, n)
        rewards, lengths, policy_lengths = (
            jnp.where(valid, x, 0) for x in (rewards, rollouts.lengths, rollouts.mask.sum(-1))
        )
        batch, value_estimates = (
            RewardedBatch(
                rewards=rewards,
                lengths=policy_lengths,
                groups=groups,
                valid=valid,
                n=n,
                num_groups=self.shapes.problem_rows,
                filters_zero_variance="policy" in self.rl.zero_variance_filter,
            ),
            None,
        )
        if state.critic is not None:
            mask = rollouts.mask & valid[..., None]
            values = self._values(state.critic.params, problems, rollouts.tokens, mask, B_p, n, coefficients)
            estimate = (
                critic.generalised_advantages_around_gaps if self.has_interruption else critic.generalised_advantages
            )
            token_advantages, returns = estimate(rewards, values, mask, coefficients.gamma, coefficients.gae_lambda)
            value_estimates = critic.ValueEstimates(values, returns)
            batch = batch._replace(token_advantages=token_advantages, token_mask=mask)
        advantages = self.algorithm.advantage.advantage(batch)
        train_mask = (
            valid
            if self.rl.n_train is None
            else choose_train_rollouts(key, problems.ids[groups.reshape(-1)], batch, self.rl.n_train)
        )
        loss_weights = make_loss_weights(
            self.rl, self.algorithm.aggregation, advantages, batch, train_mask, self.shapes.response_length
        )
        num_rollouts = (B_p * n).astype(jnp.float32)
        rollout_metrics = {
            "reward": rewards,
            "truncated": valid & ~rollouts.stopped,
            "response_length": lengths,
            "zero_variance": zero_variance(batch),
        }
        if self.has_interruption:
            rollout_metrics["interrupted"] = policy_lengths < lengths
        metrics = {name: x.sum() / num_rollouts for name, x in rollout_metrics.items()} | {
            "tokens": lengths.sum().astype(jnp.float32)
        }
        return BatchSignals(loss_weights, train_mask, value_estimates), metrics

    def update(
        self,
        state: TrainState,
        base_params: Params,
        problems: ProblemArrays,
        rollouts: Rollouts,
        signals: BatchSignals,
        B_p: Array,
        n: Array,
        coefficients: Coefficients,
    ) -> tuple[TrainState, MetricSums]:
        """The gradient's step; metrics of what it was taken of. Where loss or gradient is not finite the step is
        skipped: parameters and moments stay, these metrics count as 0, and `nonfinite_update` as 1."""
        rl, (loss_weights, train_mask, value_estimates) = self.rl, signals
        B, num_tokens = B_p * n, jnp.maximum(rollouts.mask.sum(), 1)
        responses = ResponseBatch(
            rollouts.tokens, rollouts.mask, PolicyInputs(rollouts.logps, rollouts.nucleus_mass, loss_weights)
        )
        trained_token_fraction = None
        if self.drops_zero_variance or rl.n_train is not None:
            if self.drops_zero_variance:
                train_mask = train_mask & self._group_has_advantage(train_mask, loss_weights, B_p, n)
            group_size = n if rl.n_train is None else jnp.int32(rl.n_train)
            problems, critic_inputs, valid, B_p = drop_groups(
                self.shapes, problems, (responses, value_estimates), train_mask, B_p, n, group_size
            )
            (responses, value_estimates), n = critic_inputs, group_size
            responses = responses._replace(mask=responses.mask & valid[..., None])
            trained_token_fraction = responses.mask.sum() / num_tokens
        gradient, metrics = self._gradient(state.params, base_params, problems, responses, B_p, n, coefficients)
        policy_updates = jnp.maximum(state.step - (rl.critic.warmup if rl.critic else 0), 0)  # the policy's own updates
        lr = learning_rate(
            policy_updates, B, coefficients.learning_rate, rl.lr_reference_batch, rl.warmup, rl.lr_scaling
        )
        grad_norm = optax.tree.norm(gradient)
        metrics = scale_by_trained_tokens(metrics, trained_token_fraction) | {"grad_norm": grad_norm}
        nonfinite, critic_warmup, new_critic = ~jnp.isfinite(grad_norm + metrics["loss"]), jnp.bool_(False), None
        if rl.critic and state.critic is not None and value_estimates is not None:
            critic_inputs = critic.CriticInputs(
                value_estimates.values, value_estimates.returns, responses.objective_inputs.loss_weights.policy
            )
            critic_gradient, critic_metrics = self._critic_gradient(
                state.critic.params,
                {},
                problems,
                responses._replace(objective_inputs=critic_inputs),
                B_p,
                n,
                coefficients,
            )
            critic_grad_norm = optax.tree.norm(critic_gradient)
            nonfinite, critic_warmup = (
                nonfinite | ~jnp.isfinite(critic_grad_norm + critic_metrics["loss"]),
                state.step < rl.critic.warmup,
            )
            critic_lr = learning_rate(
                state.step, B, coefficients.critic_learning_rate, rl.lr_reference_batch, rl.warmup, rl.lr_scaling
            )
            new_critic = CriticState(
                *adamw_update(
                    state.critic.params,
                    state.critic.moments,
                    critic_gradient,
                    critic_grad_norm,
                    critic_lr,
                    nonfinite,
                    coefficients,
                )
            )
            metrics |= {f"critic_{k}": v for k, v in (critic_metrics | {"grad_norm": critic_grad_norm}).items()}
        params, moments = adamw_update(
            state.params, state.moments, gradient, grad_norm, lr, nonfinite | critic_warmup, coefficients
        )
        metrics = {name: jnp.where(nonfinite, 0.0, value) for name, value in metrics.items()}
        consecutive_nonfinite = jnp.where(nonfinite, state.consecutive_nonfinite + 1, 0)
        return TrainState(params, moments, state.step + 1, new_critic, consecutive_nonfinite), metrics | {
            "nonfinite_update": nonfinite.astype(jnp.float32)
        }

    def _group_has_advantage(self, train_mask: Array, loss_weights: LossWeights, B_p: Array, n: Array) -> Array:
        """Of each row, whether a rollout of its group that is taken has an advantage."""
        groups = buffer_row_groups(self.shapes, B_p, n)[0].reshape(-1)
        has_advantage = (train_mask & (loss_weights.advantages != 0)).astype(jnp.int32).reshape(-1)
        return (jax.ops.segment_max(has_advantage, groups, self.shapes.problem_rows) > 0)[groups].reshape(
            train_mask.shape
        )


def scale_by_trained_tokens(metrics: MetricSums, trained_token_fraction: Array | None) -> MetricSums:
    """Metrics of an update as they are added up over updates: where not all tokens were computed, means over those that
    were are weighted by their share of all."""
    if trained_token_fraction is None:
        return metrics
    unscaled = {k: v for k, v in metrics.items() if k == "loss" or k.endswith(MAX_SUFFIX)}
    return (
        unscaled
        | {TRAINED_TOKENS_PREFIX + k: v * trained_token_fraction for k, v in metrics.items() if k not in unscaled}
        | {"taught": trained_token_fraction}
    )


def build_train(
    cell: CellConfig, decoder: Decoder, task: DeviceTask, shapes: SamplerShapes, mesh: Mesh
) -> Callable[..., tuple[TrainState, dict[str, Array]]]:
    """The jitted `train(state, base, table, index, count, B_p, n, seed, coefficients) -> (state, sums of metrics over
    the updates)`.

    table: the training problems; index i32[U, problem_rows]: each update's problems, of which the first `count` updates
    are done. The state is donated. With `cell.rl.no_positive_resampling` the metrics hold `RIGHT`. After
    `cell.rl.max_consecutive_nonfinite` skipped updates in a row no more are done.
    """
    train_step = TrainStep(cell, decoder, task.stops, shapes, mesh)

    def train(
        state: TrainState,
        base_params: Params,
        problem_table: ProblemArrays,
        problem_index: Array,
        num_updates: Array,
        B_p: Array,
        n: Array,
        seed: Array,
        coefficients: Coefficients,
    ) -> tuple[TrainState, dict[str, Array]]:
        key = jax.random.fold_in(jax.random.key(seed), TRAIN_STREAM)

        @partial(jax.jit, inline=True)  # traced for its metrics' shapes, and no second time for the loop
        def one_update(i: Array, state: TrainState) -> tuple[TrainState, dict[str, Array]]:
            problems, update_key = gather_problems(problem_table, problem_index[i]), jax.random.fold_in(key, state.step)
            rollouts = train_step.sample(state.params, problems, B_p, n, update_key)
            groups, valid = buffer_row_groups(shapes, B_p, n)
            rewards = task.verify(problems.answers[groups], rollouts.tokens, rollouts.response_mask)
            signals, metrics = train_step.compute_advantages(
                state, problems, rollouts, rewards, B_p, n, update_key, coefficients
            )
            state, update_metrics = train_step.update(
                state, base_params, problems, rollouts, signals, B_p, n, coefficients
            )
            if cell.rl.no_positive_resampling is not None:
                update_metrics |= {
                    CORRECT: jnp.zeros(len(problem_table.ids))
                    .at[problem_index[i][groups]]
                    .add(jnp.where(valid, rewards, 0.0))
                }
            return state, metrics | update_metrics

        def keep_training(carry: tuple[Array, TrainState, MetricSums]) -> Array:
            i, state, _ = carry
            return (i < num_updates) & (state.consecutive_nonfinite < cell.rl.max_consecutive_nonfinite)

        def body(carry: tuple[Array, TrainState, MetricSums]) -> tuple[Array, TrainState, MetricSums]:
            i, state, sums = carry
            state, metrics = one_update(i, state)
            return i + 1, state, merge_metrics(sums, metrics)

        zero_metrics = jax.tree.map(
            lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(one_update, jnp.int32(0), state)[1]
        )
        return lax.while_loop(keep_training, body, (jnp.int32(0), state, zero_metrics))[1:]

    out_shardings = train_state_shardings(decoder, mesh, cell.rl.critic is not None)
    return jax.jit(
        train,
        donate_argnums=0,
        out_shardings=(out_shardings, replicated(mesh)),
        compiler_options=compiler_options(mesh),
    )
