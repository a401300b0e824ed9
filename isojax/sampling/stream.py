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

# on_finished(rollouts i32[k], numbers 0 .. B-1; the tokens of each, i32[its length])
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

    rows: Array  # i32[S R], the buffer row of the rollout that a slot has finished; -1 where none
    tokens: Array  # i32[S R T]
    lengths: Array  # i32[S R], tokens in each slot
    has_work: Array  # bool[S], all equal: whether any shard has rollouts left to sample
    # i32[S R], of the rollouts that wait for the host's reply, -1 elsewhere
    waiting_rows: Array | None = None


@dataclass(frozen=True)
class PrepareWeights:
    """`prepare(params) -> SamplerWeights`; `compile` takes and returns shapes."""

    # (params) -> the weights of a step, and those that prompts are prefilled with, or None
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
    """A batch's sampling in chunks."""

    mesh: Mesh
    prepare_weights: PrepareWeights
    # (problems, B_p, n, key) -> what `StreamInputs` has in addition to weights, and the state
    init_batch: Program
    advance_chunk: Program  # (StreamInputs, state) -> (state, FinishedSlots); the state is donated
    to_rollouts: Program  # (state.outputs) -> Rollouts
    receive: Program | None  # where the host replies to turns (sampling/replies.py)

    def begin(
        self, params: Params, problems: ProblemArrays, B_p: Any, n: Any, key: PRNGKeyArray
    ) -> tuple[StreamInputs, SamplerState]:
        # before the cache is there, because weights are held twice for a moment
        weights = self.prepare_weights(params)
        batch_inputs, state = self.init_batch(problems, B_p, n, key)
        return StreamInputs(weights, *batch_inputs), state

    def advance_shapes(
        self, params: Params, problems: ProblemArrays
    ) -> tuple[StreamInputs, SamplerState]:
        """The shapes of `advance_chunk`'s arguments; compiles the programs that come before it.

        params, problems: ShapeDtypeStructs with shardings, as what is returned.
        """
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
        """All rollouts of a batch; `on_finished` gets a chunk's finished ones while the next runs.

        problems: of `problem_rows` rows, of which the first B_p count. on_finished(rollouts i32[k],
        their tokens): the rollouts' numbers in the batch; called once for each rollout, in this
        process those of its shards. reply: where the host replies to turns (sampling/replies.py),
        it is asked before the next chunk begins; else None.
        """
        inputs, state = self.begin(params, problems, np.int32(B_p), np.int32(n), key)
        if self.receive is not None:
            assert reply is not None, "a task of turns needs its reply"
            return self._run_with_replies(inputs, state, on_finished, reply)

        layout = Layout(B_p, n, sharding.shard_count(self.mesh))
        state, finished = self.advance_chunk(inputs, state)
        has_work = True
        while has_work:
            # The next chunk begins before the host knows whether there is work: the last one finds
            # nothing to do.
            state, next_finished = self.advance_chunk(inputs, state)
            multiprocess.start_host_copy(jax.tree.leaves(next_finished))

            ended = read_slots(finished, finished.rows, layout)
            on_finished(ended.rollouts, ended.responses)
            has_work = _has_work(finished)
            finished = next_finished
        return self.to_rollouts(state.outputs)

    def _run_with_replies(
        self, inputs: StreamInputs, state: SamplerState, on_finished: OnFinished, reply: Reply
    ) -> Rollouts:
        """`run` where the host replies to turns.

        A chunk waits for the replies to the one before, so that no clock decides what is sampled.
        inputs, state: of `begin`.
        """
        assert self.receive is not None
        layout = Layout(int(inputs.B_p), int(inputs.n), sharding.shard_count(self.mesh))
        has_work = True
        while has_work:
            state, finished = self.advance_chunk(inputs, state)
            S, R, T = finished.tokens.shape
            ended = read_slots(finished, finished.rows, layout)
            on_finished(ended.rollouts, ended.responses)

            # The task replies to turns that have ended. Where it does not, or has no room to, the
            # response is done.
            waiting = read_slots(finished, finished.waiting_rows, layout)
            contexts = reply(waiting.rollouts, waiting.responses)
            done = [i for i, slot in enumerate(waiting.slots) if has_ended(slot, contexts[i], T)]
            on_finished(waiting.rollouts[done], [waiting.responses[i] for i in done])

            new_replies = make_replies(self.mesh, (S, R, T), waiting.slots, contexts)
            outputs, slots = self.receive(state.outputs, state.slots, new_replies)
            state = state._replace(outputs=outputs, slots=slots)
            has_work = _has_work(finished)
        return self.to_rollouts(state.outputs)


