"""What a token of the sampler costs on a TPU that is not here: an estimate of its compiler, and not
a measurement.

    python benchmarks/tpu_cost.py gsm8k models/llama-3.1-8b-instruct \
        cell.sampling.prompt_length=1024 cell.sampling.response_length=2048 \
        sweep.decode_slots=32 --topology v5e:4x4 --mesh fsdp=4,tensor=4

libtpu compiles the sampler's program for the topology and writes into the optimized HLO how many
cycles it expects each operation to take. The first line has a token's milliseconds, and what the
chip's memory would allow: the layers' weights (of experts, those that any slot chose, if all are as
likely), the unembedding and the live part of the cache, read once at the published bandwidth.
Further lines have what costs most in each loop. The compiler does not price the kernels: what they
read counts at the published bandwidth, plus 0.35 us for each step of a grid. Of flash_decode these
are blocks of the cache, averaged over responses of random lengths so far, with as much again as a
step for each group of slots whose new keys and values it rounds to int8; of multiply_by_all_experts
all experts of a chip, or, if that takes longer, their products with all slots at the published
rate.
"""

import argparse
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isojax.core.config.load import load_config
from isojax.core.policy_sizes import AttentionSizes, WeightSizes
from isojax.distributed.mesh_spec import WEIGHT_AXES, MeshShape
from isojax.launch.device_budget import fit_to_memory, format_sizes
from isojax.launch.local.compile_for_topology import programs_on_topology, topology_budget
from isojax.launch.time_estimate import find_chip
from isojax.models.cache_attention import cache_positions
from isojax.models.kernels.tpu_decode import cache_layout, live_blocks
from isojax.models.kernels.tpu_experts import core_count, step_count

# Hz, from the published TFLOP/s
CLOCK = {"TPU v5 lite": 1.5e9, "TPU v5": 1.75e9, "TPU v6 lite": 1.75e9}
CORES = {"TPU v5": 2}  # of a chip, where it is not 1
STEP_SECONDS = 0.35e-6  # of a step of a Pallas grid, next to its copies
DRAWS = 64  # of the slots' positions
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
KEPT_BYTES = 1 << 20  # an array of so many bytes is a part of the cache or the weights


@dataclass(frozen=True)
class Operation:
    name: str
    opcode: str
    result_bytes: int
    cycles: int
    text: str

    @property
    def moves_data(self) -> bool:
        """Whether it only copies, turns round or slices, so much that it must be the cache or
        weights. An asynchronous copy brings an operand nearer, and is none of these."""
        names = ("copy", "transpose", "slice_fusion", "slice-fusion")
        return self.result_bytes >= KEPT_BYTES and (
            self.opcode in ("copy", "transpose", "dynamic-slice")
            or (
                self.opcode == "fusion"
                and any(x in self.name for x in names)
                and "update" not in self.name
            )
        )


@dataclass
class Loop:
    """A computation: the program's own operations or those of a loop's body, and the loops
    within."""

    operations: list[Operation] = field(default_factory=list)
    loops: list["Loop"] = field(default_factory=list)
    trips: int = 1  # how often a loop runs, where its condition compares with a number

    @property
    def depth(self) -> int:
        return 1 + max((loop.depth for loop in self.loops), default=0)

    @property
    def cycles(self) -> int:
        """Of one iteration, without the loops within."""
        return sum(operation.cycles for operation in self.operations)

    @property
    def cycles_with_loops(self) -> int:
        return self.cycles + sum(loop.trips * loop.cycles_with_loops for loop in self.loops)

    @property
    def most_repeated(self) -> "Loop":
        """That over layers, of a loop over tokens or prompts."""
        return max(self.walk(), key=lambda loop: loop.trips)

    def calls(self, kernel: str) -> bool:
        return any(
            kernel in operation.text for loop in self.walk() for operation in loop.operations
        )

    def walk(self) -> Iterator["Loop"]:
        yield self
        for loop in self.loops:
            yield from loop.walk()


