"""Where the rollouts and rewards of the next update come from, as the training loop sees it: the two protocols, which
a fork that gets rollouts elsewhere implements, and HostVerifiedRollouts, those of text tasks. It samples with the
policy that will be trained; finished responses go to the verifier as text while the rest is sampled. The others are
FusedRollouts (fused_rollouts.py), of tasks that verify on device, and AsyncRollouts (async_rl/async_rollouts.py)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from isojax.core.config import CellConfig
from isojax.core.nouns import Cell, Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import Program, replicated, shape_on
from isojax.models.lora import policy_params
from isojax.models.transformer import Decoder, Params
from isojax.rl.experts import records_experts
from isojax.rl.metric import Metrics, mean, total
from isojax.rl.objective import Coefficients
from isojax.rl.optimizer import TrainState, place_moments
from isojax.rl.train_step import UpdateResult, build_update
from isojax.sampling.batch import (
    TRAIN_STREAM,
    ProblemArrays,
    RecordedExperts,
    RolloutBatch,
    gather_problems,
    problem_shapes,
    rewards_to_buffer,
    rollout_shapes,
)
from isojax.sampling.engine import recorded_experts
from isojax.sampling.stream import build_stream
from isojax.tasks.epochs import EpochOrder
from isojax.tasks.grading import BackgroundGrader
from isojax.tasks.protocol import Grades, count_unfinished
from isojax.tasks.task import TextTask


@dataclass(frozen=True)
class CellProblems:
    cell: Cell
    problems: Sequence[Problem]  # the training problems
    host_table: ProblemArrays  # the same as host arrays
    problem_table: ProblemArrays  # the same on the devices that train
    problem_order: EpochOrder  # gives the problems of update `first_update` and of those that follow
    first_update: int  # updates done so far
    end_update: int | None = None  # where B_p or n change, and another source takes over; None: they stay


class SourcedBatch(NamedTuple):
    """The next batch; of the fused program the problems of several updates, without rollouts."""

    inputs: Any  # what the update program reads: a RolloutBatch, or ProblemBatches
    problem_index: np.ndarray  # i32[updates * B_p], rows of the problem table
    reward_sums: np.ndarray | None  # f32[updates * B_p], of each problem's rewards; None where the update computes them
    metrics: Metrics  # what the host measured of the batch


class RolloutSource(Protocol):
    """The rollouts of one cell. A source that leaves none in progress implements `next_batch` alone."""

    def next_batch(self, state: TrainState, max_updates: int) -> SourcedBatch:
        """Chooses problems, samples and verifies; at most `max_updates` batches at once. `state.params` are all of the
        policy's, with LoRA too. Raises what the sampler or the verifier has raised."""
        ...

    def finish_update(self, state: TrainState) -> Metrics:
        """The update on the last batch is done, and this is the newest policy; metrics of the source itself."""
        return {}

    def save(self) -> tuple[dict[str, Any] | None, Any]:
        """Rollouts in progress that a checkpoint must hold, as data for JSON and as arrays; (None, None) if none."""
        return None, None

    def restore(self, saved: Mapping[str, Any], restore_arrays: Callable[[Any], Any], params: Params) -> None:
        """Continues where `save` was called. `restore_arrays(template)` reads the arrays; `params`: the newest."""
        raise AssertionError("no rollouts in progress were saved")

    def close(self) -> None:
        """Ends whatever is in progress."""


class UpdateShapes(NamedTuple):
    """ShapeDtypeStructs, with shardings, of the problem table and of what an update reads besides a batch."""

    state: TrainState
    base_params: Params
    problem_table: ProblemArrays
    coefficients: Coefficients

    @property
    def policy_params(self) -> Params:
        return policy_params(self.state.params, self.base_params)


class RolloutPrograms(Protocol):
    """The compiled programs of a sweep that make rollouts and train on them; they serve one cell after another.
    update(state, base_params, batch.inputs, coefficients) -> (state, UpdateResult); the state is donated."""

    updates_per_call: int  # after at most so many the loop looks at its clock and for signals
    update: Program

    def compile(self, shapes: UpdateShapes) -> None:
        """Compiles all programs; a second call does nothing."""

    def can_restore(self, saved: Mapping[str, Any]) -> bool:
        """Whether rollouts that `RolloutSource.save` has saved can be continued by these programs."""
        return False


class SelectedProblems(NamedTuple):
    """The problems of an update, its PRNG key, and that key's data u32[2]."""

    problems: ProblemArrays
    key: PRNGKeyArray
    key_data: Array


def build_gather_problems(mesh: Mesh) -> Program:
    """`select(problem_table, index i32[problem_rows], seed, step) -> SelectedProblems`."""

    def select(problem_table: ProblemArrays, index: Array, seed: Array, step: Array) -> SelectedProblems:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), TRAIN_STREAM), step)
        return SelectedProblems(gather_problems(problem_table, index), key, jax.random.key_data(key))

    return Program(jax.jit(select, out_shardings=replicated(mesh)))


def padded_index(index: np.ndarray, problem_rows: int) -> np.ndarray:
    """Rows of the problem table i32[B_p], followed by zeros up to `problem_rows`."""
    return np.pad(index, (0, problem_rows - len(index))).astype(np.int32)


def batch_shapes(
    shapes: SamplerShapes,
    mesh: Mesh,
    update_shapes: UpdateShapes,
    nucleus: bool,
    recorded: RecordedExperts | None = None,
) -> RolloutBatch:
    """The ShapeDtypeStructs of a batch. nucleus: whether top_p is below 1."""
    on_all = replicated(mesh)
    return RolloutBatch(
        problem_shapes(shapes, mesh, shapes.problem_rows, update_shapes.problem_table.answers.shape[1]),
        rollout_shapes(shapes, mesh, nucleus, recorded),
        rewards=shape_on(on_all, (shapes.shards, shapes.buffer_rows), "float32"),
        B_p=shape_on(on_all),
        n=shape_on(on_all),
        key_data=shape_on(on_all, (2,), "uint32"),
    )


