"""What the Pallas kernels of a TPU program take: an estimate, as the compiler prices none.

A kernel takes the time in which the chip reads and writes its arrays at the published bandwidth, or
computes its products at the published rate if that is longer; and STEP_SECONDS for each step of its
grid. Of the cache, `flash_decode` reads the blocks up to each slot's position, averaged over
positions anywhere in the response.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isojax.launch.hlo_cycles import HloArray, Operation
from isojax.launch.time_estimate import DeviceRates
from isojax.models.kernels.splash import BLOCK_SIZES
from isojax.models.kernels.tpu_cache_blocks import is_transposed
from isojax.models.kernels.tpu_decode import cache_layout, live_blocks
from isojax.models.kernels.tpu_experts import core_count, step_count
from isojax.models.kernels.tpu_grouped import tile_sizes

CORES = {"TPU v5": 2}  # of a device, by jax's name for it, where it is not 1
STEP_SECONDS = 0.35e-6  # of a step of a Pallas grid, next to its copies
DRAWS = 64  # of the slots' positions, over which flash_decode's time is averaged
FLOATS = ("bf16", "f32")
LANES = 128  # an axis of a product is padded to as many numbers

# Products of queries with all their keys in splash attention's kernels. Forwards: scores, mixed
# values. Backwards, scores and their gradient in each kernel, and the gradient of queries in one,
# those of keys and of values in the other.
SPLASH_PRODUCTS = {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4}


@dataclass(frozen=True)
class KernelCost:
    """What a call of a kernel does on one device."""

    num_bytes: float  # read and written
    flops: float = 0.0
    steps: float = 0.0  # of the grid, one after the other

    def seconds(self, rates: DeviceRates) -> float:
        longest = max(self.num_bytes / rates.bandwidth, self.flops / rates.update_flops)
        return longest + STEP_SECONDS * self.steps


@dataclass(frozen=True)
class Positions:
    """Where the slots of a decoding step are."""

    prompt_length: int
    response_length: int


def kernel_cost(operation: Operation, positions: Positions, kind: str) -> KernelCost:
    """The cost of a kernel's call, by the shapes of its arrays; of an unknown one, their bytes.

    kind: jax's name for the chip, such as "TPU v5 lite".
    """
    cores = CORES.get(kind, 1)
    name = operation.name
    if "flash_decode" in operation.traced_name or name.startswith("flash_decode"):
        return _flash_decode_cost(operation.operands, positions, cores)
    if "multiply_by_all_experts" in operation.traced_name:
        return _all_experts_cost(operation.operands, cores)
    for kernel, products in SPLASH_PRODUCTS.items():
        if name.startswith(kernel):
            return _splash_cost(operation, products)
    if name.startswith(("gmm", "tgmm")):
        return _grouped_product_cost(operation)
    return KernelCost(_array_bytes(operation))


def _array_bytes(operation: Operation) -> float:
    """Bytes of all that a call reads and writes."""
    return sum(x.num_bytes for x in (*operation.operands, *operation.results))


def _flash_decode_cost(
    operands: Sequence[HloArray], positions: Positions, cores: int
) -> KernelCost:
    """The cost in one layer.

    operands: queries [R K G H] first among those of four axes, the cache's arrays
    [L R K C H], or [L R K H C], among those of five.
    """
    queries = next(x for x in operands if len(x.shape) == 4)
    keys = next(x for x in operands if len(x.shape) == 5)
    _, R, K, _, _ = keys.shape
    head_dim = queries.shape[3]
    capacity = keys.shape[4] if is_transposed(head_dim) else keys.shape[3]
    is_int8 = keys.type == "s8"

    dtype = jnp.int8 if is_int8 else jnp.bfloat16
    cache: Any = (jax.ShapeDtypeStruct(keys.shape, dtype),)
    layout = cache_layout(cache, head_dim)
    P, T = positions.prompt_length, positions.response_length
    # Layers with a window keep a ring, which is full after as many positions.
    drawn = np.random.default_rng(0).integers(P, P + T, (DRAWS, R))
    last = np.minimum(drawn, capacity - 1)

    at_once = min(cores, layout.cores)
    steps_of_draws = [
        int(live_blocks(jnp.asarray(slots), cache, head_dim).steps.max()) for slots in last
    ]
    steps = float(np.mean(steps_of_draws)) * layout.cores / at_once
    if is_int8:  # a further step for each group whose new keys and values are rounded
        steps += R / layout.group_slots / at_once

    blocks_read = (last // layout.block_positions + 1).sum(1).mean()
    bytes_per_position = 2 * K * head_dim * keys.item_bytes  # keys and values
    num_bytes = bytes_per_position * layout.block_positions * float(blocks_read)
    return KernelCost(num_bytes, steps=steps)


def _all_experts_cost(operands: Sequence[HloArray], cores: int) -> KernelCost:
    """The cost in one layer: all experts of the device, with all rows.

    operands: gate and up [L E D F] and down [L E F D] among those of four axes; rows [r D].
    """
    gate = next(x for x in operands if len(x.shape) == 4)
    _, experts, width, hidden = gate.shape
    rows = next(x.shape[0] for x in operands if len(x.shape) == 2 and x.shape[1] == width)
    numbers = 3 * experts * width * hidden
    steps = step_count(experts, width, hidden, gate.item_bytes)
    return KernelCost(
        num_bytes=numbers * gate.item_bytes,
        flops=2 * rows * numbers,
        steps=steps / min(cores, core_count(experts)),
    )


def _splash_cost(operation: Operation, products: int) -> KernelCost:
    """The cost of a splash attention kernel with so many products of queries and keys.

    Its first operands of numbers, after tables of the mask: queries [b N t H], then keys
    [b K k H]. XLA leaves out the axis of rows where there is one row.
    """
    queries, keys = [x for x in operation.operands if x.type in FLOATS and len(x.shape) >= 3][:2]
    heads, num_queries, head_dim = queries.shape[-3:]
    rows = math.prod(queries.shape[:-3])
    num_keys = keys.shape[-2]

    # Causal: of the keys from the first query's on, a query sees half on average.
    seen = num_keys - num_queries / 2
    padded_dim = -(-head_dim // LANES) * LANES
    flops = products * 2 * rows * heads * num_queries * seen * padded_dim
    blocks = (num_queries / _splash_block(num_queries)) * (seen / _splash_block(num_keys))
    return KernelCost(_array_bytes(operation), flops, steps=rows * heads * max(1.0, blocks))


def _splash_block(positions: int) -> int:
    return next((size for size in BLOCK_SIZES if positions % size == 0), positions)


def _grouped_product_cost(operation: Operation) -> KernelCost:
    """The cost of a product of groups of rows, each with a matrix of its own, or of its gradient.

    The rows are among the operands of two axes; the matrices [E i o] are an operand or the result.
    """
    arrays = (*operation.operands, *operation.results)
    matrices = next(x for x in arrays if len(x.shape) == 3)
    _, inputs, outputs = matrices.shape
    rows = max(size for x in arrays if len(x.shape) == 2 for size in x.shape)
    tile_rows, tile_inputs, tile_outputs = tile_sizes(rows, inputs, outputs)
    tiles = (rows / tile_rows) * math.ceil(inputs / tile_inputs)
    return KernelCost(
        _array_bytes(operation),
        flops=2 * rows * inputs * outputs,
        steps=tiles * math.ceil(outputs / tile_outputs),
    )


def make_kernel_cycles(
    positions: Positions, kind: str, rates: DeviceRates, clock: float
) -> Callable[[Operation], float]:
    """The function that `read_loops` takes: cycles of a kernel's call. clock: in Hz."""

    def kernel_cycles(operation: Operation) -> float:
        """Captures all arguments above."""
        return clock * kernel_cost(operation, positions, kind).seconds(rates)

    return kernel_cycles
