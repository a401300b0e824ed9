"""The rollout engine: one compiled program for a whole sweep, whatever B_p and n.

It is one shard_map, manual over data and fsdp (each shard has its own slots, queue and prefix table), automatic over
sequence and tensor.
Inside a shard:

    while any slot of any shard works:
        prefill the next g prompts, while the queue is about to need them (each problem once, never n times)
        admit: free lanes take the next prompt of the queue, its keys, values and last hidden state; their free slots
        its next rollouts decode tokens, each rollout's first from its prompt, until `CHUNK` are done or slots have
        waited for long enough
        retire: finished slots write their rollout and are free

A lane is one slot, or, where prompts are long, W of them that share their prompt's keys and values (models/decode.py).
What waits in the queue are spans: a rollout for a lane of one slot; for a lane of W at least W rollouts of one prompt,
which pass through its slots.
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

from isojax.core.config import SamplingConfig
from isojax.core.errors import InputError
from isojax.distributed.sharding import (
    ROLLOUT_AXES,
    manual_spec,
    padded_positions,
    partition_specs,
    positions_are_split,
    shard_count,
)
from isojax.models.decode import Decoding, KVCache
from isojax.models.fsdp import all_gather_params
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplerShapes, ShardSlice, length_mask, make_shard_slice
from isojax.sampling.interruption import apply_interruption, policy_token_mask
from isojax.sampling.logits import log_probs, nucleus, renormalize, rollout_keys, sample_token, uniforms
from isojax.tasks.stop_strings import StopConditions

CHUNK_TOKENS = 32  # tokens decoded at most between two visits to the queue


class Slots(NamedTuple):
    """One shard's slots. row -1: free. `t` counts response tokens; `token` is the last of them, at `position` (there is
    none yet where t is
    0: the first is drawn from the prompt, and what the slot is given to do before that is written over); `stop` is
    where the automaton of the stop strings stands, `stopped` whether a stop has been met; `closed`: see
    sampling/interruption.py."""

    row: Int[Array, " R"]
    position: Int[Array, " R"]
    token: Int[Array, " R"]
    t: Int[Array, " R"]
    stop_state: Int[Array, " R"]
    stopped: Bool[Array, " R"]
    key: Int[Array, "R _"]
    tokens: Int[Array, "R T"]
    logps: Float[Array, "R T"]
    nucleus_mass: Float[Array, "R _"]
    thinking_ended: Bool[Array, " R"] | None


class WorkQueue(NamedTuple):
    """What a shard has yet to do. Spans queued .. ends-1 wait; `filled` prompts are in the table. Lanes: the problem
    that each works at, by its place in the shard's share, and the rollouts `next` .. `end`-1 of it, rows of the shard,
    that wait for a slot."""

    next_item: Int[Array, ""]
    num_prefilled: Int[Array, ""]
    problem: Int[Array, " Z"]
    next_rollout: Int[Array, " Z"]
    end_rollout: Int[Array, " Z"]


class LastHidden(NamedTuple):
    """Hidden states of the last tokens of prompts, from which first response tokens are drawn: of the table's, and of
    each lane's.
    """

    prefix_table: Float[Array, "G D"]
    prefix_groups: Float[Array, "Z D"]


class SamplerState(NamedTuple):
    """All of a shard's sampling. `out`: finished rollouts by row, in the order of `Slots.written`."""

    outputs: tuple[Array, ...]
    slots: Slots
    cache: KVCache
    prefix_table: KVCache
    last_hidden: LastHidden
    queue: WorkQueue


class RingSizes(NamedTuple):
    """How many groups and rollouts a shard's buffers hold where they come without end (rl/async_rl/async_rollouts.py),
    so that places are used again.
    """

    groups: Int[Array, ""]
    rows: Int[Array, ""]