class ParkedUpdate(Program):
    """The update of a state whose moments are in the host's memory before and after it."""

    def __call__(self, *arguments: Any) -> tuple[TrainState, UpdateResult]:
        state, *others = arguments
        parked = jax.tree.leaves((state.moments, state.critic))
        state, result = super().__call__(place_moments(state, on_host=False), *others)
        for x in parked:  # as donated ones are, so that the host holds them once
            x.delete()
        return place_moments(state, on_host=True), result


class HostVerifiedPrograms(RolloutPrograms):
    """The programs that choose problems, sample and train, in this order."""

    updates_per_call = 1

    def __init__(
        self,
        cell: CellConfig,
        decoder: Decoder,
        task: TextTask,
        shapes: SamplerShapes,
        mesh: Mesh,
        measures_signal: bool = False,
        moments_on_host: bool = False,
    ):
        self.task, self.shapes, self.mesh, self.nucleus = task, shapes, mesh, cell.sampling.top_p < 1
        self.gather_problems = build_gather_problems(mesh)
        records = records_experts(cell.rl, decoder, mesh)
        self.recorded = recorded_experts(decoder) if records else None
        self.stream = build_stream(decoder, shapes, mesh, cell.sampling, task.stops, records)
        update = build_update(cell, decoder, task, shapes, mesh, measures_signal)
        self.update = ParkedUpdate(update) if moments_on_host else Program(update)

    def compile(self, shapes: UpdateShapes) -> None:
        index, scalar = shape_on(replicated(self.mesh), (self.shapes.problem_rows,)), shape_on(replicated(self.mesh))
        self.gather_problems.compile(shapes.problem_table, index, scalar, scalar)
        batch = batch_shapes(self.shapes, self.mesh, shapes, self.nucleus, self.recorded)
        batch = batch._replace(rollouts=self.stream.compile(shapes.policy_params, batch.problems))
        self.update.compile(shapes.state, shapes.base_params, batch, shapes.coefficients)

    def main_programs(self, shapes: UpdateShapes) -> dict[str, tuple[Program, tuple[Any, ...]]]:
        """The programs that take the most memory, and the shapes of their arguments."""
        batch = batch_shapes(self.shapes, self.mesh, shapes, self.nucleus, self.recorded)
        return {
            "weights": (self.stream.prepare_weights.program, (shapes.policy_params,)),
            "decode": (self.stream.advance_chunk, self.stream.advance_shapes(shapes.policy_params, batch.problems)),
            "learn": (self.update, (shapes.state, shapes.base_params, batch, shapes.coefficients)),
        }


class HostVerifiedRollouts(RolloutSource):
    """The RolloutSource that samples with the policy that will be trained on it."""

    def __init__(self, programs: HostVerifiedPrograms, problems: CellProblems):
        self.programs, self.problems = programs, problems

    def next_batch(self, state: TrainState, max_updates: int) -> SourcedBatch:
        programs, table, cell = self.programs, self.problems.problem_table, self.problems.cell
        index = next(self.problems.problem_order)
        table_rows = padded_index(index, programs.shapes.problem_rows)
        selected = programs.gather_problems(table, table_rows, np.int32(cell.seed), state.step)
        batch_problems = [self.problems.problems[q] for q in index for _ in range(cell.n)]
        task = programs.task
        reply_tokens = task.reply_tokens if task.stops.host_replies else None
        with BackgroundGrader(task.grade_tokens, batch_problems, reply_tokens) as grading:
            rollouts = programs.stream.run(
                state.params, selected.problems, cell.B_p, cell.n, selected.key, grading.add_responses, grading.reply
            )
            grades = grading.collect_grades()
        rewards = rewards_to_buffer(programs.shapes, grades.rewards)
        B_p, n = np.int32(cell.B_p), np.int32(cell.n)
        batch = RolloutBatch(selected.problems, rollouts, rewards, B_p, n, selected.key_data)
        reward_sums = grades.rewards.reshape(-1, cell.n).sum(1)
        return SourcedBatch(batch, index, reward_sums, verifier_metrics(grades))


def verifier_metrics(grades: Grades) -> Metrics:
    """What the host's verifier found in one batch."""
    parsed_fraction = float(np.mean(grades.parsed)) if len(grades.parsed) else 0.0
    failures = {"failures": count_unfinished(grades.failures), **grades.failures}
    counts = {f"verifier_{kind}": total(float(count)) for kind, count in failures.items()}
    scores = {f"reward/{name}": mean(float(np.mean(x))) for name, x in grades.scores.items()}
    return {"parsed_fraction": mean(parsed_fraction), **scores, **counts}


def finish_batch(batch: SourcedBatch, result: UpdateResult, problem_order: EpochOrder, n: int) -> Metrics:
    """The metrics of a batch as host numbers. Where the order leaves out solved problems, records the rewards in it."""
    metrics: Metrics = jax.tree.map(float, result.metrics) | batch.metrics
    if problem_order.drop_above is None:
        return metrics
    reward_sums = batch.reward_sums
    if reward_sums is None:
        reward_sums = np.asarray(result.reward_sums)[batch.problem_index]
    problem_order.record_rewards(batch.problem_index, reward_sums, n)
    return metrics | {"dropped": mean(problem_order.dropped_fraction, len(batch.problem_index) // problem_order.B_p)}
