"""The compiled programs of a sweep's asynchronous rollouts: those of the trainer, and those of its rollout workers."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.core.config import CellConfig
from isojax.core.shapes import MAX_UPDATES_PER_CALL
from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.program import Program, shape_on
from isojax.distributed.sharding import ROLLOUT_AXES, replicated, shard_count
from isojax.models.transformer import Decoder
from isojax.rl.async_rl.rollout_buffer import SamplerPrograms, SamplerSpec
from isojax.rl.async_rl.rollout_worker import RolloutJob, RolloutWorker
from isojax.rl.async_rl.sampler_mesh import check_divisible_batches
from isojax.rl.async_rl.transport import (
    BackgroundWorker,
    FinishedCallback,
    InlineWorker,
    ThreadTransport,
    WorkerHandle,
)
from isojax.rl.async_rl.worker_process import ProcessTransport, WorkerProcess
from isojax.rl.rollout_source import UpdateShapes, build_select_problems
from isojax.rl.train_step import build_update
from isojax.sampling.batch import ProblemArrays, RolloutBatch, Rollouts, SamplerShapes, buffer_row_groups
from isojax.tasks.protocol import Task, is_on_device


class AsyncPrograms:
    """The programs that train, on `mesh`, and those that sample, wherever that is."""

    def __init__(
        self,
        cell: CellConfig,
        decoder: Decoder,
        task: Task,
        shapes: SamplerShapes,
        pairs: Sequence[tuple[int, int]],
        mesh: Mesh,
        sampler_mesh: Mesh | MeshShape | None = None,
    ):
        """sampler_mesh: None where sampler and trainer take turns on `mesh`; a mesh of other devices for a sampler in a
        thread; the shape of a mesh for a sampler in a process that simulates it."""
        assert cell.rl.max_staleness is not None
        self.task, self.shapes, self.mesh, self.max_staleness = task, shapes, mesh, cell.rl.max_staleness
        self.nucleus = cell.sampling.top_p < 1
        self.updates_per_call = MAX_UPDATES_PER_CALL if is_on_device(task) else 1
        self.disaggregated = sampler_mesh is not None
        self.sampler_shards = (
            sampler_mesh.shards if isinstance(sampler_mesh, MeshShape) else shard_count(sampler_mesh or mesh)
        )
        check_divisible_batches(pairs, self.sampler_shards)
        spec = SamplerSpec(
            max_staleness=self.max_staleness,
            decoder=decoder,
            shapes=shapes,
            pairs=tuple(pairs),
            answer_length=shapes.response_length if is_on_device(task) else 0,
            sampling=cell.sampling,
            stops=task.stops,
        )
        self.sampler = (
            WorkerProcess(spec, sampler_mesh)
            if isinstance(sampler_mesh, MeshShape)
            else SamplerPrograms(spec, sampler_mesh or mesh)
        )
        by_row = NamedSharding(mesh, P(ROLLOUT_AXES))
        self.select_problems = build_select_problems(mesh)
        self.to_trainer_layout = Program(jax.jit(self._to_trainer_layout, out_shardings=by_row))
        self.verify = Program(jax.jit(self._verify, out_shardings=by_row)) if is_on_device(task) else None
        self.update = Program(build_update(cell, decoder, task, shapes, mesh))

    def compile(self, shapes: UpdateShapes) -> None:
        if isinstance(self.sampler, WorkerProcess):
            self.sampler.launch()  # it compiles at the same time
        else:
            self.sampler.compile()
        for program, arguments in self.main_programs(shapes).values():
            program.compile(*arguments)
        if isinstance(self.sampler, WorkerProcess):
            self.sampler.wait_until_ready()

    def main_programs(self, shapes: UpdateShapes) -> dict[str, tuple[Program, tuple[Any, ...]]]:
        on_all = replicated(self.mesh)
        scalar, index = shape_on(on_all), shape_on(on_all, (self.shapes.problem_rows,))
        selected = self.select_problems.compile(shapes.problem_table, index, scalar, scalar)
        rollouts = self.to_trainer_layout.compile(self._worker_rollout_shapes(), scalar, scalar)
        rewards = shape_on(on_all, (self.shapes.shards, self.shapes.buffer_rows), "float32")
        if self.verify is not None:
            rewards = self.verify.compile(selected.problems, rollouts, scalar, scalar)
        batch = RolloutBatch(
            selected.problems, rollouts, rewards=rewards, B_p=scalar, n=scalar, key_data=selected.key_data
        )
        return {"learn": (self.update, (shapes.state, shapes.base_params, batch, shapes.coefficients))}

    def can_restore(self, saved: Mapping[str, Any]) -> bool:
        return not self.disaggregated and self.sampler_shards == saved["shards"]

    def start_worker(self, job: RolloutJob, on_finished: FinishedCallback) -> WorkerHandle:
        """Starts a cell's rollout worker; it calls `on_finished` in any thread."""
        if isinstance(self.sampler, WorkerProcess):
            return BackgroundWorker(ProcessTransport(self.sampler, job), on_finished)
        worker = RolloutWorker(self.sampler, job)
        if self.disaggregated:
            return BackgroundWorker(ThreadTransport(worker), on_finished)
        return InlineWorker(worker, on_finished)

    def close(self) -> None:
        """Ends the sampler's process, if there is one; another cell would start it again."""
        if isinstance(self.sampler, WorkerProcess):
            self.sampler.stop()

    def _worker_rollout_shapes(self) -> Rollouts:
        """A batch as the worker returns it, copied to all of the trainer's devices."""
        on_all, T = replicated(self.mesh), self.shapes.response_length
        rows = self.sampler_shards, -(-self.shapes.B_cap // self.sampler_shards)
        return Rollouts(
            tokens=shape_on(on_all, (*rows, T)),
            logps=shape_on(on_all, (*rows, T), "float32"),
            mask=shape_on(on_all, (*rows, T), "bool"),
            nucleus_mass=shape_on(on_all, (*rows, T if self.nucleus else 1), "float32"),
            stopped=shape_on(on_all, rows, "bool"),
            lengths=shape_on(on_all, rows),
        )

    def _to_trainer_layout(self, worker_rollouts: Rollouts, B_p: Array, n: Array) -> Rollouts:
        """A batch's rollouts in the buffer rows that the trainer's shards expect them in."""
        groups, valid = buffer_row_groups(self.shapes, B_p, n)
        shards, worker_rows = shard_count(self.mesh), (B_p * n) // self.sampler_shards
        trainer_rows = (B_p * n + shards - 1) // shards
        rollout = jnp.arange(groups.shape[0])[:, None] * trainer_rows + jnp.arange(groups.shape[1])[None]
        rollout = jnp.where(valid, rollout, 0)
        tokens, logps, mask, nucleus_mass, stopped, lengths = (
            x[rollout // worker_rows, rollout % worker_rows] for x in worker_rollouts
        )
        return Rollouts(
            tokens, logps, mask & valid[..., None], nucleus_mass, stopped & valid, jnp.where(valid, lengths, 0)
        )

    def _verify(self, problems: ProblemArrays, rollouts: Rollouts, B_p: Array, n: Array) -> Array:
        assert is_on_device(self.task)
        groups, _ = buffer_row_groups(self.shapes, B_p, n)
        return self.task.verify(problems.answers[groups], rollouts.tokens, rollouts.response_mask)
