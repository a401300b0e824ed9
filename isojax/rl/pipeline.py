"""Sampling and training as a pipeline (PipelineRL, arXiv:2509.19128; ScaleRL, arXiv:2510.13786): the sampler goes on, between chunks of
tokens with the newest weights, while batches before are trained on.

Update v is taken on batch v. When v updates are done, batches up to v + k may have been begun, so that no token is more than k updates
older than the policy that is trained on it; what is left of one batch's long responses decodes beside the next one's first. k = 0 is the
synchronous run, bit for bit. A prompt is read with the weights under which its response begins, or in a lane of several slots the first
response to it there; what newer ones find in the cache of a response stays as it is.

Here is the half that trains: it chooses a batch's problems, judges what has finished, lays a batch out as its own mesh wants it, learns,
and publishes weights. The other half, rl/ahead.py, works by turns with it on one mesh, or at the same time: in a thread, on a mesh of its
own (rl/beside.py), or in a process of its own (rl/process.py).
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

from isojax.config import CellConfig, RLConfig, RunConfig
from isojax.meshes import MeshShape, parse_mesh
from isojax.models.decoder import Decoder, Params
from isojax.rl.ahead import Found, Sampler, Start
from isojax.rl.beside import Beside, Half, InThread, Told, Turns
from isojax.rl.hosted import Metrics, build_learn, told
from isojax.rl.objective import MAX, Coefficients
from isojax.rl.process import Child, InProcess
from isojax.rl.ring import SamplerPrograms, SamplerSpec, refuse_uneven
from isojax.rl.step import TRAIN, State, take
from isojax.sampling.batch import Geometry, Problems, Rollouts, batch_rows, place_rewards, places
from isojax.sharding import ROWS, replicated, shard_count
from isojax.tasks.base import Task, on_device
from isojax.tasks.grading import Grading
from isojax.types import Cell, InputError, Problem


def sampler_shape(rl: RLConfig, run: RunConfig, devices: int, trainers: int, backend: str) -> MeshShape | None:
    """The sampler's own mesh: of the devices that are left beside the trainer's, or in a process that simulates as many as there are here.

    Raises:
        InputError: there is no pipeline that runs ahead, too few devices, or devices that a second process cannot have.
    """
    if run.sampler_mesh is None and not run.sampler_process:
        return None
    if not rl.pipeline:
        given = "run.sampler_process = true" if run.sampler_process else f"run.sampler_mesh = {run.sampler_mesh}"
        raise InputError(
            f"{given} with cell.rl.pipeline = {rl.pipeline}: one of sampler and trainer would always wait for the other. "
            "Expected cell.rl.pipeline of 1 or more, or a sampler that shares the trainer's mesh."
        )
    if run.sampler_process and backend != "cpu":
        raise InputError(
            f"run.sampler_process = true on this machine's {backend}: expected a CPU, as this process holds the accelerators. Give the "
            "sampler some of them: run.sampler_process=false run.sampler_mesh=data=1."
        )
    return parse_mesh(run.sampler_mesh or "auto", devices, 0 if run.sampler_process else trainers)


class PipelinePrograms:
    """The compiled programs of a sweep's pipelines: those that train, on `mesh`, and the sampler's, wherever it is."""

    def __init__(
        self,
        cell: CellConfig,
        decoder: Decoder,
        task: Task,
        geometry: Geometry,
        pairs: Sequence[tuple[int, int]],
        mesh: Mesh,
        sampler: Mesh | MeshShape | None = None,
    ):
        """`sampler`: None, by turns on `mesh`; a mesh of other devices, in a thread; the shape of one, in a process that simulates it."""
        assert cell.rl.pipeline is not None
        self.max_skipped = cell.rl.max_skipped
        self.k, self.task, self.geometry, self.mesh = cell.rl.pipeline, task, geometry, mesh
        self.apart = sampler is not None
        self.shards = sampler.shards if isinstance(sampler, MeshShape) else shard_count(sampler or mesh)
        refuse_uneven(pairs, self.shards)
        spec = SamplerSpec(self.k, decoder, geometry, tuple(pairs), cell.sampling, task.stops)
        self.sampler = Child(spec, sampler) if isinstance(sampler, MeshShape) else SamplerPrograms(spec, sampler or mesh)
        rows = NamedSharding(mesh, P(ROWS))
        self.lay = jax.jit(self._lay, out_shardings=rows)
        self.choose = jax.jit(choose, out_shardings=replicated(mesh))
        self.learn = build_learn(cell, decoder, task, geometry, mesh)
        self.verify = jax.jit(self._verify, out_shardings=rows) if on_device(task) else None

    def half(self, start: Start, told: Told) -> Half:
        """A cell's sampler, at work; `told` hears what has finished, in whatever thread."""
        if isinstance(self.sampler, Child):
            return Beside(InProcess(self.sampler, start), told)
        sampler = Sampler(self.sampler, start)
        return Beside(InThread(sampler), told) if self.apart else Turns(sampler, told)

    def close(self) -> None:
        """Ends the sampler's process, where there is one; another cell would start it anew."""
        if isinstance(self.sampler, Child):
            self.sampler.stop()

    def _lay(self, cut: Rollouts, B_p: Array, n: Array) -> Rollouts:
        """A batch's rows as the trainer has them."""
        groups, live = batch_rows(self.geometry, B_p, n)
        shards, mine = shard_count(self.mesh), (B_p * n) // self.shards
        block = (B_p * n + shards - 1) // shards
        rollout = jnp.where(live, jnp.arange(groups.shape[0])[:, None] * block + jnp.arange(groups.shape[1])[None], 0)
        tokens, logps, mask, kept, ended, lengths = (x[rollout // mine, rollout % mine] for x in cut)
        return Rollouts(tokens, logps, mask & live[..., None], kept, ended & live, jnp.where(live, lengths, 0))

    def _verify(self, problems: Problems, rollouts: Rollouts, B_p: Array, n: Array) -> Array:
        assert on_device(self.task)
        groups, _ = batch_rows(self.geometry, B_p, n)
        return self.task.verify(problems.answers[groups], rollouts.tokens, rollouts.present)


def choose(table: Problems, index: Array, seed: Array, step: Array) -> tuple[Problems, Array]:
    """An update's problems, and the data of its key."""
    return take(table, index), jax.random.key_data(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), TRAIN), step))


