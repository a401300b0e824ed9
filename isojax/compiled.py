"""The programs that train, lowered from shapes alone: what XLA says they take, on this machine's devices or on chips that are not here.

No weights, tokenizer or problems are needed. Where the device verifies there is one program, `train`; where the host does, there are
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

from isojax import registry
from isojax.config import CellConfig, SweepConfig
from isojax.models.decoder import Decoder, Options, Params
from isojax.rl import step
from isojax.rl.hosted import build_learn
from isojax.sampling.batch import Geometry, Problems, Rollouts, make_geometry
from isojax.sampling.sampler import build_engine
from isojax.sampling.stream import Given, build_stream, state_shapes
from isojax.sampling.stream import state_shardings as stream_shardings
from isojax.sharding import ROWS, gathered, replicated, shard_count
from isojax.tasks.base import DeviceTask, Task
from isojax.tasks.stops import Stops
from isojax.types import InputError

TRAINING_PROBLEMS = 1000  # rows of the training table, where nothing says how many there are


HBM = {"TPU v4": 32, "TPU v5 lite": 16, "TPU v5": 95, "TPU v6 lite": 32}  # GiB of a chip, by the kind of device
GIB = 2**30
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # half of the time on a CPU, and the same memory
REFUSED = (  # what libtpu's compiler says of a program beyond a chip's memory, and of what it speaks
    (r"HLO temporaries \(([\d.]+)([MGT])\) exceeds available HBM \(([\d.]+)([MGT])\)", "temporaries"),
    (r"Used ([\d.]+)([MGT]) of ([\d.]+)([MGT])", "all"),
)


class Program(NamedTuple):
    """A jitted function and the shapes, with shardings, that it is called with."""

    function: Any
    arguments: tuple[Any, ...]


class Taken(NamedTuple):
    """What XLA's memory analysis says of a program, in bytes of one device. `outputs` without what is updated in place; `peak`: the most
    that is alive at once, by XLA's own schedule."""

    arguments: int
    outputs: int
    temporaries: int
    peak: int

    @property
    def total(self) -> int:
        """What the program must be given: arguments, outputs that are no arguments, temporaries."""
        return self.arguments + self.outputs + self.temporaries


class Shaped:
    """What stands for a task in text where its programs' shapes alone are asked for: a vocabulary, and one token that ends a response."""

    on_device = False
    stops = Stops((0,), None)

    def __init__(self, vocab: int):
        self.vocab = vocab


class OutOfMemory(NamedTuple):
    """The compiler refused a program: GiB that it wanted (`of`: all, or its temporaries alone), and that the chip has."""

    used: float
    of: str
    available: float


def chips(topology: str) -> list[Any]:
    """The chips of a TPU topology such as "v5e:4x4", to be compiled for; there need be none here. libtpu stays with this process.

    Raises:
        InputError: libtpu is not installed, or knows no such topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(f"--topology {topology} compiles with libtpu, which is not installed: pip install 'isojax[tpu]' (Linux on x86).")
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no metadata server to ask
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # no chip is opened, so another process may do the same
    for name, value in (("TPU_WORKER_HOSTNAMES", "localhost"), ("TPU_ACCELERATOR_TYPE", "v5litepod-4")):
        os.environ.setdefault(name, value)  # else libtpu says at length that this is no TPU's host
    from jax.experimental.topologies import get_topology_desc

    try:
        return list(get_topology_desc(platform="tpu", topology_name=topology).devices)
    except (jax.errors.JaxRuntimeError, ValueError) as e:
        raise InputError(f"--topology {topology}: {e}. Expected a kind of TPU and its chips, such as v5e:4x4, v5p:2x2x2 or v6e:2x4.") from e


def chip_memory(device: Any) -> int:
    """Bytes of a chip's memory; InputError where its kind is not known here."""
    if device.device_kind not in HBM:
        raise InputError(f"the memory of a {device.device_kind} is not known; known are {', '.join(HBM)}. Say it by run.device_memory=GB.")
    return HBM[device.device_kind] * GIB


def compile_ahead(program: Program) -> Taken | OutOfMemory:
    """`analyse`; on a TPU the compiler ends where a program is beyond the chip's memory, with its figures in its message."""
    try:
        return analyse(program)
    except jax.errors.JaxRuntimeError as e:
        said = ((re.search(form, str(e)), of) for form, of in REFUSED)
        found, of = next(((m, of) for m, of in said if m), (None, ""))
        if found is None:
            raise
        used, available = (float(found[i]) * {"M": 1 / 1024, "G": 1.0, "T": 1024.0}[found[i + 1]] for i in (1, 3))
        return OutOfMemory(used, of, available)


def analyse(program: Program, options: dict[str, Any] | None = None) -> Taken:
    """Compiles a program with these options of XLA's; nothing is run."""
    found = program.function.lower(*program.arguments).compile(options).memory_analysis()
    return Taken(
        found.argument_size_in_bytes,
        found.output_size_in_bytes - found.alias_size_in_bytes,
        found.temp_size_in_bytes,
        found.peak_memory_in_bytes,
    )


def build_decoder(cell: CellConfig, sweep: SweepConfig, vocab: int, platform: str) -> Decoder:
    """The decoder that a sweep trains, computed as it says on this platform."""
    precision = cell.precision.on(platform)
    decoder: Decoder = registry.load("models", cell.model.family, "build").build(cell.model, cell.model.vocab or vocab)
    attention = sweep.decode_attention or "plain", sweep.score_attention or "plain"
    return decoder.computed(Options(precision.compute, precision.cache, *attention, sweep.remat))


