"""Asynchronous rollouts (PipelineRL, arXiv:2509.19128; ScaleRL, arXiv:2510.13786), the trainer's
side: sampling goes on while earlier batches are trained on, and each chunk of tokens is drawn with
the newest weights there are.

After v updates, batches up to v + k may have begun, so no token is more than k updates older than
the policy that trains on it. k = 0 leaves the same numbers as the synchronous run, bit for bit. A
prompt is prefilled with the weights under which its first response begins; keys and values of older
weights stay in the cache."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.core.config import CellConfig
from isojax.core.errors import InputError
from isojax.core.shapes import MAX_UPDATES_PER_CALL, SamplerShapes
from isojax.distributed import sharding
from isojax.distributed.roles import Role
from isojax.distributed.sharding import (
    ROLLOUT_AXES,
    Program,
    replicated,
    shape_on,
    shapes_with_shardings,
)
from isojax.models.transformer import Decoder, Params
from isojax.rl.async_rl.remote_worker import RemoteWorker
from isojax.rl.async_rl.rollout_buffer import SamplerPrograms
from isojax.rl.async_rl.rollout_worker import BackgroundWorker, RolloutJob, RolloutWorker
from isojax.rl.graded_sampler import build_verify
from isojax.rl.metric import Metric, Metrics, mean
from isojax.rl.optimizer import TrainState
from isojax.rl.rollout_source import (
    CellProblems,
    RolloutPrograms,
    RolloutsInProgress,
    RolloutSource,
    SelectedProblems,
    SourcedBatch,
    UpdateShapes,
    batch_shapes,
    build_gather_problems,
    padded_index,
    sum_rewards,
    verifier_metrics,
)
from isojax.rl.train_step import build_update
from isojax.sampling.batch import (
    ProblemArrays,
    RolloutBatch,
    Rollouts,
    rollout_shapes,
)
from isojax.sampling.layout import Layout
from isojax.tasks.grading import BackgroundGrader
from isojax.tasks.task import Task, is_on_device


class AsyncPrograms(RolloutPrograms):
    """The programs that train, on `mesh`, and those that sample, there or on `sampler_mesh`.

    Who samples is no engine of rl/engines: an engine answers one request after the other, and here
    the rollouts of several batches, drawn with the weights of several updates, are in progress at
    once (rl/async_rl/rollout_buffer.py)."""

    def __init__(
        self,
        cell: CellConfig,
        decoder: Decoder,
        task: Task,
        shapes: SamplerShapes,
        pairs: Sequence[tuple[int, int]],
        mesh: Mesh,
        sampler_mesh: Mesh | None = None,
        role: Role | None = None,
    ):
        """Build the programs of both sides.

        pairs: every (B_p, n) of the sweep. mesh: the devices that train. sampler_mesh: other
        devices for a sampler in a thread, or in the processes of `role`; None: `mesh`, in turns.
        role: where other processes sample; else None. Raises InputError where the sampler's shards
        do not divide a B_p, or the task has several turns.
        """
        assert cell.rl.max_staleness is not None
        self.task = task
        self.shapes = shapes
        self.mesh = mesh
        self.max_staleness = cell.rl.max_staleness
        self.nucleus = cell.sampling.top_p < 1
        self.updates_per_call = MAX_UPDATES_PER_CALL if is_on_device(task) else 1
        self.disaggregated = sampler_mesh is not None
        self.role = role
        self.sampler_shards = sharding.shard_count(sampler_mesh or mesh)
        uneven = [B_p for B_p, _ in pairs if B_p % self.sampler_shards]
        if uneven:
            raise InputError(
                where="cell.rl.max_staleness",
                found=(
                    f"sweep.B_p = {uneven[0]} is no multiple of the {self.sampler_shards} "
                    "shards (data x fsdp) of the mesh that samples; asynchronous rollouts "
                    "assign whole groups to shards"
                ),
                fix="Change B_p or the mesh.",
            )
        if task.stops.has_turns:
            raise InputError(
                where="cell.rl.max_staleness",
                found=(
                    f"given {cell.rl.max_staleness} with {cell.task}, a task of several turns: "
                    "asynchronous rollouts have one turn"
                ),
                fix="Leave cell.rl.max_staleness out.",
            )

        self.sampler = SamplerPrograms(cell, decoder, task, shapes, pairs, sampler_mesh or mesh)
        by_row = NamedSharding(mesh, P(ROLLOUT_AXES))
        self.gather_problems = build_gather_problems(mesh)
        self.to_trainer_layout = Program(jax.jit(self._to_trainer_layout, out_shardings=by_row))
        self.verify = build_verify(task, shapes, mesh)
        self.update = Program(build_update(cell, decoder, task, shapes, mesh))

        # Weights go to other devices in the precision that products are computed in. For other
        # processes they keep the shardings of this mesh; for devices of this process they get some
        # from which they can be copied to those of the sampler's mesh.
        self.cast_to_send: Program | None = None
        if self.disaggregated:
            here, there = decoder.shardings(mesh), self.sampler.param_shardings
            sent = here
            if role is None:
                sent = jax.tree.map(sharding.copyable_sharding, decoder.shapes(), here, there)
            self.cast_to_send = Program(jax.jit(decoder.cast_params, out_shardings=sent))

    def compile(self, shapes: UpdateShapes) -> None:
        """Compile all programs; the sampler's only where this process samples too."""
        on_all = replicated(self.mesh)
        scalar = shape_on(on_all)
        index = shape_on(on_all, (self.shapes.problem_rows,))
        recorded = self.sampler.engine.recorded  # the sizes of a record of experts; None: no record
        rollouts = rollout_shapes(self.shapes, self.mesh, self.nucleus, recorded)
        batch = batch_shapes(self.shapes, self.mesh, shapes, rollouts)

        params = shapes.policy_params
        if self.cast_to_send is not None:
            params = self.cast_to_send.compile(params)

        if self.role is None:
            self.sampler.compile(params)
        self.gather_problems.compile(shapes.problem_table, index, scalar, scalar)
        self.to_trainer_layout.compile(
            shapes_with_shardings(self.sampler.batch_shapes(), on_all), scalar, scalar
        )
        if self.verify is not None:
            self.verify.compile(batch.problems, batch.rollouts, scalar, scalar)
        self.update.compile(shapes.state, shapes.base_params, batch, shapes.coefficients)

    def open_rollouts(self, problems: CellProblems) -> "AsyncRollouts":
        return AsyncRollouts(self, problems)

    def can_restore(self, saved: Mapping[str, Any]) -> bool:
        return not self.disaggregated and self.sampler.state_layout == saved.get("layout")

    def _to_trainer_layout(self, worker_rollouts: Rollouts, B_p: Array, n: Array) -> Rollouts:
        """Move a batch's rollouts from the sampler's rows to those of the trainer's shards.

        worker_rollouts: [sampler's S, rows ...], whole on each device. The result is [S rows ...];
        its padding rows hold any rollout, without tokens.
        """
        rows = self.shapes.buffer_rows
        trainer = Layout(B_p, n, self.shapes.shards)
        valid = trainer.holds_rollout(rows)
        rollout = jnp.where(valid, trainer.rollout_of_row(rows), 0)

        shard, row = Layout(B_p, n, self.sampler_shards).place(rollout)
        rollouts = jax.tree.map(lambda x: x[shard, row], worker_rollouts)
        return rollouts._replace(
            mask=rollouts.mask & valid[..., None],
            stopped=rollouts.stopped & valid,
            lengths=jnp.where(valid, rollouts.lengths, 0),
        )