def _has_work(finished: FinishedSlots) -> bool:
    return bool(np.asarray(finished.has_work.addressable_shards[0].data).any())


class SlotRollouts(NamedTuple):
    """k rollouts, and the slots that they are in."""

    rollouts: np.ndarray  # i[k], their numbers in the batch
    responses: list[np.ndarray]  # the tokens of each so far, i32[its length]
    slots: list[WaitingSlot]


def read_slots(finished: FinishedSlots, rows: Any, layout: Layout) -> SlotRollouts:
    """The rollouts of those slots of this process that have a buffer row in `rows`.

    rows: i32[S R], such as `finished.rows`; -1 leaves a slot out. The three lists that are
    returned have the same order.
    """
    # s of the S shards are this process's.
    shard_ids, rows = multiprocess.local_shard_rows(rows)  # [s] and [s R]
    _, tokens = multiprocess.local_shard_rows(finished.tokens)  # [s R T]
    _, lengths = multiprocess.local_shard_rows(finished.lengths)  # [s R]

    shard, slot = np.nonzero(rows >= 0)
    shard_id = shard_ids[shard]
    row = rows[shard, slot]
    length = lengths[shard, slot]
    return SlotRollouts(
        rollouts=layout.rollout_at(shard_id, row),
        responses=[
            row_tokens[:count]
            for row_tokens, count in zip(tokens[shard, slot], length, strict=True)
        ],
        slots=[
            WaitingSlot(*map(int, column))
            for column in zip(shard_id, slot, row, length, strict=True)
        ],
    )


def build_stream(
    decoder: Decoder,
    shapes: SamplerShapes,
    mesh: Mesh,
    sampling: SamplingConfig,
    stops: StopConditions,
    records_experts: bool = False,
) -> Stream:
    """Build the programs of a batch's sampling, chunk by chunk.

    stops: the task's. records_experts: whether the rollouts are RoutedRollouts.
    """
    engine = build_engine(decoder, shapes, mesh, sampling, stops, records_experts=records_experts)
    state_sharding = sampler_state_shardings(engine, mesh)
    shard_sharding = NamedSharding(mesh, P(ROLLOUT_AXES))
    programs = _shard_programs(engine, mesh)

    def init_batch(
        problems: ProblemArrays, B_p: Array, n: Array, key: PRNGKeyArray
    ) -> tuple[Any, SamplerState]:
        """What chunks read in addition to the weights, as `StreamInputs` has it; and the state.

        The key goes as its data, u32[2], of which `_shard_programs` makes a key again."""
        batch_inputs = (problems, B_p, n, jax.random.key_data(key))
        return batch_inputs, programs.start(*batch_inputs)

    # programs.step(inputs, state): the state is donated. It alone has the loop over tokens, which
    # GPU_OPTIONS are for.
    on_gpu = mesh.devices.flat[0].platform == "gpu"
    advance_chunk = jax.jit(
        programs.step,
        donate_argnums=1,
        out_shardings=(state_sharding, shard_sharding),
        compiler_options=GPU_OPTIONS if on_gpu else None,
    )
    return Stream(
        mesh=mesh,
        prepare_weights=build_prepare_weights(engine, mesh),
        init_batch=Program(jax.jit(init_batch, out_shardings=(replicated(mesh), state_sharding))),
        advance_chunk=Program(advance_chunk),
        to_rollouts=Program(jax.jit(engine.to_rollouts, out_shardings=shard_sharding)),
        receive=build_receive(mesh) if stops.host_replies else None,
    )


