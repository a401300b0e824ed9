"""One update on a batch of rollouts and rewards: advantages, loss weights, gradient, AdamW. B_p, n,
the PRNG key and every coefficient are traced, so one compiled program serves all cells of a
sweep."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from isojax.core.config import CellConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import compiler_options, replicated, vocabulary_is_split
from isojax.models.transformer import Decoder, Params
from isojax.rl import critic, objective
from isojax.rl.advantages import RewardedBatch, zero_variance
from isojax.rl.algorithm import resolve_algorithm
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.metric import Metrics, mean, over_updates, total, zero_where
from isojax.rl.objective import (
    Coefficients,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_loss_weights,
)
from isojax.rl.optimizer import (
    B1,
    CriticState,
    TrainState,
    adamw_update,
    learning_rate,
    train_state_shardings,
)
from isojax.sampling.batch import ProblemArrays, RolloutBatch, RoutedRollouts, count_turns
from isojax.sampling.layout import Layout
from isojax.sampling.logits import rollout_keys, uniforms
from isojax.tasks.protocol import StopConditions
from isojax.tasks.task import Task

SUBSET_STREAM = 1  # of random numbers, within an update's, that choose n_train of n rollouts


class BatchSignals(NamedTuple):
    """What the update computes of each rollout before the gradient, in arrays [S rows ...]."""

    loss_weights: objective.LossWeights
    train_mask: Array  # bool[S rows], the rollouts that the gradient is taken of
    value_estimates: critic.ValueEstimates | None  # of the critic, where there is one


class TrainedPart(NamedTuple):
    """The part of a batch that the gradient is computed on, B_p problems of n rollouts each."""

    problems: ProblemArrays  # `problem_rows` rows, of which the first B_p count
    responses: ResponseBatch  # with PolicyInputs
    value_estimates: critic.ValueEstimates | None
    B_p: Array
    n: Array
    # its share of the batch's tokens; None where it is the whole batch
    token_fraction: Array | None


class CriticUpdate(NamedTuple):
    """What a step of the critic comes to."""

    critic: CriticState  # after it
    metrics: Metrics
    nonfinite: Array  # bool[], whether the loss or the gradient, the policy's or its, is not finite


class TrainedRows(NamedTuple):
    """What is known of each rollout when its gradient is taken: arrays [S rows ...].

    It is a pair so that `drop_groups` moves the rows of both alike.
    """

    responses: ResponseBatch
    value_estimates: critic.ValueEstimates | None


class UpdateResult(NamedTuple):
    """What an update program returns with the state."""

    metrics: Metrics  # merged over its updates
    # f32[training problems], sums of rewards that the program computes and
    # cell.rl.no_positive_resampling reads
    reward_sums: Array | None = None


class TrainStep:
    """One update on one batch, to be called inside a jit: first what is computed of each rollout,
    then the gradient and AdamW.

    `self._critic` is there only where `cell.rl.critic` is set."""

    def __init__(
        self,
        cell: CellConfig,
        decoder: Decoder,
        stops: StopConditions,
        shapes: SamplerShapes,
        mesh: Mesh,
        measures_signal: bool = False,
    ):
        """Resolve the recipe, and build the gradients of the policy and of the critic, if any.

        cell: `cell.rl` and `cell.sampling` are read. stops: the task's. shapes: of the batches.
        measures_signal: whether the metrics have `gradient_signal`'s, for schedules that the
        gradient decides (train/growth.py).
        """
        self.rl = cell.rl
        self.algorithm = resolve_algorithm(cell.rl)
        self.stops = stops
        self.shapes = shapes
        self.measures_signal = measures_signal

        policy_objective = PolicyObjective(
            decoder, cell.rl, cell.sampling, vocabulary_is_split(mesh)
        )
        trained_axes = decoder.trained(decoder.logical_axes())
        trained_shapes = decoder.trained(decoder.shapes())
        self._policy_gradient = build_gradient(
            policy_objective, shapes, mesh, trained_axes, trained_shapes
        )
        if cell.rl.critic:
            self._critic = critic.build_critic(decoder.base, shapes, mesh)

    def __call__(
        self,
        state: TrainState,
        base_params: Params,
        batch: RolloutBatch,
        coefficients: Coefficients,
    ) -> tuple[TrainState, UpdateResult]:
        """Train on a batch. base_params: the base policy's, or {} where nothing reads them."""
        signals, batch_metrics = self.compute_advantages(state, batch, coefficients)
        state, update_metrics = self.update(state, base_params, batch, signals, coefficients)
        return state, UpdateResult(batch_metrics | update_metrics)

    @property
    def drops_zero_variance(self) -> bool:
        """Whether a group whose advantages are all 0 has no part in any term of the loss.

        Then its gradient need not be computed. A group is the n rollouts of one problem. The KL and
        entropy terms need it unless they filter it out themselves; the experts' load-balancing
        loss and the critic always do.
        """
        rl = self.rl
        filtered_terms = rl.zero_variance_filter
        kl_needs_it = rl.kl > 0 and "kl" not in filtered_terms
        entropy_needs_it = rl.entropy > 0 and "entropy" not in filtered_terms
        is_regularised = kl_needs_it or entropy_needs_it or rl.expert_balance > 0
        return self.algorithm.loss.traits.advantage_only and not is_regularised and not rl.critic

    def compute_advantages(
        self, state: TrainState, batch: RolloutBatch, coefficients: Coefficients
    ) -> tuple[BatchSignals, Metrics]:
        """Compute advantages and loss weights from the rewards; and the metrics of the batch.

        The metrics are those of `measure_rollouts`, of all rollouts, trained on or not.
        """
        rewarded = rewarded_batch(self.shapes, batch, "policy" in self.rl.zero_variance_filter)
        metrics = measure_rollouts(self.stops, batch, rewarded)

        value_estimates = None
        if state.critic is not None:
            rewarded, value_estimates = self._estimate_values(
                state.critic, batch, rewarded, coefficients
            )
        advantages = self.algorithm.advantage(rewarded)

        train_mask = rewarded.valid
        if self.rl.n_train is not None:
            key = jax.random.wrap_key_data(batch.key_data)
            problem_ids = batch.problems.ids[rewarded.groups.reshape(-1)]
            train_mask = choose_train_rollouts(key, problem_ids, rewarded, self.rl.n_train)

        loss_weights = make_loss_weights(
            self.rl, advantages, rewarded, train_mask, self.shapes.response_length
        )
        return BatchSignals(loss_weights, train_mask, value_estimates), metrics

    def _estimate_values(
        self,
        critic_state: CriticState,
        batch: RolloutBatch,
        rewarded: RewardedBatch,
        coefficients: Coefficients,
    ) -> tuple[RewardedBatch, critic.ValueEstimates]:
        """Return (the batch with tokens' advantages by the critic, its values and returns)."""
        mask = batch.rollouts.mask & rewarded.valid[..., None]
        no_base: Params = {}
        inputs = UpdateInputs(critic_state.params, no_base, batch.problems, coefficients)
        no_inputs = ()  # values follow from the tokens alone
        responses = ResponseBatch(batch.rollouts.tokens, mask, no_inputs)
        values = self._critic.values(inputs, responses, batch.B_p, batch.n)

        token_advantages, returns = critic.generalised_advantages(
            rewarded.rewards, values, mask, coefficients.gamma, coefficients.gae_lambda
        )
        rewarded = rewarded._replace(token_advantages=token_advantages, token_mask=mask)
        return rewarded, critic.ValueEstimates(values, returns)

    def update(
        self,
        state: TrainState,
        base_params: Params,
        batch: RolloutBatch,
        signals: BatchSignals,
        coefficients: Coefficients,
    ) -> tuple[TrainState, Metrics]:
        """Take the loss's gradient and a step of AdamW; returns the state and the metrics of both.

        Where loss or gradient are not finite, the step is skipped: parameters and moments stay,
        these metrics count as 0, and `nonfinite_update` as 1; `state.step` counts all the same.
        signals: what `compute_advantages` has returned for this batch.
        """
        rl = self.rl
        num_rollouts = batch.B_p * batch.n
        part = self._trained_part(batch, signals)

        # The gradient of the policy's loss, and of the critic's where there is one.
        inputs = UpdateInputs(state.params, base_params, part.problems, coefficients)
        gradient, metrics = self._policy_gradient(inputs, part.responses, part.B_p, part.n)
        grad_norm = optax.tree.norm(gradient)
        nonfinite = ~jnp.isfinite(grad_norm + metrics["loss"].sum)

        critic_warmup = jnp.bool_(False)  # whether the critic alone is trained as yet
        new_critic: CriticState | None = None
        critic_metrics: Metrics = {}
        if rl.critic and state.critic is not None:
            critic_warmup = state.step < rl.critic.warmup
            critic_update = self._update_critic(state, part, nonfinite, num_rollouts, coefficients)
            new_critic = critic_update.critic
            critic_metrics = critic_update.metrics
            nonfinite = critic_update.nonfinite

        # AdamW, with the warmup of its learning rate counted from the policy's first update.
        policy_updates = jnp.maximum(state.step - (rl.critic.warmup if rl.critic else 0), 0)
        params, moments = adamw_update(
            state.params,
            state.moments,
            gradient,
            grad_norm=grad_norm,
            lr=learning_rate(rl, policy_updates, num_rollouts, coefficients.learning_rate),
            skip=nonfinite | critic_warmup,
            max_grad_norm=coefficients.max_grad_norm,
            weight_decay=coefficients.weight_decay,
        )
        new_state = TrainState(
            params,
            moments,
            state.step + 1,
            new_critic,
            consecutive_nonfinite=jnp.where(nonfinite, state.consecutive_nonfinite + 1, 0),
        )

        # Metrics. Where only a part of the batch is trained on, those of tokens are of that part.
        token_fraction, fraction_metric = None, {}
        if part.token_fraction is not None:
            token_fraction = jnp.where(nonfinite, 0.0, part.token_fraction)
            fraction_metric = {"trained_token_fraction": mean(token_fraction)}
        metrics = over_updates(metrics, token_fraction)
        metrics |= {"grad_norm": mean(grad_norm)} | critic_metrics
        if self.measures_signal:
            max_grad_norm = coefficients.max_grad_norm
            metrics |= gradient_signal(gradient, grad_norm, state.moments, max_grad_norm)
        metrics = zero_where(nonfinite, metrics | fraction_metric)
        metrics["nonfinite_update"] = mean(nonfinite.astype(jnp.float32))
        return new_state, metrics

    def _update_critic(
        self,
        state: TrainState,
        part: TrainedPart,
        nonfinite: Array,
        num_rollouts: Array,
        coefficients: Coefficients,
    ) -> CriticUpdate:
        """Take a step of the critic, on the same part of the batch as the policy.

        It is skipped where the policy's is (`nonfinite`, bool[]), or where its own loss or gradient
        is not finite. num_rollouts: i32[], B_p n of the whole batch, for the learning rate.
        Metrics are named as `critic_loss`.
        """
        assert state.critic is not None and part.value_estimates is not None
        critic_inputs = critic.CriticInputs(
            part.value_estimates.values,
            part.value_estimates.returns,
            weight=part.responses.objective_inputs.loss_weights.policy,
        )
        responses = part.responses._replace(objective_inputs=critic_inputs)
        no_base: Params = {}
        inputs = UpdateInputs(state.critic.params, no_base, part.problems, coefficients)
        gradient, metrics = self._critic.gradient(inputs, responses, part.B_p, part.n)
        grad_norm = optax.tree.norm(gradient)
        nonfinite = nonfinite | ~jnp.isfinite(grad_norm + metrics["loss"].sum)

        lr = learning_rate(self.rl, state.step, num_rollouts, coefficients.critic_learning_rate)
        params, moments = adamw_update(
            state.critic.params,
            state.critic.moments,
            gradient,
            grad_norm=grad_norm,
            lr=lr,
            skip=nonfinite,
            max_grad_norm=coefficients.max_grad_norm,
            weight_decay=coefficients.weight_decay,
        )

        metrics = over_updates(metrics) | {"grad_norm": mean(grad_norm)}
        metrics = {f"critic_{name}": metric for name, metric in metrics.items()}
        return CriticUpdate(CriticState(params, moments), metrics, nonfinite)

    def _trained_part(self, batch: RolloutBatch, signals: BatchSignals) -> TrainedPart:
        """The batch without the rollouts and groups whose gradient is 0 or not wanted.

        Not wanted are those beyond `cell.rl.n_train` of each group; 0 is that of groups without an
        advantage (`drops_zero_variance`).
        """
        rollouts = batch.rollouts
        loss_weights = signals.loss_weights
        train_mask = signals.train_mask
        value_estimates = signals.value_estimates
        policy_inputs = PolicyInputs(rollouts.logps, rollouts.nucleus_mass, loss_weights)
        responses = ResponseBatch(rollouts.tokens, rollouts.mask, policy_inputs)
        if isinstance(rollouts, RoutedRollouts):
            responses = responses._replace(
                prompt_experts=rollouts.prompt_experts, experts=rollouts.experts
            )

        # All rollouts, then: without n_train, `train_mask` has every row that is no padding.
        if not self.drops_zero_variance and self.rl.n_train is None:
            return TrainedPart(batch.problems, responses, value_estimates, batch.B_p, batch.n, None)

        # A group stays if one of its rollouts has an advantage. In the others all advantages are 0,
        # and so is the gradient of every term.
        if self.drops_zero_variance:
            groups, _ = batch.layout.row_groups(self.shapes.buffer_rows)
            is_nonzero = loss_weights.advantages != 0
            if is_nonzero.ndim > train_mask.ndim:  # an advantage for each token
                is_nonzero = is_nonzero.any(-1)
            has_advantage = train_mask & is_nonzero
            group_has_advantage = groups_with_any(has_advantage, groups, self.shapes.problem_rows)
            train_mask = train_mask & group_has_advantage[groups]

        group_size = batch.n if self.rl.n_train is None else jnp.int32(self.rl.n_train)
        remaining = drop_groups(
            self.shapes,
            batch.problems,
            TrainedRows(responses, value_estimates),
            train_mask,
            batch.B_p,
            batch.n,
            group_size,
        )

        responses = remaining.rows.responses
        responses = responses._replace(mask=responses.mask & remaining.valid[..., None])
        token_fraction = responses.mask.sum() / jnp.maximum(rollouts.mask.sum(), 1)
        return TrainedPart(
            remaining.problems,
            responses,
            remaining.rows.value_estimates,
            remaining.B_p,
            group_size,
            token_fraction,
        )