def programs(cell: CellConfig, sweep: SweepConfig, pairs: Sequence[tuple[int, int]], mesh: Mesh, task: Task | Shaped) -> dict[str, Program]:
    """The programs of a sweep whose slots, microbatch, prompts and lanes are chosen, by name. `pairs`: every (B_p, n)."""
    assert sweep.slots and sweep.microbatch and sweep.prompts, "the planner chooses them"
    decoder = build_decoder(cell, sweep, task.vocab, mesh.devices.flat[0].platform)
    lengths = cell.sampling.prompt_length, cell.sampling.response_length
    sizes = shard_count(mesh), sweep.slots, sweep.microbatch
    geometry = make_geometry(list(pairs), *sizes, *lengths, sweep.prompts, sweep.lane_width or 1)
    given: Any = task
    build = _on_device if task.on_device else _hosted
    return build(cell, decoder, geometry, mesh, given)


def _on_device(cell: CellConfig, decoder: Decoder, geometry: Geometry, mesh: Mesh, task: DeviceTask) -> dict[str, Program]:
    train = step.build_train(cell, decoder, task, geometry, mesh)
    state, reference, numbers = _state(cell, decoder, mesh)
    table = _problems(mesh, TRAINING_PROBLEMS, geometry, geometry.response_length)
    index = _whole(mesh, (step.UPDATES_A_CALL, geometry.problem_rows))
    scalars = [_whole(mesh, ())] * 4
    return {"train": Program(train, (state, reference, table, index, *scalars, numbers))}


def _hosted(cell: CellConfig, decoder: Decoder, geometry: Geometry, mesh: Mesh, task: Any) -> dict[str, Program]:
    state, reference, numbers = _state(cell, decoder, mesh)
    problems, scalar = _problems(mesh, geometry.problem_rows, geometry, 0), _whole(mesh, ())
    key = _whole(mesh, jax.random.key_data(jax.random.key(0)).shape, jnp.uint32)
    learn = build_learn(cell, decoder, task, geometry, mesh)
    rollouts, rewards = _rollouts(cell, geometry, mesh)
    given, sampling = _sampling(cell, decoder, geometry, mesh, task.stops, (problems, scalar, scalar, key))
    advance = build_stream(decoder, geometry, mesh, cell.sampling, task.stops).advance
    return {
        "decode": Program(advance, (given, sampling)),
        "learn": Program(learn, (state, reference, problems, rollouts, rewards, scalar, scalar, key, numbers)),
    }


def _state(cell: CellConfig, decoder: Decoder, mesh: Mesh) -> tuple[Any, Params, Any]:
    """Shapes of the run's state, of the reference that the KL is measured against (none: {}), and of the coefficients."""
    with_critic, rl = cell.rl.critic is not None, cell.rl
    params = _laid(decoder.shapes(), decoder.shardings(mesh))
    shapes = jax.eval_shape(step.build_init(decoder, mesh, with_critic), decoder.shapes())
    state = _laid(shapes, step.state_shardings(decoder, mesh, with_critic))
    numbers = jax.tree.map(lambda x: _whole(mesh, (), x.dtype), step.coefficients(rl))
    return state, params if rl.kl > 0 or rl.measure_kl else {}, numbers


def _sampling(
    cell: CellConfig, decoder: Decoder, geometry: Geometry, mesh: Mesh, stops: Stops, fixed: tuple[Any, ...]
) -> tuple[Given, Any]:
    """What the sampler is given for a batch, and its state."""
    engine = build_engine(decoder, geometry, mesh, cell.sampling, stops)
    whole = jax.tree.map(gathered, decoder.shardings(mesh))
    stacked = _laid(jax.eval_shape(decoder.cast, decoder.shapes()), whole)
    weights = jax.eval_shape(engine.decoding.weights, decoder.shapes())
    specs = engine.decoding.specs(jax.tree.map(lambda s: s.spec, whole))
    weights = _laid(weights, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))

    given = Given(stacked if engine.decoding.unrolled else weights, weights, *fixed)
    return given, _laid(state_shapes(engine), stream_shardings(engine, mesh))


def _rollouts(cell: CellConfig, geometry: Geometry, mesh: Mesh) -> tuple[Rollouts, Any]:
    """Shapes of a batch's rollouts and rewards, split over the shards."""
    rows, T = (geometry.shards, geometry.rows), geometry.response_length

    def split(dtype: Any, *more: int) -> Any:
        return jax.ShapeDtypeStruct((*rows, *more), dtype, sharding=NamedSharding(mesh, P(ROWS)))

    kept = split(jnp.float32, T if cell.sampling.top_p < 1 else 1)
    rollouts = Rollouts(split(jnp.int32, T), split(jnp.float32, T), split(jnp.bool_, T), kept, split(jnp.bool_), split(jnp.int32))
    return rollouts, jax.ShapeDtypeStruct(rows, jnp.float32, sharding=replicated(mesh))  # the host puts rewards everywhere


def _problems(mesh: Mesh, rows: int, geometry: Geometry, answers: int) -> Problems:
    return Problems(*(_whole(mesh, shape) for shape in ((rows, geometry.prompt_length), (rows,), (rows, answers), (rows,))))


def _whole(mesh: Mesh, shape: tuple[int, ...], dtype: Any = jnp.int32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated(mesh))


def _laid(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, shardings)