def build_prepare_weights(engine: Engine, mesh: Mesh) -> PrepareWeights:
    """Build the program that makes the sampler's weights of parameters as the trainer has them.

    They are cast, whole on each shard, and laid out for a step. Parameters come sharded over `mesh`
    by `decoder.shardings(mesh)`.
    """
    decoding = engine.decoding
    decoder = decoding.decoder
    param_shardings = decoder.shardings(mesh)
    gathered_shardings = jax.tree.map(sharding.replicate_over_rollout_axes, param_shardings)
    is_whole = param_shardings == gathered_shardings  # nothing is split over data or fsdp

    # Whether the trainer's arrays serve the sampler, without a cast and without other parts.
    computes_in_float32 = jnp.dtype(decoder.options.compute_dtype) == jnp.float32
    serves_as_it_is = is_whole and computes_in_float32

    # The stacks of layers that are gathered layer by layer: those which the sampler's step scans.
    gathers_layers = not is_whole and not decoding.unrolled_layers
    stacks = [stack.name for stack in decoder.stacks] if gathers_layers else []

    def prepare(params: Params) -> tuple[Params, Params | None]:
        """Return (the weights of a step, the stacked ones that prompts go through).

        The latter are None where prompts go through the step's, or through the policy's own
        parameters as they are (`PrepareWeights.prefills_params`).
        """
        if not serves_as_it_is:
            params = _cast_and_gather(params, decoder.cast_params, gathered_shardings, stacks)
        weights = decoding.prepare_weights(params)
        # Prompts may need other weights: stacked layers, where a step has unrolled ones
        # (`Decoding.prefills_stacked`).
        needs_copy = decoding.prefills_stacked and not serves_as_it_is
        return weights, params if needs_copy else None

    def prepare_int8(params: Params) -> tuple[Params, None]:
        """Return (int8 weights of a step, None), quantised before gathering, to move less.

        They serve prompts too. Their tree is that of `stored_decoder`: with scales.
        """
        stored = decoding.stored_decoder.shardings(mesh)
        gathered = jax.tree.map(sharding.replicate_over_rollout_axes, stored)
        quantised = decoding.cast_weights(params)
        weights = _cast_and_gather(quantised, lambda already_cast: already_cast, gathered, stacks)
        return decoding.lay_out(weights), None

    prepare_weights = prepare_int8 if decoding.quantises_weights else prepare
    program = Program(jax.jit(prepare_weights, in_shardings=(param_shardings,)))
    return PrepareWeights(program, prefills_params=decoding.prefills_stacked and serves_as_it_is)


def _cast_and_gather(
    weights: Params, cast: Callable[[Params], Params], gathered: Params, stacks: Sequence[str]
) -> Params:
    """The weights cast, and sharded as `gathered` says; those of `stacks` layer by layer.

    gathered: a tree of NamedShardings like the weights. stacks: entries of the weights, such as
    "blocks", whose arrays are [layers ...]. All at once, a TPU would hold these twice: as its
    devices send them, and as programs read them.
    """

    def without_layers(of_stack: NamedSharding) -> NamedSharding:
        """The sharding of one layer of a stack [layers ...]."""
        return NamedSharding(of_stack.mesh, P(*of_stack.spec[1:]))

    def gather_layers(stack: Params, shardings: Params) -> Params:
        layer_shardings = jax.tree.map(without_layers, shardings)

        def gather_layer(_: None, layer: Params) -> tuple[None, Params]:
            return None, lax.with_sharding_constraint(cast(layer), layer_shardings)

        return lax.scan(gather_layer, None, stack)[1]

    of_stacks = {name: gather_layers(weights[name], gathered[name]) for name in stacks}
    others = cast({name: w for name, w in weights.items() if name not in of_stacks})
    return lax.with_sharding_constraint({**others, **of_stacks}, gathered)


class ShardPrograms(NamedTuple):
    """Programs of all shards together, to be jitted."""

    start: Callable[..., SamplerState]  # (problems, B_p, n, key data u32[2]) -> state
    step: Callable[[StreamInputs, SamplerState], tuple[SamplerState, FinishedSlots]]


def _shard_programs(engine: Engine, mesh: Mesh) -> ShardPrograms:
    """Wrap the engine, which is one shard's, in shard_maps over all shards.

    Inside, `shard` is i32[1], the shard's number, and arrays of a state are [1 ...], but for those
    of caches, which have no axis of shards (`sampler_state_shardings`).
    """
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
        """A chunk of one shard: (state, outputs [1 R ...])."""
        batch = make_batch(shard, inputs.problems, inputs.B_p, inputs.n, inputs.key)
        state = squeeze_shard_axis(state)
        state, finished_rows = engine.decode_chunk(inputs.weights, batch, state)

        slots = state.slots
        finished = FinishedSlots(
            rows=finished_rows,
            tokens=slots.tokens,
            lengths=slots.t,
            has_work=engine.has_work(batch, state),
        )
        if engine.stops.host_replies:
            finished = finished._replace(waiting_rows=jnp.where(slots.stopped, slots.row, -1))
        return add_shard_axis(state), jax.tree.map(lambda x: x[None], finished)

    by_shard = P(ROLLOUT_AXES)
    on_all = P()
    state_spec = sampler_state_specs(engine)
    batch_specs = (on_all, on_all, on_all, on_all)  # problems, B_p, n, key
    start = sharding.map_over_shards(start_shard, mesh, (by_shard, *batch_specs), state_spec)
    step = sharding.map_over_shards(
        step_shard, mesh, (by_shard, on_all, state_spec), (state_spec, by_shard)
    )
    shard_ids: Any = np.arange(shards, dtype=np.int32)
    return ShardPrograms(partial(start, shard_ids), partial(step, shard_ids))