def rewarded_batch(
    shapes: SamplerShapes, batch: RolloutBatch, filters_zero_variance: bool
) -> RewardedBatch:
    """A batch as advantage estimators read it, [S rows]; padding rows have reward and length 0.

    filters_zero_variance: whether the policy's term leaves out groups of equal rewards.
    """
    groups, valid = batch.layout.row_groups(shapes.buffer_rows)
    return RewardedBatch(
        rewards=jnp.where(valid, batch.rewards, 0),
        lengths=jnp.where(valid, batch.rollouts.mask.sum(-1), 0),
        groups=groups,
        valid=valid,
        n=batch.n,
        num_groups=shapes.problem_rows,
        filters_zero_variance=filters_zero_variance,
    )


def measure_rollouts(
    stops: StopConditions, batch: RolloutBatch, rewarded: RewardedBatch
) -> Metrics:
    """The metrics of a batch before it is trained on.

    Means over its B_p n rollouts: reward, truncated, response_length, zero_variance; where
    responses hold context, context_length; and interrupted or turns where the task has them. A
    total: tokens, how many the policy drew. With context, response_length leaves it out.
    """
    rollouts = batch.rollouts
    valid = rewarded.valid
    lengths = jnp.where(valid, rollouts.lengths, 0)  # of responses, with context
    policy_lengths = rewarded.lengths  # of what the policy drew
    of_rollouts = {
        "reward": rewarded.rewards,
        "truncated": valid & ~rollouts.stopped,
        "response_length": lengths,
        "zero_variance": zero_variance(rewarded),
    }
    if stops.adds_context:
        of_rollouts |= {
            "response_length": policy_lengths,
            "context_length": lengths - policy_lengths,
        }
    if stops.interruption is not None:
        of_rollouts["interrupted"] = policy_lengths < lengths
    if stops.has_turns:
        of_rollouts["turns"] = count_turns(rollouts.mask & valid[..., None])

    num_rollouts = (batch.B_p * batch.n).astype(jnp.float32)
    metrics = {name: mean(x.sum() / num_rollouts) for name, x in of_rollouts.items()}
    drawn = policy_lengths if stops.adds_context else lengths  # equal without context
    metrics["tokens"] = total(drawn.sum().astype(jnp.float32))
    return metrics