def read_loops(hlo: str) -> Loop:
    """The entry computation of optimized HLO."""
    bodies: dict[str, list[str]] = {}
    name = entry = ""
    for line in hlo.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            name = head[2]
            bodies[name], entry = [], name if head[1] else entry
        elif name:
            bodies[name].append(line)

    def read(name: str) -> Loop:
        loop = Loop()
        for line in bodies[name]:
            if match := re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\(", line):
                cycles = re.search(r'"estimated_cycles":"(\d+)"', line)
                sizes = re.findall(r"(\w+)\[([\d,]*)\]", match[2])
                size = max(
                    (
                        ITEM_BYTES.get(t, 4) * math.prod(map(int, d.split(",")))
                        for t, d in sizes
                        if d
                    ),
                    default=0,
                )
                loop.operations.append(
                    Operation(
                        match[1], match[3], size, int(cycles[1]) if cycles else 0, line.strip()
                    )
                )
                if match[3] == "while":
                    parts = re.search(r"condition=%?([\w.\-]+), body=%?([\w.\-]+)", line)
                    loop.loops.append(read(parts[2]) if parts else Loop())
                    loop.loops[-1].trips = count_trips(bodies.get(parts[1], [])) if parts else 1
        return loop

    return read(entry)


def count_trips(condition: list[str]) -> int:
    """How often a loop with this condition runs: as often as it says, or once where that depends on
    values."""
    text = "\n".join(condition)
    limits = re.findall(r"constant\((\d+)\)", text)
    return int(limits[0]) if len(limits) == 1 and "direction=LT" in text else 1


@dataclass(frozen=True)
class Kernel:
    """The decode kernel of one token in all layers."""

    seconds: float
    live_bytes: float  # of the cache up to the slots' positions


def kernel_cost(
    cell: Any, sweep: Any, attention: AttentionSizes, mesh: MeshShape, kind: str, bandwidth: float
) -> Kernel:
    """Of the layers whose attention is this."""
    sampling, R = cell.sampling, sweep.decode_slots
    K = mesh.split(*WEIGHT_AXES).size((("kv_heads", attention.kv_heads),))
    P, T, H = sampling.prompt_length, sampling.response_length, attention.head_dim
    held = min(P + T, attention.window or P + T)
    C, dtype = cache_positions("pallas", held), jnp.dtype(cell.precision.cache)
    cache: Any = (jax.ShapeDtypeStruct((1, R, K, *((H, C) if H % 128 else (C, H))), dtype),)
    last = np.minimum(np.random.default_rng(0).integers(P, P + T, (DRAWS, R)), held - 1)

    layout = cache_layout(cache, H)
    blocks = [live_blocks(jnp.asarray(x), cache, H) for x in last]
    at_once = min(CORES.get(kind, 1), layout.cores)
    steps = np.mean([int(x.steps.max()) for x in blocks]) * layout.cores / at_once
    if dtype == jnp.int8:
        steps += R / layout.group_slots / at_once

    position_bytes = 2 * K * H * dtype.itemsize
    read_bytes = (
        position_bytes
        * layout.block_positions
        * np.mean((last // layout.block_positions + 1).sum(1))
    )
    live_bytes = position_bytes * last.sum(1).mean()
    seconds = attention.layers * (read_bytes / bandwidth + STEP_SECONDS * steps)
    return Kernel(float(seconds), float(attention.layers * live_bytes))


def experts_seconds(weights: Any, slots: int, kind: str) -> float:
    """The experts' kernel of one token in all layers; 0 without experts."""
    rates, cores, seconds = find_chip(kind)[1], CORES.get(kind, 1), 0.0
    for layers in weights.values():
        if not isinstance(layers, dict) or "expert_gate" not in layers:
            continue
        gate = layers["expert_gate"]
        num_layers, experts, width, hidden = gate.sharding.shard_shape(gate.shape)
        numbers = 3 * experts * width * hidden
        steps = step_count(experts, width, hidden, gate.dtype.itemsize) / min(
            cores, core_count(experts)
        )
        read_seconds = numbers * gate.dtype.itemsize / rates.bandwidth
        layer_seconds = (
            max(read_seconds, 2 * slots * numbers / rates.decode_flops) + STEP_SECONDS * steps
        )
        seconds += num_layers * layer_seconds
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words", nargs="+", metavar="CONFIG|KEY=VALUE", help="as of isojax launch; a text task"
    )
    parser.add_argument(
        "--topology", default="v5e:4x4", help="such as v5p:2x2x2 or v6e:2x4 (default %(default)s)"
    )
    parser.add_argument("--mesh", default="fsdp=4,tensor=4", help="default %(default)s")
    parser.add_argument(
        "--top", type=int, default=5, help="operations to print of each loop (default %(default)s)"
    )
    parser.add_argument("--hlo", help="a file for the optimized HLO")
    arguments = parser.parse_intermixed_args()
    words = [*arguments.words, f"run.mesh={arguments.mesh}", "sweep.decode_attention=pallas"]
    config = load_config([x for x in words if "=" not in x], [x for x in words if "=" in x])
    config, devices, budget = topology_budget(config, arguments.topology)
    sweep = fit_to_memory(config.sweep, budget) or budget.smallest_sizes(config.sweep)
    slots = sweep.decode_slots
    assert slots is not None, "the planner has chosen sizes"
    function, shapes = programs_on_topology(config, sweep, arguments.topology)["decode"]
    compiled = function.lower(*shapes).compile()
    if arguments.hlo:
        with open(arguments.hlo, "w") as file:
            file.write(compiled.as_text())

    kind, model, mesh = devices[0].device_kind, config.cell.model, budget.mesh
    bandwidth = find_chip(kind)[1].bandwidth
    clock = CLOCK[kind]
    program = read_loops(compiled.as_text())
    # A prompt's loops may be as deep as a token's.
    token = max(program.loops, key=lambda loop: (loop.calls("flash_decode"), loop.depth))
    prefill = next((loop for loop in program.loops if loop.depth > 1 and loop is not token), Loop())
    layer, prefill_layer = token.most_repeated, prefill.most_repeated
    kernels = [
        kernel_cost(config.cell, sweep, x, mesh, kind, bandwidth) for x in budget.policy.attention
    ]
    kernel = Kernel(sum(x.seconds for x in kernels), sum(x.live_bytes for x in kernels))
    weights = shapes[0].weights.decode
    uses_experts_kernel = "multiply_by_all_experts" in compiled.as_text()
    experts = experts_seconds(weights, slots, kind) if uses_experts_kernel else 0.0
    in_layers = sum(loop.trips * loop.cycles for loop in token.walk() if not loop.loops)
    around_layers = token.cycles_with_loops - in_layers
    seconds = token.cycles_with_loops / clock + kernel.seconds + experts
    weight_bytes = read_bytes(weights, budget.policy.weights, slots)
    hbm_seconds = (weight_bytes + kernel.live_bytes) / bandwidth
    visit_and_token = (program, *token.walk(), *(loop for loop in program.loops if loop.depth == 1))
    moved = [x.name for loop in visit_and_token for x in loop.operations if x.moves_data]
    line = {
        "topology": arguments.topology,
        "mesh": arguments.mesh,
        "sizes": format_sizes(sweep),
        "ms_per_token": round(1e3 * seconds, 2),
        "hbm_ms_per_token": round(1e3 * hbm_seconds, 2),
        "share_of_roofline": round(hbm_seconds / seconds, 2),
        "layer_us": round(1e6 * in_layers / clock / model.layers, 1),
        "around_layers_us": round(1e6 * around_layers / clock, 1),
        "kernel_ms": round(1e3 * kernel.seconds, 2),
        "experts_kernel_ms": round(1e3 * experts, 2),
        "visit_us": round(1e6 * program.cycles / clock, 1),
        "prefill_ms_per_batch": round(1e3 * prefill.cycles_with_loops / clock, 2),
        "program_gib": round(compiled.memory_analysis().peak_memory_in_bytes / 2**30, 2),
        "temporaries_mb": round(compiled.memory_analysis().temp_size_in_bytes / 1e6, 1),
        "moves_of_cache_or_weights": moved,
    }
    print(json.dumps(line))
    for name, loop in (
        ("layer", layer),
        ("token", token),
        ("visit", program),
        ("prefill layer", prefill_layer),
    ):
        for x in sorted(loop.operations, key=lambda x: -x.cycles)[: arguments.top]:
            traced = re.search(r'op_name="[^"]*?([^/"]*/[^/"]*)"', x.text)
            cost = {"loop": name, "us": round(1e6 * x.cycles / clock, 1), "operation": x.name}
            print(json.dumps({**cost, "traced": traced[1] if traced else ""}))


def read_bytes(weights: Any, sizes: Sequence[WeightSizes], slots: int) -> float:
    """Of a device's weights, what a token of so many slots reads: all but an untied embedding, of
    which it reads a row; of experts, those that any slot chose."""
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


if __name__ == "__main__":
    main()
