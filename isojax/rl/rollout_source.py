"""Where the rollouts and rewards of the next update come from, as the training loop sees it.
InlineRollouts (inline_rollouts.py) sample before each update; FusedRollouts (fused_rollouts.py)
leave that to the update's program; AsyncRollouts (async_rl/async_rollouts.py) sample while earlier
batches are trained on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from isojax.core.nouns import Cell, Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import Program, replicated, shape_on
from isojax.models.lora import policy_params
from isojax.models.transformer import Params
from isojax.rl.metric import Metrics, mean, total
from isojax.rl.objective import Coefficients
from isojax.rl.optimizer import TrainState
from isojax.rl.train_step import UpdateResult
from isojax.sampling.batch import (
    TRAIN_STREAM,
    ProblemArrays,
    RolloutBatch,
    Rollouts,
    RoutedRollouts,
    gather_problems,
    problem_shapes,
)
from isojax.sampling.layout import Layout
from isojax.tasks.epochs import EpochOrder
from isojax.tasks.protocol import Grades, count_unfinished


@dataclass(frozen=True)
class CellProblems:
    """What a source samples for: problems, and which of them each batch has."""

    cell: Cell
    problems: Sequence[Problem]  # the training problems
    problem_table: ProblemArrays  # their tokens, on the devices that train
    # gives the problems of update `first_update` and of those that follow
    problem_order: EpochOrder
    first_update: int  # updates done so far
    # where B_p or n change, and another source takes over; None: they stay
    end_update: int | None = None


class ProblemBatches(NamedTuple):
    """The problems of several updates, whose rollouts the fused program (fused_rollouts.py) samples
    itself."""

    problem_table: ProblemArrays  # all training problems
    # i32[U, problem_rows], rows of the table, U = MAX_UPDATES_PER_CALL; update i takes the first
    # B_p of problem_index[i]
    problem_index: Any
    num_updates: Any  # how many of the U updates to do; scalars i32[], like the following
    B_p: Any
    n: Any
    seed: Any


@dataclass(frozen=True)
class SourcedBatch:
    """What the update program reads next, and what the host knows of it."""

    inputs: RolloutBatch | ProblemBatches
    # i32[batches * B_p], rows of the problem table of all batches that were sampled
    problem_index: np.ndarray
    # f32[batches * B_p], of `sum_rewards`; None where nobody reads them, or the update's program
    # sums them itself (`UpdateResult.reward_sums`)
    reward_sums: np.ndarray | None
    metrics: Metrics  # what the host measured
    updates: int = 1
    extra_batches: int = 0  # of problems, sampled in addition to one for each update


class RolloutsInProgress(NamedTuple):
    """What a checkpoint holds of rollouts that are in progress; None and None where none are."""

    meta: dict[str, Any] | None  # data for JSON
    arrays: Any


class RolloutSource(Protocol):
    """The rollouts of one cell. A source that leaves none in progress implements `next_batch`
    alone."""

    def next_batch(self, state: TrainState, max_updates: int) -> SourcedBatch:
        """Chooses problems, samples and verifies; at most `max_updates` batches at once.
        `state.params` are all of the policy's, with LoRA too. Raises what the sampler or the
        verifier has raised."""
        ...

    def finish_update(self, state: TrainState) -> Metrics:
        """The update on the last batch is done, and this is the newest policy; metrics of the
        source itself."""
        return {}

    def save(self) -> RolloutsInProgress:
        return RolloutsInProgress(None, None)

    def restore(
        self, saved: Mapping[str, Any], restore_arrays: Callable[[Any], Any], params: Params
    ) -> None:
        """Continues where `save` was called. `restore_arrays(template)` reads the arrays; `params`:
        the newest."""
        raise AssertionError("no rollouts in progress were saved")

    def close(self) -> None:
        """Ends whatever is in progress."""


class UpdateShapes(NamedTuple):
    """ShapeDtypeStructs, with shardings, of the problem table and of what an update reads besides a
    batch."""

    state: TrainState
    base_params: Params
    problem_table: ProblemArrays
    coefficients: Coefficients

    @property
    def policy_params(self) -> Params:
        return policy_params(self.state.params, self.base_params)


class RolloutPrograms(Protocol):
    """The compiled programs of a sweep that make rollouts and train on them; they serve one cell
    after another."""

    updates_per_call: int  # after at most so many the loop looks at its clock and for signals
    # (state, base_params, SourcedBatch.inputs, coefficients) -> (state, UpdateResult); the state is
    # donated
    update: Program

    def compile(self, shapes: UpdateShapes) -> None:
        """Compiles all programs; a second call does nothing."""

    def open_rollouts(self, problems: CellProblems) -> RolloutSource:
        """The source of a cell's rollouts, which runs these programs."""
        ...

    def can_restore(self, saved: Mapping[str, Any]) -> bool:
        """Whether rollouts that `RolloutSource.save` has saved can be continued by these
        programs."""
        return False


