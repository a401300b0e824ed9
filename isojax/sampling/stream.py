"""The sampler as the host drives it, one visit to the queue after another: what has finished is told while the rest decodes.

The rollouts are those of `build_sampler`, bit for bit. Its loop over visits is here the host's:

    begin    weights cast and gathered once, problems put in place, nothing sampled yet
    advance  one visit: at most CHUNK tokens a slot; the state is donated, and stays where it is: cache and slots on their shard's
             devices, keys and values split over tensor by their heads, those of prompts over sequence by their positions
    finish   the rollouts

The host asks for the next visit before it looks at what the last one finished, so that the devices never wait for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PRNGKeyArray

from isojax import hosts
from isojax.config import SamplingConfig
from isojax.models.decoder import Decoder, Params
from isojax.models.decoding import POSITIONS, Cache
from isojax.sampling.batch import Geometry, Problems, Rollouts, numbers, share
from isojax.sampling.sampler import Batch, Engine, State, build_engine
from isojax.sharding import ROWS, gathered, partition, replicated, shard_count
from isojax.tasks.stops import Stops

Told = Callable[[np.ndarray, list[np.ndarray]], None]


class Given(NamedTuple):
    """What stays as it is through a batch, on the devices: parameters for prompts (stacked) and for `step`, the problems, B_p and n, and
    the data of the key."""

    stacked: Params
    weights: Params
    problems: Problems
    B_p: Array
    n: Array
    key: Array


class Finished(NamedTuple):
    """What a visit leaves in the slots.

    Attributes:
        rows: i32[S R], the row of the rollout that each slot has finished; -1 where it has finished none.
        tokens: i32[S R T].
        lengths: i32[S R], how many of them are there.
        working: bool[S], all alike: whether any shard has anything left to do.
    """

    rows: Array
    tokens: Array
    lengths: Array
    working: Array


@dataclass(frozen=True)
class Stream:
    """A batch's sampling in steps that the host takes. All three are compiled for a sweep, as B_p, n and the key are traced.

    begin(params, problems, B_p, n, key) -> given, state; advance(given, state) -> state, what has finished, with the state donated;
    finish(state) -> rollouts.
    """

    begin: Callable[[Params, Problems, Any, Any, PRNGKeyArray], tuple[Given, State]]
    advance: Callable[[Given, State], tuple[State, Finished]]
    finish: Callable[[State], Rollouts]

    def run(self, params: Params, problems: Problems, B_p: int, n: int, key: PRNGKeyArray, told: Told) -> Rollouts:
        """All rollouts; `told(rollouts i32[k], their response tokens)` after each visit, while the next one runs."""
        given, state = self.begin(params, problems, np.int32(B_p), np.int32(n), key)
        state, found = self.advance(given, state)
        working = True
        while working:
            state, following = self.advance(given, state)  # the last one finds nothing to do
            hosts.fetch(following)
            shards, rows = hosts.rows_here(found.rows)
            (_, tokens), (_, lengths) = hosts.rows_here(found.tokens), hosts.rows_here(found.lengths)
            rollouts = numbers(rows, B_p * n, shards, found.rows.shape[0])
            done = np.nonzero(rows >= 0)
            told(rollouts[done], [row[:length] for row, length in zip(tokens[done], lengths[done], strict=True)])
            found, working = following, bool(np.asarray(found.working.addressable_shards[0].data).any())
        return self.finish(state)


def build_stream(decoder: Decoder, geometry: Geometry, mesh: Mesh, sampling: SamplingConfig, stops: Stops) -> Stream:
    """The Stream of these shapes on this mesh; its programs are compiled when they are first called."""
    assert geometry.shards == shard_count(mesh), (geometry.shards, mesh)
    engine = build_engine(decoder, geometry, mesh, sampling, stops)
    lies, rows = state_shardings(engine, mesh), NamedSharding(mesh, P(ROWS))
    start, step = _shard_programs(engine, mesh)

    def placed(problems: Problems, B_p: Array, n: Array, key: PRNGKeyArray) -> tuple[tuple[Any, ...], State]:
        fixed = (problems, B_p, n, jax.random.key_data(key))
        return fixed, start(*fixed)

    prepare = build_weights(engine, mesh)
    place = jax.jit(placed, out_shardings=(replicated(mesh), lies))
    advance: Callable[..., tuple[State, Finished]] = jax.jit(step, donate_argnums=1, out_shardings=(lies, rows))
    masks = jax.jit(engine.mask, out_shardings=rows)

    def begin(params: Params, problems: Problems, B_p: Any, n: Any, key: PRNGKeyArray) -> tuple[Given, State]:
        fixed, state = place(problems, B_p, n, key)
        return Given(*prepare(params), *fixed), state

    def finish(state: State) -> Rollouts:
        tokens, logps, kept, ended, lengths, *closed = state.out
        return Rollouts(tokens, logps, masks(lengths, *closed), kept, ended, lengths)

    return Stream(begin, advance, finish)


def build_weights(engine: Engine, mesh: Mesh) -> Callable[[Params], tuple[Params, Params]]:
    """`prepare(params) -> (stacked, weights)` as `Engine.visit` takes them: cast, and whole along the axes that split rollouts."""
    decoder = engine.decoding.decoder
    given = decoder.shardings(mesh)
    whole = jax.tree.map(gathered, given)
    gather: Callable[[Params], Params] = jax.jit(decoder.cast, in_shardings=(given,), out_shardings=whole)
    weigh: Callable[[Params], Params] = jax.jit(engine.decoding.weights, in_shardings=(whole,))
    as_given = given == whole and jnp.dtype(decoder.options.compute) == jnp.float32  # nothing to gather or cast, so no copy is made

    def prepare(params: Params) -> tuple[Params, Params]:
        stacked = params if as_given else gather(params)
        weights = weigh(stacked)
        return (stacked if engine.decoding.unrolled else weights), weights

    return prepare


def state_shardings(engine: Engine, mesh: Mesh) -> Any:
    """Where a State lies between two visits: a leading axis of shards, over ROWS; of caches and table also the heads, over tensor, and of
    prompts that lie apart also the positions, over sequence."""
    geometry = engine.geometry
    nothing = Problems(*[np.zeros(0, np.int32)] * len(Problems._fields))

    def begin(zero: Array) -> State:
        return engine.begin(Batch(nothing, share(zero, geometry.shards, zero, zero + 1), zero + 1, jax.random.key(0)))

    def lies(x: jax.ShapeDtypeStruct, names: Mapping[int, str | None]) -> NamedSharding:
        named = ["shard", *(names.get(i) for i in range(x.ndim))]
        return NamedSharding(mesh, partition(named, (geometry.shards, *x.shape), mesh))

    def layers(entries: Any, positions: str | None) -> Any:
        heads = 1 if engine.decoding.unrolled else 2  # [R K ...] or [L R K ...]

        def layer(arrays: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[NamedSharding, ...]:
            named = zip(arrays, POSITIONS, strict=False)
            return tuple(lies(x, {heads: "kv_heads", x.ndim + at: positions}) for x, at in named)

        return jax.tree.map(layer, entries, is_leaf=lambda x: isinstance(x, tuple))

    shapes = jax.eval_shape(begin, jax.ShapeDtypeStruct((), jnp.int32))
    cache = Cache(layers(shapes.cache.own, None), layers(shapes.cache.shared, "position"))
    rest = {"cache": cache, "table": layers(shapes.table, "position")}
    return State(**{n: rest[n] if n in rest else jax.tree.map(partial(lies, names={}), x) for n, x in shapes._asdict().items()})


def _shard_programs(engine: Engine, mesh: Mesh) -> tuple[Callable[..., State], Callable[[Given, State], tuple[State, Finished]]]:
    """`start(problems, B_p, n, key data) -> State` and `step(given, state) -> (State, Finished)`, over all shards, to be jitted."""
    shards = engine.geometry.shards

    def batch(shard: Array, problems: Problems, B_p: Array, n: Array, key: Array) -> Batch:
        return Batch(problems, share(shard[0], shards, B_p, n), n, jax.random.wrap_key_data(key))

    def start_shard(shard: Array, *fixed: Any) -> State:
        return jax.tree.map(lambda x: x[None], engine.begin(batch(shard, *fixed)))

    def step_shard(shard: Array, given: Given, state: State) -> tuple[State, Finished]:
        mine = batch(shard, given.problems, given.B_p, given.n, given.key)
        state, row = engine.visit(given.stacked, given.weights, mine, jax.tree.map(lambda x: x[0], state))
        left = engine.working(mine, state).astype(jnp.int32)
        left = lax.psum(left, ROWS) if engine.geometry.shards > 1 else left  # with tensor alone split, XLA cannot compile the sum
        found = Finished(row, state.slots.tokens, state.slots.t, left > 0)
        return jax.tree.map(lambda x: x[None], (state, found))

    rows, over = P(ROWS), partial(shard_map, mesh=mesh, axis_names=set(ROWS), check_vma=False)
    started = over(start_shard, in_specs=(rows, P(), P(), P(), P()), out_specs=rows)
    stepped = over(step_shard, in_specs=(rows, P(), rows), out_specs=rows)

    def start(*fixed: Any) -> State:
        return started(jnp.arange(shards, dtype=jnp.int32), *fixed)

    def step(given: Given, state: State) -> tuple[State, Finished]:
        return stepped(jnp.arange(shards, dtype=jnp.int32), given, state)

    return start, step
