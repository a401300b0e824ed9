"""What XLA says that the programs of a sweep take, in bytes of one device, on this machine's devices or on chips that
are not here. Nothing is run: no weights, tokenizer or problems are needed."""

import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
from jax.sharding import Mesh

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.machine import silence_libtpu
from isojax.core.shapes import ASSUMED_TRAINING_PROBLEMS
from isojax.tasks.protocol import StopConditions
from isojax.tasks.task import Task
from isojax.train.programs import SweepPrograms

# Half of the compile time on a CPU, and the same memory
FAST_COMPILE_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
# What libtpu's compiler says of a program that, with its arguments, exceeds a chip's memory
OOM_PATTERNS = (
    r"HLO temporaries \(([\d.]+)([MGT])\) exceeds available HBM",
    r"Used ([\d.]+)([MGT]) of [\d.]+[MGT]",
)
GIB_PER_UNIT = {"M": 1 / 1024, "G": 1.0, "T": 1024.0}


class ProgramMemory(NamedTuple):
    """XLA's memory analysis of a program, in bytes of one device."""

    arguments: int
    outputs: int  # without what is updated in place
    temporaries: int
    peak: int  # the most that is alive at once, by XLA's own schedule


@dataclass(frozen=True)
class AbstractTask:
    """Stands for a task in text where only the shapes of its programs matter; one token ends a response."""

    vocab: int
    on_device: ClassVar[bool] = False
    stops: ClassVar[StopConditions] = StopConditions((0,), None)


class OutOfMemory(NamedTuple):
    """The compiler refused a program, which needs so much of a chip, arguments included."""

    needed_gib: float


def topology_devices(topology: str) -> list[Any]:
    """The chips of a TPU topology such as "v5e:4x4", to compile for; none need be here. libtpu stays loaded in this
    process. InputError where it is not installed, or knows no such topology."""
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(
            f"--topology {topology} compiles with libtpu, which is not installed: pip install 'isojax[tpu]' (Linux on "
            "x86)."
        )
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no metadata server to ask
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # no chip is opened, so another process may do the same
    silence_libtpu()
    from jax.experimental.topologies import get_topology_desc

    try:
        return list(get_topology_desc(platform="tpu", topology_name=topology).devices)
    except (jax.errors.JaxRuntimeError, ValueError) as e:
        raise InputError(
            f"--topology {topology}: {e}. Expected a kind of TPU and its chips, such as v5e:4x4, v5p:2x2x2 or v6e:2x4."
        ) from e


def compile_for_memory(
    function: Any, arguments: tuple[Any, ...], options: dict[str, Any] | None = None
) -> ProgramMemory | OutOfMemory:
    """Compiles a jitted function for ShapeDtypeStructs, with these options of XLA. On a TPU the compiler refuses a
    program that exceeds the chip's memory, with the figures in its message."""
    try:
        analysis = function.lower(*arguments).compile(options).memory_analysis()
    except jax.errors.JaxRuntimeError as e:
        for pattern in OOM_PATTERNS:
            if match := re.search(pattern, str(e)):
                needed, unit = match.groups()
                return OutOfMemory(float(needed) * GIB_PER_UNIT[unit])
        raise
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    temporaries, peak = analysis.temp_size_in_bytes, analysis.peak_memory_in_bytes
    return ProgramMemory(analysis.argument_size_in_bytes, outputs, temporaries, peak)


def build_abstract_programs(
    cell: CellConfig, sweep: SweepConfig, pairs: Sequence[tuple[int, int]], mesh: Mesh, task: Task | AbstractTask
) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The jitted functions of a sweep that take the most memory, and their arguments' shapes, by name: `train` where
    the device verifies; `decode`, a chunk of the sampler, and `learn`, the update, where the host does. `pairs`:
    every (B_p, n)."""
    synchronous: Any = cell.model_copy(update={"rl": cell.rl.model_copy(update={"max_staleness": None})})
    any_task: Any = task
    programs = SweepPrograms(synchronous, sweep, pairs, mesh, any_task)
    rollouts: Any = programs.rollout_programs
    main_programs = rollouts.main_programs(programs.update_shapes(ASSUMED_TRAINING_PROBLEMS))
    return {name: (program.jitted, arguments) for name, (program, arguments) in main_programs.items()}