def gradient_signal(
    gradient: Params, grad_norm: Array, moments: Any, max_grad_norm: Any
) -> Metrics:
    """Measure how far a gradient agrees with those before it, for train/growth.py.

    grad_signal is the inner product of the clipped gradient with Adam's mean of those before (0
    before the first), grad_signal_square its square, grad_square the clipped gradient's own.
    gradient, moments: of the same parameters; moments are Adam's before this gradient. grad_norm:
    the gradient's, not clipped.
    """
    # The bound 1e-30 avoids a division by 0.
    clip_scale = jnp.minimum(1.0, max_grad_norm / jnp.maximum(grad_norm, 1e-30))

    # Adam's mean begins at 0, and is divided by the weight of the gradients that are in it: with
    # count = 0 that is 0, as is the mean, and 1 - B1, that of one gradient, stands for it.
    products = jax.tree.leaves(jax.tree.map(lambda g, m: (g * m).sum(), gradient, moments.mu))
    past_weight = jnp.maximum(1 - B1 ** moments.count.astype(jnp.float32), 1 - B1)
    signal = clip_scale * sum(products) / past_weight
    square = (clip_scale * grad_norm) ** 2
    return {
        "grad_signal": mean(signal),
        "grad_signal_square": mean(signal**2),
        "grad_square": mean(square),
    }