class SelectedProblems(NamedTuple):
    """The problems of an update, its PRNG key, and that key's data u32[2]."""

    problems: ProblemArrays
    key: PRNGKeyArray
    key_data: Array


def build_gather_problems(mesh: Mesh) -> Program:
    """Build `select(problem_table, index i32[problem_rows], seed, step) -> SelectedProblems`.

    seed: the cell's. step: the number of the update, which together give the key.
    """

    def select(
        problem_table: ProblemArrays, index: Array, seed: Array, step: Array
    ) -> SelectedProblems:
        run_key = jax.random.fold_in(jax.random.key(seed), TRAIN_STREAM)
        key = jax.random.fold_in(run_key, step)
        problems = gather_problems(problem_table, index)
        return SelectedProblems(problems, key, jax.random.key_data(key))

    return Program(jax.jit(select, out_shardings=replicated(mesh)))


def padded_index(index: np.ndarray, problem_rows: int) -> np.ndarray:
    """Rows of the problem table i32[B_p], followed by zeros up to `problem_rows`."""
    return np.pad(index, (0, problem_rows - len(index))).astype(np.int32)


def batch_shapes(
    shapes: SamplerShapes,
    mesh: Mesh,
    update_shapes: UpdateShapes,
    rollouts: Rollouts | RoutedRollouts,
) -> RolloutBatch:
    """The ShapeDtypeStructs, with shardings, of a batch.

    shapes: of the trainer's buffers. update_shapes: its problem table tells how long answers are.
    rollouts: the ShapeDtypeStructs of the batch's rollouts.
    """
    on_all = replicated(mesh)
    answer_length = update_shapes.problem_table.answers.shape[1]
    return RolloutBatch(
        problem_shapes(shapes, mesh, shapes.problem_rows, answer_length),
        rollouts,
        rewards=shape_on(on_all, (shapes.shards, shapes.buffer_rows), "float32"),
        B_p=shape_on(on_all),
        n=shape_on(on_all),
        key_data=shape_on(on_all, (2,), "uint32"),
    )


def sum_rewards(rewards: Any, layout: Layout, problem_order: EpochOrder) -> np.ndarray | None:
    """Of each problem of a batch, the sum of its rewards, f32[B_p], where the order of problems
    leaves out solved ones, and so reads it; else None. rewards: f32[S rows]."""
    if problem_order.drop_above is None:
        return None
    by_problem = layout.in_order(rewards).reshape(layout.B_p, layout.n)
    return by_problem.sum(1)


def verifier_metrics(grades: Grades) -> Metrics:
    """The metrics of what the host's verifier found in one batch.

    parsed_fraction: the share of responses with an answer. reward/NAME: the mean of each of the
    verifier's scores. verifier_failures: how many checks did not end with a verdict, and
    verifier_KIND how many there were of each kind.
    """
    parsed_fraction = float(np.mean(grades.parsed)) if len(grades.parsed) else 0.0
    metrics = {"parsed_fraction": mean(parsed_fraction)}
    for name, scores in grades.scores.items():
        metrics[f"reward/{name}"] = mean(float(np.mean(scores)))

    metrics["verifier_failures"] = total(float(count_unfinished(grades.failures)))
    for kind, count in grades.failures.items():
        metrics[f"verifier_{kind}"] = total(float(count))
    return metrics


def finish_batch(
    batch: SourcedBatch, result: UpdateResult, problem_order: EpochOrder, n: int
) -> Metrics:
    """The metrics of a batch as host numbers, after the update on it.

    Where `problem_order` leaves out solved problems, records the rewards in it, and adds the metric
    `dropped`, the share of problems that are left out. result: of the update program. n: rollouts
    per problem.
    """
    metrics: Metrics = jax.tree.map(float, result.metrics) | batch.metrics
    if problem_order.drop_above is None:
        return metrics

    reward_sums = batch.reward_sums
    if reward_sums is None:  # the update's program has summed them, of all training problems
        reward_sums = np.asarray(result.reward_sums)[batch.problem_index]
    problem_order.record_rewards(batch.problem_index, reward_sums, n)
    return metrics | {"dropped": mean(problem_order.dropped_fraction, batch.updates)}
