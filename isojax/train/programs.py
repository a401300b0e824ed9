"""The programs that train, lowered from shapes alone: what XLA says they take, on this machine's devices or on chips
that are not here.

No weights, tokenizer or problems are needed. Where the device verifies there is one program, `train`; where the host
does, there are
two that matter: `decode`, a visit of the sampler, and `learn`, the update. Bytes are those of one device.
"""

import importlib.util
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from isojax.core import registry
from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.distributed.sharding import ROLLOUT_AXES, replicate_over_rollout_axes, replicated, shard_count
from isojax.models.transformer import ComputeOptions, Decoder, Params
from isojax.rl import train_step
from isojax.rl.host_verified import build_update
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplerShapes, make_sampler_shapes
from isojax.sampling.engine import build_engine
from isojax.sampling.stream import StreamInputs, build_stream, sampler_state_shapes
from isojax.sampling.stream import sampler_state_shardings as stream_shardings
from isojax.tasks.protocol import DeviceTask, Task
from isojax.tasks.stop_strings import StopConditions

TRAINING_PROBLEMS = 1000  # rows of the training table, where nothing says how many there are


HBM_GIB = {"TPU v4": 32, "TPU v5 lite": 16, "TPU v5": 95, "TPU v6 lite": 32}  # GiB of a chip, by the kind of device
GIB = 2**30
FAST_COMPILE_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}  # half of the time on a CPU, and the same memory
OOM_PATTERNS = (  # what libtpu's compiler says of a program beyond a chip's memory, and of what it speaks
    (r"HLO temporaries \(([\d.]+)([MGT])\) exceeds available HBM \(([\d.]+)([MGT])\)", "temporaries"),
    (r"Used ([\d.]+)([MGT]) of ([\d.]+)([MGT])", "all"),
)


class AbstractProgram(NamedTuple):
    """A jitted function and the shapes, with shardings, that it is called with."""

    function: Any
    arguments: tuple[Any, ...]


class ProgramMemory(NamedTuple):
    """What XLA's memory analysis says of a program, in bytes of one device. `outputs` without what is updated in place;
    `peak`: the most that is alive at once, by XLA's own schedule."""

    arguments: int
    outputs: int
    temporaries: int
    peak: int

    @property
    def total(self) -> int:
        """What the program must be given: arguments, outputs that are no arguments, temporaries."""
        return self.arguments + self.outputs + self.temporaries


class AbstractTask:
    """What stands for a task in text where its programs' shapes alone are asked for: a vocabulary, and one token that
    ends a response.
    """

    on_device = False
    stops = StopConditions((0,), None)

    def __init__(self, vocab: int):
        self.vocab = vocab


class OutOfMemory(NamedTuple):
    """The compiler refused a program: GiB that it wanted (`of`: all, or its temporaries alone), and that the chip
    has.
    """

    needed_gib: float
    scope: str
    available_gib: float


def topology_devices(topology: str) -> list[Any]:
    """The chips of a TPU topology such as "v5e:4x4", to be compiled for; there need be none here. libtpu stays with
    this process.

    Raises:
        InputError: libtpu is not installed, or knows no such topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(
            f"--topology {topology} compiles with libtpu, which is not installed: pip install 'isojax[tpu]' (Linux on x86)."
        )
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no metadata server to ask
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # no chip is opened, so another process may do the same
    for name, value in (("TPU_WORKER_HOSTNAMES", "localhost"), ("TPU_ACCELERATOR_TYPE", "v5litepod-4")):
        os.environ.setdefault(name, value)  # else libtpu says at length that this is no TPU's host
    from jax.experimental.topologies import get_topology_desc

    try:
        return list(get_topology_desc(platform="tpu", topology_name=topology).devices)
    except (jax.errors.JaxRuntimeError, ValueError) as e:
        raise InputError(
            f"--topology {topology}: {e}. Expected a kind of TPU and its chips, such as v5e:4x4, v5p:2x2x2 or v6e:2x4."
        ) from e


def chip_memory(device: Any) -> int:
    """Bytes of a chip's memory; InputError where its kind is not known here."""
    if device.device_kind not in HBM_GIB:
        raise InputError(
            f"the memory of a {device.device_kind} is not known; known are {', '.join(HBM_GIB)}. Say it by run.device_memory=GB."
        )
    return HBM_GIB[device.device_kind] * GIB


