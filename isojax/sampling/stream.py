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


def own_part(state: State) -> State:
    """A shard's State out of that which lies between two visits, in a shard_map."""
    return _but_caches(lambda x: x[0], state)


def joined(state: State) -> State:
    """The inverse of `own_part`."""
    return _but_caches(lambda x: x[None], state)


def _but_caches(change: Callable[[Array], Array], state: State) -> State:
    return jax.tree.map(change, state._replace(cache=(), table=()))._replace(cache=state.cache, table=state.table)


def _rows_axis(engine: Engine) -> int:
    """Of slots, lanes and a table's entries in each array of a cache: [R K ...], or [L R K ...]."""
    return 0 if engine.decoding.unrolled else 1


def state_specs(engine: Engine) -> Any:
    """How a shard_map over ROWS takes the State that lies between two visits: see `state_shapes`."""
    rows, caches = P(ROWS), P(*[None] * _rows_axis(engine), ROWS)
    return State(out=rows, slots=rows, cache=caches, table=caches, last=rows, queue=rows)  # pyright: ignore[reportArgumentType]  # in arrays' places


def state_shapes(engine: Engine) -> Any:
    """A State between two visits, of all shards: with a leading axis of them; but caches and table have the rows of all shards on one axis.

    An axis of length 1 that comes or goes there made XLA copy the caches of models with one head a device, at each visit.
    """
    shards, axis = engine.geometry.shards, _rows_axis(engine)
    nothing = Problems(*[np.zeros(0, np.int32)] * len(Problems._fields))

    def begin(zero: Array) -> State:
        return engine.begin(Batch(nothing, share(zero, shards, zero, zero + 1), zero + 1, jax.random.key(0)))

    def of_all(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*x.shape[:axis], shards * x.shape[axis], *x.shape[axis + 1 :]), x.dtype)

    own = jax.eval_shape(begin, jax.ShapeDtypeStruct((), jnp.int32))
    rest = jax.tree.map(lambda x: jax.ShapeDtypeStruct((shards, *x.shape), x.dtype), own._replace(cache=(), table=()))
    return rest._replace(cache=jax.tree.map(of_all, own.cache), table=jax.tree.map(of_all, own.table))


def state_shardings(engine: Engine, mesh: Mesh) -> Any:
    """Where a State lies between two visits: shards (or their rows) over ROWS; heads of caches and table over tensor; positions of prompts
    that lie apart over sequence."""
    axis = _rows_axis(engine)
    shapes = state_shapes(engine)

    def lies(x: jax.ShapeDtypeStruct, names: Mapping[int, str | None]) -> NamedSharding:
        return NamedSharding(mesh, partition([names.get(i) for i in range(x.ndim)], x.shape, mesh))

    def layers(entries: Any, positions: str | None) -> Any:
        def layer(arrays: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[NamedSharding, ...]:
            named = zip(arrays, POSITIONS, strict=False)
            return tuple(lies(x, {axis: "shard", axis + 1: "kv_heads", x.ndim + at: positions}) for x, at in named)

        return jax.tree.map(layer, entries, is_leaf=lambda x: isinstance(x, tuple))

    cache = Cache(layers(shapes.cache.own, None), layers(shapes.cache.shared, "position"))
    rest = jax.tree.map(partial(lies, names={0: "shard"}), shapes._replace(cache=(), table=()))
    return rest._replace(cache=cache, table=layers(shapes.table, "position"))


def _shard_programs(engine: Engine, mesh: Mesh) -> tuple[Callable[..., State], Callable[[Given, State], tuple[State, Finished]]]:
    """`start(problems, B_p, n, key data) -> State` and `step(given, state) -> (State, Finished)`, over all shards, to be jitted."""
    shards = engine.geometry.shards

    def batch(shard: Array, problems: Problems, B_p: Array, n: Array, key: Array) -> Batch:
        return Batch(problems, share(shard[0], shards, B_p, n), n, jax.random.wrap_key_data(key))

    def start_shard(shard: Array, *fixed: Any) -> State:
        return joined(engine.begin(batch(shard, *fixed)))

    def step_shard(shard: Array, given: Given, state: State) -> tuple[State, Finished]:
        mine = batch(shard, given.problems, given.B_p, given.n, given.key)
        state, row = engine.visit(given.stacked, given.weights, mine, own_part(state))
        left = engine.working(mine, state).astype(jnp.int32)
        left = lax.psum(left, ROWS) if engine.geometry.shards > 1 else left  # with tensor alone split, XLA cannot compile the sum
        found = Finished(row, state.slots.tokens, state.slots.t, left > 0)
        return joined(state), jax.tree.map(lambda x: x[None], found)

    rows, over = P(ROWS), partial(shard_map, mesh=mesh, axis_names=set(ROWS), check_vma=False)
    states = state_specs(engine)
    started = over(start_shard, in_specs=(rows, P(), P(), P(), P()), out_specs=states)
    stepped = over(step_shard, in_specs=(rows, P(), states), out_specs=(states, rows))

    def start(*fixed: Any) -> State:
        return started(jnp.arange(shards, dtype=jnp.int32), *fixed)

    def step(given: Given, state: State) -> tuple[State, Finished]:
        return stepped(jnp.arange(shards, dtype=jnp.int32), given, state)

    return start, step
