"""The local sampler: one compiled program for a whole sweep, whatever B_p and n.

It is a shard_map, manual over data and fsdp. Each shard has R slots, and repeats `decode_chunk`
while any shard has work:

    prefill   the next g prompts go into the prefix table, when the queue is about to need them;
              each problem does so once
    admit     free prefix groups take the next work item of the queue, and free slots its next
              rollouts
    decode    all slots decode, until CHUNK_TOKENS tokens are done, or until slots have been idle
              for long enough
    finish    slots whose response has ended write their rollout, and are free

A prefix group is what shares one prompt's keys and values (models/decode.py). With W = 1 it is one
slot, and a work item of the queue is one rollout. With W > 1 it has W slots, and an item is W or
more rollouts of one problem, which these slots take one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from isojax.core import program_scopes
from isojax.core.config import SamplingConfig
from isojax.core.errors import InputError
from isojax.core.shapes import CHUNK_TOKENS, SamplerShapes, layers_are_unrolled
from isojax.distributed import sharding
from isojax.distributed.sharding import ROLLOUT_AXES
from isojax.models.decode import Decoding, KVCache
from isojax.models.fsdp import all_gather_params
from isojax.models.routing import recorded_dtype, sparse_layers
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import (
    ProblemArrays,
    RecordedExperts,
    Rollouts,
    RoutedRollouts,
    SamplingBatch,
    length_mask,
)
from isojax.sampling.layout import Layout
from isojax.sampling.logits import log_probs, nucleus, renormalize, sample_token, uniforms
from isojax.sampling.slots import SamplerState, Slots, WorkQueue, admit, prefill, work_items
from isojax.tasks.protocol import StopConditions
from isojax.tasks.turns import plain_tokens

# sample(params, problems, B_p i32[], n i32[], key): n rollouts of each of the first B_p problems
Sampler = Callable[[Params, ProblemArrays, Array, Array, PRNGKeyArray], Rollouts]


class SamplerWeights(NamedTuple):
    """The policy's weights as the sampler reads them."""

    decode: Params  # of `Decoding.prepare_weights`
    # Those that prompts go through, where `decode` cannot serve (`Decoding.prefills_stacked`). None
    # where it can: the same arrays, given to a program twice, would count twice in its memory.
    stacked: Params | None

    @property
    def prefill(self) -> Params:
        return self.decode if self.stacked is None else self.stacked


class ExpertRecord(NamedTuple):
    """Where the experts of responses are recorded."""

    experts: Array  # u8 or u16 [rows T l k], of the rollouts in the shard's buffers
    row: Int[Array, " R"]  # of each slot's rollout in them


class TokenPass(NamedTuple):
    """What the layers make of the newest token of each slot."""

    hidden: Float[Array, "R D"]  # of the last layer
    cache: KVCache  # with that token
    experts: Array | None  # of `ExpertRecord`, with those of that token


class DecodeResult(NamedTuple):
    """After one more token in each slot."""

    slots: Slots
    cache: KVCache
    experts: Array | None  # of `ExpertRecord`
    done: Bool[Array, " R"]  # slots that decode no more in this chunk


class ChunkState(NamedTuple):
    """What the loop over a chunk's tokens carries."""

    steps: Int[Array, ""]
    idle_steps: Int[Array, ""]  # the sum over steps of how many slots could have begun a rollout
    slots: Slots
    cache: KVCache
    experts: Array | None  # where they are recorded: those of responses, [rows T l k]
    done: Bool[Array, " R"]  # slots that decode no more in this chunk