def compile_for_memory(program: AbstractProgram) -> ProgramMemory | OutOfMemory:
    """`analyse`; on a TPU the compiler ends where a program is beyond the chip's memory, with its figures in its
    message.
    """
    try:
        return analyze_memory(program)
    except jax.errors.JaxRuntimeError as e:
        matches = ((re.search(form, str(e)), scope) for form, scope in OOM_PATTERNS)
        match_found, scope = next(((m, scope) for m, scope in matches if m), (None, ""))
        if match_found is None:
            raise
        used, available = (
            float(match_found[i]) * {"M": 1 / 1024, "G": 1.0, "T": 1024.0}[match_found[i + 1]] for i in (1, 3)
        )
        return OutOfMemory(used, scope, available)


def analyze_memory(program: AbstractProgram, options: dict[str, Any] | None = None) -> ProgramMemory:
    """Compiles a program with these options of XLA's; nothing is run."""
    analysis = program.function.lower(*program.arguments).compile(options).memory_analysis()
    return ProgramMemory(
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
        analysis.peak_memory_in_bytes,
    )


def build_decoder(cell: CellConfig, sweep: SweepConfig, vocab: int, platform: str) -> Decoder:
    """The decoder that a sweep trains, computed as it says on this platform."""
    precision = cell.precision.for_platform(platform)
    decoder: Decoder = registry.load("models.families", cell.model.family, "build").build(
        cell.model, cell.model.vocab or vocab
    )
    attention = sweep.decode_attention or "plain", sweep.forward_attention or "plain"
    return decoder.with_options(ComputeOptions(precision.compute, precision.cache, *attention, sweep.remat))


def build_abstract_programs(
    cell: CellConfig, sweep: SweepConfig, pairs: Sequence[tuple[int, int]], mesh: Mesh, task: Task | AbstractTask
) -> dict[str, AbstractProgram]:
    """The programs of a sweep whose slots, microbatch, prompts and lanes are chosen, by name. `pairs`: every (B_p,
    n).
    """
    assert sweep.decode_slots and sweep.microbatch and sweep.prefill_batch, "the planner chooses them"
    decoder = build_decoder(cell, sweep, task.vocab, mesh.devices.flat[0].platform)
    lengths = cell.sampling.prompt_length, cell.sampling.response_length
    sampler_sizes = shard_count(mesh), sweep.decode_slots, sweep.microbatch
    geometry = make_sampler_shapes(
        list(pairs), *sampler_sizes, *lengths, sweep.prefill_batch, sweep.slots_per_prefix or 1
    )
    any_task: Any = task
    build = _device_verified_programs if task.on_device else _host_verified_programs
    return build(cell, decoder, geometry, mesh, any_task)


def _device_verified_programs(
    cell: CellConfig, decoder: Decoder, geometry: SamplerShapes, mesh: Mesh, task: DeviceTask
) -> dict[str, AbstractProgram]:
    train = train_step.build_train(cell, decoder, task, geometry, mesh)
    state, reference_params, hparams = _state_shapes(cell, decoder, mesh)
    problem_table = _problem_shapes(mesh, TRAINING_PROBLEMS, geometry, geometry.response_length)
    index = _replicated_shape(mesh, (train_step.MAX_UPDATES_PER_CALL, geometry.problem_rows))
    scalars = [_replicated_shape(mesh, ())] * 4
    return {"train": AbstractProgram(train, (state, reference_params, problem_table, index, *scalars, hparams))}


