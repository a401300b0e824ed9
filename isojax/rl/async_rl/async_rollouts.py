"""Sampling and training as a pipeline (PipelineRL, arXiv:2509.19128; ScaleRL, arXiv:2510.13786): the sampler goes on,
between chunks of tokens with the newest weights, while batches before are trained on.

Update v is taken on batch v. When v updates are done, batches up to v + k may have been begun, so that no token is more
than k updates older than the policy that is trained on it; what is left of one batch's long responses decodes beside
the next one's first. k = 0 is the synchronous run, bit for bit. A prompt is read with the weights under which its
response begins, or in a lane of several slots the first response to it there; what newer ones find in the cache of a
response stays as it is.

Here is the half that trains: it chooses a batch's problems, judges what has finished, lays a batch out as its own mesh
wants it, learns, and publishes weights. The other half, rl/async_rl/rollout_worker.py, works by turns with it on one
mesh, or at the same time: in a thread, on a mesh of its own (rl/async_rl/transport.py), or in a process of its own
(rl/async_rl/worker_process.py).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.core.config import CellConfig, RLConfig, RunConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Cell, Problem
from isojax.distributed.mesh_spec import MeshShape, parse_mesh
from isojax.distributed.sharding import ROLLOUT_AXES, replicated, shard_count
from isojax.models.transformer import Decoder, Params
from isojax.rl.async_rl.rollout_buffer import SamplerPrograms, SamplerSpec, check_divisible_batches
from isojax.rl.async_rl.rollout_worker import FinishedRollouts, RolloutJob, RolloutWorker
from isojax.rl.async_rl.transport import AsyncRollouts, FinishedCallback, InlineRollouts, RolloutSource, ThreadTransport
from isojax.rl.async_rl.worker_process import ProcessTransport, WorkerProcess
from isojax.rl.host_verified import Metrics, build_update, verifier_metrics
from isojax.rl.objective import MAX_SUFFIX, Coefficients
from isojax.rl.train_step import TRAIN_STREAM, TrainState, gather_problems
from isojax.sampling.batch import (
    ProblemArrays,
    Rollouts,
    SamplerShapes,
    buffer_row_groups,
    rewards_to_buffer,
    row_index,
)
from isojax.tasks.grading.background_grading import BackgroundGrader
from isojax.tasks.protocol import Task, is_on_device


def sampler_mesh_shape(
    rl: RLConfig, run: RunConfig, devices: int, trainer_devices: int, backend: str
) -> MeshShape | None:
    """The sampler's own mesh: of the devices that are left beside the trainer's, or in a process that simulates as many
    as there are here.

    Raises:
        InputError: there is no pipeline that runs ahead, too few devices, or devices that a second process cannot have.
    """
    if run.sampler_mesh is None and not run.sampler_process:
        return None
    if not rl.max_staleness:
        setting = "run.sampler_process = true" if run.sampler_process else f"run.sampler_mesh = {run.sampler_mesh}"
        raise InputError(
            f"{setting} with cell.rl.max_staleness = {rl.max_staleness}: one of sampler and trainer would always wait for the other. "
            "Expected cell.rl.max_staleness of 1 or more, or a sampler that shares the trainer's mesh."
        )
    if run.sampler_process and backend != "cpu":
        raise InputError(
            f"run.sampler_process = true on this machine's {backend}: expected a CPU, as this process holds the accelerators. Give the "
            "sampler some of them: run.sampler_process=false run.sampler_mesh=data=1."
        )
    return parse_mesh(run.sampler_mesh or "auto", devices, 0 if run.sampler_process else trainer_devices)


class PipelinePrograms:
    """The compiled programs of a sweep's pipelines: those that train, on `mesh`, and the sampler's, wherever it is."""

    def __init__(
        self,
        cell: CellConfig,
        decoder: Decoder,
        task: Task,
        geometry: SamplerShapes,
        pairs: Sequence[tuple[int, int]],
        mesh: Mesh,
        sampler_mesh: Mesh | MeshShape | None = None,
    ):
        """`sampler`: None, by turns on `mesh`; a mesh of other devices, in a thread; the shape of one, in a process
        that simulates it.
        """
        assert cell.rl.max_staleness is not None
        self.max_consecutive_nonfinite = cell.rl.max_consecutive_nonfinite
        self.max_staleness, self.task, self.geometry, self.mesh = cell.rl.max_staleness, task, geometry, mesh
        self.disaggregated = sampler_mesh is not None
        self.sampler_shards = (
            sampler_mesh.shards if isinstance(sampler_mesh, MeshShape) else shard_count(sampler_mesh or mesh)
        )
        check_divisible_batches(pairs, self.sampler_shards)
        spec = SamplerSpec(self.max_staleness, decoder, geometry, tuple(pairs), cell.sampling, task.stops)
        self.sampler = (
            WorkerProcess(spec, sampler_mesh)
            if isinstance(sampler_mesh, MeshShape)
            else SamplerPrograms(spec, sampler_mesh or mesh)
        )
        rows = NamedSharding(mesh, P(ROLLOUT_AXES))
        self.to_trainer_layout = jax.jit(self._to_trainer_layout, out_shardings=rows)
        self.batch_problems = jax.jit(batch_problems, out_shardings=replicated(mesh))
        self.learn = build_update(cell, decoder, task, geometry, mesh)
        self.verify = jax.jit(self._verify, out_shardings=rows) if is_on_device(task) else None

    def make_rollout_source(self, job: RolloutJob, on_finished: FinishedCallback) -> RolloutSource:
        """A cell's sampler, at work; `told` hears what has finished, in whatever thread."""
        if isinstance(self.sampler, WorkerProcess):
            return AsyncRollouts(ProcessTransport(self.sampler, job), on_finished)
        worker = RolloutWorker(self.sampler, job)
        return (
            AsyncRollouts(ThreadTransport(worker), on_finished)
            if self.disaggregated
            else InlineRollouts(worker, on_finished)
        )

    def close(self) -> None:
        """Ends the sampler's process, where there is one; another cell would start it anew."""
        if isinstance(self.sampler, WorkerProcess):
            self.sampler.stop()

    def _to_trainer_layout(self, worker_rollouts: Rollouts, B_p: Array, n: Array) -> Rollouts:
        """A batch's rows as the trainer has them."""
        groups, live = buffer_row_groups(self.geometry, B_p, n)
        shards, worker_rows = shard_count(self.mesh), (B_p * n) // self.sampler_shards
        trainer_rows = (B_p * n + shards - 1) // shards
        rollout_index = jnp.where(
            live, jnp.arange(groups.shape[0])[:, None] * trainer_rows + jnp.arange(groups.shape[1])[None], 0
        )
        tokens, logps, mask, nucleus_mass, ended, lengths = (
            x[rollout_index // worker_rows, rollout_index % worker_rows] for x in worker_rollouts
        )
        return Rollouts(tokens, logps, mask & live[..., None], nucleus_mass, ended & live, jnp.where(live, lengths, 0))

    def _verify(self, problems: ProblemArrays, rollouts: Rollouts, B_p: Array, n: Array) -> Array:
        assert is_on_device(self.task)
        groups, _ = buffer_row_groups(self.geometry, B_p, n)
        return self.task.verify(problems.answers[groups], rollouts.tokens, rollouts.response_mask)


def batch_problems(problem_table: ProblemArrays, index: Array, seed: Array, step: Array) -> tuple[ProblemArrays, Array]:
    """An update's problems, and the data of its key."""
    return gather_problems(problem_table, index), jax.random.key_data(
        jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), TRAIN_STREAM), step)
    )


