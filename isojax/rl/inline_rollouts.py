"""Rollouts sampled with the policy that is trained on them, one batch before each update: problems,
rollouts and rewards, then the update. Of every task and engine; tasks that verify on device are
faster by FusedRollouts (fused_rollouts.py), which do all of it in one program."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from isojax.core.config import CellConfig
from isojax.core.shapes import MAX_UPDATES_PER_CALL, SamplerShapes
from isojax.distributed.sharding import Program, replicated, shape_on
from isojax.models.transformer import Decoder
from isojax.rl.dynamic_sampling import build_examine, build_merge
from isojax.rl.engines import RolloutEngine, SampleRequest
from isojax.rl.graded_sampler import GradedSampler
from isojax.rl.metric import Metrics, mean, merge
from isojax.rl.optimizer import TrainState, place_moments
from isojax.rl.rollout_source import (
    CellProblems,
    RolloutPrograms,
    RolloutSource,
    SourcedBatch,
    UpdateShapes,
    batch_shapes,
    build_gather_problems,
    padded_index,
    sum_rewards,
    verifier_metrics,
)
from isojax.rl.train_step import UpdateResult, build_update
from isojax.sampling.batch import RolloutBatch
from isojax.sampling.layout import Layout
from isojax.tasks.task import Task, is_on_device


class ParkedUpdate(Program):
    """The update of a state whose moments are in the host's memory before and after it."""

    def __call__(self, *arguments: Any) -> tuple[TrainState, UpdateResult]:
        state, *inputs = arguments
        parked = jax.tree.leaves((state.moments, state.critic))
        state, result = super().__call__(place_moments(state, on_host=False), *inputs)
        for x in parked:  # as donated ones are, so that the host holds them once
            x.delete()
        return place_moments(state, on_host=True), result


class InlinePrograms(RolloutPrograms):
    """The programs that choose problems, sample, verify and train, in this order; `run.rollouts`
    names the engine that samples."""

    def __init__(
        self,
        cell: CellConfig,
        decoder: Decoder,
        task: Task,
        shapes: SamplerShapes,
        mesh: Mesh,
        engine: RolloutEngine,
        measures_signal: bool = False,
        moments_on_host: bool = False,
    ):
        """Build the programs around an engine, which samples, of the same shapes and mesh.

        measures_signal: as of TrainStep. moments_on_host: whether Adam's moments and the critic are
        in the hosts' memory but during an update (ParkedUpdate).
        """
        self.task, self.shapes, self.mesh = task, shapes, mesh
        self.max_batches = cell.rl.dynamic_sampling or 1
        # On device as many as of the fused program, so that metrics are summed alike. Dynamic
        # sampling: one, because its updates sample more or less, and C decides which is the last.
        self.updates_per_call = 1
        if is_on_device(task) and self.max_batches == 1:
            self.updates_per_call = MAX_UPDATES_PER_CALL

        self.gather_problems = build_gather_problems(mesh)
        self.graded_sampler = GradedSampler(engine, task, shapes, mesh)
        # Of dynamic sampling: the key of a further batch, what is known of a batch, and two in one.
        self.further_key = Program(jax.jit(jax.random.fold_in, out_shardings=replicated(mesh)))
        self.examine = build_examine(shapes, task.stops, mesh)
        self.merge = build_merge(shapes, mesh)

        update = build_update(cell, decoder, task, shapes, mesh, measures_signal)
        self.update = ParkedUpdate(update) if moments_on_host else Program(update)

    def compile(self, shapes: UpdateShapes) -> None:
        index = shape_on(replicated(self.mesh), (self.shapes.problem_rows,))
        scalar = shape_on(replicated(self.mesh))
        self.gather_problems.compile(shapes.problem_table, index, scalar, scalar)
        rollouts = self.graded_sampler.compile(shapes.policy_params)
        batch = batch_shapes(self.shapes, self.mesh, shapes, rollouts)
        if self.max_batches > 1:
            self.examine.compile(batch)
            self.merge.compile(batch, batch)
        self.update.compile(shapes.state, shapes.base_params, batch, shapes.coefficients)

    def open_rollouts(self, problems: CellProblems) -> "InlineRollouts":
        return InlineRollouts(self, problems)

    def main_programs(self, shapes: UpdateShapes) -> dict[str, tuple[Program, tuple[Any, ...]]]:
        """The programs that take the most memory, and the shapes of their arguments."""
        engine = self.graded_sampler.engine
        batch = batch_shapes(self.shapes, self.mesh, shapes, engine.setup.rollout_shapes)
        learn = (self.update, (shapes.state, shapes.base_params, batch, shapes.coefficients))
        return {**engine.main_programs(shapes.policy_params), "learn": learn}


