"""The rollout engine: one compiled program for a whole sweep, whatever B_p and n.

It is one shard_map, manual over data and fsdp (each shard has its own slots, queue and prefix table) and automatic over tensor.
Rollouts are numbered r = 0 .. B_p n - 1, group = r // n; shard s owns the contiguous block [s b, (s+1) b), b = ceil(B / S), so a
group may lie on two shards and is then prefilled on both. Inside a shard:

    while any slot of any shard works:
        prefill the next g prompts, while the queue is about to need them (each problem once, never n times)
        admit: free slots take the next rollouts of the queue and copy their prompt's keys and values
        decode `chunk` tokens
        retire: finished slots write their rollout and are free

The buffers carry padding rows, because a dynamic slice past the end of an array is moved back in silence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from isojax.config import SamplingConfig
from isojax.models.decoder import Decoder, Params
from isojax.sampling.logits import draw, log_probs, nucleus, rollout_keys, uniforms, within
from isojax.sharding import ROWS, shard_count
from isojax.tasks.stops import Stops

CHUNK = 32  # tokens decoded between two visits to the queue


@dataclass(frozen=True)
class Geometry:
    """The static shapes of a sweep's programs; B_p and n are not among them.

    slots (R), microbatch (m), prompts (g) and prefixes (G) count rows of one shard; B_cap and Q_cap are the most rollouts and
    problems of a batch over all shards.
    """

    shards: int
    slots: int
    microbatch: int
    prompts: int
    prefixes: int
    B_cap: int
    Q_cap: int
    prompt_length: int
    response_length: int

    @property
    def rows(self) -> int:
        """Rows of a shard's rollout buffers, padding included."""
        return -(-self.B_cap // self.shards) + max(self.slots, self.microbatch)

    @property
    def problem_rows(self) -> int:
        """Rows of the problem buffers, padding included."""
        return self.Q_cap + self.prompts


def make_geometry(
    cells: list[tuple[int, int]], shards: int, slots: int, microbatch: int, prompt_length: int, response_length: int, prompts: int = 4
) -> Geometry:
    """The geometry that serves every (B_p, n) of `cells`; the prefix table holds what the slots can need at once, and a block more."""
    n_min = min(n for _, n in cells)
    Q_cap = max(B_p for B_p, _ in cells)
    per_shard = -(-Q_cap // shards) + (shards > 1)
    G = prompts * -(-(min(slots // n_min + 2, per_shard) + prompts) // prompts)
    return Geometry(shards, slots, microbatch, prompts, G, max(B_p * n for B_p, n in cells), Q_cap, prompt_length, response_length)


class Problems(NamedTuple):
    """A batch of problems, padded to `problem_rows`: prompts i32[Q P] right-padded, lengths i32[Q], answers i32[Q T], ids i32[Q]."""

    prompts: Array | np.ndarray
    lengths: Array | np.ndarray
    answers: Array | np.ndarray
    ids: Array | np.ndarray


class Rollouts(NamedTuple):
    """What was sampled, by shard.

    Attributes:
        tokens: i32[S rows T].
        logps: f32[S rows T], their log-probabilities at the sampling temperature and top-p.
        mask: bool[S rows T], which tokens count.
        kept: f32[S rows T], the probability mass of each token's nucleus; [S rows 1], all ones, where top_p is 1.
        ended: bool[S rows], whether a stop ended the response (else it was cut at T).
    """

    tokens: Array
    logps: Array
    mask: Array
    kept: Array
    ended: Array


class Share(NamedTuple):
    """A shard's part of a batch: its rollouts are first .. first+count-1, its groups group .. group+groups-1."""

    first: Array
    count: Array
    group: Array
    groups: Array


def share(shard: Int[Array, ""], shards: int, B_p: Int[Array, ""], n: Int[Array, ""]) -> Share:
    """The contiguous block of rollouts that a shard owns."""
    B = B_p * n
    block = (B + shards - 1) // shards
    first = shard * block
    count = jnp.clip(B - first, 0, block)
    group = jnp.minimum(first // n, B_p)
    last = (first + jnp.maximum(count, 1) - 1) // n
    return Share(first, count, group, jnp.where(count > 0, last - group + 1, 0))


def batch_rows(geometry: Geometry, B_p: Int[Array, ""], n: Int[Array, ""]) -> tuple[Int[Array, "S rows"], Bool[Array, "S rows"]]:
    """For every row of the rollout buffers: the group it belongs to (0 where none does) and whether it holds a rollout."""
    part = share(jnp.arange(geometry.shards), geometry.shards, B_p, n)
    row = jnp.arange(geometry.rows)[None]
    live = row < part.count[:, None]
    return jnp.where(live, (part.first[:, None] + row) // n, 0), live


def places(B: int, shards: int) -> tuple[np.ndarray, np.ndarray]:
    """(shard, row) in the rollout buffers of rollouts 0 .. B-1, each i32[B]."""
    return np.divmod(np.arange(B), max(1, -(-B // shards)))


def responses(rollouts: Rollouts, B: int) -> list[np.ndarray]:
    """On the host, the response tokens of rollouts 0 .. B-1, each i32[its length]."""
    at = places(B, rollouts.tokens.shape[0])
    tokens, lengths = np.asarray(rollouts.tokens)[at], np.asarray(rollouts.mask)[at].sum(-1)
    return [row[:length] for row, length in zip(tokens, lengths, strict=True)]


def place_rewards(geometry: Geometry, rewards: np.ndarray) -> np.ndarray:
    """Rewards of rollouts 0 .. B-1 in the rows of the rollout buffers, f32[S rows]; 0 elsewhere."""
    out = np.zeros((geometry.shards, geometry.rows), np.float32)
    out[places(len(rewards), geometry.shards)] = rewards
    return out


class _Slots(NamedTuple):
    """One shard's slots. row -1: free. `t` counts response tokens; `token` is the next input, at `position`; `stop` is where the
    automaton of the stop strings stands, `stopped` whether a stop has been met."""

    row: Int[Array, " R"]
    position: Int[Array, " R"]
    token: Int[Array, " R"]
    t: Int[Array, " R"]
    stop: Int[Array, " R"]
    stopped: Bool[Array, " R"]
    key: PRNGKeyArray
    tokens: Int[Array, "R T"]
    logps: Float[Array, "R T"]
    kept: Float[Array, "R _"]


def build_sampler(
    decoder: Decoder, geometry: Geometry, mesh: Mesh, sampling: SamplingConfig, stops: Stops
) -> Callable[[Params, Problems, Array, Array, PRNGKeyArray], Rollouts]:
    """`sample(params, problems, B_p, n, key) -> Rollouts`, to be called inside a jit."""
    assert geometry.shards == shard_count(mesh), (geometry.shards, mesh)
    R, g, G, T = geometry.slots, geometry.prompts, geometry.prefixes, geometry.response_length
    chunk = min(CHUNK, T)
    n_prefix = geometry.prompt_length - 1
    T_kept = T if sampling.top_p < 1 else 1  # not 0: jax 0.11's XLA crashes on an array without elements that a mesh splits

    automaton = None if stops.table is None else jnp.asarray(stops.table)

    def follow(state: Array, token: Array) -> tuple[Array, Array]:
        """The state of the stop strings' automaton after a token, and whether a stop has been met."""
        met = (token[:, None] == jnp.array(stops.tokens, jnp.int32)[None]).any(-1)
        if automaton is None:
            return state, met
        state = automaton[state, token].astype(jnp.int32)
        return state, met | (state == len(automaton))

    def written(slots: _Slots) -> tuple[Array, ...]:
        """What a finished slot leaves behind."""
        return slots.tokens, slots.logps, slots.kept, slots.stopped, slots.t

    def prefill(
        params: Params, problems: Problems, part: Share, table: tuple[Array, Array], filled: Array
    ) -> tuple[tuple[Array, Array], Array]:
        prompts = lax.dynamic_slice_in_dim(problems.prompts, part.group + filled, g)
        keys, values = decoder.prefix_cache(params, prompts)
        at = filled % G
        table = (lax.dynamic_update_slice_in_dim(table[0], keys, at, 1), lax.dynamic_update_slice_in_dim(table[1], values, at, 1))
        return table, filled + g

    def admit(problems: Problems, part: Share, n: Array, key: PRNGKeyArray, state: tuple) -> tuple:
        slots, cache, table, queued, filled = state
        free = slots.row < 0
        row = queued + jnp.cumsum(free) - 1
        local = (part.first + row) // n - part.group
        taken = free & (row < part.count) & (local < filled)
        group = jnp.where(taken, part.group + local, 0)
        rollout = jnp.where(taken, (part.first + row) % n, 0)
        last = problems.lengths[group] - 1
        entry = jnp.where(taken, local % G, 0)
        chosen = taken.reshape(1, R, 1, 1, 1)
        cache = tuple(
            c.at[:, :, :, :n_prefix].set(jnp.where(chosen, t[:, entry], c[:, :, :, :n_prefix])) for c, t in zip(cache, table, strict=True)
        )
        fresh = rollout_keys(key, problems.ids[group], rollout)
        slots = _Slots(
            row=jnp.where(taken, row, slots.row),
            position=jnp.where(taken, last, slots.position),
            token=jnp.where(taken, problems.prompts[group, last], slots.token),
            t=jnp.where(taken, 0, slots.t),
            stop=jnp.where(taken, 0, slots.stop),
            stopped=slots.stopped & ~taken,
            key=jax.random.wrap_key_data(jnp.where(taken[:, None], jax.random.key_data(fresh), jax.random.key_data(slots.key))),
            tokens=jnp.where(taken[:, None], 0, slots.tokens),
            logps=jnp.where(taken[:, None], 0.0, slots.logps),
            kept=jnp.where(taken[:, None], 1.0, slots.kept),
        )
        return slots, cache, table, queued + taken.sum(dtype=jnp.int32), filled

    def decode(params: Params, slots: _Slots, cache: tuple[Array, Array], ended: Array) -> tuple[_Slots, tuple[Array, Array], Array]:
        hidden, cache = decoder.decode_step(params, cache, slots.token, slots.position)
        logits = decoder.logits(params, hidden)
        log_p = log_probs(logits, sampling.temperature)
        writes = (jnp.arange(T)[None] == slots.t[:, None]) & ~ended[:, None]
        if sampling.top_p < 1:
            inside, kept = nucleus(logits, log_p, sampling.top_p)
            log_p = within(log_p, inside)
            slots = slots._replace(kept=jnp.where(writes, kept[:, None], slots.kept))
        token, logp = draw(log_p, uniforms(slots.key, slots.t))
        stop, met = follow(slots.stop, token)
        slots = slots._replace(
            tokens=jnp.where(writes, token[:, None], slots.tokens),
            logps=jnp.where(writes, logp[:, None], slots.logps),
            position=slots.position + ~ended,
            token=jnp.where(ended, slots.token, token),
            t=slots.t + ~ended,
            stop=jnp.where(ended, slots.stop, stop),
            stopped=slots.stopped | (~ended & met),
        )
        return slots, cache, ended | slots.stopped | (slots.t >= T)

    def sample_shard(params: Params, problems: Problems, shard: Array, B_p: Array, n: Array, key_data: Array) -> tuple[Array, ...]:
        key = jax.random.wrap_key_data(key_data)
        part = share(shard[0], geometry.shards, B_p, n)
        slots = _Slots(
            row=jnp.full(R, -1, jnp.int32),
            position=jnp.zeros(R, jnp.int32),
            token=jnp.zeros(R, jnp.int32),
            t=jnp.zeros(R, jnp.int32),
            stop=jnp.zeros(R, jnp.int32),
            stopped=jnp.zeros(R, bool),
            key=rollout_keys(key, jnp.zeros(R, jnp.int32), jnp.zeros(R, jnp.int32)),
            tokens=jnp.zeros((R, T), jnp.int32),
            logps=jnp.zeros((R, T), jnp.float32),
            kept=jnp.ones((R, T_kept), jnp.float32),
        )
        dtype = params["embed"].dtype
        cache = decoder.empty_cache(R, geometry.prompt_length + T, dtype)
        table = decoder.empty_cache(G, n_prefix, dtype)
        out = tuple(jnp.zeros((geometry.rows, *x.shape[1:]), x.dtype) for x in written(slots))

        def working(state: tuple) -> Array:
            _, slots, _, _, queued, _ = state
            mine = (queued < part.count) | (slots.row >= 0).any()
            return lax.psum(mine.astype(jnp.int32), ROWS) > 0 if geometry.shards > 1 else mine

        def visit(state: tuple) -> tuple:
            out, slots, cache, table, queued, filled = state

            def wants_prefill(s: tuple) -> Array:
                filled = s[1]
                next_group = (part.first + queued) // n - part.group
                return (filled < part.groups) & (filled + g - G <= next_group) & (filled < next_group + R // n + 2)

            table, filled = lax.while_loop(wants_prefill, lambda s: prefill(params, problems, part, *s), (table, filled))
            slots, cache, table, queued, filled = admit(problems, part, n, key, (slots, cache, table, queued, filled))

            def token_step(s: tuple) -> tuple:
                return (s[0] + 1, *decode(params, *s[1:]))

            start = (jnp.int32(0), slots, cache, slots.row < 0)
            _, slots, cache, ended = lax.while_loop(lambda s: (s[0] < chunk) & ~s[3].all(), token_step, start)
            row = jnp.where(ended & (slots.row >= 0), slots.row, geometry.rows)
            out = tuple(buffer.at[row].set(x, mode="drop") for buffer, x in zip(out, written(slots), strict=True))
            return out, slots._replace(row=jnp.where(ended, -1, slots.row)), cache, table, queued, filled

        (tokens, logps, kept, ended, lengths), *_ = lax.while_loop(working, visit, (out, slots, cache, table, jnp.int32(0), jnp.int32(0)))
        return tuple(x[None] for x in (tokens, logps, jnp.arange(T)[None] < lengths[:, None], kept, ended))

    rows = P(ROWS)
    sharded = shard_map(
        sample_shard,
        mesh=mesh,
        in_specs=(P(), P(), rows, P(), P(), P()),
        out_specs=(rows,) * len(Rollouts._fields),
        axis_names=set(ROWS),
        check_vma=False,
    )

    def sample(params: Params, problems: Problems, B_p: Array, n: Array, key: PRNGKeyArray) -> Rollouts:
        shards = jnp.arange(geometry.shards, dtype=jnp.int32)
        return Rollouts(*sharded(params, problems, shards, B_p, n, jax.random.key_data(key)))

    return sample
