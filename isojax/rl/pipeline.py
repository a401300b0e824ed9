"""Sampling and training as a pipeline (PipelineRL, arXiv:2509.19128; ScaleRL, arXiv:2510.13786): the sampler goes on, between chunks of
tokens with the newest weights, while batches before are trained on.

Update v is taken on batch v. When v updates are done, batches up to v + k may have been begun, so that no token is more than k updates
older than the policy that is trained on it; what is left of one batch's long responses decodes beside the next one's first. k = 0 is the
synchronous run, bit for bit. A prompt is read with the weights under which its response begins; what newer ones find in the cache of a
response stays as it is.

On one mesh sampler and trainer take turns; with a mesh of its own the sampler runs at once with the trainer, in a thread. The sampler is
that of sampling/sampler.py, whose buffers are rings here: places of k + 1 batches, used again and again.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import jax
import jax.numpy as jnp
import numpy as np

from isojax.models.decoder import Params
from isojax.rl.hosted import Metrics, told
from isojax.rl.objective import MAX, Coefficients
from isojax.rl.ring import Given, PipelinePrograms, Seen
from isojax.rl.step import State
from isojax.sampling.batch import Problems, place_rewards, places
from isojax.sampling.sampler import State as Sampling
from isojax.sharding import replicated
from isojax.tasks.base import on_device
from isojax.tasks.grading import Grading
from isojax.types import Cell, Problem


class Pipeline:
    """One cell's pipeline. `updates(state, count)` trains; the context ends the sampler's thread, where there is one."""

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
        self.first = done
        self.groups = cell.B_p // programs.shards
        self.chosen: dict[int, np.ndarray] = {}
        self.finished: Counter[int] = Counter()
        self.ages: dict[int, Counter[int]] = defaultdict(Counter)
        self.grading: dict[int, Grading] = {}
        self.stack = ExitStack()
        shards, entries = programs.shards, programs.ring.problem_rows
        self.ring = Problems(*(np.resize(x[:1], (shards, entries, *x.shape[1:])) for x in arrays))
        self.keys = np.zeros((shards, entries, 2), np.uint32)
        self.before = np.full((2, shards, programs.ring.slots), -1)  # rows the slots were at, and their lengths
        self.weights: tuple[int, Params, Params] | None = None  # of so many updates
        self.visited = -1  # updates that the weights of the last visit had had
        self.sampling: Sampling = programs.begin(jnp.arange(shards, dtype=jnp.int32))
        self.turn, self.hold = threading.Condition(), threading.Lock()  # of what is said here, and of the sampler's state
        self.failure: BaseException | None = None
        self.busy = Counter[str]()
        self.thread: threading.Thread | None = None
        self.stopping = False

    def __enter__(self) -> "Pipeline":
        return self

    def __exit__(self, *exc: object) -> None:
        with self.turn:
            self.stopping = True
            self.turn.notify_all()
        if self.thread is not None:
            self.thread.join()
        self.stack.close()

    def updates(self, state: State, count: int) -> tuple[State, Metrics]:
        """`count` updates; the sums of their metrics. With count = 0 nothing changes, but everything is compiled."""
        sums: Metrics = {}
        if not count:
            return self._compile(state)
        if self.weights is None:
            self._publish(state.params)
        for _ in range(count):
            began = time.monotonic()
            self._wait()
            state, metrics = self._learn(state)
            if self.programs.apart:
                metrics |= self._utilisation(time.monotonic() - began)
            for name, value in metrics.items():  # added up in float32, as the synchronous program does
                before, value = np.float32(sums.get(name, 0.0)), np.float32(value)
                sums[name] = float(max(before, value) if name.startswith(MAX) else before + value)
        return state, sums

    def _wait(self) -> None:
        """Until the batch of the next update is sampled: by taking the sampler's turns, or by waiting for its thread."""
        if not self.programs.apart:
            while self.finished[self.done] < self.cell.B:
                self._sample()
            return
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, daemon=True, name="sampler")
            self.thread.start()
        with self.turn:
            self.turn.wait_for(lambda: self.failure is not None or self.finished[self.done] >= self.cell.B)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        """The sampler's thread: visits, as long as batches may be begun or are being decoded."""
        try:
            while True:
                with self.turn:
                    self.turn.wait_for(lambda: self.stopping or self._has_work())
                    if self.stopping:
                        return
                began = time.monotonic()
                self._sample()
                self.busy["sampler"] += time.monotonic() - began  # pyright: ignore[reportArgumentType]
                with self.turn:
                    self.turn.notify_all()
        except BaseException as e:  # told to the thread that trains, which raises it
            with self.turn:
                self.failure = e
                self.turn.notify_all()

    def _has_work(self) -> bool:
        return self.begun <= self.done + self.programs.k or any(self.finished[b] < self.cell.B for b in range(self.done, self.begun))

    def _sample(self) -> None:
        """One visit, with the newest weights; then what it did is looked at."""
        programs = self.programs
        with self.turn:
            while self.begun <= self.done + programs.k:
                self._begin_batch(self.begun)
                self.begun += 1
            assert self.weights is not None
            version, stacked, weights = self.weights
            renewed, self.visited = version != self.visited, version
        problems, keys = jax.device_put((self.ring, self.keys), programs.by_shard)
        limit = np.int32((self.begun - self.first) * self.groups)
        scalars = (limit, np.int32(self.groups), np.int32(self.cell.n), np.bool_(renewed))
        with self.hold:
            self.sampling, seen = programs.visit(Given(stacked, weights, problems, keys, *scalars), self.sampling)
        self._look(Seen(*(np.asarray(x) for x in seen)), version)

    def _begin_batch(self, b: int) -> None:
        """Puts a batch's problems and keys into their places of the ring."""
        self.chosen[b] = index = next(self.order)
        place = ((b - self.first) % (self.programs.k + 1)) * self.groups
        at = slice(place, place + self.groups)
        for ring, x in zip(self.ring, self.arrays, strict=True):
            ring[:, at] = np.asarray(x)[index].reshape(len(ring), self.groups, *x.shape[1:])
        _, key = self.programs.choose(self.table, self._index(b), np.int32(self.cell.seed), np.int32(b))
        self.keys[:, at] = np.asarray(key)
        if not on_device(self.programs.task):
            problems = [self.problems[q] for q in index for _ in range(self.cell.n)]
            self.grading[b] = self.stack.enter_context(Grading(self.programs.task, problems))

    def _index(self, b: int) -> np.ndarray:
        """Rows of the table of a batch's problems, padded."""
        out = np.zeros(self.programs.geometry.problem_rows, np.int32)
        out[: self.cell.B_p] = self.chosen[b]
        return out

    def _look(self, seen: Seen, version: int) -> None:
        """Counts the tokens of a visit by the weights they were drawn with, and hands on what has finished."""
        rows = self.groups * self.cell.n  # of a batch, on a shard
        batch = self.first + seen.at // rows
        new = seen.lengths - np.where(seen.at == self.before[0], self.before[1], 0)
        for b in np.unique(batch[seen.at >= 0]):
            self.ages[int(b)][version] += int(new[(batch == b) & (seen.at >= 0)].sum())
        self.before = np.stack([np.where(seen.finished >= 0, -1, seen.at), seen.lengths])
        shard, slot = np.nonzero(seen.finished >= 0)
        row = seen.finished[shard, slot]
        for b in np.unique(self.first + row // rows):
            own = self.first + row // rows == b
            if b in self.grading:
                number = shard[own] * rows + row[own] % rows
                lengths = seen.lengths[shard[own], slot[own]]
                tokens = seen.tokens[shard[own], slot[own]]
                self.grading[int(b)].add(number, [t[:length] for t, length in zip(tokens, lengths, strict=True)])
            self.finished[int(b)] += int(own.sum())

    def _publish(self, params: Params) -> None:
        """The newest weights, for the sampler's next visit."""
        moved = jax.device_put(params, self.programs.sampler_params) if self.programs.apart else params
        weights = self.programs.prepare(moved)
        with self.turn:
            self.weights = (self.done, *weights)
            self.turn.notify_all()

    def _learn(self, state: State) -> tuple[State, Metrics]:
        """The update on the batch that has been sampled."""
        programs, b = self.programs, self.done
        B_p, n = np.int32(self.cell.B_p), np.int32(self.cell.n)
        began = time.monotonic()
        first = ((b - self.first) % (programs.k + 1)) * self.groups * self.cell.n
        with self.hold:  # each visit donates what the last one left
            cut = programs.cut(self.sampling.out, np.int32(first))
        if programs.apart:
            cut = jax.device_put(cut, replicated(programs.mesh))
        rollouts = programs.lay(cut, B_p, n)
        problems, key = programs.choose(self.table, self._index(b), np.int32(self.cell.seed), np.int32(b))
        extra: Metrics = {}
        if programs.verify is not None:
            rewards = programs.verify(problems, rollouts, B_p, n)
        else:
            grades = self.grading.pop(b).grades()
            rewards, extra = place_rewards(programs.geometry, grades.rewards), told(grades)
        if self.record is not None:
            mine = np.asarray(rewards)[places(self.cell.B, programs.geometry.shards)]
            extra |= self.record(self.chosen[b], mine.reshape(-1, self.cell.n).sum(1))
        state, metrics = programs.learn(state, self.base, problems, rollouts, rewards, B_p, n, key, self.numbers)
        found = {name: float(v) for name, v in metrics.items()} | extra
        with self.turn:
            self.done += 1
        self._publish(state.params)
        self.busy["trainer"] += time.monotonic() - began  # pyright: ignore[reportArgumentType]
        del self.chosen[b], self.finished[b]
        return state, found | self._off_policy(self.ages.pop(b), b)

    def _off_policy(self, ages: Counter[int], b: int) -> Metrics:
        """How many updates older than the policy that is trained on them a batch's tokens are: the mean, the largest, each age's share."""
        if not self.programs.k:
            return {}
        total = sum(ages.values())
        shares = {f"off_policy_{age}": ages[b - age] / total for age in range(self.programs.k + 1)}
        return {"off_policy": sum((b - v) * c for v, c in ages.items()) / total, "max_off_policy": float(b - min(ages))} | shares

    def _utilisation(self, seconds: float) -> Metrics:
        """The shares of an update's time that each half worked."""
        busy, self.busy = self.busy, Counter()
        return {f"{half}_busy": min(1.0, busy[half] / seconds) for half in ("sampler", "trainer")}

    def _compile(self, state: State) -> tuple[State, Metrics]:
        """Runs all programs on nothing."""
        programs, nothing = self.programs, np.int32(0)
        moved = jax.device_put(state.params, programs.sampler_params) if programs.apart else state.params
        problems, keys = jax.device_put((self.ring, self.keys), programs.by_shard)
        given = Given(*programs.prepare(moved), problems, keys, nothing, np.int32(self.groups), np.int32(self.cell.n), np.bool_(False))
        self.sampling, _ = programs.visit(given, self.sampling)
        cut = jax.device_put(programs.cut(self.sampling.out, nothing), replicated(programs.mesh))
        B_p, n = np.int32(self.cell.B_p), np.int32(self.cell.n)
        rollouts = programs.lay(cut, B_p, n)
        index = np.zeros(programs.geometry.problem_rows, np.int32)
        problems, key = programs.choose(self.table, index, np.int32(self.cell.seed), nothing)
        rewards = np.zeros((programs.geometry.shards, programs.geometry.rows), np.float32)
        if programs.verify is not None:
            rewards = programs.verify(problems, rollouts, B_p, n)
        state, _ = programs.learn(state, self.base, problems, rollouts, rewards, nothing, n, key, self.numbers)
        return state, {}
