"""Rollouts sampled just before the update that trains on them, and verified on the host: finished responses go to the
verifier as text while the rest is sampled (sampling/stream.py). The numbers are those of the fused program
(rl/fused_rollouts.py)."""

from typing import Any

import numpy as np
from jax.sharding import Mesh

from isojax.core.config import CellConfig
from isojax.distributed.program import Program, shape_on
from isojax.distributed.sharding import replicated
from isojax.models.transformer import Decoder
from isojax.rl.optimizer import TrainState
from isojax.rl.rollout_source import (
    CellProblems,
    RolloutPrograms,
    RolloutSource,
    SourcedBatch,
    UpdateShapes,
    batch_shapes,
    build_select_problems,
    padded_index,
    verifier_metrics,
)
from isojax.rl.train_step import build_update
from isojax.sampling.batch import RolloutBatch, SamplerShapes, rewards_to_buffer
from isojax.sampling.stream import build_stream
from isojax.tasks.grading.background_grading import BackgroundGrader
from isojax.tasks.protocol import HostTask


class InlinePrograms(RolloutPrograms):
    """The programs that choose problems, sample and train, in this order."""

    updates_per_call = 1

    def __init__(self, cell: CellConfig, decoder: Decoder, task: HostTask, shapes: SamplerShapes, mesh: Mesh):
        self.task, self.shapes, self.mesh, self.nucleus = task, shapes, mesh, cell.sampling.top_p < 1
        self.select_problems = build_select_problems(mesh)
        self.stream = build_stream(decoder, shapes, mesh, cell.sampling, task.stops)
        self.update = Program(build_update(cell, decoder, task, shapes, mesh))

    def compile(self, shapes: UpdateShapes) -> None:
        on_all, batch = replicated(self.mesh), batch_shapes(self.shapes, self.mesh, shapes, self.nucleus)
        index, scalar = shape_on(on_all, (self.shapes.problem_rows,)), shape_on(on_all)
        self.select_problems.compile(shapes.problem_table, index, scalar, scalar)
        rollouts = self.stream.compile(shapes.state.params, batch.problems)
        batch = batch._replace(rollouts=rollouts)
        self.update.compile(shapes.state, shapes.base_params, batch, shapes.coefficients)

    def main_programs(self, shapes: UpdateShapes) -> dict[str, tuple[Program, tuple[Any, ...]]]:
        """The programs that take the most memory, and the shapes of their arguments."""
        batch = batch_shapes(self.shapes, self.mesh, shapes, self.nucleus)
        return {
            "decode": (self.stream.advance, self.stream.advance_shapes(shapes.state.params, batch.problems)),
            "learn": (self.update, (shapes.state, shapes.base_params, batch, shapes.coefficients)),
        }


class InlineRollouts(RolloutSource):
    """A RolloutSource that samples a batch with the policy that will be trained on it."""

    def __init__(self, programs: InlinePrograms, problems: CellProblems):
        self.programs, self.problems = programs, problems

    def next_batch(self, state: TrainState, max_updates: int) -> SourcedBatch:
        programs, cell = self.programs, self.problems.cell
        index = next(self.problems.problem_order)
        selected = programs.select_problems(
            self.problems.problem_table,
            padded_index(index, programs.shapes.problem_rows),
            np.int32(cell.seed),
            state.step,
        )
        batch_problems = [self.problems.problems[q] for q in index for _ in range(cell.n)]
        with BackgroundGrader(programs.task, batch_problems) as grading:
            rollouts = programs.stream.run(
                state.params, selected.problems, cell.B_p, cell.n, selected.key, grading.add_responses
            )
            grades = grading.collect_grades()
        batch = RolloutBatch(
            selected.problems,
            rollouts,
            rewards=rewards_to_buffer(programs.shapes, grades.rewards),
            B_p=np.int32(cell.B_p),
            n=np.int32(cell.n),
            key_data=selected.key_data,
        )
        reward_sums = grades.rewards.reshape(-1, cell.n).sum(1)
        return SourcedBatch(batch, index, reward_sums, verifier_metrics(grades))