def build_update(
    cell: CellConfig,
    decoder: Decoder,
    task: Task,
    shapes: SamplerShapes,
    mesh: Mesh,
    measures_signal: bool = False,
) -> Callable[[TrainState, Params, RolloutBatch, Coefficients], tuple[TrainState, UpdateResult]]:
    """Build the jitted `update(state, base_params, batch, coefficients) -> (state, result)`.

    The state is donated. base_params: the base policy's, or {} where nothing reads them.
    measures_signal: as of TrainStep.
    """
    train_step = TrainStep(cell, decoder, task.stops, shapes, mesh, measures_signal)
    return jit_update(train_step, cell, decoder, mesh)


def jit_update(
    make_update: Callable[..., tuple[TrainState, UpdateResult]],
    cell: CellConfig,
    decoder: Decoder,
    mesh: Mesh,
) -> Callable[..., tuple[TrainState, UpdateResult]]:
    """Jit `make_update(state, *inputs) -> (state, result)`.

    The state is donated and keeps its shardings; the result is whole on all devices. inputs: of any
    number and shardings, such as base_params, batch, coefficients.
    """

    # A function, because jit hashes what it is given, and the shapes in a FusedUpdate may hold a
    # list. Traces show its name.
    def update(state: TrainState, *inputs: Any) -> tuple[TrainState, UpdateResult]:
        return make_update(state, *inputs)

    state_shardings = train_state_shardings(decoder, mesh, cell.rl.critic is not None)
    return jax.jit(
        update,
        donate_argnums=0,
        out_shardings=(state_shardings, replicated(mesh)),
        compiler_options=compiler_options(mesh),
    )


