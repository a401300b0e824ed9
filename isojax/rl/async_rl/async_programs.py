"""The compiled programs of a sweep's asynchronous rollouts: those of the trainer, and those of its rollout workers."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.core.config import CellConfig
from isojax.core.errors import InputError
from isojax.core.shapes import MAX_UPDATES_PER_CALL
from isojax.distributed.program import Program, shape_on, shapes_like
from isojax.distributed.sharding import ROLLOUT_AXES, replicated, shard_count
from isojax.models.transformer import Decoder
from isojax.rl.async_rl.rollout_buffer import SamplerPrograms
from isojax.rl.rollout_source import UpdateShapes, batch_shapes, build_select_problems
from isojax.rl.train_step import build_update
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplerShapes, buffer_row_groups
from isojax.tasks.protocol import Task, is_on_device


class AsyncPrograms:
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
    ):
        """sampler_mesh: other devices for a sampler in a thread; None: sampler and trainer take turns on `mesh`."""
        assert cell.rl.max_staleness is not None
        self.task, self.shapes, self.mesh, self.max_staleness = task, shapes, mesh, cell.rl.max_staleness
        self.nucleus = cell.sampling.top_p < 1
        self.updates_per_call = MAX_UPDATES_PER_CALL if is_on_device(task) else 1
        self.disaggregated = sampler_mesh is not None
        self.sampler_shards = shard_count(sampler_mesh or mesh)
        if uneven_B_p := next((B_p for B_p, _ in pairs if B_p % self.sampler_shards), None):
            raise InputError(
                f"cell.rl.max_staleness: sweep.B_p = {uneven_B_p} is no multiple of the {self.sampler_shards} shards "
                "(data x fsdp) of the mesh that samples; asynchronous rollouts assign whole groups to shards. Change "
                "B_p or the mesh."
            )
        self.sampler = SamplerPrograms(cell, decoder, task, shapes, pairs, sampler_mesh or mesh)
        by_row = NamedSharding(mesh, P(ROLLOUT_AXES))
        self.select_problems = build_select_problems(mesh)
        self.to_trainer_layout = Program(jax.jit(self._to_trainer_layout, out_shardings=by_row))
        self.verify = Program(jax.jit(self._verify, out_shardings=replicated(mesh))) if is_on_device(task) else None
        self.update = Program(build_update(cell, decoder, task, shapes, mesh))

    def compile(self, shapes: UpdateShapes) -> None:
        on_all, batch = replicated(self.mesh), batch_shapes(self.shapes, self.mesh, shapes, self.nucleus)
        scalar, index = shape_on(on_all), shape_on(on_all, (self.shapes.problem_rows,))
        worker_rollouts = shapes_like(self.sampler.compile(), on_all)
        self.select_problems.compile(shapes.problem_table, index, scalar, scalar)
        self.to_trainer_layout.compile(worker_rollouts, scalar, scalar)
        if self.verify is not None:
            self.verify.compile(batch.problems, batch.rollouts, scalar, scalar)
        self.update.compile(shapes.state, shapes.base_params, batch, shapes.coefficients)

    def can_restore(self, saved: Mapping[str, Any]) -> bool:
        return not self.disaggregated and self.sampler_shards == saved["shards"]

    def _to_trainer_layout(self, worker_rollouts: Rollouts, B_p: Array, n: Array) -> Rollouts:
        """A batch's rollouts in the buffer rows that the trainer's shards expect them in."""
        groups, valid = buffer_row_groups(self.shapes, B_p, n)
        shards, worker_rows = shard_count(self.mesh), (B_p * n) // self.sampler_shards
        trainer_rows = (B_p * n + shards - 1) // shards
        rollout = jnp.arange(groups.shape[0])[:, None] * trainer_rows + jnp.arange(groups.shape[1])[None]
        rollout = jnp.where(valid, rollout, 0)
        rollouts = Rollouts(*(x[rollout // worker_rows, rollout % worker_rows] for x in worker_rollouts))
        return rollouts._replace(
            mask=rollouts.mask & valid[..., None],
            stopped=rollouts.stopped & valid,
            lengths=jnp.where(valid, rollouts.lengths, 0),
        )

    def _verify(self, problems: ProblemArrays, rollouts: Rollouts, B_p: Array, n: Array) -> Array:
        assert is_on_device(self.task)
        groups, _ = buffer_row_groups(self.shapes, B_p, n)
        return self.task.verify(problems.answers[groups], rollouts.tokens, rollouts.response_mask)
