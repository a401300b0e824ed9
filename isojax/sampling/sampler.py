"""The rollout engine: one compiled program for a whole sweep, whatever B_p and n.

It is one shard_map, manual over data and fsdp (each shard has its own slots, queue and prefix table), automatic over sequence and tensor.
Inside a shard:

    while any slot of any shard works:
        prefill the next g prompts, while the queue is about to need them (each problem once, never n times)
        admit: free lanes take the next prompt of the queue, its keys, values and last hidden state; their free slots its next rollouts
        decode tokens, each rollout's first from its prompt, until `CHUNK` are done or slots have waited for long enough
        retire: finished slots write their rollout and are free

A lane is one slot, or, where prompts are long, W of them that share their prompt's keys and values (models/decoding.py). What waits
in the queue are spans: a rollout for a lane of one slot; for a lane of W at least W rollouts of one prompt, which pass through its slots.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from isojax.config import SamplingConfig
from isojax.models.decoder import Decoder, Params
from isojax.models.decoding import Cache, Decoding
from isojax.models.parts import gathered
from isojax.sampling.batch import Geometry, Problems, Rollouts, Share, leading, share
from isojax.sampling.interruption import drawn, interrupt
from isojax.sampling.logits import draw, log_probs, nucleus, rollout_keys, uniforms, within
from isojax.sharding import ROWS, manual_part, padded, partitions, shard_count, splits_positions
from isojax.tasks.stops import Stops
from isojax.types import InputError

CHUNK = 32  # tokens decoded at most between two visits to the queue


class Slots(NamedTuple):
    """One shard's slots. row -1: free. `t` counts response tokens; `token` is the last of them, at `position` (there is none yet where t is
    0: the first is drawn from the prompt, and what the slot is given to do before that is written over); `stop` is where the
    automaton of the stop strings stands, `stopped` whether a stop has been met; `closed`: see sampling/interruption.py."""

    row: Int[Array, " R"]
    position: Int[Array, " R"]
    token: Int[Array, " R"]
    t: Int[Array, " R"]
    stop: Int[Array, " R"]
    stopped: Bool[Array, " R"]
    key: Int[Array, "R _"]
    tokens: Int[Array, "R T"]
    logps: Float[Array, "R T"]
    kept: Float[Array, "R _"]
    closed: Bool[Array, " R"] | None


class Queue(NamedTuple):
    """What a shard has yet to do. Spans queued .. ends-1 wait; `filled` prompts are in the table. Lanes: the problem that each works
    at, by its place in the shard's share, and the rollouts `next` .. `end`-1 of it, rows of the shard, that wait for a slot."""

    queued: Int[Array, ""]
    filled: Int[Array, ""]
    problem: Int[Array, " Z"]
    next: Int[Array, " Z"]
    end: Int[Array, " Z"]


class Last(NamedTuple):
    """Hidden states of the last tokens of prompts, from which first response tokens are drawn: of the table's, and of each lane's."""

    table: Float[Array, "G D"]
    lanes: Float[Array, "Z D"]


class State(NamedTuple):
    """All of a shard's sampling. `out`: finished rollouts by row, in the order of `Slots.written`."""

    out: tuple[Array, ...]
    slots: Slots
    cache: Cache
    table: Cache
    last: Last
    queue: Queue


class Ring(NamedTuple):
    """How many groups and rollouts a shard's buffers hold where they come without end (rl/pipeline.py), so that places are used again."""

    groups: Int[Array, ""]
    rows: Int[Array, ""]


class Batch(NamedTuple):
    """What a shard samples: its part of the rollouts of `problems`, n each, with draws from `key`, or from a key for each problem."""

    problems: Problems
    part: Share
    n: Int[Array, ""]
    key: PRNGKeyArray
    ring: Ring | None = None

    def group(self, problem: Int[Array, "*z"]) -> Int[Array, "*z"]:
        """Where in `problems` a problem lies, by its place in the shard's share."""
        at = self.part.group + problem
        return at if self.ring is None else at % self.ring.groups

    def place(self, row: Int[Array, "*r"]) -> Int[Array, "*r"]:
        """Where in the buffers a rollout lies, by its row."""
        return row if self.ring is None else row % self.ring.rows

    def keys(self, group: Int[Array, " R"]) -> PRNGKeyArray:
        """What the draws of each problem's rollouts are made of."""
        return self.key if self.key.ndim == 0 else self.key[group]