@dataclass(frozen=True)
class PendingBatch:
    """A batch that has begun, and is not trained on yet."""

    problem_index: np.ndarray  # i[B_p], rows of the problem table
    selected: SelectedProblems
    grading: BackgroundGrader | None  # of its responses, where the host verifies


class AsyncRollouts(RolloutSource):
    """The RolloutSource of one cell whose sampler works ahead."""

    def __init__(self, programs: AsyncPrograms, problems: CellProblems):
        """Begin with `problems.first_update`; nothing is sampled before `next_batch`."""
        self.programs, self.problems, self.cell = programs, problems, problems.cell
        self.layout = Layout(self.cell.B_p, self.cell.n, programs.shapes.shards)

        # Batches have the number of the update that trains on them.
        self.updates_done = problems.first_update
        self.next_batch_to_begin = problems.first_update
        self.pending_batches: dict[int, PendingBatch] = {}
        self.worker = self._start_worker()

        # How long the trainer has worked: from a batch's arrival until the weights after it are
        # published.
        self.busy_seconds = 0.0
        # Of the update in progress: when it began, how long the sampler had worked by then, and
        # when its batch arrived
        self.update_began_at = 0.0
        self.sampler_seconds_before = 0.0
        self.batch_arrived_at = 0.0

    def _start_worker(self) -> RolloutWorker | BackgroundWorker | RemoteWorker:
        """Make the worker: in other processes, in a thread with other devices, or here, in turns.

        It is called by `__init__`, once programs, problems, cell and pending_batches are set. The
        problem that fills the ring is the table's first.
        """
        programs = self.programs
        job = RolloutJob(
            B_p=self.cell.B_p,
            n=self.cell.n,
            first_batch=self.problems.first_update,
            filler_problem=ProblemArrays(*(np.asarray(x)[:1] for x in self.problems.problem_table)),
            on_finished=None if is_on_device(programs.task) else self._grade,
        )
        if programs.role is not None:
            return RemoteWorker(programs.sampler, job, programs.role, programs.mesh)
        worker = RolloutWorker(programs.sampler, job)
        return BackgroundWorker(worker) if programs.disaggregated else worker

    def _grade(self, batch: int, rollouts: np.ndarray, responses: list[np.ndarray]) -> None:
        """Called by the worker, in whichever thread it has, with responses that are finished."""
        grading = self.pending_batches[batch].grading
        assert grading is not None, "the host verifies"
        grading.add_responses(rollouts, responses)

    def next_batch(self, state: TrainState, max_updates: int) -> SourcedBatch:
        """Batch v, where v updates are done, as soon as it is sampled and verified.

        max_updates is not read: each call gives one batch.
        """
        programs = self.programs
        update = self.updates_done
        # Before the first batch alone: `finish_update` begins those after it.
        if self.next_batch_to_begin == update:
            self._publish_and_begin(state.params)

        self.update_began_at = time.monotonic()
        self.sampler_seconds_before = self.worker.busy_seconds
        sampled_rollouts, tokens_by_version = self.worker.take_batch(update)
        self.batch_arrived_at = time.monotonic()
        pending = self.pending_batches[update]
        problems = pending.selected.problems

        # From the devices that sample, in the rows in which the trainer's shards expect them.
        B_p, n = np.int32(self.cell.B_p), np.int32(self.cell.n)
        on_trainer = jax.tree.map(lambda _: replicated(programs.mesh), sampled_rollouts)
        rollouts = programs.to_trainer_layout(
            sharding.copy_to_mesh(sampled_rollouts, on_trainer), B_p, n
        )

        metrics = staleness_metrics(tokens_by_version, update, programs.max_staleness)
        if programs.verify is not None:
            rewards = programs.verify(problems, rollouts, B_p, n)
        else:
            assert pending.grading is not None, "the host verifies"
            with pending.grading:
                grades = pending.grading.collect_grades()
            rewards = self.layout.to_buffer(grades.rewards, programs.shapes.buffer_rows)
            metrics |= verifier_metrics(grades)
        del self.pending_batches[update]

        key_data = pending.selected.key_data
        batch = RolloutBatch(problems, rollouts, rewards, B_p=B_p, n=n, key_data=key_data)
        # f32[B_p]; None unless the order of problems leaves out solved ones, which alone reads it.
        reward_sums = sum_rewards(rewards, self.layout, self.problems.problem_order)
        return SourcedBatch(batch, pending.problem_index, reward_sums, metrics)

    def finish_update(self, state: TrainState) -> Metrics:
        """Publish the new weights, and begin the batches that may be sampled with them.

        Where the sampler has other devices than the trainer, the metrics are `sampler_busy` and
        `trainer_busy`, the shares (0 to 1) of the update's time in which each worked; else {}.
        """
        self.updates_done += 1
        self._publish_and_begin(state.params)
        now = time.monotonic()
        trainer_seconds = now - self.batch_arrived_at
        self.busy_seconds += trainer_seconds
        if not self.programs.disaggregated:
            return {}

        # A chunk counts when it is done; it may have begun before the update.
        update_seconds = now - self.update_began_at
        sampler_seconds = self.worker.busy_seconds - self.sampler_seconds_before
        return {
            "sampler_busy": mean(min(sampler_seconds, update_seconds) / update_seconds),
            "trainer_busy": mean(trainer_seconds / update_seconds),
        }

    def save(self) -> RolloutsInProgress:
        """What a checkpoint holds of the rollouts in progress, with the keys that `restore` reads.

        Nothing before the first batch, nor of a sampler in the background, whose rollouts are
        sampled again.
        """
        has_begun = self.next_batch_to_begin > self.updates_done
        if not (isinstance(self.worker, RolloutWorker) and has_begun):
            return RolloutsInProgress(None, None)

        worker_meta, arrays = self.worker.save()
        pending = {str(batch): pending for batch, pending in self.pending_batches.items()}
        meta = {
            "next_batch": self.next_batch_to_begin,
            "layout": self.programs.sampler.state_layout,
            "worker": worker_meta,
            "batches": {name: one.problem_index.tolist() for name, one in pending.items()},
            "grading": {
                name: one.grading.state_dict()
                for name, one in pending.items()
                if one.grading is not None
            },
        }
        return RolloutsInProgress(meta, arrays)

    def restore(
        self, saved: Mapping[str, Any], restore_arrays: Callable[[Any], Any], params: Params
    ) -> None:
        assert isinstance(self.worker, RolloutWorker)
        self.worker.restore(saved["worker"], restore_arrays)
        self.next_batch_to_begin = saved["next_batch"]
        for name, index in saved["batches"].items():
            pending = self._add_pending_batch(int(name), np.array(index, np.int32))
            if pending.grading is not None:
                pending.grading.load_state_dict(saved["grading"][name])
        self.worker.publish_weights(self.updates_done, params)

    def close(self) -> None:
        self.worker.close()
        for pending in self.pending_batches.values():
            if pending.grading is not None:
                pending.grading.__exit__()

    def _publish_and_begin(self, params: Params) -> None:
        """Give the worker the weights after `updates_done` updates, then the batches it may begin.

        These are up to max_staleness ahead of `updates_done`, but none of the source that follows
        this one (`end_update`), whose B_p and n differ. params: all of the policy's.
        """
        cast_to_send = self.programs.cast_to_send
        self.worker.publish_weights(
            self.updates_done, params if cast_to_send is None else cast_to_send(params)
        )

        last_to_begin = self.updates_done + self.programs.max_staleness
        if self.problems.end_update is not None:
            last_to_begin = min(last_to_begin, self.problems.end_update - 1)
        while self.next_batch_to_begin <= last_to_begin:
            batch = self.next_batch_to_begin
            index = next(self.problems.problem_order)
            selected = self._add_pending_batch(batch, index).selected
            batch_problems = ProblemArrays(
                *(np.asarray(x)[: self.cell.B_p] for x in selected.problems)
            )
            self.worker.begin_batch(batch, batch_problems, np.asarray(selected.key_data))
            self.next_batch_to_begin += 1

    def _add_pending_batch(self, batch: int, index: np.ndarray) -> PendingBatch:
        """Choose the problems and the key of a batch, make its grader, and remember it as pending.

        batch: its number. index: i32[B_p], the rows of the problem table that it is of.
        """
        programs, problems = self.programs, self.problems
        rows = padded_index(index, programs.shapes.problem_rows)
        selected = programs.gather_problems(
            problems.problem_table, rows, np.int32(self.cell.seed), np.int32(batch)
        )

        grading = None
        if not is_on_device(programs.task):
            problem_of_rollout = [problems.problems[q] for q in index for _ in range(self.cell.n)]
            grading = BackgroundGrader(programs.task.grade_tokens, problem_of_rollout)
        self.pending_batches[batch] = PendingBatch(index, selected, grading)
        return self.pending_batches[batch]


def staleness_metrics(
    tokens_by_version: Mapping[int, int], update: int, max_staleness: int
) -> Metrics:
    """By how many updates a batch's tokens are older than the policy that is trained on them.

    update: of that policy, updates done. tokens_by_version: how many tokens were drawn with the
    weights after each number of updates, at most max_staleness before `update`. Metrics:
    staleness_mean, staleness_max, and staleness_share_0 to _k, the share of tokens of each age.
    Nothing ({}) where k = max_staleness = 0.
    """
    if not max_staleness:
        return {}
    num_tokens = sum(tokens_by_version.values())
    summed_age = sum((update - version) * count for version, count in tokens_by_version.items())
    metrics = {
        "staleness_mean": mean(summed_age / num_tokens),
        "staleness_max": Metric(
            sum=float(update - min(tokens_by_version)), weight=None, reduction="max"
        ),
    }
    for age in range(max_staleness + 1):
        share = tokens_by_version.get(update - age, 0) / num_tokens
        metrics[f"staleness_share_{age}"] = mean(share)
    return metrics