class PendingBatch(NamedTuple):
    """A batch: rows of the table i[B_p]; its problems, padded, on the trainer's devices; the data of its key."""

    index: np.ndarray
    problems: ProblemArrays
    key: Array


class Pipeline:
    """One cell's pipeline. `updates(state, count)` trains; the context ends the sampler where it is at work."""

    def __init__(
        self,
        programs: PipelinePrograms,
        cell: Cell,
        reference_params: Params,
        problem_table: ProblemArrays,
        host_table: ProblemArrays,
        problems: Sequence[Problem],
        problem_order: Iterator[np.ndarray],
        hparams: Coefficients,
        updates_done: int,
        record_rewards: Callable[[np.ndarray, np.ndarray], Metrics] | None = None,
    ):
        """`table` lies on the trainer's devices and `arrays` are the same on the host; `order` gives the problems of
        update `done` and of those that follow. `record` is told each update's problems and the sum of the rewards of
        each, and gives metrics."""
        self.programs, self.cell, self.reference_params, self.problem_table, self.host_table = (
            programs,
            cell,
            reference_params,
            problem_table,
            host_table,
        )
        self.problems, self.problem_order, self.record_rewards, self.hparams = (
            problems,
            problem_order,
            record_rewards,
            hparams,
        )
        self.updates_done = self.batches_begun = updates_done  # updates taken, and batches that the sampler may work at
        self.pending_batches: dict[int, PendingBatch] = {}
        self.grading: dict[int, BackgroundGrader] = {}
        self.busy_seconds = 0.0
        filler_problem = ProblemArrays(*(np.asarray(x)[:1] for x in host_table))
        job = RolloutJob(
            cell.B_p, cell.n, updates_done, filler_problem, report_finished=not is_on_device(programs.task)
        )
        self.rollout_source = programs.make_rollout_source(job, self._grade_finished)

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *exc: object) -> None:
        self.rollout_source.close()
        for grading in self.grading.values():
            grading.__exit__(*exc)

    def save(self) -> tuple[dict[str, Any] | None, Any]:
        """What is under way, as data for JSON and as arrays; nothing before anything has begun, or where the sampler
        works beside, whose rollouts are then sampled anew."""
        if not isinstance(self.rollout_source, InlineRollouts) or self.batches_begun == self.updates_done:
            return None, None
        worker_meta, arrays = self.rollout_source.worker.save()
        batch_index = {str(b): chosen.index.tolist() for b, chosen in self.pending_batches.items()}
        grading = {str(b): grading.state_dict() for b, grading in self.grading.items()}
        meta = {
            "begun": self.batches_begun,
            "shards": self.programs.sampler_shards,
            "sampler": worker_meta,
            "batches": batch_index,
            "grading": grading,
        }
        return meta, arrays

    def restore(self, meta: Mapping[str, Any], restore_arrays: Callable[[Any], Any], params: Params) -> None:
        """Goes on where `save` was called. `arrays` gives the saved ones, laid out as its argument; `params`: the
        newest.
        """
        assert isinstance(self.rollout_source, InlineRollouts)
        self.rollout_source.worker.restore(meta["sampler"], restore_arrays)
        self.batches_begun = meta["begun"]
        for name, index in meta["batches"].items():
            self._add_pending_batch(int(name), np.array(index, np.int32))
        for name, saved in meta["grading"].items():
            self.grading[int(name)].load_state_dict(saved)
        self.rollout_source.publish_weights(self.updates_done, params)

    def run_updates(self, state: TrainState, count: int) -> tuple[TrainState, Metrics]:
        """`count` updates; the sums of their metrics. With count = 0 nothing changes, but everything is compiled."""
        sums: Metrics = {}
        if not count:
            return self._compile(state)
        if self.batches_begun == self.updates_done:
            self._publish_and_begin(state.params)
        clocks = self._busy_clocks()
        for _ in range(count):
            batch = self.rollout_source.take_batch(self.updates_done)
            staleness = self._staleness_metrics(batch.tokens_by_version)
            state, metrics = self._update(state, batch.rollouts)
            if self.programs.disaggregated:
                busy_shares, clocks = utilisation(clocks, self._busy_clocks())
                metrics |= busy_shares
            for name, value in (metrics | staleness).items():  # added up in float32, as the synchronous program does
                total, value = np.float32(sums.get(name, 0.0)), np.float32(value)
                sums[name] = float(max(total, value) if name.endswith(MAX_SUFFIX) else total + value)
            if (
                metrics["nonfinite_update"]
                and int(state.consecutive_nonfinite) >= self.programs.max_consecutive_nonfinite
            ):
                break
        return state, sums

    def _publish_and_begin(self, params: Params) -> None:
        """The newest weights, and the batches that may be sampled with them."""
        self.rollout_source.publish_weights(self.updates_done, params)
        while self.batches_begun <= self.updates_done + self.programs.max_staleness:
            self._begin_batch(self.batches_begun)
            self.batches_begun += 1

    def _begin_batch(self, batch: int) -> None:
        """Chooses a batch's problems, for both halves."""
        index = next(self.problem_order)
        self._add_pending_batch(batch, index)
        self.rollout_source.begin_batch(
            batch,
            ProblemArrays(*(np.asarray(x)[index] for x in self.host_table)),
            np.asarray(self.pending_batches[batch].key),
        )

    def _add_pending_batch(self, batch: int, index: np.ndarray) -> None:
        padded_index = np.zeros(self.programs.geometry.problem_rows, np.int32)
        padded_index[: self.cell.B_p] = index
        self.pending_batches[batch] = PendingBatch(
            index,
            *self.programs.batch_problems(self.problem_table, padded_index, np.int32(self.cell.seed), np.int32(batch)),
        )
        if not is_on_device(self.programs.task):
            self.grading[batch] = BackgroundGrader(
                self.programs.task, [self.problems[q] for q in index for _ in range(self.cell.n)]
            )

    def _grade_finished(self, finished: FinishedRollouts) -> None:
        """Hands what has finished to the verifier."""
        self.grading[finished.batch].add_responses(finished.rollout_index, finished.responses)

    def _update(self, state: TrainState, worker_rollouts: Rollouts) -> tuple[TrainState, Metrics]:
        """The update on a batch that has been sampled; the weights it leads to are published."""
        programs, started_at = self.programs, time.monotonic()
        B_p, n = np.int32(self.cell.B_p), np.int32(self.cell.n)
        index, problems, key = self.pending_batches.pop(self.updates_done)
        rollouts = programs.to_trainer_layout(jax.device_put(worker_rollouts, replicated(programs.mesh)), B_p, n)
        host_metrics: Metrics = {}
        if programs.verify is not None:
            rewards = programs.verify(problems, rollouts, B_p, n)
        else:
            with self.grading.pop(self.updates_done) as grading:
                grades = grading.collect_grades()
            rewards, host_metrics = rewards_to_buffer(programs.geometry, grades.rewards), verifier_metrics(grades)
        if self.record_rewards is not None:
            rollout_rewards = np.asarray(rewards)[row_index(self.cell.B, programs.geometry.shards)]
            host_metrics |= self.record_rewards(index, rollout_rewards.reshape(-1, self.cell.n).sum(1))
        state, metrics = programs.learn(
            state, self.reference_params, problems, rollouts, rewards, B_p, n, key, self.hparams
        )
        host_values = {name: float(v) for name, v in metrics.items()} | host_metrics
        self.updates_done += 1
        self._publish_and_begin(state.params)
        self.busy_seconds += time.monotonic() - started_at
        return state, host_values

    def _staleness_metrics(self, tokens_by_version: Mapping[int, int]) -> Metrics:
        """How many updates older than the policy that is trained on them a batch's tokens are: the mean, the largest,
        each age's share.
        """
        update, total = self.updates_done, sum(tokens_by_version.values())
        if not self.programs.max_staleness:
            return {}
        shares = {
            f"staleness_share_{age}": tokens_by_version.get(update - age, 0) / total
            for age in range(self.programs.max_staleness + 1)
        }
        return {
            "staleness_mean": sum((update - v) * c for v, c in tokens_by_version.items()) / total,
            "staleness_max": float(update - min(tokens_by_version)),
        } | shares

    def _busy_clocks(self) -> dict[str, float]:
        """Seconds on the wall's clock, and those that each half has worked."""
        return {"wall": time.monotonic(), "sampler": self.rollout_source.busy_seconds, "trainer": self.busy_seconds}

    def _compile(self, state: TrainState) -> tuple[TrainState, Metrics]:
        """Runs all programs on nothing."""
        programs, zero = self.programs, np.int32(0)
        worker_rollouts = jax.device_put(self.rollout_source.compile_programs(state.params), replicated(programs.mesh))
        B_p, n = np.int32(self.cell.B_p), np.int32(self.cell.n)
        rollouts = programs.to_trainer_layout(worker_rollouts, B_p, n)
        index = np.zeros(programs.geometry.problem_rows, np.int32)
        problems, key = programs.batch_problems(self.problem_table, index, np.int32(self.cell.seed), zero)
        rewards: Any = np.zeros((programs.geometry.shards, programs.geometry.buffer_rows), np.float32)
        if programs.verify is not None:
            rewards = programs.verify(problems, rollouts, B_p, n)
        state, _ = programs.learn(state, self.reference_params, problems, rollouts, rewards, zero, n, key, self.hparams)
        return state, {}


def utilisation(last_clocks: Mapping[str, float], clocks: Mapping[str, float]) -> tuple[Metrics, dict[str, float]]:
    """The shares of the time between two clocks that each half worked, 1 at most; and from where to count the next
    ones: work that is told of when it is done may have begun earlier, and what does not fit in here belongs there."""
    wall = clocks["wall"] - last_clocks["wall"]
    busy_seconds = {half: min(clocks[half] - last_clocks[half], wall) for half in ("sampler", "trainer")}
    next_before = {half: last_clocks[half] + seconds for half, seconds in busy_seconds.items()}
    return {f"{half}_busy": seconds / wall for half, seconds in busy_seconds.items()}, next_before | {
        "wall": clocks["wall"]
    }
