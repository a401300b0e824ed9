"""Rollouts of tasks that verify on device: one program samples with the policy it trains, many
updates per call."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from isojax.core.config import CellConfig, RLConfig
from isojax.core.shapes import MAX_UPDATES_PER_CALL, SamplerShapes
from isojax.distributed.sharding import Program, replicated, shape_on
from isojax.models.lora import policy_params
from isojax.models.transformer import Decoder, Params
from isojax.rl.experts import records_experts
from isojax.rl.graded_sampler import verify_on_device
from isojax.rl.metric import merge
from isojax.rl.objective import Coefficients
from isojax.rl.optimizer import TrainState
from isojax.rl.rollout_source import (
    CellProblems,
    ProblemBatches,
    RolloutPrograms,
    RolloutSource,
    SourcedBatch,
    UpdateShapes,
    padded_index,
)
from isojax.rl.train_step import TrainStep, UpdateResult, jit_update
from isojax.sampling.batch import TRAIN_STREAM, RolloutBatch, gather_problems
from isojax.sampling.engine import Sampler, build_sampler
from isojax.tasks.protocol import DeviceTask


class LoopCarry(NamedTuple):
    """What the loop over the updates of a call carries."""

    num_done: Array  # i32[], of its updates
    state: TrainState
    result: UpdateResult  # of these updates together


@dataclass(frozen=True)
class FusedUpdate:
    """Update after update in one program, each on rollouts that it samples with the policy of the
    update before. To be called inside a jit."""

    rl: RLConfig
    task: DeviceTask
    shapes: SamplerShapes
    sample: Sampler
    train_step: TrainStep

    def __call__(
        self,
        state: TrainState,
        base_params: Params,
        batches: ProblemBatches,
        coefficients: Coefficients,
    ) -> tuple[TrainState, UpdateResult]:
        """The state after `batches.num_updates` updates, and their metrics together.

        It ends after fewer where `cell.rl.max_consecutive_nonfinite` in a row were not finite.
        base_params: the base policy's, or {} where nothing reads them.
        """
        run_key = jax.random.fold_in(jax.random.key(batches.seed), TRAIN_STREAM)

        @partial(jax.jit, inline=True)  # traced once, for its outputs' shapes and for the loop
        def one_update(i: Array, state: TrainState) -> tuple[TrainState, UpdateResult]:
            return self._one_update(state, base_params, batches, coefficients, run_key, i)

        def goes_on(carry: LoopCarry) -> Array:
            """Whether another update follows: bool[]."""
            skipped_in_a_row = carry.state.consecutive_nonfinite
            is_healthy = skipped_in_a_row < self.rl.max_consecutive_nonfinite
            return (carry.num_done < batches.num_updates) & is_healthy

        def do_next(carry: LoopCarry) -> LoopCarry:
            state, result = one_update(carry.num_done, carry.state)
            return LoopCarry(carry.num_done + 1, state, merge_results(carry.result, result))

        # Zeros are where sums and weights begin; a maximum too, as no maximum is below 0.
        _, result_shapes = jax.eval_shape(one_update, jnp.int32(0), state)
        no_result = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), result_shapes)
        end = lax.while_loop(goes_on, do_next, LoopCarry(jnp.int32(0), state, no_result))
        return end.state, end.result

    def _one_update(
        self,
        state: TrainState,
        base_params: Params,
        batches: ProblemBatches,
        coefficients: Coefficients,
        run_key: PRNGKeyArray,
        i: Array,
    ) -> tuple[TrainState, UpdateResult]:
        """Sample, verify and train on the i-th batch of problems; i: i32[], within the call."""
        B_p, n = batches.B_p, batches.n
        table_index = batches.problem_index[i]  # i32[problem_rows]
        problems = gather_problems(batches.problem_table, table_index)

        # The key depends on the updates of the whole run, not of this call.
        key = jax.random.fold_in(run_key, state.step)
        # With LoRA `state.params` are the adapters alone, and are joined with `base_params`.
        params = policy_params(state.params, base_params)
        rollouts = self.sample(params, problems, B_p, n, key)
        rewards = verify_on_device(self.task, self.shapes, problems, rollouts, B_p, n)
        batch = RolloutBatch(problems, rollouts, rewards, B_p, n, jax.random.key_data(key))

        state, result = self.train_step(state, base_params, batch, coefficients)
        if self.rl.no_positive_resampling is None:
            return state, result
        num_problems = len(batches.problem_table.ids)
        return state, result._replace(
            reward_sums=self._sum_rewards(batch, table_index, num_problems)
        )

    def _sum_rewards(
        self, batch: RolloutBatch, table_index: Int[Array, " problem_rows"], num_problems: int
    ) -> Float[Array, " Q"]:
        """Of each of the Q training problems, the sum of its rewards in a batch. table_index: the
        rows of the problem table that the batch's problems are."""
        groups, valid = batch.layout.row_groups(self.shapes.buffer_rows)
        rewards = jnp.where(valid, batch.rewards, 0.0)
        return jnp.zeros(num_problems).at[table_index[groups]].add(rewards)