@dataclass(frozen=True)
class SampledProblems:
    """What the host knows of a batch of B_p problems that was sampled."""

    problem_index: np.ndarray  # i32[B_p], rows of the problem table
    # f32[B_p], of each problem's n rollouts; None where the order of problems does not read them
    reward_sums: np.ndarray | None
    metrics: Metrics  # of the engine and the verifier


class InlineRollouts(RolloutSource):
    """The RolloutSource of one cell."""

    def __init__(self, programs: InlinePrograms, problems: CellProblems):
        self.programs, self.problems = programs, problems
        self.layout = Layout(problems.cell.B_p, problems.cell.n, programs.shapes.shards)
        programs.graded_sampler.engine.begin_run(problems.cell, problems.first_update)

    def next_batch(self, state: TrainState, max_updates: int) -> SourcedBatch:
        self.programs.graded_sampler.engine.publish(state.params, int(state.step))
        batch, sampled = self._sample_batch(state, number=0)
        if self.programs.max_batches == 1:
            return SourcedBatch(batch, sampled.problem_index, sampled.reward_sums, sampled.metrics)
        return self._replace_equal_groups(state, batch, sampled)

    def _sample_batch(self, state: TrainState, number: int) -> tuple[RolloutBatch, SampledProblems]:
        """Sample and verify the next B_p problems.

        number: 0 for the update's first batch, 1, 2, ... for the further ones of dynamic sampling,
        which have other keys.
        """
        programs, cell = self.programs, self.problems.cell

        # Problems, and the key of the update. A further batch has another key.
        index = next(self.problems.problem_order)
        table_rows = padded_index(index, programs.shapes.problem_rows)
        selected = programs.gather_problems(
            self.problems.problem_table, table_rows, np.int32(cell.seed), state.step
        )
        key = selected.key
        if number:
            key = programs.further_key(selected.key, np.int32(number))

        # Rollouts and rewards.
        problems = [self.problems.problems[q] for q in index]
        request = SampleRequest(problems, arrays=selected.problems, n=cell.n, key=key)
        [(rollouts, rewards)], grades = programs.graded_sampler.sample_and_grade(
            state.params, [request], lambda _, rollouts, rewards: (rollouts, rewards)
        )
        metrics: Metrics = programs.graded_sampler.engine.metrics()  # of this sampling; may be {}
        if grades is not None:  # else `rewards` are a device's
            rewards = self.layout.to_buffer(grades.rewards, programs.shapes.buffer_rows)
            metrics |= verifier_metrics(grades)
        batch = RolloutBatch(
            selected.problems,
            rollouts,
            rewards,
            B_p=np.int32(cell.B_p),
            n=np.int32(cell.n),
            key_data=selected.key_data,
        )
        reward_sums = sum_rewards(rewards, self.layout, self.problems.problem_order)
        return batch, SampledProblems(index, reward_sums, metrics)

    def _replace_equal_groups(
        self, state: TrainState, batch: RolloutBatch, first: SampledProblems
    ) -> SourcedBatch:
        """Sample further batches until no group has equal rewards, or `max_batches` are sampled.

        This is dynamic sampling (dynamic_sampling.py). batch, first: the update's first batch, and
        what is known of it. Metrics are of all rollouts that were sampled.
        """
        programs = self.programs
        sampled = [first]
        examined = programs.examine(batch)
        metrics = jax.tree.map(float, examined.metrics) | first.metrics
        equal_groups = int(examined.equal_groups)

        while equal_groups and len(sampled) < programs.max_batches:
            further, further_problems = self._sample_batch(state, number=len(sampled))
            sampled.append(further_problems)
            further_metrics = jax.tree.map(float, programs.examine(further).metrics)
            metrics = merge(metrics, further_metrics | further_problems.metrics)

            # A group of equal rewards is replaced by one of unequal rewards of the further batch.
            merged = programs.merge(batch, further)
            batch = merged.batch
            equal_groups = int(merged.equal_groups)
            del further, merged  # while the next batch is sampled, one waits (launch/memory_model)

        share = equal_groups / self.problems.cell.B_p
        metrics |= {"sampled_batches": mean(float(len(sampled))), "equal_groups": mean(share)}
        sums = [s.reward_sums for s in sampled if s.reward_sums is not None]
        return SourcedBatch(
            batch,
            problem_index=np.concatenate([s.problem_index for s in sampled]),
            reward_sums=np.concatenate(sums) if sums else None,
            metrics=metrics,
            extra_batches=len(sampled) - 1,
        )
