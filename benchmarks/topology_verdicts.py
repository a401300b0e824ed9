"""Whether `launch --dry-run --topology` says of a sweep what its real run would meet; needs libtpu
and no TPU.

    python benchmarks/topology_verdicts.py               six sweeps, two verdicts each; an hour
    python benchmarks/topology_verdicts.py async lora    some of them

A dry run compiles the programs that take the most. For each sweep the script compiles every program
that a run does, also those that choose problems and evaluate. To a program's peak it adds what a
run keeps on the chip meanwhile: the training state, the base policy, the table of problems, an
asynchronous sampler. The largest sum is what the sweep needs. The script then asks the dry run
about a chip with 2% more memory than that, and about one with 2% less. One JSON line for each
verdict.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from isojax.core.config import Config
from isojax.core.config.load import load_config
from isojax.core.errors import InputError
from isojax.core.shapes import ASSUMED_TRAINING_PROBLEMS
from isojax.distributed.sharding import Program, make_mesh
from isojax.launch.local import compile_for_topology
from isojax.launch.local.compile_for_topology import (
    AbstractTask,
    Topology,
    compile_programs,
    confirm_sizes,
    run_in_child_process,
    topology_budget,
)
from isojax.launch.planner import plan_cells, with_kernels
from isojax.launch.time_estimate import GIB
from isojax.rl.engines.local import DeviceEngine, StreamEngine
from isojax.tasks.protocol import StopConditions
from isojax.tasks.task import build_task
from isojax.train.programs import SweepPrograms

MODEL = (
    *(
        "cell.model.layers=6",
        "cell.model.width=2048",
        "cell.model.heads=16",
        "cell.model.kv_heads=4",
    ),
    *(
        "cell.model.head_dim=128",
        "cell.model.mlp=5632",
        "sweep.B_p=[16]",
        "sweep.n=[8]",
        "sweep.decode_slots=16",
    ),
    *(
        "sweep.microbatch=2",
        "sweep.prefill_batch=2",
        "sweep.slots_per_prefix=1",
        "sweep.remat=layer",
    ),
    *("cell.sampling.prompt_length=256", "cell.sampling.response_length=512"),
)
TEXT = ("cell.task=jsonl:none", "cell.model.vocab=32768", "cell.rl.learning_rate=1e-6")
LORA = "cell.model.lora={rank: 16}"


class JudgedSweep(NamedTuple):
    """A sweep, and the chips that it is to fit on."""

    topology: str
    mesh: str
    settings: tuple[str, ...]  # beyond MODEL


SWEEPS = {
    "fused": JudgedSweep("v5e:2x2", "fsdp=4", ("cell.model.layers=3", "cell.rl.kl=0.02")),
    "text": JudgedSweep("v5e:2x2", "fsdp=2,tensor=2", TEXT),
    "kl": JudgedSweep("v5e:2x2", "data=2,tensor=2", (*TEXT, "cell.rl.kl=0.02")),
    "lora": JudgedSweep("v6e:2x2", "tensor=4", (*TEXT, LORA)),
    "moments": JudgedSweep("v5e:2x2", "fsdp=4", (*TEXT, "sweep.moments_on_host=true")),
    "async": JudgedSweep("v5p:2x2x1", "fsdp=2,tensor=2", (*TEXT, "cell.rl.max_staleness=2")),
}


def chip_bytes(shapes: Any) -> int:
    """Bytes on one chip of a tree of ShapeDtypeStructs with shardings."""
    return sum(
        int(np.prod(x.sharding.shard_shape(x.shape), dtype=np.int64)) * x.dtype.itemsize
        for x in jax.tree.leaves(shapes)
    )


def output_bytes(programs: Iterable[Program]) -> int:
    return sum(
        chip_bytes(program._output_shapes) for program in programs if program._compiled is not None
    )


def peak_bytes(program: Program) -> int:
    return program._compiled.memory_analysis().peak_memory_in_bytes


def needed_bytes(config: Config, topology: str) -> dict[str, int]:
    """Bytes of a chip that a real run takes while each of its programs runs, by the program's
    name."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    config, devices, budget = topology_budget(config, topology)
    vocab = config.cell.model.vocab
    is_text = config.cell.task.startswith("jsonl")
    task: Any = (
        AbstractTask(vocab or 0, StopConditions((0,), None)) if is_text else build_task(config.cell)
    )
    pairs = sorted({pair for cell in plan_cells(config.sweep) for pair in cell.pairs})
    sweep = with_kernels(config.sweep, budget.mesh, "tpu", config.cell)
    programs = SweepPrograms(config.cell, sweep, pairs, make_mesh(budget.mesh, devices), task)
    programs.compile(ASSUMED_TRAINING_PROBLEMS)

    shapes = programs.update_shapes(ASSUMED_TRAINING_PROBLEMS)
    rollouts = programs.rollout_programs
    rollouts, evaluator = vars(rollouts), programs.evaluator.graded_sampler.engine
    params = chip_bytes(shapes.policy_params)
    table = chip_bytes(shapes.problem_table)
    kept = chip_bytes(shapes.state) + chip_bytes(shapes.base_params) + table  # by a run, always
    parked = 0  # in the host's memory while it samples
    if sweep.moments_on_host:
        parked = chip_bytes((shapes.state.moments, shapes.state.critic))

    needed = {}
    worker = 0  # bytes that an asynchronous sampler keeps
    if "sampler" in rollouts:
        sampler = rollouts["sampler"]
        worker = output_bytes([sampler.prepare_weights.program, sampler.init_state])
        needed["sampler: weights"] = (
            peak_bytes(sampler.prepare_weights.program) + kept - params + worker
        )
        needed["sampler: decode_chunk"] = peak_bytes(sampler.decode_chunk) + kept
        needed["sampler: extract_batch"] = peak_bytes(sampler.extract_batch) + kept

    # Streams of the host's loop: a program's own arguments are within its peak.
    engines = {"evaluate": evaluator}
    if "graded_sampler" in rollouts:
        engines["train"] = rollouts["graded_sampler"].engine
    streams = {
        name: engine.stream for name, engine in engines.items() if isinstance(engine, StreamEngine)
    }
    for name, stream in streams.items():
        meanwhile = kept + worker - parked
        weights = output_bytes([stream.prepare_weights.program])
        needed[f"{name}: weights"] = peak_bytes(stream.prepare_weights.program) + meanwhile - params
        needed[f"{name}: init_batch"] = peak_bytes(stream.init_batch) + meanwhile + weights
        needed[f"{name}: advance_chunk"] = peak_bytes(stream.advance_chunk) + meanwhile
        needed[f"{name}: to_rollouts"] = peak_bytes(stream.to_rollouts) + meanwhile + weights

    if isinstance(evaluator, DeviceEngine):
        needed["evaluate"] = peak_bytes(evaluator.program) + kept - params
    needed["update"] = peak_bytes(rollouts["update"]) + worker + (table if is_text else 0)
    return needed


