"""Asynchronous rollouts (PipelineRL, arXiv:2509.19128; ScaleRL, arXiv:2510.13786), the trainer's
side: sampling goes on while earlier batches are trained on, and each chunk of tokens is drawn with
the newest weights there are.

After v updates, batches up to v + k may have begun, so no token is more than k updates older than
the policy that trains on it. k = 0 leaves the same numbers as the synchronous run, bit for bit. A
prompt is prefilled with the weights under which its first response begins; keys and values of older
weights stay in the cache."""

import time
from collections.abc import Callable, Mapping, Sequence
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
from isojax.rl import rollout_source
from isojax.rl.async_rl.remote_worker import RemoteWorker
from isojax.rl.async_rl.rollout_buffer import SamplerPrograms
from isojax.rl.async_rl.rollout_worker import BackgroundWorker, RolloutJob, RolloutWorker
from isojax.rl.graded_sampler import build_verify
from isojax.rl.metric import Metric, Metrics, mean
from isojax.rl.optimizer import TrainState
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


class AsyncPrograms(rollout_source.RolloutPrograms):
    """The programs that train, on `mesh`, and those that sample, there or on `sampler_mesh`."""

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
        """sampler_mesh: other devices for a sampler in a thread, or in processes of `role`; None:
        `mesh`, in turns."""
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
        uneven_B_p = next((B_p for B_p, _ in pairs if B_p % self.sampler_shards), None)
        if uneven_B_p:
            raise InputError(
                where="cell.rl.max_staleness",
                found=(
                    f"sweep.B_p = {uneven_B_p} is no multiple of the {self.sampler_shards} "
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
        self.gather_problems = rollout_source.build_gather_problems(mesh)
        self.to_trainer_layout = Program(jax.jit(self._to_trainer_layout, out_shardings=by_row))
        self.verify = build_verify(task, shapes, mesh)
        self.update = Program(build_update(cell, decoder, task, shapes, mesh))

        # Weights go to other devices as products are computed with them. Other processes get them
        # as they lie here; devices of this one in shardings that can be copied to theirs.
        self.cast_to_send: Program | None = None
        if self.disaggregated:
            here, there = decoder.shardings(mesh), self.sampler.param_shardings
            sent = here
            if role is None:
                sent = jax.tree.map(sharding.copyable_sharding, decoder.shapes(), here, there)
            self.cast_to_send = Program(jax.jit(decoder.cast_params, out_shardings=sent))

    def compile(self, shapes: rollout_source.UpdateShapes) -> None:
        on_all = replicated(self.mesh)
        recorded = self.sampler.engine.recorded
        rollouts = rollout_shapes(self.shapes, self.mesh, self.nucleus, recorded)
        batch = rollout_source.batch_shapes(self.shapes, self.mesh, shapes, rollouts)
        scalar, index = shape_on(on_all), shape_on(on_all, (self.shapes.problem_rows,))
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

    def can_restore(self, saved: Mapping[str, Any]) -> bool:
        return not self.disaggregated and self.sampler.state_layout == saved.get("layout")

    def _to_trainer_layout(self, worker_rollouts: Rollouts, B_p: Array, n: Array) -> Rollouts:
        """A batch's rollouts in the buffer rows that the trainer's shards expect them in."""
        trainer = Layout(B_p, n, self.shapes.shards)
        worker = Layout(B_p, n, self.sampler_shards)
        valid = trainer.holds_rollout(self.shapes.buffer_rows)
        rollout = jnp.where(valid, trainer.rollout_of_row(self.shapes.buffer_rows), 0)

        shard, row = worker.place(rollout)
        rollouts = jax.tree.map(lambda x: x[shard, row], worker_rollouts)
        return rollouts._replace(
            mask=rollouts.mask & valid[..., None],
            stopped=rollouts.stopped & valid,
            lengths=jnp.where(valid, rollouts.lengths, 0),
        )


class AsyncRollouts(rollout_source.RolloutSource):
    """The RolloutSource of one cell whose sampler works ahead."""

    def __init__(self, programs: AsyncPrograms, problems: rollout_source.CellProblems):
        self.programs, self.problems, self.cell = programs, problems, problems.cell
        self.updates_done = self.next_batch_to_begin = problems.first_update
        # Of each batch that has begun and is not trained on yet: its rows of the problem table
        # i[B_p], and its problems
        self.pending_batches: dict[int, tuple[np.ndarray, rollout_source.SelectedProblems]] = {}
        self.grading: dict[int, BackgroundGrader] = {}
        job = RolloutJob(
            B_p=self.cell.B_p,
            n=self.cell.n,
            first_batch=problems.first_update,
            filler_problem=ProblemArrays(*(np.asarray(x)[:1] for x in problems.problem_table)),
            on_finished=None
            if is_on_device(programs.task)
            else lambda k, *rows: self.grading[k].add_responses(*rows),
        )
        self.worker: RolloutWorker | BackgroundWorker | RemoteWorker
        if programs.role is not None:
            self.worker = RemoteWorker(programs.sampler, job, programs.role, programs.mesh)
        else:
            worker = RolloutWorker(programs.sampler, job)
            self.worker = BackgroundWorker(worker) if programs.disaggregated else worker
        # the trainer's: from a batch's arrival until the weights after it are published
        self.busy_seconds = 0.0
        # Of the update in progress: when it began, how long the sampler had worked by then, and
        # when its batch arrived
        self.update_began_at = self.sampler_seconds_before = self.batch_arrived_at = 0.0

    def next_batch(self, state: TrainState, max_updates: int) -> rollout_source.SourcedBatch:
        """Batch v, where v updates are done, as soon as it is sampled and verified."""
        programs = self.programs
        update = self.updates_done
        if self.next_batch_to_begin == update:
            self._publish_and_begin(state.params)

        self.update_began_at = time.monotonic()
        self.sampler_seconds_before = self.worker.busy_seconds
        sampled_rollouts, tokens_by_version = self.worker.take_batch(update)
        self.batch_arrived_at = time.monotonic()
        index, selected = self.pending_batches.pop(update)

        # From the devices that sample, in the rows in which the trainer's shards expect them.
        B_p, n = np.int32(self.cell.B_p), np.int32(self.cell.n)
        on_trainer = jax.tree.map(lambda _: replicated(programs.mesh), sampled_rollouts)
        rollouts = programs.to_trainer_layout(
            sharding.copy_to_mesh(sampled_rollouts, on_trainer), B_p, n
        )
        layout = Layout(self.cell.B_p, self.cell.n, programs.shapes.shards)

        metrics = staleness_metrics(tokens_by_version, update, programs.max_staleness)
        if programs.verify is not None:
            rewards = programs.verify(selected.problems, rollouts, B_p, n)
        else:
            with self.grading.pop(update) as grading:
                grades = grading.collect_grades()
            rewards = layout.to_buffer(grades.rewards, programs.shapes.buffer_rows)
            metrics |= rollout_source.verifier_metrics(grades)

        reward_sums = None
        if self.problems.problem_order.drop_above is not None:
            reward_sums = layout.in_order(rewards).reshape(-1, self.cell.n).sum(1)
        batch = RolloutBatch(
            selected.problems, rollouts, rewards, B_p=B_p, n=n, key_data=selected.key_data
        )
        return rollout_source.SourcedBatch(batch, index, reward_sums, metrics)

    def finish_update(self, state: TrainState) -> Metrics:
        """Publishes the new weights, and begins the batches that may be sampled with them. The
        metrics are the shares of the update's time in which a sampler with devices of its own, and
        the trainer, worked."""
        self.updates_done += 1
        self._publish_and_begin(state.params)
        now = time.monotonic()
        self.busy_seconds += now - self.batch_arrived_at
        if not self.programs.disaggregated:
            return {}
        update_seconds = now - self.update_began_at
        trainer_seconds = now - self.batch_arrived_at
        # A chunk counts when it is done; it may have begun before the update.
        sampler_seconds = min(
            self.worker.busy_seconds - self.sampler_seconds_before, update_seconds
        )
        shares = {
            "sampler_busy": sampler_seconds / update_seconds,
            "trainer_busy": trainer_seconds / update_seconds,
        }
        return {name: mean(share) for name, share in shares.items()}

    def save(self) -> tuple[dict[str, Any] | None, Any]:
        """Nothing before the first batch, nor of a sampler in the background, whose rollouts are
        sampled again."""
        if (
            not isinstance(self.worker, RolloutWorker)
            or self.next_batch_to_begin == self.updates_done
        ):
            return None, None
        worker_meta, arrays = self.worker.save()
        meta = {
            "next_batch": self.next_batch_to_begin,
            "layout": self.programs.sampler.state_layout,
            "worker": worker_meta,
            "batches": {str(b): index.tolist() for b, (index, _) in self.pending_batches.items()},
            "grading": {str(b): grading.state_dict() for b, grading in self.grading.items()},
        }
        return meta, arrays

    def restore(
        self, saved: Mapping[str, Any], restore_arrays: Callable[[Any], Any], params: Params
    ) -> None:
        assert isinstance(self.worker, RolloutWorker)
        self.worker.restore(saved["worker"], restore_arrays)
        self.next_batch_to_begin = saved["next_batch"]
        for name, index in saved["batches"].items():
            self._add_pending_batch(int(name), np.array(index, np.int32))
        for name, grades in saved["grading"].items():
            self.grading[int(name)].load_state_dict(grades)
        self.worker.publish_weights(self.updates_done, params)

    def close(self) -> None:
        self.worker.close()
        for grading in self.grading.values():
            grading.__exit__()

    def _publish_and_begin(self, params: Params) -> None:
        cast_to_send = self.programs.cast_to_send
        self.worker.publish_weights(
            self.updates_done, params if cast_to_send is None else cast_to_send(params)
        )
        last_to_begin = self.updates_done + self.programs.max_staleness
        if self.problems.end_update is not None:
            last_to_begin = min(last_to_begin, self.problems.end_update - 1)
        while self.next_batch_to_begin <= last_to_begin:
            batch, index = self.next_batch_to_begin, next(self.problems.problem_order)
            selected = self._add_pending_batch(batch, index)
            batch_problems = ProblemArrays(
                *(np.asarray(x)[: self.cell.B_p] for x in selected.problems)
            )
            self.worker.begin_batch(batch, batch_problems, np.asarray(selected.key_data))
            self.next_batch_to_begin += 1

    def _add_pending_batch(self, batch: int, index: np.ndarray) -> rollout_source.SelectedProblems:
        programs, problems = self.programs, self.problems
        rows = rollout_source.padded_index(index, programs.shapes.problem_rows)
        selected = programs.gather_problems(
            problems.problem_table, rows, np.int32(self.cell.seed), np.int32(batch)
        )
        self.pending_batches[batch] = index, selected
        if not is_on_device(programs.task):
            batch_problems = [problems.problems[q] for q in index for _ in range(self.cell.n)]
            self.grading[batch] = BackgroundGrader(programs.task.grade_tokens, batch_problems)
        return selected


def staleness_metrics(
    tokens_by_version: Mapping[int, int], update: int, max_staleness: int
) -> Metrics:
    """By how many updates a batch's tokens are older than the policy trained on them. Nothing where
    k = 0."""
    if not max_staleness:
        return {}
    num_tokens = sum(tokens_by_version.values())
    ages = range(max_staleness + 1)
    summed_age = sum((update - version) * count for version, count in tokens_by_version.items())
    return {
        "staleness_mean": mean(summed_age / num_tokens),
        "staleness_max": Metric(float(update - min(tokens_by_version)), None, "max"),
        **{
            f"staleness_share_{age}": mean(tokens_by_version.get(update - age, 0) / num_tokens)
            for age in ages
        },
    }