class SamplingBatch(NamedTuple):
    """What a shard samples: its part of the rollouts of `problems`, n each, with draws from `key`, or from a key for
    each problem.
    """

    problems: ProblemArrays
    shard_slice: ShardSlice
    n: Int[Array, ""]
    key: PRNGKeyArray
    ring_sizes: RingSizes | None = None

    def problem_row(self, problem: Int[Array, "*z"]) -> Int[Array, "*z"]:
        """Where in `problems` a problem lies, by its place in the shard's share."""
        group = self.shard_slice.first_group + problem
        return group if self.ring_sizes is None else group % self.ring_sizes.groups

    def buffer_row(self, row: Int[Array, "*r"]) -> Int[Array, "*r"]:
        """Where in the buffers a rollout lies, by its row."""
        return row if self.ring_sizes is None else row % self.ring_sizes.rows

    def draw_keys(self, problem_row: Int[Array, " R"]) -> PRNGKeyArray:
        """What the draws of each problem's rollouts are made of."""
        return self.key if self.key.ndim == 0 else self.key[problem_row]


def slot_outputs(slots: Slots) -> tuple[Array, ...]:
    """What a finished slot leaves behind: tokens, logps, kept, stopped, length; and closed, where responses are
    interrupted.
    """
    outputs = slots.tokens, slots.logps, slots.nucleus_mass, slots.stopped, slots.t
    return outputs if slots.thinking_ended is None else (*outputs, slots.thinking_ended)


