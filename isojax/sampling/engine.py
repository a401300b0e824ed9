"""The rollout engine: one compiled program for a whole sweep, whatever B_p and n.

It is a shard_map, manual over data and fsdp; each shard repeats `decode_chunk` while any of them
has work:

    prefill   the next g prompts go into the prefix table, when the queue is about to need them: each problem once
    admit     free prefix groups take the next work item of the queue, and free slots its next rollouts
    decode    all slots decode, until CHUNK_TOKENS tokens are done or slots have been idle for long enough
    finish    slots whose response has ended write their rollout, and are free

A prefix group is one slot or W slots that share a long prompt (models/decode.py); its work item is
one rollout, or at least W rollouts of one problem.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from isojax.core.config import SamplingConfig
from isojax.core.errors import InputError
from isojax.core.shapes import SamplerShapes, layers_are_unrolled
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

CHUNK_TOKENS = 32  # tokens that a slot decodes at most before the queue is looked at again

# Steps, idle steps, slots, cache, recorded experts or None, which slots are done
ChunkCarry = tuple[Array, Array, Slots, KVCache, Array | None, Array]
Sampler = Callable[[Params, ProblemArrays, Array, Array, PRNGKeyArray], Rollouts]


class SamplerWeights(NamedTuple):
    decode: Params  # of `Decoding.prepare_weights`
    # Stacked layers, where `Decoding.prefills_stacked` and `decode` has none; XLA counts an array
    # given twice as two.
    stacked: Params | None

    @property
    def prefill(self) -> Params:
        return self.decode if self.stacked is None else self.stacked


@dataclass(frozen=True)
class Engine:
    """One shard's sampler."""

    decoding: Decoding
    shapes: SamplerShapes
    sampling: SamplingConfig
    stops: StopConditions
    recorded: RecordedExperts | None = None  # where the experts of all tokens are recorded

    def init_state(self, first_item: Int[Array, ""]) -> SamplerState:
        shapes, decoding = self.shapes, self.decoding
        R, T, Z = shapes.slots, shapes.response_length, decoding.prefix_groups
        slot_zeros = jnp.zeros(R, jnp.int32)
        group_zeros = jnp.zeros(Z, jnp.int32)
        false = jnp.zeros(R, bool)
        # Not of length 0: jax 0.11's XLA crashes on an array without elements that a mesh splits.
        nucleus_mass_length = T if self.sampling.top_p < 1 else 1
        slots = Slots(
            row=slot_zeros - 1,
            position=slot_zeros,
            token=slot_zeros,
            t=slot_zeros,
            stop_state=slot_zeros,
            stopped=false,
            key=jax.random.key_data(jnp.broadcast_to(jax.random.key(0), (R,))),
            tokens=jnp.zeros((R, T), jnp.int32),
            logps=jnp.zeros((R, T), jnp.float32),
            nucleus_mass=jnp.ones((R, nucleus_mass_length), jnp.float32),
        )
        width = decoding.decoder.config.width
        dtype = decoding.decoder.options.compute_dtype
        outputs = tuple(
            jnp.zeros((shapes.buffer_rows, *x.shape[1:]), x.dtype) for x in slots.outputs()
        )
        table_experts = group_experts = None
        if self.recorded is not None:
            shape, dtype_of_experts = self.recorded.shape, self.recorded.dtype
            P = decoding.prefix_length
            outputs += tuple(
                jnp.zeros(shape(shapes.buffer_rows, length), dtype_of_experts) for length in (P, T)
            )
            table_experts = jnp.zeros(shape(shapes.prefix_entries, P), dtype_of_experts)
            group_experts = jnp.zeros(shape(Z, P), dtype_of_experts)
        return SamplerState(
            outputs=outputs,
            slots=slots,
            cache=decoding.empty_cache(),
            prefix_table=decoding.empty_prefix_table(shapes.prefix_entries),
            table_last_hidden=jnp.zeros((shapes.prefix_entries, width), dtype),
            group_last_hidden=jnp.zeros((Z, width), dtype),
            queue=WorkQueue(first_item, jnp.int32(0), group_zeros, group_zeros, group_zeros),
            table_experts=table_experts,
            group_experts=group_experts,
        )

    def has_work(self, batch: SamplingBatch, state: SamplerState) -> Bool[Array, ""]:
        """Whether any shard has rollouts left to sample."""
        shard_has_work = (
            (state.queue.next_item < work_items(self.shapes, batch).end)
            | (state.slots.row >= 0).any()
            | (state.queue.next_rollout < state.queue.end_rollout).any()
        )
        # where the tensor axis alone is split, XLA cannot compile the sum
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
        recording: tuple[Array, Int[Array, " R"]] | None = None,
    ) -> tuple[Slots, KVCache, Array | None, Bool[Array, " R"]]:
        """One token per slot; slots that are done keep their state. First tokens are drawn from
        `first_hidden`. answers: of each slot's problem, where the task replies on device.
        recording: where experts are recorded, the buffer [rows T l k] of those of responses, which
        is returned, and each slot's row in it."""
        at_first_token = slots.t == 0
        experts = None if recording is None else recording[0]

        def run_layers(
            carry: tuple[Array, Array, KVCache, Any],
        ) -> tuple[Array, Array, KVCache, Any]:
            _, _, cache, experts = carry
            t = jnp.maximum(slots.t - 1, 0)
            if recording is None:
                return (
                    jnp.bool_(True),
                    *self.decoding.step(weights, cache, slots.token, slots.position, t),
                    None,
                )
            hidden, cache, of_token = self.decoding.step_with_experts(
                weights, cache, slots.token, slots.position, t
            )
            written_row = jnp.where(at_first_token | done, len(experts), recording[1])
            return (
                jnp.bool_(True),
                hidden,
                cache,
                experts.at[written_row, t].set(of_token, mode="drop"),
            )

        # A loop of no steps where all slots draw first tokens, for which no layer is run.
        init_carry = ((at_first_token | done).all(), first_hidden, cache, experts)
        _, hidden, cache, experts = lax.while_loop(lambda carry: ~carry[0], run_layers, init_carry)
        hidden = jnp.where(at_first_token[:, None], first_hidden, hidden)
        T = self.shapes.response_length
        logits = self.decoding.logits(weights, hidden)
        log_p = log_probs(logits, self.sampling.temperature)
        write_mask = (jnp.arange(T)[None] == slots.t[:, None]) & ~done[:, None]
        if self.sampling.top_p < 1:
            in_nucleus, nucleus_mass = nucleus(logits, log_p, self.sampling.top_p)
            log_p = renormalize(log_p, in_nucleus)
            slots = slots._replace(
                nucleus_mass=jnp.where(write_mask, nucleus_mass[:, None], slots.nucleus_mass)
            )
        token, logp = sample_token(log_p, uniforms(jax.random.wrap_key_data(slots.key), slots.t))
        written_token = token
        if self.stops.adds_context:
            ahead = slots.token_ahead()
            token = jnp.where(ahead < 0, ~ahead, token)
            logp = jnp.where(ahead < 0, 0.0, logp)
            written_token = jnp.where(ahead < 0, ahead, token)
        stop_met = (token[:, None] == jnp.array(self.stops.tokens, jnp.int32)[None]).any(-1)
        stop_state = slots.stop_state
        if self.stops.transitions is not None:
            stop_state = jnp.asarray(self.stops.transitions)[stop_state, token].astype(jnp.int32)
            stop_met = stop_met | (stop_state == len(self.stops.transitions))
        if self.stops.has_turns:  # a reply ends no turn, and no stop string reaches into it
            stop_met = stop_met & (written_token >= 0)
            stop_state = jnp.where(written_token < 0, 0, stop_state)
        slots = slots._replace(
            tokens=jnp.where(write_mask, written_token[:, None], slots.tokens),
            logps=jnp.where(write_mask, logp[:, None], slots.logps),
            position=slots.position + (~done & (slots.t > 0)),
            token=jnp.where(done, slots.token, token),
            t=slots.t + ~done,
            stop_state=jnp.where(done, slots.stop_state, stop_state),
            stopped=slots.stopped | (~done & stop_met),
        )
        slots, done = self._write_context(slots, done, answers)
        return slots, cache, experts, done

    def _write_context(
        self, slots: Slots, was_done: Bool[Array, " R"], answers: Int[Array, "R A"] | None
    ) -> tuple[Slots, Bool[Array, " R"]]:
        """After a token: what an interruption or the task's reply to a turn writes ahead, and which
        slots are done."""
        interruption, T = self.stops.interruption, self.shapes.response_length
        done = was_done | slots.stopped | (slots.t >= T)
        if interruption is not None:
            phrase = jnp.array(interruption.tokens, jnp.int32)
            interrupted = slots.interrupted(interruption) & ~done
            slots, _ = slots.write_ahead(phrase[None], jnp.where(interrupted, len(phrase), 0))
        if self.stops.reply is not None and answers is not None:
            context, count = self.stops.reply(answers, plain_tokens(slots.tokens), slots.t)
            count = jnp.where(slots.stopped & ~was_done, count, 0)
            slots, overflow = slots.write_ahead(context, count)
            slots = slots._replace(stopped=slots.stopped & (count == 0))
            done = was_done | slots.stopped | overflow | (slots.t >= T)
        return slots, done

    def decode_chunk(
        self, weights: SamplerWeights, batch: SamplingBatch, state: SamplerState
    ) -> tuple[SamplerState, Int[Array, " R"]]:
        """Prefill, admit, decode, finish; and the rows of the rollouts that finished, -1 for the
        other slots."""
        state = prefill(self.decoding, self.shapes, weights.prefill, batch, state)
        state = admit(self.decoding, self.shapes, batch, state)
        R, W, queue = self.shapes.slots, self.shapes.slots_per_prefix, state.queue
        active = state.slots.row >= 0
        has_queued_items = queue.next_item < work_items(self.shapes, batch).end
        group_has_rollouts = jnp.repeat(queue.next_rollout < queue.end_rollout, W)
        first_hidden = jnp.repeat(state.group_last_hidden, W, axis=0)
        problem_row = batch.problem_row((batch.skipped_rollouts + state.slots.row) // batch.n)
        answers = batch.problems.answers[problem_row] if self.stops.reply else None
        recorded = None if self.recorded is None else state.outputs[-1]
        recorded_row = batch.buffer_row(state.slots.row)
        max_steps = min(CHUNK_TOKENS, self.shapes.response_length)
        # shards wait for one another: no early end
        max_idle_steps = R if self.shapes.shards == 1 else max_steps * R

        def count_refillable(done: Array) -> Array:
            if self.stops.host_replies:  # slots that wait for a reply, too
                return (done & active).sum(dtype=jnp.int32)
            group_is_free = has_queued_items & jnp.repeat(done.reshape(-1, W).all(1), W)
            return (done & active & (group_has_rollouts | group_is_free)).sum(dtype=jnp.int32)

        def keep_decoding(carry: ChunkCarry) -> Array:
            steps, idle_steps, *_, done = carry
            return (steps < max_steps) & (idle_steps < max_idle_steps) & ~done.all()

        def decode_token(carry: ChunkCarry) -> ChunkCarry:
            steps, idle_steps, slots, cache, recorded, done = carry
            recording = None if recorded is None else (recorded, recorded_row)
            slots, cache, recorded, done = self.decode_step(
                weights.decode, slots, cache, first_hidden, done, answers, recording
            )
            return steps + 1, idle_steps + count_refillable(done), slots, cache, recorded, done

        init_carry = (jnp.int32(0), jnp.int32(0), state.slots, state.cache, recorded, ~active)
        _, _, slots, cache, recorded, done = lax.while_loop(keep_decoding, decode_token, init_carry)
        if self.stops.host_replies:  # a turn's end is not the response's: sampling/replies.py
            done = done & ~slots.stopped
        finished_row = jnp.where(done & active, slots.row, -1)
        buffer_row = jnp.where(done & active, batch.buffer_row(slots.row), self.shapes.buffer_rows)
        outputs = state.outputs if recorded is None else (*state.outputs[:-1], recorded)
        outputs = slots.write_outputs(outputs, buffer_row)
        slots = slots._replace(row=jnp.where(done, -1, slots.row))
        return state._replace(outputs=outputs, slots=slots, cache=cache), finished_row

    def to_rollouts(self, outputs: tuple[Array, ...]) -> Rollouts | RoutedRollouts:
        """The rollouts in `SamplerState.outputs`, with the mask of the tokens that the policy
        drew."""
        tokens, logps, nucleus_mass, stopped, lengths, *experts = outputs
        mask = length_mask(lengths, self.shapes.response_length)
        if self.stops.adds_context:
            # What was written ahead of a response that ended before it is no part of it.
            mask, tokens = mask & (tokens >= 0), jnp.where(mask, plain_tokens(tokens), 0)
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
    """`sample(params, problems, B_p, n, key) -> Rollouts`, to be called inside a jit."""
    engine = build_engine(decoder, shapes, mesh, sampling, stops, records_experts=records_experts)

    def sample_shard(
        params: Params, problems: ProblemArrays, shard: Array, B_p: Array, n: Array, key: Array
    ) -> Rollouts:
        share = Layout(B_p, n, shapes.shards).shard_slice(shard[0])
        batch = SamplingBatch(problems, share, n, jax.random.wrap_key_data(key))
        params = all_gather_params(params, param_specs, decoder.options.compute_dtype)
        decode_weights = engine.decoding.prepare_weights(params)
        weights = SamplerWeights(
            decode_weights, params if engine.decoding.prefills_stacked else None
        )

        def decode_chunk(state: SamplerState) -> SamplerState:
            return engine.decode_chunk(weights, batch, state)[0]

        state = engine.init_state(work_items(shapes, batch).first)
        state = lax.while_loop(partial(engine.has_work, batch), decode_chunk, state)
        return jax.tree.map(lambda x: x[None], engine.to_rollouts(state.outputs))

    param_specs = sharding.partition_specs(decoder.shapes(), decoder.logical_axes(), mesh)
    in_specs = (
        jax.tree.map(sharding.manual_spec, param_specs),
        P(),
        P(ROLLOUT_AXES),
        P(),
        P(),
        P(),
    )
    sharded_sample = sharding.map_over_shards(sample_shard, mesh, in_specs, P(ROLLOUT_AXES))

    def sample(
        params: Params, problems: ProblemArrays, B_p: Array, n: Array, key: PRNGKeyArray
    ) -> Rollouts:
        shard_ids = jnp.arange(shapes.shards, dtype=jnp.int32)
        return sharded_sample(params, problems, shard_ids, B_p, n, jax.random.key_data(key))

    return sample


def recorded_experts(decoder: Decoder) -> RecordedExperts | None:
    """What may be recorded of a model's experts; None of one that has none."""
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
    """The engine for the mesh's devices: layers are stacked on a TPU or with an int8 cache, and
    else unrolled."""
    positions_split, options = sharding.positions_are_split(mesh), decoder.options
    platform = mesh.devices.flat[0].platform
    transposed = shapes.transpose_weights if transpose_weights is None else transpose_weights
    if positions_split and (options.decode_attention != "plain" or options.cache_dtype == "int8"):
        raise InputError(
            f"sweep.decode_attention={options.decode_attention} with cell.precision.cache={options.cache_dtype} on a "
            "sampler's mesh with sequence > 1: kernels and int8 caches hold prompt and response together, which cannot "
            "be split here. Expected plain, and float32 or bfloat16; or a mesh without sequence."
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