def verdict(config: Config, topology: str, gib: float, peaks: dict[str, int]) -> tuple[bool, str]:
    """Whether the dry run accepts the sweep on chips of this memory, and its message. `peaks`: the
    compiler's."""
    limited = config.model_copy(
        update={"run": config.run.model_copy(update={"device_memory": gib})}
    )
    limited, devices, budget = topology_budget(limited, topology)

    def known_peaks(_function: Callable[..., Any], *arguments: Any) -> dict[str, int]:
        return {program: peaks[program] for program in arguments[-1]}

    compile_for_topology.run_in_child_process = known_peaks
    try:
        confirm_sizes(limited, budget, [Topology(topology, len(devices))])
    except InputError as e:
        return False, str(e)
    return True, ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sweeps", nargs="*", choices=[*SWEEPS, []], help="some of them (default: all)"
    )
    for name in parser.parse_args().sweeps or SWEEPS:
        sweep = SWEEPS[name]
        topology = sweep.topology
        config = load_config(["quickstart"], [*MODEL, *sweep.settings, f"run.mesh={sweep.mesh}"])

        needed = run_in_child_process(needed_bytes, config, topology)
        largest = max(needed, key=needed.__getitem__)
        planned, _, budget = topology_budget(config, topology)
        programs = list(budget.estimate(planned.sweep).program_bytes)
        peaks = run_in_child_process(compile_programs, planned, planned.sweep, topology, programs)
        for factor in (1.02, 0.98):
            gib = needed[largest] * factor / GIB
            fits, message = verdict(config, topology, gib, peaks)
            by_program = {program: round(size / GIB, 3) for program, size in needed.items()}
            row = {
                "sweep": name,
                "topology": topology,
                "mesh": sweep.mesh,
                "largest": largest,
                "limit": round(gib, 3),
                "run_fits": factor > 1,
                "dry_run_fits": fits,
                "message": message[:200],
                "needed": by_program,
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