def _host_verified_programs(
    cell: CellConfig, decoder: Decoder, geometry: SamplerShapes, mesh: Mesh, task: Any
) -> dict[str, AbstractProgram]:
    state, reference_params, hparams = _state_shapes(cell, decoder, mesh)
    problems, scalar = _problem_shapes(mesh, geometry.problem_rows, geometry, 0), _replicated_shape(mesh, ())
    key = _replicated_shape(mesh, jax.random.key_data(jax.random.key(0)).shape, jnp.uint32)
    learn = build_update(cell, decoder, task, geometry, mesh)
    rollouts, rewards = _rollout_shapes(cell, geometry, mesh)
    sampler_inputs, sampler_state = _sampler_state_shapes(
        cell, decoder, geometry, mesh, task.stops, (problems, scalar, scalar, key)
    )
    advance = build_stream(decoder, geometry, mesh, cell.sampling, task.stops).advance
    return {
        "decode": AbstractProgram(advance, (sampler_inputs, sampler_state)),
        "learn": AbstractProgram(
            learn, (state, reference_params, problems, rollouts, rewards, scalar, scalar, key, hparams)
        ),
    }


def _state_shapes(cell: CellConfig, decoder: Decoder, mesh: Mesh) -> tuple[Any, Params, Any]:
    """Shapes of the run's state, of the reference that the KL is measured against (none: {}), and of the
    coefficients.
    """
    with_critic, rl = cell.rl.critic is not None, cell.rl
    params = _with_shardings(decoder.shapes(), decoder.shardings(mesh))
    shapes = jax.eval_shape(train_step.build_init_state(decoder, mesh, with_critic), decoder.shapes())
    state = _with_shardings(shapes, train_step.train_state_shardings(decoder, mesh, with_critic))
    hparams = jax.tree.map(lambda x: _replicated_shape(mesh, (), x.dtype), train_step.make_coefficients(rl))
    return state, params if rl.kl > 0 or rl.measure_kl else {}, hparams


def _sampler_state_shapes(
    cell: CellConfig,
    decoder: Decoder,
    geometry: SamplerShapes,
    mesh: Mesh,
    stops: StopConditions,
    batch_shapes: tuple[Any, ...],
) -> tuple[StreamInputs, Any]:
    """What the sampler is given for a batch, and its state."""
    engine = build_engine(decoder, geometry, mesh, cell.sampling, stops)
    gathered_shardings = jax.tree.map(replicate_over_rollout_axes, decoder.shardings(mesh))
    stacked = _with_shardings(jax.eval_shape(decoder.cast_params, decoder.shapes()), gathered_shardings)
    weights = jax.eval_shape(engine.decoding.prepare_weights, decoder.shapes())
    specs = engine.decoding.weight_specs(jax.tree.map(lambda s: s.spec, gathered_shardings))
    weights = _with_shardings(weights, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))

    sampler_inputs = StreamInputs(stacked if engine.decoding.unrolled_layers else weights, weights, *batch_shapes)
    return sampler_inputs, _with_shardings(sampler_state_shapes(engine), stream_shardings(engine, mesh))


def _rollout_shapes(cell: CellConfig, geometry: SamplerShapes, mesh: Mesh) -> tuple[Rollouts, Any]:
    """Shapes of a batch's rollouts and rewards, split over the shards."""
    rows, T = (geometry.shards, geometry.buffer_rows), geometry.response_length

    def sharded_shape(dtype: Any, *trailing: int) -> Any:
        return jax.ShapeDtypeStruct((*rows, *trailing), dtype, sharding=NamedSharding(mesh, P(ROLLOUT_AXES)))

    nucleus_mass = sharded_shape(jnp.float32, T if cell.sampling.top_p < 1 else 1)
    rollouts = Rollouts(
        sharded_shape(jnp.int32, T),
        sharded_shape(jnp.float32, T),
        sharded_shape(jnp.bool_, T),
        nucleus_mass,
        sharded_shape(jnp.bool_),
        sharded_shape(jnp.int32),
    )
    return rollouts, jax.ShapeDtypeStruct(
        rows, jnp.float32, sharding=replicated(mesh)
    )  # the host puts rewards everywhere


def _problem_shapes(mesh: Mesh, rows: int, geometry: SamplerShapes, answer_length: int) -> ProblemArrays:
    return ProblemArrays(
        *(
            _replicated_shape(mesh, shape)
            for shape in ((rows, geometry.prompt_length), (rows,), (rows, answer_length), (rows,))
        )
    )


def _replicated_shape(mesh: Mesh, shape: tuple[int, ...], dtype: Any = jnp.int32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated(mesh))


def _with_shardings(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