def written(slots: Slots) -> tuple[Array, ...]:
    """What a finished slot leaves behind: tokens, logps, kept, stopped, length; and closed, where responses are interrupted."""
    left = slots.tokens, slots.logps, slots.kept, slots.stopped, slots.t
    return left if slots.closed is None else (*left, slots.closed)


@dataclass(frozen=True)
class Engine:
    """One shard's work, piece by piece; `params` are as `Decoding.weights` leaves them, `stacked` has its layers stacked."""

    decoding: Decoding
    geometry: Geometry
    sampling: SamplingConfig
    stops: Stops

    def spans(self, batch: Batch) -> tuple[Array, Array, Array, Array]:
        """(rollouts of a span, spans of a problem, first and last+1 span of the shard)."""
        part, n, W = batch.part, batch.n, self.geometry.width
        lanes = self.decoding.lanes
        count = part.count if batch.ring is None else batch.ring.rows
        size = jnp.int32(1) if W == 1 else jnp.minimum(n, jnp.maximum(W, (count + lanes - 1) // lanes))
        of_problem = (n + size - 1) // size
        first = part.first - part.group * n  # rollouts of its first problem that another shard owns
        last = first + part.count - 1
        ends = (last // n) * of_problem + (last % n) // size + 1
        return size, of_problem, first // size, jnp.where(part.count > 0, ends, 0)

    def begin(self, batch: Batch) -> State:
        """Nothing sampled yet."""
        R, T, Z = self.geometry.slots, self.geometry.response_length, self.decoding.lanes
        T_kept = T if self.sampling.top_p < 1 else 1  # not 0: jax 0.11's XLA crashes on an array without elements that a mesh splits
        zeros = jnp.zeros(R, jnp.int32)
        keys = jax.random.key_data(rollout_keys(batch.keys(zeros), zeros, zeros))
        arrays = jnp.zeros((R, T), jnp.int32), jnp.zeros((R, T), jnp.float32), jnp.ones((R, T_kept), jnp.float32)
        no = jnp.zeros(R, bool)
        slots = Slots(zeros - 1, zeros, zeros, zeros, zeros, no, keys, *arrays, no if self.stops.interruption else None)
        lanes = jnp.zeros(Z, jnp.int32)
        _, _, first, _ = self.spans(batch)
        out = tuple(jnp.zeros((self.geometry.rows, *x.shape[1:]), x.dtype) for x in written(slots))
        empty = self.decoding.empty_cache(), self.decoding.empty_table(self.geometry.prefixes)
        width, compute = self.decoding.decoder.config.width, self.decoding.decoder.options.compute
        last = Last(*(jnp.zeros((count, width), compute) for count in (self.geometry.prefixes, Z)))
        return State(out, slots, *empty, last, Queue(first, jnp.int32(0), lanes, lanes, lanes))

    def working(self, batch: Batch, state: State) -> Bool[Array, ""]:
        """Whether this shard has anything left to do."""
        return (state.queue.queued < self.spans(batch)[3]) | (state.slots.row >= 0).any() | (state.queue.next < state.queue.end).any()

    def prefill(self, params: Params, batch: Batch, state: State) -> State:
        """The prompts that lanes may want at this visit, in the table: blocks of g, as far as there is room."""
        g, G, queue = self.geometry.prompts, self.geometry.prefixes, state.queue
        _, of_problem, _, _ = self.spans(batch)
        next_problem = queue.queued // of_problem
        ahead = next_problem + self.decoding.lanes // of_problem + 2

        def wanted(s: tuple[Cache, Array, Array]) -> Array:
            filled = s[2]
            return (filled < batch.part.groups) & (filled + g - G <= next_problem) & (filled < ahead)

        def block(s: tuple[Cache, Array, Array]) -> tuple[Cache, Array, Array]:
            table, last, filled = s
            group = batch.group(filled + jnp.arange(g))
            entries, of_last = self.decoding.prefill(params, batch.problems.prompts[group], batch.problems.lengths[group])
            table = self.decoding.store(table, entries, filled % G)
            return table, lax.dynamic_update_slice_in_dim(last, of_last, filled % G, 0), filled + g

        table, last, filled = lax.while_loop(wanted, block, (state.table, state.last.table, queue.filled))
        return state._replace(table=table, last=state.last._replace(table=last), queue=queue._replace(filled=filled))

    def admit(self, batch: Batch, state: State) -> State:
        """Free lanes take spans, free slots take rollouts."""
        _, slots, cache, table, last, queue = state
        part, problems, W, lanes = batch.part, batch.problems, self.geometry.width, self.decoding.lanes
        size, of_problem, _, ends = self.spans(batch)
        free = (slots.row < 0).reshape(lanes, W)
        idle = free.all(1) & (queue.next >= queue.end)
        span = queue.queued + jnp.cumsum(idle) - 1
        problem = span // of_problem
        given = idle & (span < ends) & (problem < queue.filled)
        start = problem * batch.n + (span % of_problem) * size - (part.first - part.group * batch.n)
        stop = jnp.minimum(start + size, (problem + 1) * batch.n - (part.first - part.group * batch.n))
        problem = jnp.where(given, problem, queue.problem)
        following = jnp.where(given, jnp.maximum(start, 0), queue.next)
        end = jnp.where(given, jnp.minimum(stop, part.count), queue.end)
        entry = jnp.where(given, problem % self.geometry.prefixes, 0)
        cache = self.decoding.admit(cache, table, entry, given)
        last = last._replace(lanes=jnp.where(given[:, None], last.table[entry], last.lanes))

        row = following[:, None] + jnp.cumsum(free, 1) - 1
        taken = free & (row < end[:, None])
        queue = Queue(queue.queued + given.sum(dtype=jnp.int32), queue.filled, problem, following + taken.sum(1, dtype=jnp.int32), end)
        taken, row = taken.reshape(-1), row.reshape(-1)
        group = jnp.where(taken, batch.group(jnp.repeat(problem, W)), 0)
        length = problems.lengths[group]
        rollout = jnp.where(taken, (part.first + row) % batch.n, 0)
        fresh = jax.random.key_data(rollout_keys(batch.keys(group), problems.ids[group], rollout))
        closed = None if slots.closed is None else False
        begun: tuple[Any, ...] = (row, length, 0, 0, 0, False, fresh, 0, 0.0, 1.0, closed)
        slots = jax.tree.map(lambda old, new: jnp.where(taken.reshape(-1, *(1,) * (old.ndim - 1)), new, old), slots, Slots(*begun))
        return state._replace(slots=slots, cache=cache, last=last, queue=queue)

    def follow(self, state: Int[Array, " R"], token: Int[Array, " R"]) -> tuple[Int[Array, " R"], Bool[Array, " R"]]:
        """The state of the stop strings' automaton after a token, and whether a stop has been met."""
        met = (token[:, None] == jnp.array(self.stops.tokens, jnp.int32)[None]).any(-1)
        if self.stops.table is None:
            return state, met
        state = jnp.asarray(self.stops.table)[state, token].astype(jnp.int32)
        return state, met | (state == len(self.stops.table))

    def decode(
        self, params: Params, slots: Slots, cache: Cache, first: Float[Array, "R D"], ended: Bool[Array, " R"]
    ) -> tuple[Slots, Cache, Bool[Array, " R"]]:
        """One token a slot; those that have ended go through the motions. `first`: the hidden states that first tokens are drawn from.

        Where first tokens are all that is to be drawn, no layer is run: a loop of no steps, which carries the cache as the loop around it
        does. The draw stands behind it, once: in two places XLA rounds it in two ways, and log-probabilities would depend on the slots.
        """
        fresh = slots.t == 0

        def layers(carry: tuple[Array, Array, Cache]) -> tuple[Array, Array, Cache]:
            return jnp.bool_(True), *self.decoding.step(params, carry[2], slots.token, slots.position, jnp.maximum(slots.t - 1, 0))

        _, hidden, cache = lax.while_loop(lambda carry: ~carry[0], layers, ((fresh | ended).all(), first, cache))
        hidden = jnp.where(fresh[:, None], first, hidden)
        T = self.geometry.response_length
        logits = self.decoding.logits(params, hidden)
        log_p = log_probs(logits, self.sampling.temperature)
        writes = (jnp.arange(T)[None] == slots.t[:, None]) & ~ended[:, None]
        if self.sampling.top_p < 1:
            inside, kept = nucleus(logits, log_p, self.sampling.top_p)
            log_p = within(log_p, inside)
            slots = slots._replace(kept=jnp.where(writes, kept[:, None], slots.kept))
        token, logp = draw(log_p, uniforms(jax.random.wrap_key_data(slots.key), slots.t))
        if self.stops.interruption is not None and slots.closed is not None:
            token, logp, closed = interrupt(self.stops.interruption, slots.t, slots.closed, token, logp)
            slots = slots._replace(closed=closed)
        stop, met = self.follow(slots.stop, token)
        slots = slots._replace(
            tokens=jnp.where(writes, token[:, None], slots.tokens),
            logps=jnp.where(writes, logp[:, None], slots.logps),
            position=slots.position + (~ended & (slots.t > 0)),
            token=jnp.where(ended, slots.token, token),
            t=slots.t + ~ended,
            stop=jnp.where(ended, slots.stop, stop),
            stopped=slots.stopped | (~ended & met),
        )
        return slots, cache, ended | slots.stopped | (slots.t >= T)

    def mask(self, lengths: Int[Array, "*r"], closed: Bool[Array, "*r"] | None = None) -> Bool[Array, "*r T"]:
        """Which tokens of finished rollouts were drawn by the policy, from what `written` left of them."""
        T, cut = self.geometry.response_length, self.stops.interruption
        there = leading(lengths, T)
        return there if cut is None or closed is None else there & drawn(cut, closed, T)

    def visit(self, stacked: Params, params: Params, batch: Batch, state: State) -> tuple[State, Int[Array, " R"]]:
        """Prefill, admit, decode, retire; and the rows of the rollouts that finished, -1 for the other slots."""
        R, chunk = self.geometry.slots, min(CHUNK, self.geometry.response_length)
        state = self.admit(batch, self.prefill(stacked, batch, state))
        live = state.slots.row >= 0
        W, lanes = self.geometry.width, self.decoding.lanes
        waiting, following = state.queue.queued < self.spans(batch)[3], jnp.repeat(state.queue.next < state.queue.end, W)
        patience = R if self.geometry.shards == 1 else chunk * R  # several shards wait for one another: all decode a chunk

        def idling(ended: Array) -> Array:
            """How many slots a visit would put to work."""
            free = waiting & jnp.repeat(ended.reshape(lanes, W).all(1), W)
            return (ended & live & (following | free)).sum(dtype=jnp.int32)

        def going(s: tuple[Array, Array, Slots, Cache, Array]) -> Array:
            steps, idle, _, _, ended = s
            return (steps < chunk) & (idle < patience) & ~ended.all()

        def token(s: tuple[Array, Array, Slots, Cache, Array]) -> tuple[Array, Array, Slots, Cache, Array]:
            steps, idle, slots, cache, ended = s
            slots, cache, ended = self.decode(params, slots, cache, first, ended)
            return steps + 1, idle + idling(ended), slots, cache, ended

        first = jnp.repeat(state.last.lanes, W, axis=0)
        start = (jnp.int32(0), jnp.int32(0), state.slots, state.cache, ~live)
        _, _, slots, cache, ended = lax.while_loop(going, token, start)
        row = jnp.where(ended & live, slots.row, -1)
        place = jnp.where(ended & live, batch.place(slots.row), self.geometry.rows)
        out = tuple(buffer.at[place].set(x, mode="drop") for buffer, x in zip(state.out, written(slots), strict=True))
        return state._replace(out=out, slots=slots._replace(row=jnp.where(ended, -1, slots.row)), cache=cache), row


def build_sampler(
    decoder: Decoder, geometry: Geometry, mesh: Mesh, sampling: SamplingConfig, stops: Stops
) -> Callable[[Params, Problems, Array, Array, PRNGKeyArray], Rollouts]:
    """`sample(params, problems, B_p, n, key) -> Rollouts`, to be called inside a jit."""
    assert geometry.shards == shard_count(mesh), (geometry.shards, mesh)
    engine = build_engine(decoder, geometry, mesh, sampling, stops)

    def sample_shard(params: Params, problems: Problems, shard: Array, B_p: Array, n: Array, key: Array) -> tuple[Array, ...]:
        batch = Batch(problems, share(shard[0], geometry.shards, B_p, n), n, jax.random.wrap_key_data(key))
        params = gathered(params, specs, decoder.options.compute)
        weights = engine.decoding.weights(params)

        def working(state: State) -> Array:
            mine = engine.working(batch, state)
            return lax.psum(mine.astype(jnp.int32), ROWS) > 0 if geometry.shards > 1 else mine

        stacked = params if engine.decoding.unrolled else weights
        state = lax.while_loop(working, lambda s: engine.visit(stacked, weights, batch, s)[0], engine.begin(batch))
        tokens, logps, kept, ended, lengths, *closed = state.out
        return tuple(x[None] for x in (tokens, logps, engine.mask(lengths, *closed), kept, ended, lengths))

    rows, specs = P(ROWS), partitions(decoder.shapes(), decoder.logical_axes(), mesh)
    sharded = shard_map(
        sample_shard,
        mesh=mesh,
        in_specs=(jax.tree.map(manual_part, specs), P(), rows, P(), P(), P()),
        out_specs=(rows,) * len(Rollouts._fields),
        axis_names=set(ROWS),
        check_vma=False,
    )

    def sample(params: Params, problems: Problems, B_p: Array, n: Array, key: PRNGKeyArray) -> Rollouts:
        shards = jnp.arange(geometry.shards, dtype=jnp.int32)
        return Rollouts(*sharded(params, problems, shards, B_p, n, jax.random.key_data(key)))

    return sample


def build_engine(
    decoder: Decoder, geometry: Geometry, mesh: Mesh, sampling: SamplingConfig, stops: Stops, few: bool | None = None
) -> Engine:
    """The engine for the mesh's devices: layers unrolled on a CPU, stacked elsewhere, and for an int8 cache.

    few: `Geometry.few` of one update's batch, where `geometry` is of several; by default the geometry's own.

    Raises:
        InputError: the mesh splits positions, and attention is a kernel's, or the cache int8.
    """
    split, options = splits_positions(mesh), decoder.options
    if split and (options.decode != "plain" or options.cache == "int8"):
        raise InputError(
            f"sweep.decode_attention={options.decode} with cell.precision.cache={options.cache} on a sampler's mesh with sequence > 1: "
            "kernels and int8 caches hold prompt and response together, which cannot be split here. Expected plain, and float32 or "
            "bfloat16; or a mesh without sequence."
        )
    unrolled = mesh.devices.flat[0].platform == "cpu" and decoder.options.cache != "int8"
    lengths = padded(geometry.prompt_length, mesh), geometry.response_length
    decoding = Decoding(decoder, geometry.slots, geometry.width, *lengths, unrolled, split, geometry.few if few is None else few)
    return Engine(decoding, geometry, sampling, stops)
