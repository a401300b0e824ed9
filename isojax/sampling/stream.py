"""Sampling driven by the host, chunk by chunk, with the rollouts of `build_sampler`, bit for bit.

The state is donated from chunk to chunk. The host starts a chunk before it reads the last one's
finished responses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PRNGKeyArray

from isojax.core.config import SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed import multiprocess, sharding
from isojax.distributed.sharding import ROLLOUT_AXES, Program, replicated, shape_on
from isojax.models.decode import KVCache
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplingBatch
from isojax.sampling.engine import Engine, SamplerWeights, build_engine
from isojax.sampling.layout import Layout
from isojax.sampling.replies import (
    Reply,
    WaitingSlot,
    build_receive,
    has_ended,
    make_replies,
    reply_shapes,
)
from isojax.sampling.slots import SamplerState, work_items
from isojax.tasks.protocol import StopConditions

# A GPU starts a chunk's loop over tokens once, as a graph, and not each of its kernels.
GPU_OPTIONS = {
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE"
    )
}

OnFinished = Callable[[np.ndarray, list[np.ndarray]], None]


class StreamInputs(NamedTuple):
    """What every chunk of a batch reads."""

    weights: SamplerWeights
    problems: ProblemArrays
    B_p: Array
    n: Array
    key: Array  # u32[2], the data of the batch's PRNG key


class FinishedSlots(NamedTuple):
    """The slots after a chunk."""

    # i32[S R], the buffer row of the rollout that a slot has finished; -1 where it has finished
    # none
    rows: Array
    tokens: Array  # i32[S R T]
    lengths: Array  # i32[S R], tokens in each slot
    has_work: Array  # bool[S], all equal: whether any shard has rollouts left to sample
    # i32[S R], of the rollouts that wait for the host's reply, -1 elsewhere
    waiting_rows: Array | None = None


@dataclass(frozen=True)
class PrepareWeights:
    """`prepare(params) -> SamplerWeights`; `compile` takes and returns shapes."""

    # (params) -> the weights of a step, and those that prompts are prefilled with where they differ
    program: Program
    # whether prompts are prefilled with the policy's own parameters, without a copy
    prefills_params: bool

    def __call__(self, params: Params) -> SamplerWeights:
        return self._sampler_weights(params, *self.program(params))

    def compile(self, params: Params) -> SamplerWeights:
        return self._sampler_weights(params, *self.program.compile(params))

    def _sampler_weights(
        self, params: Params, weights: Params, stacked_params: Params | None
    ) -> SamplerWeights:
        return SamplerWeights(weights, params if self.prefills_params else stacked_params)


@dataclass(frozen=True)
class Stream:
    """A batch's sampling in chunks: advance_chunk(inputs, state) -> (state, FinishedSlots), with
    the state donated."""

    mesh: Mesh
    prepare_weights: PrepareWeights
    init_batch: Program
    advance_chunk: Program
    to_rollouts: Program
    receive: Program | None  # where the host replies to turns

    def begin(
        self, params: Params, problems: ProblemArrays, B_p: Any, n: Any, key: PRNGKeyArray
    ) -> tuple[StreamInputs, SamplerState]:
        # before the cache is there: it is held twice for a moment
        weights = self.prepare_weights(params)
        batch_inputs, state = self.init_batch(problems, B_p, n, key)
        return StreamInputs(weights, *batch_inputs), state

    def advance_shapes(
        self, params: Params, problems: ProblemArrays
    ) -> tuple[StreamInputs, SamplerState]:
        """The shapes that `advance_chunk` reads, from those of parameters and problems; compiles
        what precedes it."""
        scalar = shape_on(replicated(self.mesh))
        key = shape_on(replicated(self.mesh), (), jax.eval_shape(lambda: jax.random.key(0)).dtype)
        batch_inputs, state = self.init_batch.compile(problems, scalar, scalar, key)
        return StreamInputs(self.prepare_weights.compile(params), *batch_inputs), state

    def compile(self, params: Params, problems: ProblemArrays) -> Rollouts:
        """Compiles all programs for arguments of these shapes; the shapes of the rollouts."""
        state, _ = self.advance_chunk.compile(*self.advance_shapes(params, problems))
        if self.receive is not None:
            self.receive.compile(state.outputs, state.slots, reply_shapes(self.mesh, state.slots))
        return self.to_rollouts.compile(state.outputs)

    def run(
        self,
        params: Params,
        problems: ProblemArrays,
        B_p: int,
        n: int,
        key: PRNGKeyArray,
        on_finished: OnFinished,
        reply: Reply | None = None,
    ) -> Rollouts:
        """All rollouts; `on_finished(rollouts i32[k], tokens)` gets a chunk's finished ones while
        the next runs. Where the host replies to turns, `reply` is asked before the next begins."""
        inputs, state = self.begin(params, problems, np.int32(B_p), np.int32(n), key)
        if self.receive is not None:
            assert reply is not None, "a task of turns needs its reply"
            return self._run_with_replies(inputs, state, on_finished, reply)

        layout = Layout(B_p, n, sharding.shard_count(self.mesh))
        state, finished = self.advance_chunk(inputs, state)
        has_work = True
        while has_work:
            # the last of these finds nothing to do
            state, next_finished = self.advance_chunk(inputs, state)
            multiprocess.start_host_copy(jax.tree.leaves(next_finished))
            on_finished(*_slot_rollouts(finished, finished.rows, layout)[:2])
            finished, has_work = next_finished, _has_work(finished)
        return self.to_rollouts(state.outputs)

    def _run_with_replies(
        self, inputs: StreamInputs, state: SamplerState, on_finished: OnFinished, reply: Reply
    ) -> Rollouts:
        """The same where the host replies. A chunk waits for the replies to the one before: no
        clock decides."""
        assert self.receive is not None
        layout = Layout(int(inputs.B_p), int(inputs.n), sharding.shard_count(self.mesh))
        has_work = True
        while has_work:
            state, finished = self.advance_chunk(inputs, state)
            on_finished(*_slot_rollouts(finished, finished.rows, layout)[:2])
            rollout_ids, responses, waiting = _slot_rollouts(
                finished, finished.waiting_rows, layout
            )
            contexts, T = reply(rollout_ids, responses), finished.tokens.shape[-1]
            ended = [i for i, slot in enumerate(waiting) if has_ended(slot, contexts[i], T)]
            on_finished(rollout_ids[ended], [responses[i] for i in ended])
            new_replies = make_replies(self.mesh, finished.tokens.shape, waiting, contexts)
            outputs, slots = self.receive(state.outputs, state.slots, new_replies)
            state = state._replace(outputs=outputs, slots=slots)
            has_work = _has_work(finished)
        return self.to_rollouts(state.outputs)


def _has_work(finished: FinishedSlots) -> bool:
    return bool(np.asarray(finished.has_work.addressable_shards[0].data).any())


def _slot_rollouts(
    finished: FinishedSlots, rows: Any, layout: Layout
) -> tuple[np.ndarray, list[np.ndarray], list[WaitingSlot]]:
    """Of this process's slots with a row in `rows`: the rollouts' numbers and response tokens, and
    the slots."""
    shard_ids, rows = multiprocess.local_shard_rows(rows)
    _, tokens = multiprocess.local_shard_rows(finished.tokens)
    _, lengths = multiprocess.local_shard_rows(finished.lengths)
    rollout_ids = layout.rollout_at(shard_ids[:, None], rows)
    slots = np.nonzero(rows >= 0)
    responses = [row[:length] for row, length in zip(tokens[slots], lengths[slots], strict=True)]
    columns = (shard_ids[slots[0]], slots[1], rows[slots], lengths[slots])
    return (
        rollout_ids[slots],
        responses,
        [WaitingSlot(*map(int, column)) for column in zip(*columns, strict=True)],
    )


def build_stream(
    decoder: Decoder,
    shapes: SamplerShapes,
    mesh: Mesh,
    sampling: SamplingConfig,
    stops: StopConditions,
    records_experts: bool = False,
) -> Stream:
    engine = build_engine(decoder, shapes, mesh, sampling, stops, records_experts=records_experts)
    state_sharding = sampler_state_shardings(engine, mesh)
    shard_sharding = NamedSharding(mesh, P(ROLLOUT_AXES))
    start_shards, step_shards = _shard_programs(engine, mesh)

    def init_batch(
        problems: ProblemArrays, B_p: Array, n: Array, key: PRNGKeyArray
    ) -> tuple[Any, SamplerState]:
        batch_inputs = (problems, B_p, n, jax.random.key_data(key))
        return batch_inputs, start_shards(*batch_inputs)

    options = GPU_OPTIONS if mesh.devices.flat[0].platform == "gpu" else None
    out_shardings = state_sharding, shard_sharding
    advance = jax.jit(
        step_shards, donate_argnums=1, out_shardings=out_shardings, compiler_options=options
    )
    return Stream(
        mesh=mesh,
        prepare_weights=build_prepare_weights(engine, mesh),
        init_batch=Program(jax.jit(init_batch, out_shardings=(replicated(mesh), state_sharding))),
        advance_chunk=Program(advance),
        to_rollouts=Program(jax.jit(engine.to_rollouts, out_shardings=shard_sharding)),
        receive=build_receive(mesh) if stops.host_replies else None,
    )


def build_prepare_weights(engine: Engine, mesh: Mesh) -> PrepareWeights:
    decoding, keeps_stacked = engine.decoding, engine.decoding.prefills_stacked
    decoder = decoding.decoder
    param_shardings = decoder.shardings(mesh)
    gathered_shardings = jax.tree.map(sharding.replicate_over_rollout_axes, param_shardings)
    computes_in_float32 = jnp.dtype(decoder.options.compute_dtype) == jnp.float32
    is_gathered = param_shardings == gathered_shardings and computes_in_float32
    gathers_layers = param_shardings != gathered_shardings and not decoding.unrolled_layers
    stacks = [stack.name for stack in decoder.stacks] if gathers_layers else []

    def prepare(params: Params) -> tuple[Params, Params | None]:
        if not is_gathered:
            params = _cast_and_gather(params, decoder.cast_params, gathered_shardings, stacks)
        weights = decoding.prepare_weights(params)
        return weights, params if keeps_stacked and not is_gathered else None

    def prepare_int8(params: Params) -> tuple[Params, None]:
        """Made before they are gathered, which moves a byte of each weight."""
        stored = decoding.stored_decoder.shardings(mesh)
        gathered = jax.tree.map(sharding.replicate_over_rollout_axes, stored)
        weights = _cast_and_gather(
            decoding.cast_weights(params), lambda weights: weights, gathered, stacks
        )
        return decoding.lay_out(weights), None

    prepare_weights = prepare_int8 if decoding.quantises_weights else prepare
    program = Program(jax.jit(prepare_weights, in_shardings=(param_shardings,)))
    return PrepareWeights(program, prefills_params=keeps_stacked and is_gathered)


def _cast_and_gather(
    weights: Params, cast: Callable[[Params], Params], gathered: Params, stacks: Sequence[str]
) -> Params:
    """The weights cast, and sharded as `gathered` says; those of `stacks` layer by layer. All at
    once, a TPU would hold them twice: as its devices send them, and as programs read them."""

    def without_layers(of_stack: NamedSharding) -> NamedSharding:
        return NamedSharding(of_stack.mesh, P(*of_stack.spec[1:]))

    def gather_layers(stack: Params, shardings: Params) -> Params:
        layer_shardings = jax.tree.map(without_layers, shardings)

        def gather_layer(_: None, layer: Params) -> tuple[None, Params]:
            return None, lax.with_sharding_constraint(cast(layer), layer_shardings)

        return lax.scan(gather_layer, None, stack)[1]

    of_stacks = {name: gather_layers(weights[name], gathered[name]) for name in stacks}
    others = cast({name: w for name, w in weights.items() if name not in of_stacks})
    return lax.with_sharding_constraint({**others, **of_stacks}, gathered)


def _shard_programs(
    engine: Engine, mesh: Mesh
) -> tuple[
    Callable[..., SamplerState],
    Callable[[StreamInputs, SamplerState], tuple[SamplerState, FinishedSlots]],
]:
    """`start(problems, B_p, n, key data) -> state`, `step(inputs, state) -> (state,
    FinishedSlots)`, to be jitted."""
    shards = engine.shapes.shards

    def make_batch(
        shard: Array, problems: ProblemArrays, B_p: Array, n: Array, key: Array
    ) -> SamplingBatch:
        share = Layout(B_p, n, shards).shard_slice(shard[0])
        return SamplingBatch(problems, share, n, jax.random.wrap_key_data(key))

    def start_shard(shard: Array, *batch_inputs: Any) -> SamplerState:
        first_item = work_items(engine.shapes, make_batch(shard, *batch_inputs)).first
        return add_shard_axis(engine.init_state(first_item))

    def step_shard(
        shard: Array, inputs: StreamInputs, state: SamplerState
    ) -> tuple[SamplerState, FinishedSlots]:
        shard_batch = make_batch(shard, inputs.problems, inputs.B_p, inputs.n, inputs.key)
        state, row = engine.decode_chunk(inputs.weights, shard_batch, squeeze_shard_axis(state))
        has_work = engine.has_work(shard_batch, state)
        waiting = (
            jnp.where(state.slots.stopped, state.slots.row, -1)
            if engine.stops.host_replies
            else None
        )
        finished = FinishedSlots(row, state.slots.tokens, state.slots.t, has_work, waiting)
        return add_shard_axis(state), jax.tree.map(lambda x: x[None], finished)

    shard_spec, state_spec = P(ROLLOUT_AXES), sampler_state_specs(engine)
    shard_ids: Any = np.arange(shards, dtype=np.int32)
    start = sharding.map_over_shards(
        start_shard, mesh, (shard_spec, P(), P(), P(), P()), state_spec
    )
    step = sharding.map_over_shards(
        step_shard, mesh, (shard_spec, P(), state_spec), (state_spec, shard_spec)
    )
    return partial(start, shard_ids), partial(step, shard_ids)


def squeeze_shard_axis(state: SamplerState) -> SamplerState:
    """Inside a shard_map: one shard's state, out of the state of all shards."""
    return _map_state(state, lambda x: x[0], lambda x: x)