def merge_results(a: UpdateResult, b: UpdateResult) -> UpdateResult:
    """The results of updates that follow each other."""
    reward_sums = jax.tree.map(jnp.add, a.reward_sums, b.reward_sums)
    return UpdateResult(merge(a.metrics, b.metrics), reward_sums)


def build_fused_update(
    cell: CellConfig,
    decoder: Decoder,
    task: DeviceTask,
    shapes: SamplerShapes,
    mesh: Mesh,
    measures_signal: bool = False,
) -> Callable[[TrainState, Params, ProblemBatches, Coefficients], tuple[TrainState, UpdateResult]]:
    """Build the jitted `update(state, base_params, batches, coefficients) -> (state, result)`.

    The state is donated. After `cell.rl.max_consecutive_nonfinite` skipped updates in a row it ends
    early. measures_signal: as of TrainStep.
    """
    update = FusedUpdate(
        rl=cell.rl,
        task=task,
        shapes=shapes,
        sample=build_sampler(
            decoder,
            shapes,
            mesh,
            cell.sampling,
            task.stops,
            records_experts(cell.rl, decoder, mesh),
        ),
        train_step=TrainStep(cell, decoder, task.stops, shapes, mesh, measures_signal),
    )
    return jit_update(update, cell, decoder, mesh)


class FusedPrograms(RolloutPrograms):
    """The one program of a sweep that samples, verifies and trains."""

    updates_per_call = MAX_UPDATES_PER_CALL

    def __init__(self, rl: RLConfig, shapes: SamplerShapes, mesh: Mesh, update: Callable[..., Any]):
        """update: what `build_fused_update` returned for this recipe, these shapes and this
        mesh."""
        self.rl, self.shapes, self.mesh, self.update = rl, shapes, mesh, Program(update)

    def compile(self, shapes: UpdateShapes) -> None:
        [(program, arguments)] = self.main_programs(shapes).values()
        program.compile(*arguments)

    def open_rollouts(self, problems: CellProblems) -> "FusedRollouts":
        return FusedRollouts(self, problems)

    def main_programs(self, shapes: UpdateShapes) -> dict[str, tuple[Program, tuple[Any, ...]]]:
        """{"train": (the one program, the shapes of its arguments)}."""
        on_all = replicated(self.mesh)
        scalar = shape_on(on_all)
        index = shape_on(on_all, (MAX_UPDATES_PER_CALL, self.shapes.problem_rows))
        batches = ProblemBatches(
            shapes.problem_table, index, num_updates=scalar, B_p=scalar, n=scalar, seed=scalar
        )
        return {
            "train": (self.update, (shapes.state, shapes.base_params, batches, shapes.coefficients))
        }


class FusedRollouts(RolloutSource):
    """The RolloutSource of the fused program: it chooses problems, and leaves the rest to the
    update."""

    def __init__(self, programs: FusedPrograms, problems: CellProblems):
        self.programs, self.problems = programs, problems

    def next_batch(self, state: TrainState, max_updates: int) -> SourcedBatch:
        """Choose the problems of the next `max_updates` updates, 1 .. MAX_UPDATES_PER_CALL.

        They may be fewer where solved problems are left out (`no_positive_resampling`). Rows of
        `problem_index` behind the last of these updates are 0, and not read.
        """
        rl = self.programs.rl
        order = self.problems.problem_order
        cell = self.problems.cell

        num_updates = max_updates
        if rl.no_positive_resampling is not None:
            # Later epochs depend on the rewards of this one. And a call must not end before its
            # last update, or problems of it would count as done: it has no more updates than may
            # still be skipped.
            updates_left = rl.max_consecutive_nonfinite - int(state.consecutive_nonfinite)
            num_updates = min(max_updates, order.batches_left_in_epoch, updates_left)

        index = np.zeros((MAX_UPDATES_PER_CALL, self.programs.shapes.problem_rows), np.int32)
        for i in range(num_updates):
            # B_p rows of the problem table, then zeros.
            index[i] = padded_index(next(order), index.shape[1])

        inputs = ProblemBatches(
            self.problems.problem_table,
            index,
            num_updates=np.int32(num_updates),
            B_p=np.int32(cell.B_p),
            n=np.int32(cell.n),
            seed=np.int32(cell.seed),
        )
        problem_index = index[:num_updates, : cell.B_p].reshape(-1)
        return SourcedBatch(
            inputs, problem_index, reward_sums=None, metrics={}, updates=num_updates
        )