def squeeze_shard_axis(state: SamplerState) -> SamplerState:
    """Inside a shard_map: one shard's state, out of the state of all shards."""
    return _map_state(state, lambda x: x[0], lambda x: x)


def add_shard_axis(state: SamplerState) -> SamplerState:
    """The inverse of `squeeze_shard_axis`."""
    return _map_state(state, lambda x: x[None], lambda x: x)


def _map_state(
    state: SamplerState, of_slots: Callable[[Any], Any], of_caches: Callable[[Any], Any]
) -> SamplerState:
    """The state with `of_caches` applied to the arrays of cache and prefix table, and `of_slots` to
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
    """The state's shardings between chunks: a SamplerState of NamedShardings.

    Shards are split over the rollout axes (data, fsdp), heads over tensor, prefixes' positions over
    sequence. The arrays have an axis of shards first; but those of caches have the rows of all
    shards on one axis, `row_axis`, and the heads on the axis after it.
    """
    row_axis = engine.decoding.row_axis
    # The same in all stacks where a mesh splits positions; elsewhere it does not count.
    position_axes = engine.decoding.position_axes(engine.decoding.decoder.stacks[0])
    shapes = _shapes_of_all_shards(engine)

    def array_sharding(
        x: jax.ShapeDtypeStruct, logical_axes: Mapping[int, str | None]
    ) -> NamedSharding:
        """logical_axes: the names of the array's axes that have one, such as {0: "shard"}."""
        names = [logical_axes.get(axis) for axis in range(x.ndim)]
        return NamedSharding(mesh, sharding.partition_spec(names, x.shape, mesh))

    def layer_shardings(
        arrays: tuple[jax.ShapeDtypeStruct, ...], positions: str | None
    ) -> tuple[NamedSharding, ...]:
        """The shardings of the arrays of a layer's cache: keys, values, and of int8 ones scales.

        positions: the logical name of their axis of positions; None where it is not split.
        """
        shardings = []
        # `position_axes` counts from the end, and has also those of scales: not strict, because
        # caches of other precisions have no scales.
        for x, position_axis in zip(arrays, position_axes, strict=False):
            names = {row_axis: "shard", row_axis + 1: "kv_heads", x.ndim + position_axis: positions}
            shardings.append(array_sharding(x, names))
        return tuple(shardings)

    def cache_shardings(layers: Any, positions: str | None) -> Any:
        return jax.tree.map(
            lambda arrays: layer_shardings(arrays, positions),
            layers,
            is_leaf=lambda x: isinstance(x, tuple),
        )

    others = _map_state(shapes, partial(array_sharding, logical_axes={0: "shard"}), lambda x: x)
    return others._replace(
        cache=KVCache(
            cache_shardings(shapes.cache.slot_kv, None),
            cache_shardings(shapes.cache.prefix_kv, "position"),
        ),
        prefix_table=cache_shardings(shapes.prefix_table, "position"),
    )


def _shapes_of_all_shards(engine: Engine) -> SamplerState:
    """The ShapeDtypeStructs of the state between chunks, laid out as `sampler_state_shardings`."""
    shards = engine.shapes.shards
    axis = engine.decoding.row_axis

    def with_shard_axis(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((shards, *x.shape), x.dtype)

    def with_all_rows(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        before, rows, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        return jax.ShapeDtypeStruct((*before, shards * rows, *after), x.dtype)

    of_one_shard = jax.eval_shape(engine.init_state, jax.ShapeDtypeStruct((), "int32"))
    return _map_state(of_one_shard, with_shard_axis, with_all_rows)