def add_shard_axis(state: SamplerState) -> SamplerState:
    return _map_state(state, lambda x: x[None], lambda x: x)


def _map_state(
    state: SamplerState, of_slots: Callable[[Any], Any], of_caches: Callable[[Any], Any]
) -> SamplerState:
    """The state with one function applied to the arrays of caches and prefix table, and another to
    all others."""
    caches = jax.tree.map(of_caches, (state.cache, state.prefix_table))
    others = jax.tree.map(of_slots, state._replace(cache=(), prefix_table=()))
    return others._replace(cache=caches[0], prefix_table=caches[1])


def sampler_state_specs(engine: Engine) -> Any:
    """How a shard_map over the rollout axes splits the state: see `sampler_state_shardings`."""
    shards: Any = P(ROLLOUT_AXES)
    cache_rows: Any = P(*[None] * engine.decoding.row_axis, ROLLOUT_AXES)
    others = SamplerState(*[shards] * len(SamplerState._fields))
    return others._replace(cache=cache_rows, prefix_table=cache_rows)


def sampler_state_shardings(engine: Engine, mesh: Mesh) -> Any:
    """The state's shardings between chunks: shards over rollout axes, heads over tensor, positions
    over sequence. Its arrays have an axis of shards first, but caches all shards' rows on one
    axis."""
    shards, axis = engine.shapes.shards, engine.decoding.row_axis
    # The same in all stacks where a mesh splits positions; elsewhere it does not count.
    position_axes = engine.decoding.position_axes(engine.decoding.decoder.stacks[0])
    shapes = _map_state(
        jax.eval_shape(engine.init_state, jax.ShapeDtypeStruct((), "int32")),
        lambda x: jax.ShapeDtypeStruct((shards, *x.shape), x.dtype),
        lambda x: jax.ShapeDtypeStruct(
            (*x.shape[:axis], shards * x.shape[axis], *x.shape[axis + 1 :]), x.dtype
        ),
    )

    def array_sharding(
        x: jax.ShapeDtypeStruct, logical_axes: Mapping[int, str | None]
    ) -> NamedSharding:
        return NamedSharding(
            mesh,
            sharding.partition_spec([logical_axes.get(i) for i in range(x.ndim)], x.shape, mesh),
        )

    def cache_shardings(entries: Any, position_axis: str | None) -> Any:
        def layer_shardings(arrays: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[NamedSharding, ...]:
            return tuple(
                array_sharding(
                    x, {axis: "shard", axis + 1: "kv_heads", x.ndim + position_dim: position_axis}
                )
                for x, position_dim in zip(arrays, position_axes, strict=False)
            )

        return jax.tree.map(layer_shardings, entries, is_leaf=lambda x: isinstance(x, tuple))

    cache = KVCache(
        cache_shardings(shapes.cache.slot_kv, None),
        cache_shardings(shapes.cache.prefix_kv, "position"),
    )
    others = _map_state(shapes, partial(array_sharding, logical_axes={0: "shard"}), lambda x: x)
    return others._replace(
        cache=cache, prefix_table=cache_shardings(shapes.prefix_table, "position")
    )