def choose_train_rollouts(
    key: PRNGKeyArray, ids: Int[Array, " r"], batch: RewardedBatch, n_train: int
) -> Bool[Array, "*r"]:
    """Choose n_train rollouts of each group at random: a mask of the rows.

    A draw belongs to (key, problem id, number of the rollout in its group), so that neither the
    mesh nor padding changes it. ids: the problem id of each row, flattened; n_train <= n.
    """
    valid = batch.valid.reshape(-1)
    groups = batch.groups.reshape(-1)
    rollout = jnp.cumsum(valid) - 1  # rows are in the order of rollout numbers
    keys = rollout_keys(jax.random.fold_in(key, SUBSET_STREAM), ids, rollout % batch.n)
    uniform = uniforms(keys, jnp.zeros_like(rollout))

    # The rank of each row: by groups, padding last, and within a group by its random number. (The
    # last key of a lexsort is the first to sort by.)
    random_order = jnp.lexsort((uniform, jnp.where(valid, groups, batch.num_groups)))
    ranks = jnp.arange(len(rollout), dtype=rollout.dtype)
    rank = jnp.zeros_like(rollout).at[random_order].set(ranks)

    rank_in_group = rank - groups * batch.n  # each group before has n rows
    return (valid & (rank_in_group < n_train)).reshape(batch.valid.shape)


