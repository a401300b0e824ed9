"""What the parts of a sweep's programs take on a TPU that is not here, by its compiler and by the
plan: both are estimates, and no measurement.

    python benchmarks/tpu_cost.py gsm8k models/llama-3.1-8b-instruct \
        cell.sampling.prompt_length=1024 cell.sampling.response_length=2048 \
        sweep.decode_slots=32 --topology v5e:4x4 --mesh fsdp=4,tensor=4
    python benchmarks/tpu_cost.py gsm8k models/smollm2-135m --topology v5e:1x1 --programs decode \
        --slots 8 32 128

libtpu compiles the sampler's program and the update for the topology, and writes into the optimized
HLO how many cycles it expects each operation to take; launch/local/kernel_prices.py prices the
kernels, which it does not. A line for each part (a decode step, a block of prompts, a microbatch,
...) has the compiler's milliseconds, the plan's, and their ratio. That of the decode step also has
what the chip's memory would allow: the layers' weights (of experts, those that any slot chose, if
all are as likely), the unembedding and the live part of the cache, read once at the published
bandwidth. With --top, further lines have the operations that cost most in each loop.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isojax.core import program_scopes
from isojax.core.config import Config, SweepConfig
from isojax.core.config.load import load_config
from isojax.core.policy_sizes import WeightSizes
from isojax.launch.device_budget import DeviceBudget, fit_to_memory, format_sizes
from isojax.launch.hlo_cycles import Loop, Operation, read_loops
from isojax.launch.local.compile_for_topology import programs_on_topology, topology_budget
from isojax.launch.local.compiled_times import CLOCKS, compiled_parts
from isojax.launch.local.kernel_prices import Positions, make_kernel_cycles
from isojax.launch.time_estimate import find_chip, program_times

PROGRAMS = ("decode", "learn")
KEPT_BYTES = 1 << 20  # an array of so many bytes is a part of the cache or the weights
SCOPES = (
    program_scopes.DECODE_TOKENS,
    program_scopes.PREFILL_BLOCKS,
    program_scopes.GRADIENT_BLOCKS,
    program_scopes.MICROBATCHES,
)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words", nargs="+", metavar="CONFIG|KEY=VALUE", help="as of isojax launch; a text task"
    )
    parser.add_argument(
        "--topology", default="v5e:4x4", help="such as v5p:2x2x2 or v6e:2x4 (default %(default)s)"
    )
    parser.add_argument("--mesh", default="auto", help="default: the fewest chips that fit")
    parser.add_argument(
        "--programs",
        nargs="+",
        choices=PROGRAMS,
        default=PROGRAMS,
        help="what is compiled (default: both)",
    )
    parser.add_argument(
        "--slots",
        nargs="+",
        type=int,
        help="sweep.decode_slots, one plan each (default: as planned)",
    )
    parser.add_argument(
        "--top", type=int, default=0, help="operations to print of each loop (default %(default)s)"
    )
    parser.add_argument("--hlo", type=Path, help="a folder for the optimized HLO")
    return parser.parse_intermixed_args()


def main() -> None:
    arguments = read_arguments()
    for slots in arguments.slots or [None]:
        words = [*arguments.words, f"run.mesh={arguments.mesh}"]
        if slots is not None:
            words.append(f"sweep.decode_slots={slots}")
        config = load_config([x for x in words if "=" not in x], [x for x in words if "=" in x])
        compare(config, arguments)


def compare(config: Config, arguments: argparse.Namespace) -> None:
    """Print the lines of one plan."""
    config, devices, budget = topology_budget(config, arguments.topology)
    sweep = fit_to_memory(config.sweep, budget) or budget.smallest_sizes(config.sweep)
    kind = devices[0].device_kind
    _, rates = find_chip(kind)
    programs = programs_on_topology(config, sweep, arguments.topology)

    planned = asdict(program_times(budget.sizes(sweep), rates))
    for name in arguments.programs:
        function, shapes = programs[name]
        compiled = function.lower(*shapes).compile()
        hlo = compiled.as_text()
        if arguments.hlo:
            arguments.hlo.mkdir(parents=True, exist_ok=True)
            (arguments.hlo / f"{config.name}.{name}.hlo").write_text(hlo)

        for part, seconds in compiled_parts(hlo, config.cell, kind).items():
            compiled_ms, planned_ms = 1e3 * seconds, 1e3 * planned[part]
            line = {
                "topology": arguments.topology,
                "mesh": str(budget.mesh),
                "sizes": format_sizes(sweep),
                "part": part,
                "compiled_ms": round(compiled_ms, 3),
                "planned_ms": round(planned_ms, 3),
                "planned_of_compiled": round(planned_ms / compiled_ms, 2) if compiled_ms else None,
            }
            if part == "decode_step":
                weights = programs["decode"][1][0].weights.decode
                bound_ms = 1e3 * memory_bound(weights, config, sweep, budget, rates.bandwidth)
                line["memory_bound_ms"] = round(bound_ms, 3)
                line["share_of_roofline"] = round(bound_ms / compiled_ms, 2)
                line["moves_of_cache_or_weights"] = moves_of_sampler(read_loops(hlo))
                temporaries = compiled.memory_analysis().temp_size_in_bytes
                line["temporaries_mb"] = round(temporaries / 1e6, 1)
            print(json.dumps(line), flush=True)

        if arguments.top:
            positions = Positions(
                config.cell.sampling.prompt_length, config.cell.sampling.response_length
            )
            clock = CLOCKS[kind]
            kernel_cycles = make_kernel_cycles(positions, kind, rates, clock)
            print_operations(read_loops(hlo, kernel_cycles), clock, arguments.top)


def moves_data(operation: Operation) -> bool:
    """Whether it only copies, turns round or slices, so much that it must be the cache or weights.

    An asynchronous copy brings an operand nearer, and is none of these.
    """
    if operation.largest_result_bytes < KEPT_BYTES:
        return False
    if operation.opcode in ("copy", "transpose", "dynamic-slice"):
        return True
    names = ("copy", "transpose", "slice_fusion", "slice-fusion")
    is_move = any(name in operation.name for name in names) and "update" not in operation.name
    return operation.opcode == "fusion" and is_move


def moves_of_sampler(program: Loop) -> list[str]:
    """Names of the operations that move the cache or weights between tokens, or in one.

    Those are in the program itself, in its loops without a loop within (a slot gets its prompt's
    keys and values), and in the loop over tokens; not in that over blocks of prompts.
    """
    loops = [loop for loop in program.loops if not loop.loops]
    for tokens in program.find(program_scopes.DECODE_TOKENS):
        loops += tokens.walk()
    operations = [*program.operations, *(x for loop in loops for x in loop.operations)]
    return [x.name for x in operations if moves_data(x)]


def memory_bound(
    weights: Any, config: Config, sweep: SweepConfig, budget: DeviceBudget, bandwidth: float
) -> float:
    """Seconds in which the chip reads what a decode step needs, once.

    weights: a sampler's, as ShapeDtypeStructs. The cache counts up to the slots' positions, which
    are anywhere in the response.
    """
    s = budget.sizes(sweep)
    P, T = config.cell.sampling.prompt_length, config.cell.sampling.response_length
    slots = s.shapes.slots
    slot_positions = slots * (P + T)
    share = slot_positions / (slot_positions + s.shapes.prefix_entries * P)
    live_bytes = s.cache_bytes() * share * (P + T / 2) / (P + T)
    return (read_bytes(weights, budget.policy.weights, slots) + live_bytes) / bandwidth


def read_bytes(weights: Any, sizes: Sequence[WeightSizes], slots: int) -> float:
    """Of a device's weights, what a token of so many slots reads.

    All but an untied embedding, of which it reads a row; of experts, those that any slot chose.
    """
    is_tied = "unembed" not in weights
    shares = {weight.name: weight.share for weight in sizes}
    read = 0.0
    for name, entry in weights.items():
        if name == "cos_sin" or (name == "embed" and not is_tied):
            continue
        for weight_name, x in entry.items() if isinstance(entry, dict) else [(name, entry)]:
            chosen = 1 - (1 - shares.get(weight_name, 1.0)) ** slots
            read += chosen * math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    return read


def print_operations(program: Loop, clock: float, top: int) -> None:
    """A line for each operation that costs most, in each loop of a scope and those within."""
    for scope in SCOPES:
        for outer in program.find(scope):
            for loop in outer.walk():
                for x in sorted(loop.operations, key=lambda x: -x.cycles)[:top]:
                    cost = {
                        "loop": scope,
                        "trips": loop.trips,
                        "us": round(1e6 * x.cycles / clock, 1),
                    }
                    print(json.dumps({**cost, "operation": x.name, "traced": x.traced_name}))


if __name__ == "__main__":
    main()
