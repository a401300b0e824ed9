"""The half of a pipeline that samples; the other one trains (rl/pipeline.py).

    begin    a batch's problems and key come into their places of the ring
    publish  the newest weights, for the visits to come
    visit    at most a chunk of tokens a slot; what has finished
    take     a batch that has been sampled: its rows, and with which weights its tokens were drawn

Who calls these, from which thread or process, is the business of rl/beside.py.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isojax.models.decoder import Params
from isojax.rl.ring import Given, SamplerPrograms, Seen
from isojax.sampling.batch import Problems, Rollouts
from isojax.sampling.sampler import State
from isojax.sharding import replicated


class Start(NamedTuple):
    """A cell's sampler: B_p and n; the first batch; any problem, in arrays of one row, to stand where none has come; and whether it is to
    tell what has finished, which a verifier on the host wants."""

    B_p: int
    n: int
    first: int
    filler: Problems
    tells: bool


class Found(NamedTuple):
    """Rollouts of a batch that have finished: their numbers i[r] in it, and the tokens of each, i32[its length]."""

    batch: int
    numbers: np.ndarray
    tokens: list[np.ndarray]


class Taken(NamedTuple):
    """A batch that has been sampled: its rows on the sampler's shards, and how many tokens were drawn with the weights of each update."""

    batch: int
    rows: Rollouts
    ages: Mapping[int, int]


