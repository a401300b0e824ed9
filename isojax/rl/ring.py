"""The compiled programs of a pipeline's sampler (rl/ahead.py): rollouts that never end, in buffers that are rings.

A shard of the sampler's mesh has places for k + 1 batches: batch b has the groups and rows of place b modulo k + 1. Within a place its
rollouts lie as in any batch, shard s with the contiguous block s; whole groups are dealt to shards, so that B_p divides by them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.config import SamplingConfig
from isojax.models.decoder import Decoder, Params
from isojax.sampling.batch import Geometry, Problems, Rollouts, make_geometry, share
from isojax.sampling.sampler import Batch, Ring, State, build_engine
from isojax.sampling.stream import build_weights, joined, own_part, state_shardings, state_specs
from isojax.sharding import ROWS, replicated, shard_count
from isojax.tasks.stops import Stops
from isojax.types import InputError


@dataclass(frozen=True)
class SamplerSpec:
    """What a sampler's programs are made of, wherever they run: k, the policy, the trainer's geometry, every (B_p, n) of the sweep, and
    how rollouts are drawn and end."""

    k: int
    decoder: Decoder
    geometry: Geometry
    pairs: tuple[tuple[int, int], ...]
    sampling: SamplingConfig
    stops: Stops

    def rows(self, shards: int) -> int:
        """Rows that a batch may have on one of the sampler's shards."""
        return -(-self.geometry.B_cap // shards)


class Given(NamedTuple):
    """What the sampler reads: weights as `Engine.visit` takes them; by shard, the problems in the ring and the data of their keys; how many
    groups a shard may begin, how many a batch gives it, and n; whether the weights are new since the last visit."""

    stacked: Params
    weights: Params
    problems: Problems
    keys: Any
    limit: Any
    groups: Any
    n: Any
    renewed: Any


class Seen(NamedTuple):
    """A visit's slots, [S R ...]: rows that finished (-1: none), rows that slots were at, response tokens so far, and these tokens."""

    finished: Any
    at: Any
    lengths: Any
    tokens: Any


class SamplerPrograms:
    """The compiled programs of a sweep's samplers on one mesh: `begin` makes their state, `prepare` weights of parameters, `visit` goes on,
    and `cut` takes a batch's rows out."""

    def __init__(self, spec: SamplerSpec, mesh: Mesh):
        self.spec, self.mesh, self.shards = spec, mesh, shard_count(mesh)
        geometry, places = spec.geometry, spec.k + 1
        at_once = math.gcd(geometry.prompts, *(B_p // self.shards for B_p, _ in spec.pairs))  # so that a block of prompts ends with a batch
        lengths = geometry.prompt_length, geometry.response_length
        in_ring = [(B_p * places, n) for B_p, n in spec.pairs]
        self.ring = make_geometry(in_ring, self.shards, geometry.slots, geometry.microbatch, *lengths, at_once, geometry.width)
        self.engine = build_engine(spec.decoder, self.ring, mesh, spec.sampling, spec.stops, geometry.few)
        self.by_shard = NamedSharding(mesh, P(ROWS))
        lies = state_shardings(self.engine, mesh)
        self.params = spec.decoder.shardings(mesh)
        self.prepare = build_weights(self.engine, mesh)
        over = partial(shard_map, mesh=mesh, axis_names=set(ROWS), check_vma=False)
        rows = P(ROWS)
        given = Given(P(), P(), rows, rows, P(), P(), P(), P())  # pyright: ignore[reportArgumentType]  # specs in the places of arrays
        states = state_specs(self.engine)
        self.begin = jax.jit(over(self._begin, in_specs=rows, out_specs=states), out_shardings=lies)
        visit = over(self._visit, in_specs=(given, states), out_specs=(states, rows))
        self.visit = jax.jit(visit, donate_argnums=1, out_shardings=(lies, self.by_shard))
        self.cut = jax.jit(self._cut, out_shardings=replicated(mesh))

    def _batch(self, given: Given) -> Batch:
        """A shard's view of the ring."""
        zero = jnp.int32(0)
        part = share(zero, 1, given.limit, given.n)
        places = given.groups * (self.spec.k + 1)
        problems, keys = jax.tree.map(lambda x: x[0], (given.problems, given.keys))
        return Batch(problems, part, given.n, jax.random.wrap_key_data(keys), Ring(places, places * given.n))

    def _begin(self, shard: Array) -> State:
        nothing = Problems(*[np.zeros(0, np.int32)] * len(Problems._fields))
        one = jnp.int32(1)
        state = self.engine.begin(Batch(nothing, share(shard[0] * 0, 1, one * 0, one), one, jax.random.key(0)))
        return joined(state)

    def _visit(self, given: Given, state: State) -> tuple[State, Seen]:
        batch, state = self._batch(given), own_part(state)
        g, queue = self.ring.prompts, state.queue
        waiting = queue.queued // self.engine.spans(batch)[1] // g * g  # the block of the next prompt to begin
        filled = jnp.where(given.renewed, jnp.minimum(queue.filled, waiting), queue.filled)  # what old weights read ahead is read anew
        state, finished = self.engine.visit(given.stacked, given.weights, batch, state._replace(queue=queue._replace(filled=filled)))
        slots = state.slots
        seen = Seen(finished, jnp.where(finished >= 0, finished, slots.row), slots.t, slots.tokens)
        return joined(state), jax.tree.map(lambda x: x[None], seen)

    def _cut(self, out: tuple[Array, ...], first: Array) -> Rollouts:
        """A batch's rows of the ring, from `first` on: [S, rows a batch may have, ...]."""
        size = self.spec.rows(self.shards)
        tokens, logps, kept, ended, lengths, *closed = (lax.dynamic_slice_in_dim(x, first, size, 1) for x in out)
        return Rollouts(tokens, logps, self.engine.mask(lengths, *closed), kept, ended, lengths)


def refuse_uneven(pairs: Sequence[tuple[int, int]], shards: int) -> None:
    """InputError where a batch's problems cannot be dealt to the sampler's shards."""
    if bad := next((B_p for B_p, _ in pairs if B_p % shards), None):
        raise InputError(
            f"cell.rl.pipeline: sweep.B_p = {bad} is no multiple of the {shards} shards (data x fsdp) of the mesh that samples; a pipeline "
            "deals whole groups to shards. Change B_p or the mesh."
        )