@dataclass(frozen=True)
class Engine:
    """One shard's sampler."""

    decoding: Decoding
    shapes: SamplerShapes
    sampling: SamplingConfig
    stops: StopConditions
    recorded: RecordedExperts | None = None  # their sizes, where experts are recorded

    def init_state(self, first_item: Int[Array, ""]) -> SamplerState:
        """The state in which no slot is in use, and nothing is prefilled.

        first_item: the first work item of this shard (`WorkItems.first`).
        """
        shapes = self.shapes
        decoding = self.decoding
        R, T, Z = shapes.slots, shapes.response_length, decoding.prefix_groups

        slot_zeros = jnp.zeros(R, jnp.int32)
        # Not of length 0: jax 0.11's XLA crashes on an array without elements that a mesh splits.
        nucleus_mass_length = T if self.sampling.top_p < 1 else 1
        slots = Slots(
            row=slot_zeros - 1,
            position=slot_zeros,
            token=slot_zeros,
            t=slot_zeros,
            stop_state=slot_zeros,
            stopped=jnp.zeros(R, bool),
            # any key, for its shape: a rollout that begins in a slot brings its own
            key=jax.random.key_data(jnp.broadcast_to(jax.random.key(0), (R,))),
            tokens=jnp.zeros((R, T), jnp.int32),
            logps=jnp.zeros((R, T), jnp.float32),
            nucleus_mass=jnp.ones((R, nucleus_mass_length), jnp.float32),
        )

        # Buffers of the rollouts that are done, in the order of `Slots.outputs`.
        outputs = tuple(
            jnp.zeros((shapes.buffer_rows, *x.shape[1:]), x.dtype) for x in slots.outputs()
        )
        table_experts = group_experts = None
        if self.recorded is not None:
            P = decoding.prefix_length
            outputs += (
                self._no_experts(shapes.buffer_rows, P),
                self._no_experts(shapes.buffer_rows, T),
            )
            table_experts = self._no_experts(shapes.prefix_entries, P)
            group_experts = self._no_experts(Z, P)

        group_zeros = jnp.zeros(Z, jnp.int32)
        width = decoding.decoder.config.width
        dtype = decoding.decoder.options.compute_dtype
        return SamplerState(
            outputs=outputs,
            slots=slots,
            cache=decoding.empty_cache(),
            prefix_table=decoding.empty_prefix_table(shapes.prefix_entries),
            table_last_hidden=jnp.zeros((shapes.prefix_entries, width), dtype),
            group_last_hidden=jnp.zeros((Z, width), dtype),
            queue=WorkQueue(
                next_item=first_item,
                num_prefilled=jnp.int32(0),
                problem=group_zeros,
                next_rollout=group_zeros,
                end_rollout=group_zeros,
            ),
            table_experts=table_experts,
            group_experts=group_experts,
        )

    def _no_experts(self, rows: int, length: int) -> Array:
        """An empty record of the experts of `rows` texts of so many tokens, [rows length l k]."""
        assert self.recorded is not None
        return jnp.zeros(self.recorded.shape(rows, length), self.recorded.dtype)

    def has_work(self, batch: SamplingBatch, state: SamplerState) -> Bool[Array, ""]:
        """Whether any shard has rollouts left to sample."""
        items_wait_in_the_queue = state.queue.next_item < work_items(self.shapes, batch).end
        slots_decode = (state.slots.row >= 0).any()
        groups_have_rollouts_to_begin = (state.queue.next_rollout < state.queue.end_rollout).any()
        shard_has_work = items_wait_in_the_queue | slots_decode | groups_have_rollouts_to_begin

        # Where the tensor axis alone is split, XLA cannot compile the sum over one shard.
        if self.shapes.shards == 1:
            return shard_has_work
        return lax.psum(shard_has_work.astype(jnp.int32), ROLLOUT_AXES) > 0

    def decode_step(
        self,
        weights: Params,
        slots: Slots,
        cache: KVCache,
        first_hidden: Float[Array, "R D"],
        done: Bool[Array, " R"],
        answers: Int[Array, "R A"] | None = None,
        record: ExpertRecord | None = None,
    ) -> DecodeResult:
        """One token per slot; slots that are done keep their state.

        weights: `SamplerWeights.decode`. first_hidden: the last layer's output at the end of each
        slot's prompt, from which its first token is drawn. done: slots that decode no more in this
        chunk, and free ones. answers: token ids of each slot's problem, padded, where the task
        replies on device; else None. record: where experts are recorded; else None.
        """
        hidden, cache, experts = self._run_layers(weights, slots, cache, first_hidden, done, record)
        T = self.shapes.response_length
        # bool[R T], the place of each slot's new token
        write_mask = (jnp.arange(T)[None] == slots.t[:, None]) & ~done[:, None]

        # Draw: from the nucleus, by random numbers that belong to the rollout and its token.
        logits = self.decoding.logits(weights, hidden)
        log_p = log_probs(logits, self.sampling.temperature)
        if self.sampling.top_p < 1:
            in_nucleus, nucleus_mass = nucleus(logits, log_p, self.sampling.top_p)
            log_p = renormalize(log_p, in_nucleus)
            slots = slots._replace(
                nucleus_mass=jnp.where(write_mask, nucleus_mass[:, None], slots.nucleus_mass)
            )
        token, logp = sample_token(log_p, uniforms(jax.random.wrap_key_data(slots.key), slots.t))

        # Context that was written ahead of the response takes the place of what was drawn. It is
        # written as ~token, which is negative, unlike the policy's own tokens.
        written_token = token
        if self.stops.adds_context:
            ahead = slots.token_ahead()
            token = jnp.where(ahead < 0, ~ahead, token)
            logp = jnp.where(ahead < 0, 0.0, logp)
            written_token = jnp.where(ahead < 0, ahead, token)

        stop_met, stop_state = self._meet_stops(slots, token, written_token)
        slots = slots._replace(
            tokens=jnp.where(write_mask, written_token[:, None], slots.tokens),
            logps=jnp.where(write_mask, logp[:, None], slots.logps),
            # With t = 0, `position` is already that of the first token: the prompt's length.
            position=slots.position + (~done & (slots.t > 0)),
            token=jnp.where(done, slots.token, token),
            t=slots.t + ~done,
            stop_state=jnp.where(done, slots.stop_state, stop_state),
            stopped=slots.stopped | (~done & stop_met),
        )
        slots, done = self._write_context(slots, done, answers)
        return DecodeResult(slots, cache, experts, done)

    def _run_layers(
        self,
        weights: Params,
        slots: Slots,
        cache: KVCache,
        first_hidden: Float[Array, "R D"],
        done: Bool[Array, " R"],
        record: ExpertRecord | None,
    ) -> TokenPass:
        """Run the newest token of each slot through the layers, which also write it to the cache.

        A slot without a token gets `first_hidden` instead. It may go along all the same: its first
        token will overwrite what it writes to the cache. So may slots that are done, but no experts
        are recorded of either. record: None where no experts are recorded.
        """
        at_first_token = slots.t == 0
        token_before = jnp.maximum(slots.t - 1, 0)  # the response's token that goes through

        def run_layers(carry: tuple[Array, TokenPass]) -> tuple[Array, TokenPass]:
            """Return (True, to end the loop; the result). Reads weights, slots, record and done."""
            _, (_, cache, recorded) = carry
            if record is None or recorded is None:
                hidden, cache = self.decoding.step(
                    weights, cache, slots.token, slots.position, token_before
                )
                return jnp.bool_(True), TokenPass(hidden, cache, None)

            hidden, cache, experts_of_token = self.decoding.step_with_experts(
                weights, cache, slots.token, slots.position, token_before
            )
            # Beyond the last row nothing is written: of slots that go through no layer now.
            row = jnp.where(at_first_token | done, len(recorded), record.row)
            recorded = recorded.at[row, token_before].set(experts_of_token, mode="drop")
            return jnp.bool_(True), TokenPass(hidden, cache, recorded)

        # Where all slots draw first tokens, no layer needs to be run: a loop of one step or none. A
        # `lax.cond` would copy the cache, which a loop updates in place.
        needs_no_layer = (at_first_token | done).all()
        recorded = None if record is None else record.experts
        begin = needs_no_layer, TokenPass(first_hidden, cache, recorded)
        _, output = lax.while_loop(lambda carry: ~carry[0], run_layers, begin)

        hidden = jnp.where(at_first_token[:, None], first_hidden, output.hidden)
        return output._replace(hidden=hidden)

    def _meet_stops(
        self, slots: Slots, token: Int[Array, " R"], written_token: Int[Array, " R"]
    ) -> tuple[Bool[Array, " R"], Int[Array, " R"]]:
        """Return (whether a stop condition is met at each token, the automaton's new state).

        The automaton finds stop strings (`StopConditions`): `len(transitions)`, one past its rows,
        is the state in which one has been found. written_token: as it is stored, ~token where it
        is context.
        """
        stop_met = (token[:, None] == jnp.array(self.stops.tokens, jnp.int32)[None]).any(-1)
        stop_state = slots.stop_state
        if self.stops.transitions is not None:
            # A slot in the last state is done, or gets a reply, which sets the state back to 0.
            stop_state = jnp.asarray(self.stops.transitions)[stop_state, token].astype(jnp.int32)
            stop_met = stop_met | (stop_state == len(self.stops.transitions))
        if self.stops.has_turns:  # a reply ends no turn, and no stop string reaches into it
            stop_met = stop_met & (written_token >= 0)
            stop_state = jnp.where(written_token < 0, 0, stop_state)
        return stop_met, stop_state

    def _write_context(
        self, slots: Slots, was_done: Bool[Array, " R"], answers: Int[Array, "R A"] | None
    ) -> tuple[Slots, Bool[Array, " R"]]:
        """Return (slots with what follows this token written ahead, which slots are done now).

        An interruption's phrase, or the task's reply to a turn that has ended, is written.
        was_done: before this token. answers: as in `decode_step`.
        """
        T = self.shapes.response_length
        done = was_done | slots.stopped | (slots.t >= T)

        interruption = self.stops.interruption
        if interruption is not None:
            phrase = jnp.array(interruption.tokens, jnp.int32)
            interrupted = slots.interrupted(interruption) & ~done
            # Where the phrase does not fit, the response goes on without it.
            slots, _ = slots.write_ahead(phrase[None], jnp.where(interrupted, len(phrase), 0))

        # A turn that has ended gets its reply, and the response goes on; without one it is done.
        if self.stops.reply is not None and answers is not None:
            # context i32[R K], count i32[R]: computed for all slots, and read where this token has
            # ended a turn.
            context, count = self.stops.reply(answers, plain_tokens(slots.tokens), slots.t)
            count = jnp.where(slots.stopped & ~was_done, count, 0)
            slots, overflow = slots.write_ahead(context, count)
            slots = slots._replace(stopped=slots.stopped & (count == 0))
            done = was_done | slots.stopped | overflow | (slots.t >= T)
        return slots, done

    def decode_chunk(
        self, weights: SamplerWeights, batch: SamplingBatch, state: SamplerState
    ) -> tuple[SamplerState, Int[Array, " R"]]:
        """Prefill, admit, decode, finish: at most CHUNK_TOKENS tokens in each slot of a shard.

        Returns the new state and i32[R]: of each slot whose rollout has finished, the rollout's
        row in the shard's share; -1 of the others.
        """
        state = prefill(self.decoding, self.shapes, weights.prefill, batch, state)
        state = admit(self.decoding, self.shapes, batch, state)

        # Decode.
        active = state.slots.row >= 0
        recorded = None if self.recorded is None else state.outputs[-1]
        chunk = self._decode_tokens(weights.decode, batch, state, recorded, active)
        slots = chunk.slots
        done = chunk.done
        # Where the host replies (sampling/replies.py), the end of a turn is not the response's: the
        # slot keeps its row, and waits.
        if self.stops.host_replies:
            done = done & ~slots.stopped

        # Finish. Row `buffer_rows` is out of range: nothing of a slot that goes on is written.
        has_finished = done & active
        finished_row = jnp.where(has_finished, slots.row, -1)
        buffer_row = jnp.where(has_finished, batch.buffer_row(slots.row), self.shapes.buffer_rows)
        outputs = state.outputs
        if chunk.experts is not None:  # they were recorded token by token, in place
            outputs = (*outputs[:-1], chunk.experts)
        outputs = slots.write_outputs(outputs, buffer_row)
        slots = slots._replace(row=jnp.where(done, -1, slots.row))
        return state._replace(outputs=outputs, slots=slots, cache=chunk.cache), finished_row

    def _decode_tokens(
        self,
        weights: Params,
        batch: SamplingBatch,
        state: SamplerState,
        recorded: Array | None,
        active: Bool[Array, " R"],
    ) -> ChunkState:
        """Decode until the chunk's time is over, or no slot is left that decodes.

        weights: `SamplerWeights.decode`. recorded: the buffer of responses' experts [rows T l k];
        None where they are not recorded. active: the slots that have a rollout.
        """
        R, W = self.shapes.slots, self.shapes.slots_per_prefix
        queue = state.queue
        # Nothing is taken from the queue within a chunk, so that these stay as they are.
        queue_has_items = queue.next_item < work_items(self.shapes, batch).end  # bool[]
        group_has_rollouts = jnp.repeat(queue.next_rollout < queue.end_rollout, W)  # bool[R]

        # What each slot reads in every step, all [R ...]. Of a free slot, whose row is -1, it is
        # any problem's.
        first_hidden = jnp.repeat(state.group_last_hidden, W, axis=0)
        problem_row = batch.problem_row((batch.skipped_rollouts + state.slots.row) // batch.n)
        answers = batch.problems.answers[problem_row] if self.stops.reply else None
        recorded_row = batch.buffer_row(state.slots.row)

        # A chunk ends early where slots that could begin a rollout have waited for R steps in all,
        # say one slot for R steps or half of them for two: then refilling is worth its time. Of
        # several shards none ends early, because they would wait for one another.
        max_steps = min(CHUNK_TOKENS, self.shapes.response_length)
        max_idle_steps = R if self.shapes.shards == 1 else max_steps * R

        def count_refillable(done: Array) -> Array:
            """How many slots have become free in this chunk, and could begin a rollout now."""
            if self.stops.host_replies:  # slots that wait for a reply, too
                return (done & active).sum(dtype=jnp.int32)
            # With a new item, once all W slots of the group are free.
            group_is_free = queue_has_items & jnp.repeat(done.reshape(-1, W).all(1), W)
            return (done & active & (group_has_rollouts | group_is_free)).sum(dtype=jnp.int32)

        def keep_decoding(chunk: ChunkState) -> Array:
            """Whether the loop goes on: bool[]."""
            has_time = (chunk.steps < max_steps) & (chunk.idle_steps < max_idle_steps)
            return has_time & ~chunk.done.all()

        def decode_token(chunk: ChunkState) -> ChunkState:
            """One more token in each slot; reads first_hidden, answers and recorded_row."""
            record = None
            if chunk.experts is not None:
                record = ExpertRecord(chunk.experts, recorded_row)
            step = self.decode_step(
                weights, chunk.slots, chunk.cache, first_hidden, chunk.done, answers, record
            )
            return ChunkState(
                steps=chunk.steps + 1,
                idle_steps=chunk.idle_steps + count_refillable(step.done),
                slots=step.slots,
                cache=step.cache,
                experts=step.experts,
                done=step.done,
            )

        begin = ChunkState(
            steps=jnp.int32(0),
            idle_steps=jnp.int32(0),
            slots=state.slots,
            cache=state.cache,
            experts=recorded,
            done=~active,
        )
        with jax.named_scope(program_scopes.DECODE_TOKENS):
            return lax.while_loop(keep_decoding, decode_token, begin)

    def to_rollouts(self, outputs: tuple[Array, ...]) -> Rollouts | RoutedRollouts:
        """The rollouts in `SamplerState.outputs`, with the mask of the tokens that the policy drew.

        outputs: [rows ...] of one shard, or [S rows ...]. RoutedRollouts where experts are
        recorded, which are then the last two outputs.
        """
        tokens, logps, nucleus_mass, stopped, lengths, *experts = outputs
        is_response = length_mask(lengths, self.shapes.response_length)
        mask = is_response
        if self.stops.adds_context:
            # Context counts for the response, but not for the loss. What was written ahead of a
            # response that ended before it is no part of it.
            mask = is_response & (tokens >= 0)
            tokens = jnp.where(is_response, plain_tokens(tokens), 0)
        rollouts = Rollouts(tokens, logps, mask, nucleus_mass, stopped, lengths)
        return RoutedRollouts(*rollouts, *experts) if experts else rollouts


def build_sampler(
    decoder: Decoder,
    shapes: SamplerShapes,
    mesh: Mesh,
    sampling: SamplingConfig,
    stops: StopConditions,
    records_experts: bool = False,
) -> Sampler:
    """Build `sample(params, problems, B_p, n, key) -> Rollouts`, to be called inside a jit.

    params: the policy's, sharded as the trainer has them. problems: padded to
    `shapes.problem_rows`, of which the first B_p count. B_p, n: i32[], any pair of `shapes.cells`.
    stops: the task's. records_experts: whether RoutedRollouts are returned.
    """
    engine = build_engine(decoder, shapes, mesh, sampling, stops, records_experts=records_experts)

    def sample_shard(
        params: Params, problems: ProblemArrays, shard: Array, B_p: Array, n: Array, key: Array
    ) -> Rollouts:
        """One shard's rollouts, arrays [1 rows ...]. shard: i32[1], its number; key: u32[2]."""
        share = Layout(B_p, n, shapes.shards).shard_slice(shard[0])
        batch = SamplingBatch(problems, share, n, jax.random.wrap_key_data(key))

        # Each shard gathers the weights that fsdp splits, once for the whole batch.
        params = all_gather_params(params, param_specs, decoder.options.compute_dtype)
        decode_weights = engine.decoding.prepare_weights(params)
        weights = SamplerWeights(
            decode_weights, params if engine.decoding.prefills_stacked else None
        )

        def decode_chunk(state: SamplerState) -> SamplerState:
            return engine.decode_chunk(weights, batch, state)[0]

        state = engine.init_state(work_items(shapes, batch).first)
        with jax.named_scope(program_scopes.SAMPLE_CHUNKS):
            state = lax.while_loop(partial(engine.has_work, batch), decode_chunk, state)
        return jax.tree.map(lambda x: x[None], engine.to_rollouts(state.outputs))

    # `sample_shard` reads the specs over all axes; its shard_map takes those over data and fsdp.
    param_specs = sharding.partition_specs(decoder.shapes(), decoder.logical_axes(), mesh)
    on_all = P()
    in_specs = (
        jax.tree.map(sharding.manual_spec, param_specs),
        on_all,  # problems
        P(ROLLOUT_AXES),  # shard
        on_all,  # B_p
        on_all,  # n
        on_all,  # key
    )
    sharded_sample = sharding.map_over_shards(sample_shard, mesh, in_specs, P(ROLLOUT_AXES))

    def sample(
        params: Params, problems: ProblemArrays, B_p: Array, n: Array, key: PRNGKeyArray
    ) -> Rollouts:
        shard_ids = jnp.arange(shapes.shards, dtype=jnp.int32)
        return sharded_sample(params, problems, shard_ids, B_p, n, jax.random.key_data(key))

    return sample


def recorded_experts(decoder: Decoder) -> RecordedExperts | None:
    """The sizes of a record of a model's experts; None of a model without experts."""
    if decoder.router is None:
        return None
    layers = len(sparse_layers(decoder.stacks))
    return RecordedExperts(layers, decoder.router.top_k, recorded_dtype(decoder.router.experts))


def build_engine(
    decoder: Decoder,
    shapes: SamplerShapes,
    mesh: Mesh,
    sampling: SamplingConfig,
    stops: StopConditions,
    transpose_weights: bool | None = None,  # None: as `shapes` has it
    records_experts: bool = False,
) -> Engine:
    """Make the engine of one shard for the mesh's devices.

    Layers are stacked on a TPU or with an int8 cache, and else unrolled. transpose_weights: whether
    unrolled layers hold matrices transposed, as CPUs multiply few rows by; elsewhere it is not
    read. Raises InputError where the mesh splits positions (sequence > 1) and attention or cache do
    not allow it.
    """
    platform = mesh.devices.flat[0].platform
    transposed = shapes.transpose_weights if transpose_weights is None else transpose_weights
    options = decoder.options

    positions_split = sharding.positions_are_split(mesh)
    if positions_split and (options.decode_attention != "plain" or options.cache_dtype == "int8"):
        raise InputError(
            found=(
                f"sweep.decode_attention={options.decode_attention} with "
                f"cell.precision.cache={options.cache_dtype} on a sampler's mesh with sequence "
                "> 1: kernels and int8 caches hold prompt and response together, which cannot "
                "be split here"
            ),
            expected="plain, and float32 or bfloat16; or a mesh without sequence",
        )

    decoding = Decoding(
        decoder,
        slots=shapes.slots,
        slots_per_prefix=shapes.slots_per_prefix,
        prefix_length=sharding.padded_positions(shapes.prompt_length, mesh),
        response_length=shapes.response_length,
        unrolled_layers=layers_are_unrolled(platform, options.cache_dtype),
        shard_positions=positions_split,
        allow_transposed=transposed and platform == "cpu",
    )
    return Engine(
        decoding, shapes, sampling, stops, recorded_experts(decoder) if records_experts else None
    )
