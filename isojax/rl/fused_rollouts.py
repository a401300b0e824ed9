"""Rollouts of tasks that verify on device: one program samples with the policy it trains, many
updates per call."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array

from isojax.core.config import CellConfig, RLConfig
from isojax.core.shapes import MAX_UPDATES_PER_CALL, SamplerShapes
from isojax.distributed.sharding import Program, compiler_options, replicated, shape_on
from isojax.models.lora import policy_params
from isojax.models.transformer import Decoder, Params
from isojax.rl import rollout_source
from isojax.rl.experts import records_experts
from isojax.rl.graded_sampler import verify_on_device
from isojax.rl.metric import merge
from isojax.rl.objective import Coefficients
from isojax.rl.optimizer import TrainState, train_state_shardings
from isojax.rl.rollout_source import ProblemBatches
from isojax.rl.train_step import TrainStep, UpdateResult
from isojax.sampling.batch import TRAIN_STREAM, RolloutBatch, gather_problems
from isojax.sampling.engine import build_sampler
from isojax.tasks.protocol import DeviceTask


def build_fused_update(
    cell: CellConfig,
    decoder: Decoder,
    task: DeviceTask,
    shapes: SamplerShapes,
    mesh: Mesh,
    measures_signal: bool = False,
) -> Callable[[TrainState, Params, ProblemBatches, Coefficients], tuple[TrainState, UpdateResult]]:
    """The jitted `update(state, base_params, batches, coefficients) -> (state, result)`; the state
    is donated. After `cell.rl.max_consecutive_nonfinite` skipped updates in a row it ends early."""
    train_step = TrainStep(cell, decoder, task.stops, shapes, mesh, measures_signal)
    records = records_experts(cell.rl, decoder, mesh)
    sample = build_sampler(decoder, shapes, mesh, cell.sampling, task.stops, records)

    def update(
        state: TrainState, base_params: Params, batches: ProblemBatches, coefficients: Coefficients
    ) -> tuple[TrainState, UpdateResult]:
        table, B_p, n = batches.problem_table, batches.B_p, batches.n
        key = jax.random.fold_in(jax.random.key(batches.seed), TRAIN_STREAM)

        @partial(jax.jit, inline=True)  # traced once, for its outputs' shapes and for the loop
        def one_update(i: Array, state: TrainState) -> tuple[TrainState, UpdateResult]:
            problems = gather_problems(table, batches.problem_index[i])
            update_key = jax.random.fold_in(key, state.step)
            rollouts = sample(
                policy_params(state.params, base_params), problems, B_p, n, update_key
            )
            rewards = verify_on_device(task, shapes, problems, rollouts, B_p, n)
            batch = RolloutBatch(
                problems, rollouts, rewards, B_p, n, jax.random.key_data(update_key)
            )
            signals, batch_metrics = train_step.compute_advantages(state, batch, coefficients)
            state, update_metrics = train_step.update(
                state, base_params, batch, signals, coefficients
            )
            reward_sums = None
            if cell.rl.no_positive_resampling is not None:
                groups, valid = batch.layout.row_groups(shapes.buffer_rows)
                table_rows = batches.problem_index[i][groups]
                reward_sums = (
                    jnp.zeros(len(table.ids)).at[table_rows].add(jnp.where(valid, rewards, 0.0))
                )
            return state, UpdateResult(batch_metrics | update_metrics, reward_sums)

        def keep_training(carry: tuple[Array, TrainState, UpdateResult]) -> Array:
            i, state, _ = carry
            return (i < batches.num_updates) & (
                state.consecutive_nonfinite < cell.rl.max_consecutive_nonfinite
            )

        def body(
            carry: tuple[Array, TrainState, UpdateResult],
        ) -> tuple[Array, TrainState, UpdateResult]:
            i, state, total = carry
            state, result = one_update(i, state)
            reward_sums = jax.tree.map(jnp.add, total.reward_sums, result.reward_sums)
            return i + 1, state, UpdateResult(merge(total.metrics, result.metrics), reward_sums)

        result_shapes = jax.eval_shape(one_update, jnp.int32(0), state)[1]
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), result_shapes)
        return lax.while_loop(keep_training, body, (jnp.int32(0), state, zeros))[1:]

    out_shardings = (
        train_state_shardings(decoder, mesh, cell.rl.critic is not None),
        replicated(mesh),
    )
    return jax.jit(
        update,
        donate_argnums=0,
        out_shardings=out_shardings,
        compiler_options=compiler_options(mesh),
    )


class FusedPrograms(rollout_source.RolloutPrograms):
    updates_per_call = MAX_UPDATES_PER_CALL

    def __init__(self, rl: RLConfig, shapes: SamplerShapes, mesh: Mesh, update: Callable[..., Any]):
        """update: what `build_fused_update` returned for this recipe, these shapes and this
        mesh."""
        self.rl, self.shapes, self.mesh, self.update = rl, shapes, mesh, Program(update)

    def compile(self, shapes: rollout_source.UpdateShapes) -> None:
        [(program, arguments)] = self.main_programs(shapes).values()
        program.compile(*arguments)

    def main_programs(
        self, shapes: rollout_source.UpdateShapes
    ) -> dict[str, tuple[Program, tuple[Any, ...]]]:
        """The program and the shapes of its arguments."""
        on_all = replicated(self.mesh)
        scalar = shape_on(on_all)
        index = shape_on(on_all, (MAX_UPDATES_PER_CALL, self.shapes.problem_rows))
        batches = ProblemBatches(
            shapes.problem_table, index, num_updates=scalar, B_p=scalar, n=scalar, seed=scalar
        )
        return {
            "train": (self.update, (shapes.state, shapes.base_params, batches, shapes.coefficients))
        }


class FusedRollouts(rollout_source.RolloutSource):
    """The RolloutSource of the fused program: it chooses problems, and leaves the rest to the
    update."""

    def __init__(self, programs: FusedPrograms, problems: rollout_source.CellProblems):
        self.programs, self.problems = programs, problems

    def next_batch(self, state: TrainState, max_updates: int) -> rollout_source.SourcedBatch:
        rl = self.programs.rl
        order = self.problems.problem_order
        cell = self.problems.cell
        count = max_updates
        if rl.no_positive_resampling is not None:
            # Later epochs depend on the rewards of this one, and a call must not end before its
            # last update.
            updates_left = rl.max_consecutive_nonfinite - int(state.consecutive_nonfinite)
            count = min(count, order.batches_left_in_epoch, updates_left)
        index = np.zeros((MAX_UPDATES_PER_CALL, self.programs.shapes.problem_rows), np.int32)
        for i in range(count):
            index[i] = rollout_source.padded_index(next(order), index.shape[1])
        inputs = ProblemBatches(
            self.problems.problem_table,
            index,
            num_updates=np.int32(count),
            B_p=np.int32(cell.B_p),
            n=np.int32(cell.n),
            seed=np.int32(cell.seed),
        )
        problem_index = index[:count, : cell.B_p].reshape(-1)
        return rollout_source.SourcedBatch(
            inputs, problem_index, reward_sums=None, metrics={}, updates=count
        )
