"""Rollouts sampled just before the update that trains on them, and verified on the host.

Finished responses go to the verifier as text while the rest is sampled (sampling/stream.py). Then the update runs. Both
parts leave the same numbers as the fused program (rl/fused_rollouts.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.sharding import Mesh

from isojax.core.config import CellConfig
from isojax.distributed.program import Program, shape_on
from isojax.distributed.sharding import replicated
from isojax.models.transformer import Decoder, Params
from isojax.rl.metric import Metrics
from isojax.rl.optimizer import TrainState
from isojax.rl.rollout_source import (
    CellProblems,
    SourcedBatch,
    UpdateShapes,
    build_select_problems,
    padded_index,
    verifier_metrics,
)
from isojax.rl.train_step import build_update
from isojax.sampling.batch import (
    ProblemArrays,
    RolloutBatch,
    Rollouts,
    SamplerShapes,
    rewards_to_buffer,
    rollout_shapes,
)
from isojax.sampling.stream import build_stream
from isojax.tasks.grading.background_grading import BackgroundGrader
from isojax.tasks.protocol import HostTask


class InlinePrograms:
    """The programs that choose problems, sample and train, in this order."""

    updates_per_call = 1

    def __init__(self, cell: CellConfig, decoder: Decoder, task: HostTask, shapes: SamplerShapes, mesh: Mesh):
        self.task, self.shapes, self.mesh, self.sampling = task, shapes, mesh, cell.sampling
        self.select_problems = build_select_problems(mesh)
        self.stream = build_stream(decoder, shapes, mesh, cell.sampling, task.stops)
        self.update = Program(build_update(cell, decoder, task, shapes, mesh))

    def compile(self, shapes: UpdateShapes) -> None:
        problems = self._compile_select(shapes)
        rollouts = self.stream.compile(shapes.state.params, problems)
        self.update.compile(*self._update_shapes(shapes, problems, rollouts))

    def main_programs(self, shapes: UpdateShapes) -> dict[str, tuple[Program, tuple[Any, ...]]]:
        problems = self._compile_select(shapes)
        rollouts = rollout_shapes(self.shapes, self.mesh, nucleus=self.sampling.top_p < 1)
        return {
            "decode": (self.stream.advance, self.stream.advance_shapes(shapes.state.params, problems)),
            "learn": (self.update, self._update_shapes(shapes, problems, rollouts)),
        }

    def _compile_select(self, shapes: UpdateShapes) -> ProblemArrays:
        on_all = replicated(self.mesh)
        index, scalar = shape_on(on_all, (self.shapes.problem_rows,)), shape_on(on_all)
        return self.select_problems.compile(shapes.problem_table, index, scalar, scalar).problems

    def _update_shapes(self, shapes: UpdateShapes, problems: ProblemArrays, rollouts: Rollouts) -> tuple[Any, ...]:
        on_all = replicated(self.mesh)
        batch = RolloutBatch(
            problems,
            rollouts,
            rewards=shape_on(on_all, (self.shapes.shards, self.shapes.buffer_rows), "float32"),
            B_p=shape_on(on_all),
            n=shape_on(on_all),
            key_data=shape_on(on_all, (2,), "uint32"),
        )
        return shapes.state, shapes.base_params, batch, shapes.coefficients

    def can_restore(self, saved: Mapping[str, Any]) -> bool:
        return False

    def close(self) -> None:
        """Nothing else serves the programs."""


class InlineRollouts:
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

    def finish_update(self, state: TrainState) -> Metrics:
        return {}

    def save(self) -> tuple[None, None]:
        return None, None

    def restore(self, saved: Mapping[str, Any], restore_arrays: Callable[[Any], Any], params: Params) -> None:
        raise AssertionError("an inline source leaves no rollouts in progress")

    def close(self) -> None:
        """Nothing is in progress."""