class Sampler:
    """One cell's sampler; its calls come from one thread."""

    def __init__(self, programs: SamplerPrograms, start: Start):
        self.programs, self.start = programs, start
        self.begun = start.first  # batches that may be worked at, and all before the cell's first
        self.groups = start.B_p // programs.shards
        self.finished: dict[int, int] = {}  # rollouts, of the batches that have begun and are not taken
        self.ages: dict[int, Counter[int]] = defaultdict(Counter)
        shards, entries = programs.shards, programs.ring.problem_rows
        self.ring = Problems(*(np.resize(x, (shards, entries, *x.shape[1:])) for x in start.filler))
        self.keys = np.zeros((shards, entries, 2), np.uint32)
        self.before = np.full((2, shards, programs.ring.slots), -1, np.int32)  # rows the slots were at, and their lengths
        self.newest: tuple[int, Params] | None = None  # weights of so many updates, that no visit has seen
        self.weights: tuple[Params, Params] | None = None
        self.version = -1
        self.state: State = programs.begin(jnp.arange(shards, dtype=jnp.int32))

    @property
    def working(self) -> bool:
        """Whether anything is left to sample."""
        return any(count < self.start.B_p * self.start.n for count in self.finished.values())

    @property
    def ready(self) -> list[int]:
        """The batches that can be taken."""
        return [b for b, count in self.finished.items() if count == self.start.B_p * self.start.n]

    def save(self) -> tuple[dict[str, Any], Any]:
        """What it has under way, as data for JSON and as arrays. Its weights are not among them: those published last are as new as any."""
        finished = {str(b): count for b, count in self.finished.items()}
        ages = {str(b): {str(v): count for v, count in ages.items()} for b, ages in self.ages.items()}
        meta = {"first": self.start.first, "begun": self.begun, "version": self.version, "finished": finished, "ages": ages}
        ring = {name: x for name, x in self.ring._asdict().items() if x.size}  # Orbax saves no empty array, as answers of tasks in text are
        return meta, {"state": self.state, "ring": ring, "keys": self.keys, "before": self.before}

    def restore(self, meta: Mapping[str, Any], arrays: Callable[[Any], Any]) -> None:
        """Goes on where `save` was called."""
        whole = replicated(self.programs.mesh)
        _, like = self.save()
        found = arrays(jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jax.device_put(x, whole), like))
        self.state = found["state"]
        self.ring = self.ring._replace(**{name: np.array(x) for name, x in found["ring"].items()})
        self.keys, self.before = np.array(found["keys"]), np.array(found["before"])
        self.start = self.start._replace(first=meta["first"])
        self.begun, self.version = meta["begun"], meta["version"]
        self.finished = {int(b): count for b, count in meta["finished"].items()}
        for b, ages in meta["ages"].items():
            self.ages[int(b)].update({int(v): count for v, count in ages.items()})

    def begin(self, b: int, problems: Problems, key: np.ndarray) -> None:
        """Batch b may be worked at: host arrays of its B_p problems, the data of its key. Batches come in order, at most k + 1 at once."""
        assert b == self.begun, (b, self.begun)
        at = slice(self._place(b), self._place(b) + self.groups)
        for ring, x in zip(self.ring, problems, strict=True):
            ring[:, at] = np.asarray(x).reshape(len(ring), self.groups, *x.shape[1:])
        self.keys[:, at] = key
        self.finished[b], self.begun = 0, b + 1

    def publish(self, version: int, params: Params) -> None:
        """The parameters after so many updates, for the next visit; they may lie on the host."""
        self.newest = version, params

    def visit(self) -> list[Found]:
        """One visit, with the newest weights; what it has finished, where anybody wants to know."""
        renewed = self.newest is not None
        if self.newest is not None:
            self.version, params = self.newest
            self.weights, self.newest = self._prepare(params), None
        assert self.weights is not None, "no weights yet"
        limit = (self.begun - self.start.first) * self.groups
        self.state, seen = self.programs.visit(self._given(self.weights, limit, renewed), self.state)
        return self._look(Seen(*(np.asarray(x) for x in seen)))

    def take(self, b: int) -> Taken:
        """A batch that is ready."""
        assert b in self.ready, (b, self.finished)
        rows = self.programs.cut(self.state.out, np.int32(self._place(b) * self.start.n))
        del self.finished[b]
        return Taken(b, rows, dict(self.ages.pop(b)))

    def compile(self, params: Params) -> Rollouts:
        """Runs all programs on nothing; rows as those of a batch."""
        self.state, _ = self.programs.visit(self._given(self._prepare(params), 0, False), self.state)
        return self.programs.cut(self.state.out, np.int32(0))

    def _place(self, b: int) -> int:
        """The first of a batch's groups in the ring."""
        return (b - self.start.first) % (self.programs.spec.k + 1) * self.groups

    def _prepare(self, params: Params) -> tuple[Params, Params]:
        return self.programs.prepare(jax.device_put(params, self.programs.params))

    def _given(self, weights: tuple[Params, Params], limit: int, renewed: bool) -> Given:
        problems, keys = jax.device_put((self.ring, self.keys), self.programs.by_shard)
        return Given(*weights, problems, keys, np.int32(limit), np.int32(self.groups), np.int32(self.start.n), np.bool_(renewed))

    def _look(self, seen: Seen) -> list[Found]:
        """Counts the tokens of a visit by the weights they were drawn with, and its finished rollouts."""
        rows, first = self.groups * self.start.n, self.start.first  # rows of a batch, on a shard
        batch = first + seen.at // rows
        new = seen.lengths - np.where(seen.at == self.before[0], self.before[1], 0)
        for b in np.unique(batch[seen.at >= 0]):
            self.ages[int(b)][self.version] += int(new[(batch == b) & (seen.at >= 0)].sum())
        self.before = np.stack([np.where(seen.finished >= 0, -1, seen.at), seen.lengths])
        shard, slot = np.nonzero(seen.finished >= 0)
        row, found = seen.finished[shard, slot], []
        for b in np.unique(first + row // rows):
            own = first + row // rows == b
            self.finished[int(b)] += int(own.sum())
            if self.start.tells:
                numbers = shard[own] * rows + row[own] % rows
                tokens, lengths = seen.tokens[shard[own], slot[own]], seen.lengths[shard[own], slot[own]]
                found.append(Found(int(b), numbers, [t[:length] for t, length in zip(tokens, lengths, strict=True)]))
        return found