class Chosen(NamedTuple):
    """A batch: rows of the table i[B_p]; its problems, padded, on the trainer's devices; the data of its key."""

    index: np.ndarray
    problems: Problems
    key: Array


class Pipeline:
    """One cell's pipeline. `updates(state, count)` trains; the context ends the sampler where it is at work."""

    def __init__(
        self,
        programs: PipelinePrograms,
        cell: Cell,
        base: Params,
        table: Problems,
        arrays: Problems,
        problems: Sequence[Problem],
        order: Iterator[np.ndarray],
        numbers: Coefficients,
        done: int,
        record: Callable[[np.ndarray, np.ndarray], Metrics] | None = None,
    ):
        """`table` lies on the trainer's devices and `arrays` are the same on the host; `order` gives the problems of update `done` and
        of those that follow. `record` is told each update's problems and the sum of the rewards of each, and gives metrics."""
        self.programs, self.cell, self.base, self.table, self.arrays = programs, cell, base, table, arrays
        self.problems, self.order, self.record, self.numbers = problems, order, record, numbers
        self.done = self.begun = done  # updates taken, and batches that the sampler may work at
        self.chosen: dict[int, Chosen] = {}
        self.grading: dict[int, Grading] = {}
        self.busy = 0.0
        filler = Problems(*(np.asarray(x)[:1] for x in arrays))
        start = Start(cell.B_p, cell.n, done, filler, tells=not on_device(programs.task))
        self.half = programs.half(start, self._found)

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *exc: object) -> None:
        self.half.close()
        for grading in self.grading.values():
            grading.__exit__(*exc)

    def save(self) -> tuple[dict[str, Any] | None, Any]:
        """What is under way, as data for JSON and as arrays; nothing before anything has begun, or where the sampler works beside,
        whose rollouts are then sampled anew."""
        if not isinstance(self.half, Turns) or self.begun == self.done:
            return None, None
        sampler, arrays = self.half.sampler.save()
        batches = {str(b): chosen.index.tolist() for b, chosen in self.chosen.items()}
        grading = {str(b): grading.save() for b, grading in self.grading.items()}
        meta = {"begun": self.begun, "shards": self.programs.shards, "sampler": sampler, "batches": batches, "grading": grading}
        return meta, arrays

    def restore(self, meta: Mapping[str, Any], arrays: Callable[[Any], Any], params: Params) -> None:
        """Goes on where `save` was called. `arrays` gives the saved ones, laid out as its argument; `params`: the newest."""
        assert isinstance(self.half, Turns)
        self.half.sampler.restore(meta["sampler"], arrays)
        self.begun = meta["begun"]
        for name, index in meta["batches"].items():
            self._choose(int(name), np.array(index, np.int32))
        for name, saved in meta["grading"].items():
            self.grading[int(name)].restore(saved)
        self.half.publish(self.done, params)

    def updates(self, state: State, count: int) -> tuple[State, Metrics]:
        """`count` updates; the sums of their metrics. With count = 0 nothing changes, but everything is compiled."""
        sums: Metrics = {}
        if not count:
            return self._compile(state)
        if self.begun == self.done:
            self._go_on(state.params)
        before = self._clocks()
        for _ in range(count):
            taken = self.half.take(self.done)
            ages = self._off_policy(taken.ages)
            state, metrics = self._learn(state, taken.rows)
            if self.programs.apart:
                shares, before = utilisation(before, self._clocks())
                metrics |= shares
            for name, value in (metrics | ages).items():  # added up in float32, as the synchronous program does
                had, value = np.float32(sums.get(name, 0.0)), np.float32(value)
                sums[name] = float(max(had, value) if name.startswith(MAX) else had + value)
            if metrics["not_finite"] and int(state.skipped) >= self.programs.max_skipped:
                break
        return state, sums

    def _go_on(self, params: Params) -> None:
        """The newest weights, and the batches that may be sampled with them."""
        self.half.publish(self.done, params)
        while self.begun <= self.done + self.programs.k:
            self._begin(self.begun)
            self.begun += 1

    def _begin(self, b: int) -> None:
        """Chooses a batch's problems, for both halves."""
        index = next(self.order)
        self._choose(b, index)
        self.half.begin(b, Problems(*(np.asarray(x)[index] for x in self.arrays)), np.asarray(self.chosen[b].key))

    def _choose(self, b: int, index: np.ndarray) -> None:
        padded = np.zeros(self.programs.geometry.problem_rows, np.int32)
        padded[: self.cell.B_p] = index
        self.chosen[b] = Chosen(index, *self.programs.choose(self.table, padded, np.int32(self.cell.seed), np.int32(b)))
        if not on_device(self.programs.task):
            self.grading[b] = Grading(self.programs.task, [self.problems[q] for q in index for _ in range(self.cell.n)])

    def _found(self, found: Found) -> None:
        """Hands what has finished to the verifier."""
        self.grading[found.batch].add(found.numbers, found.tokens)

    def _learn(self, state: State, rows: Rollouts) -> tuple[State, Metrics]:
        """The update on a batch that has been sampled; the weights it leads to are published."""
        programs, began = self.programs, time.monotonic()
        B_p, n = np.int32(self.cell.B_p), np.int32(self.cell.n)
        index, problems, key = self.chosen.pop(self.done)
        rollouts = programs.lay(jax.device_put(rows, replicated(programs.mesh)), B_p, n)
        extra: Metrics = {}
        if programs.verify is not None:
            rewards = programs.verify(problems, rollouts, B_p, n)
        else:
            with self.grading.pop(self.done) as grading:
                grades = grading.grades()
            rewards, extra = place_rewards(programs.geometry, grades.rewards), told(grades)
        if self.record is not None:
            mine = np.asarray(rewards)[places(self.cell.B, programs.geometry.shards)]
            extra |= self.record(index, mine.reshape(-1, self.cell.n).sum(1))
        state, metrics = programs.learn(state, self.base, problems, rollouts, rewards, B_p, n, key, self.numbers)
        found = {name: float(v) for name, v in metrics.items()} | extra
        self.done += 1
        self._go_on(state.params)
        self.busy += time.monotonic() - began
        return state, found

    def _off_policy(self, ages: Mapping[int, int]) -> Metrics:
        """How many updates older than the policy that is trained on them a batch's tokens are: the mean, the largest, each age's share."""
        b, total = self.done, sum(ages.values())
        if not self.programs.k:
            return {}
        shares = {f"off_policy_{age}": ages.get(b - age, 0) / total for age in range(self.programs.k + 1)}
        return {"off_policy": sum((b - v) * c for v, c in ages.items()) / total, "max_off_policy": float(b - min(ages))} | shares

    def _clocks(self) -> dict[str, float]:
        """Seconds on the wall's clock, and those that each half has worked."""
        return {"wall": time.monotonic(), "sampler": self.half.busy, "trainer": self.busy}

    def _compile(self, state: State) -> tuple[State, Metrics]:
        """Runs all programs on nothing."""
        programs, nothing = self.programs, np.int32(0)
        rows = jax.device_put(self.half.compile(state.params), replicated(programs.mesh))
        B_p, n = np.int32(self.cell.B_p), np.int32(self.cell.n)
        rollouts = programs.lay(rows, B_p, n)
        index = np.zeros(programs.geometry.problem_rows, np.int32)
        problems, key = programs.choose(self.table, index, np.int32(self.cell.seed), nothing)
        rewards: Any = np.zeros((programs.geometry.shards, programs.geometry.rows), np.float32)
        if programs.verify is not None:
            rewards = programs.verify(problems, rollouts, B_p, n)
        state, _ = programs.learn(state, self.base, problems, rollouts, rewards, nothing, n, key, self.numbers)
        return state, {}


def utilisation(before: Mapping[str, float], now: Mapping[str, float]) -> tuple[Metrics, dict[str, float]]:
    """The shares of the time between two clocks that each half worked, 1 at most; and from where to count the next ones: work that is told
    of when it is done may have begun earlier, and what does not fit in here belongs there."""
    wall = now["wall"] - before["wall"]
    worked = {half: min(now[half] - before[half], wall) for half in ("sampler", "trainer")}
    counted = {half: before[half] + seconds for half, seconds in worked.items()}
    return {f"{half}_busy": seconds / wall for half, seconds in worked.items()}, counted | {"wall": now["wall"]}