@dataclass(frozen=True)
class Engine:
    """One shard's work, piece by piece; `params` are as `Decoding.weights` leaves them, `stacked` has its layers
    stacked.
    """

    decoding: Decoding
    shapes: SamplerShapes
    sampling: SamplingConfig
    stops: StopConditions

    def work_items(self, batch: SamplingBatch) -> tuple[Array, Array, Array, Array]:
        """(rollouts of a span, spans of a problem, first and last+1 span of the shard)."""
        shard_slice, n, W = batch.shard_slice, batch.n, self.shapes.slots_per_prefix
        prefix_groups = self.decoding.prefix_groups
        rollout_count = shard_slice.rollout_count if batch.ring_sizes is None else batch.ring_sizes.rows
        item_size = (
            jnp.int32(1)
            if W == 1
            else jnp.minimum(n, jnp.maximum(W, (rollout_count + prefix_groups - 1) // prefix_groups))
        )
        items_per_problem = (n + item_size - 1) // item_size
        first_rollout = (
            shard_slice.first_rollout - shard_slice.first_group * n
        )  # rollouts of its first problem that another shard owns
        last_rollout = first_rollout + shard_slice.rollout_count - 1
        end_item = (last_rollout // n) * items_per_problem + (last_rollout % n) // item_size + 1
        return (
            item_size,
            items_per_problem,
            first_rollout // item_size,
            jnp.where(shard_slice.rollout_count > 0, end_item, 0),
        )

    def init_state(self, batch: SamplingBatch) -> SamplerState:
        """Nothing sampled yet."""
        R, T, Z = self.shapes.slots, self.shapes.response_length, self.decoding.prefix_groups
        nucleus_mass_length = (
            T if self.sampling.top_p < 1 else 1
        )  # not 0: jax 0.11's XLA crashes on an array without elements that a mesh splits
        zeros = jnp.zeros(R, jnp.int32)
        keys = jax.random.key_data(rollout_keys(batch.draw_keys(zeros), zeros, zeros))
        token_arrays = (
            jnp.zeros((R, T), jnp.int32),
            jnp.zeros((R, T), jnp.float32),
            jnp.ones((R, nucleus_mass_length), jnp.float32),
        )
        all_false = jnp.zeros(R, bool)
        slots = Slots(
            zeros - 1,
            zeros,
            zeros,
            zeros,
            zeros,
            all_false,
            keys,
            *token_arrays,
            all_false if self.stops.interruption else None,
        )
        group_zeros = jnp.zeros(Z, jnp.int32)
        _, _, first_item, _ = self.work_items(batch)
        outputs = tuple(jnp.zeros((self.shapes.buffer_rows, *x.shape[1:]), x.dtype) for x in slot_outputs(slots))
        empty_caches = self.decoding.empty_cache(), self.decoding.empty_prefix_table(self.shapes.prefix_entries)
        width, compute = self.decoding.decoder.config.width, self.decoding.decoder.options.compute_dtype
        last_hidden = LastHidden(*(jnp.zeros((count, width), compute) for count in (self.shapes.prefix_entries, Z)))
        return SamplerState(
            outputs,
            slots,
            *empty_caches,
            last_hidden,
            WorkQueue(first_item, jnp.int32(0), group_zeros, group_zeros, group_zeros),
        )

    def has_work(self, batch: SamplingBatch, state: SamplerState) -> Bool[Array, ""]:
        """Whether this shard has anything left to do."""
        return (
            (state.queue.next_item < self.work_items(batch)[3])
            | (state.slots.row >= 0).any()
            | (state.queue.next_rollout < state.queue.end_rollout).any()
        )

    def prefill(self, params: Params, batch: SamplingBatch, state: SamplerState) -> SamplerState:
        """The prompts that lanes may want at this visit, in the table: blocks of g, as far as there is room."""
        g, G, queue = self.shapes.prefill_batch, self.shapes.prefix_entries, state.queue
        _, items_per_problem, _, _ = self.work_items(batch)
        next_problem = queue.next_item // items_per_problem
        prefill_end = next_problem + self.decoding.prefix_groups // items_per_problem + 2

        def needs_prefill(carry: tuple[KVCache, Array, Array]) -> Array:
            num_prefilled = carry[2]
            return (
                (num_prefilled < batch.shard_slice.group_count)
                & (num_prefilled + g - G <= next_problem)
                & (num_prefilled < prefill_end)
            )

        def prefill_block(carry: tuple[KVCache, Array, Array]) -> tuple[KVCache, Array, Array]:
            prefix_table, last_hidden, num_prefilled = carry
            problem_row = batch.problem_row(num_prefilled + jnp.arange(g))
            entries, block_last_hidden = self.decoding.prefill(
                params, batch.problems.prompts[problem_row], batch.problems.lengths[problem_row]
            )
            prefix_table = self.decoding.store_entries(prefix_table, entries, num_prefilled % G)
            return (
                prefix_table,
                lax.dynamic_update_slice_in_dim(last_hidden, block_last_hidden, num_prefilled % G, 0),
                num_prefilled + g,
            )

        prefix_table, last_hidden, num_prefilled = lax.while_loop(
            needs_prefill, prefill_block, (state.prefix_table, state.last_hidden.prefix_table, queue.num_prefilled)
        )
        return state._replace(
            prefix_table=prefix_table,
            last_hidden=state.last_hidden._replace(prefix_table=last_hidden),
            queue=queue._replace(num_prefilled=num_prefilled),
        )

    def admit(self, batch: SamplingBatch, state: SamplerState) -> SamplerState:
        """Free lanes take spans, free slots take rollouts."""
        _, slots, cache, prefix_table, last_hidden, queue = state
        shard_slice, problems, W, prefix_groups = (
            batch.shard_slice,
            batch.problems,
            self.shapes.slots_per_prefix,
            self.decoding.prefix_groups,
        )
        item_size, items_per_problem, _, end_item = self.work_items(batch)
        free_slots = (slots.row < 0).reshape(prefix_groups, W)
        idle_groups = free_slots.all(1) & (queue.next_rollout >= queue.end_rollout)
        item = queue.next_item + jnp.cumsum(idle_groups) - 1
        problem = item // items_per_problem
        assigned = idle_groups & (item < end_item) & (problem < queue.num_prefilled)
        start_rollout = (
            problem * batch.n
            + (item % items_per_problem) * item_size
            - (shard_slice.first_rollout - shard_slice.first_group * batch.n)
        )
        stop_rollout = jnp.minimum(
            start_rollout + item_size,
            (problem + 1) * batch.n - (shard_slice.first_rollout - shard_slice.first_group * batch.n),
        )
        problem = jnp.where(assigned, problem, queue.problem)
        next_rollout = jnp.where(assigned, jnp.maximum(start_rollout, 0), queue.next_rollout)
        end_rollout = jnp.where(assigned, jnp.minimum(stop_rollout, shard_slice.rollout_count), queue.end_rollout)
        prefix_entry = jnp.where(assigned, problem % self.shapes.prefix_entries, 0)
        cache = self.decoding.admit(cache, prefix_table, prefix_entry, assigned)
        last_hidden = last_hidden._replace(
            prefix_groups=jnp.where(
                assigned[:, None], last_hidden.prefix_table[prefix_entry], last_hidden.prefix_groups
            )
        )

        row = next_rollout[:, None] + jnp.cumsum(free_slots, 1) - 1
        admitted = free_slots & (row < end_rollout[:, None])
        queue = WorkQueue(
            queue.next_item + assigned.sum(dtype=jnp.int32),
            queue.num_prefilled,
            problem,
            next_rollout + admitted.sum(1, dtype=jnp.int32),
            end_rollout,
        )
        admitted, row = admitted.reshape(-1), row.reshape(-1)
        problem_row = jnp.where(admitted, batch.problem_row(jnp.repeat(problem, W)), 0)
        prompt_length = problems.lengths[problem_row]
        rollout_id = jnp.where(admitted, (shard_slice.first_rollout + row) % batch.n, 0)
        new_keys = jax.random.key_data(
            rollout_keys(batch.draw_keys(problem_row), problems.ids[problem_row], rollout_id)
        )
        thinking_ended = None if slots.thinking_ended is None else False
        new_slots: tuple[Any, ...] = (row, prompt_length, 0, 0, 0, False, new_keys, 0, 0.0, 1.0, thinking_ended)
        slots = jax.tree.map(
            lambda old, new: jnp.where(admitted.reshape(-1, *(1,) * (old.ndim - 1)), new, old), slots, Slots(*new_slots)
        )
        return state._replace(slots=slots, cache=cache, last_hidden=last_hidden, queue=queue)

    def advance_stop_state(
        self, stop_state: Int[Array, " R"], token: Int[Array, " R"]
    ) -> tuple[Int[Array, " R"], Bool[Array, " R"]]:
        """The state of the stop strings' automaton after a token, and whether a stop has been met."""
        stop_met = (token[:, None] == jnp.array(self.stops.tokens, jnp.int32)[None]).any(-1)
        if self.stops.transitions is None:
            return stop_state, stop_met
        stop_state = jnp.asarray(self.stops.transitions)[stop_state, token].astype(jnp.int32)
        return stop_state, stop_met | (stop_state == len(self.stops.transitions))

    def decode_step(
        self, params: Params, slots: Slots, cache: KVCache, first_hidden: Float[Array, "R D"], done: Bool[Array, " R"]
    ) -> tuple[Slots, KVCache, Bool[Array, " R"]]:
        """One token a slot; those that have ended go through the motions. `first`: the hidden states that first tokens
        are drawn from.

        Where first tokens are all that is to be drawn, no layer is run: a loop of no steps, which carries the cache as
        the loop around it does. The draw stands behind it, once: in two places XLA rounds it in two ways, and
        log-probabilities would depend on the slots.
        """
        at_first_token = slots.t == 0

        def run_layers(carry: tuple[Array, Array, KVCache]) -> tuple[Array, Array, KVCache]:
            return jnp.bool_(True), *self.decoding.step(
                params, carry[2], slots.token, slots.position, jnp.maximum(slots.t - 1, 0)
            )

        _, hidden, cache = lax.while_loop(
            lambda carry: ~carry[0], run_layers, ((at_first_token | done).all(), first_hidden, cache)
        )
        hidden = jnp.where(at_first_token[:, None], first_hidden, hidden)
        T = self.shapes.response_length
        logits = self.decoding.logits(params, hidden)
        log_p = log_probs(logits, self.sampling.temperature)
        write_mask = (jnp.arange(T)[None] == slots.t[:, None]) & ~done[:, None]
        if self.sampling.top_p < 1:
            in_nucleus, nucleus_mass = nucleus(logits, log_p, self.sampling.top_p)
            log_p = renormalize(log_p, in_nucleus)
            slots = slots._replace(nucleus_mass=jnp.where(write_mask, nucleus_mass[:, None], slots.nucleus_mass))
        token, logp = sample_token(log_p, uniforms(jax.random.wrap_key_data(slots.key), slots.t))
        if self.stops.interruption is not None and slots.thinking_ended is not None:
            token, logp, thinking_ended = apply_interruption(
                self.stops.interruption, slots.t, slots.thinking_ended, token, logp
            )
            slots = slots._replace(thinking_ended=thinking_ended)
        stop_state, stop_met = self.advance_stop_state(slots.stop_state, token)
        slots = slots._replace(
            tokens=jnp.where(write_mask, token[:, None], slots.tokens),
            logps=jnp.where(write_mask, logp[:, None], slots.logps),
            position=slots.position + (~done & (slots.t > 0)),
            token=jnp.where(done, slots.token, token),
            t=slots.t + ~done,
            stop_state=jnp.where(done, slots.stop_state, stop_state),
            stopped=slots.stopped | (~done & stop_met),
        )
        return slots, cache, done | slots.stopped | (slots.t >= T)

    def policy_mask(
        self, lengths: Int[Array, "*r"], thinking_ended: Bool[Array, "*r"] | None = None
    ) -> Bool[Array, "*r T"]:
        """Which tokens of finished rollouts were drawn by the policy, from what `written` left of them."""
        T, interruption = self.shapes.response_length, self.stops.interruption
        response_mask = length_mask(lengths, T)
        return (
            response_mask
            if interruption is None or thinking_ended is None
            else response_mask & policy_token_mask(interruption, thinking_ended, T)
        )

    def decode_chunk(
        self, stacked_params: Params, params: Params, batch: SamplingBatch, state: SamplerState
    ) -> tuple[SamplerState, Int[Array, " R"]]:
        """Prefill, admit, decode, retire; and the rows of the rollouts that finished, -1 for the other slots."""
        R, max_steps = self.shapes.slots, min(CHUNK_TOKENS, self.shapes.response_length)
        state = self.admit(batch, self.prefill(stacked_params, batch, state))
        active = state.slots.row >= 0
        W, prefix_groups = self.shapes.slots_per_prefix, self.decoding.prefix_groups
        has_queued_items, group_has_rollouts = (
            state.queue.next_item < self.work_items(batch)[3],
            jnp.repeat(state.queue.next_rollout < state.queue.end_rollout, W),
        )
        max_idle_steps = (
            R if self.shapes.shards == 1 else max_steps * R
        )  # several shards wait for one another: all decode a chunk

        def count_refillable(done: Array) -> Array:
            """How many slots a visit would put to work."""
            group_is_free = has_queued_items & jnp.repeat(done.reshape(prefix_groups, W).all(1), W)
            return (done & active & (group_has_rollouts | group_is_free)).sum(dtype=jnp.int32)

        def keep_decoding(carry: tuple[Array, Array, Slots, KVCache, Array]) -> Array:
            steps, idle_steps, _, _, done = carry
            return (steps < max_steps) & (idle_steps < max_idle_steps) & ~done.all()

        def decode_token(
            carry: tuple[Array, Array, Slots, KVCache, Array],
        ) -> tuple[Array, Array, Slots, KVCache, Array]:
            steps, idle_steps, slots, cache, done = carry
            slots, cache, done = self.decode_step(params, slots, cache, first_hidden, done)
            return steps + 1, idle_steps + count_refillable(done), slots, cache, done

        first_hidden = jnp.repeat(state.last_hidden.prefix_groups, W, axis=0)
        init_carry = (jnp.int32(0), jnp.int32(0), state.slots, state.cache, ~active)
        _, _, slots, cache, done = lax.while_loop(keep_decoding, decode_token, init_carry)
        finished_row = jnp.where(done & active, slots.row, -1)
        buffer_row = jnp.where(done & active, batch.buffer_row(slots.row), self.shapes.buffer_rows)
        outputs = tuple(
            buffer.at[buffer_row].set(x, mode="drop")
            for buffer, x in zip(state.outputs, slot_outputs(slots), strict=True)
        )
        return state._replace(
            outputs=outputs, slots=slots._replace(row=jnp.where(done, -1, slots.row)), cache=cache
        ), finished_row


def build_sampler(
    decoder: Decoder, shapes: SamplerShapes, mesh: Mesh, sampling: SamplingConfig, stops: StopConditions
) -> Callable[[Params, ProblemArrays, Array, Array, PRNGKeyArray], Rollouts]:
    """`sample(params, problems, B_p, n, key) -> Rollouts`, to be called inside a jit."""
    assert shapes.shards == shard_count(mesh), (shapes.shards, mesh)
    engine = build_engine(decoder, shapes, mesh, sampling, stops)

    def sample_shard(
        params: Params, problems: ProblemArrays, shard: Array, B_p: Array, n: Array, key: Array
    ) -> tuple[Array, ...]:
        batch = SamplingBatch(
            problems, make_shard_slice(shard[0], shapes.shards, B_p, n), n, jax.random.wrap_key_data(key)
        )
        params = all_gather_params(params, param_specs, decoder.options.compute_dtype)
        weights = engine.decoding.prepare_weights(params)

        def has_work(state: SamplerState) -> Array:
            shard_has_work = engine.has_work(batch, state)
            return lax.psum(shard_has_work.astype(jnp.int32), ROLLOUT_AXES) > 0 if shapes.shards > 1 else shard_has_work

        stacked_params = params if engine.decoding.unrolled_layers else weights
        state = lax.while_loop(
            has_work, lambda s: engine.decode_chunk(stacked_params, weights, batch, s)[0], engine.init_state(batch)
        )
        tokens, logps, nucleus_mass, stopped, lengths, *thinking_ended = state.outputs
        return tuple(
            x[None]
            for x in (tokens, logps, engine.policy_mask(lengths, *thinking_ended), nucleus_mass, stopped, lengths)
        )

    shard_spec, param_specs = P(ROLLOUT_AXES), partition_specs(decoder.shapes(), decoder.logical_axes(), mesh)
    sharded_sample = shard_map(
        sample_shard,
        mesh=mesh,
        in_specs=(jax.tree.map(manual_spec, param_specs), P(), shard_spec, P(), P(), P()),
        out_specs=(shard_spec,) * len(Rollouts._fields),
        axis_names=set(ROLLOUT_AXES),
        check_vma=False,
    )

    def sample(params: Params, problems: ProblemArrays, B_p: Array, n: Array, key: PRNGKeyArray) -> Rollouts:
        shard_ids = jnp.arange(shapes.shards, dtype=jnp.int32)
        return Rollouts(*sharded_sample(params, problems, shard_ids, B_p, n, jax.random.key_data(key)))

    return sample


def build_engine(
    decoder: Decoder,
    shapes: SamplerShapes,
    mesh: Mesh,
    sampling: SamplingConfig,
    stops: StopConditions,
    transpose_weights: bool | None = None,
) -> Engine:
    """The engine for the mesh's devices: layers unrolled on a CPU, stacked elsewhere, and for an int8 cache.

    few: `Geometry.few` of one update's batch, where `geometry` is of several; by default the geometry's own.

    Raises:
        InputError: the mesh splits positions, and attention is a kernel's, or the cache int8.
    """
    positions_split, options = positions_are_split(mesh), decoder.options
    if positions_split and (options.decode_attention != "plain" or options.cache_dtype == "int8"):
        raise InputError(
            f"sweep.decode_attention={options.decode_attention} with cell.precision.cache={options.cache_dtype} on a "
            "sampler's mesh with sequence > 1: "
            "kernels and int8 caches hold prompt and response together, which cannot be split here. Expected plain, "
            "and float32 or "
            "bfloat16; or a mesh without sequence."
        )
    unrolled = mesh.devices.flat[0].platform == "cpu" and decoder.options.cache_dtype != "int8"
    lengths = padded_positions(shapes.prompt_length, mesh), shapes.response_length
    decoding = Decoding(
        decoder,
        shapes.slots,
        shapes.slots_per_prefix,
        *lengths,
        unrolled,
        positions_split,
        shapes.transpose_weights if transpose_weights is None else transpose_weights,
    )
    return Engine(decoding, shapes, sampling, stops)