def groups_with_any(
    mask: Bool[Array, "S rows"], groups: Int[Array, "S rows"], num_groups: int
) -> Bool[Array, " num_groups"]:
    """Which groups have a row in the mask. groups: 0 .. num_groups - 1 of each row; any of rows
    that are not in the mask."""
    flags = mask.astype(jnp.int32).reshape(-1)
    return jax.ops.segment_max(flags, groups.reshape(-1), num_groups) > 0


class RemainingGroups(NamedTuple):
    """What `drop_groups` leaves, at the front of the buffers."""

    problems: ProblemArrays
    rows: Any  # arrays [S rows ...], of the kind that it was given
    valid: Bool[Array, "S rows"]  # which rows hold a rollout
    B_p: Int[Array, ""]


def drop_groups(
    shapes: SamplerShapes,
    problems: ProblemArrays,
    rows: Any,
    train_mask: Bool[Array, "S rows"],
    B_p: Int[Array, ""],
    n: Int[Array, ""],
    group_size: Any,
) -> RemainingGroups:
    """Move the rows in `train_mask` to the front of the buffers, and their problems too.

    So the gradient's loops run over them alone. train_mask must have exactly `group_size` rollouts
    of a group, or none: the result is a batch of so many rollouts of each remaining problem, in
    their order, laid out by sampling/layout.py. B_p, n: of the batch before. problems:
    `problem_rows` of them. rows: a tree of arrays [S rows ...].
    """
    shards = shapes.shards
    rows_per_shard = shapes.buffer_rows

    groups, _ = Layout(B_p, n, shards).row_groups(rows_per_shard)
    group_is_trained = groups_with_any(train_mask, groups, shapes.problem_rows)
    group_order = jnp.argsort(~group_is_trained, stable=True)
    num_groups = group_is_trained.sum(dtype=jnp.int32)

    remaining = Layout(num_groups, group_size, shards)
    valid = remaining.holds_rollout(rows_per_shard)
    # Rows are in the order of their rollouts, so a stable sort leaves these in order.
    trained_rows = jnp.argsort(~train_mask.reshape(-1), stable=True)
    source_row = trained_rows[jnp.where(valid, remaining.rollout_of_row(rows_per_shard), 0)]

    def take_rows(x: Array) -> Array:
        return x.reshape(shards * rows_per_shard, *x.shape[2:])[source_row]

    return RemainingGroups(
        problems=ProblemArrays(*(x[group_order] for x in problems)),
        rows=jax.tree.map(take_rows, rows),
        valid=valid,
        B_p=num_groups,
    )
