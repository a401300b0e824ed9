"""Experts of one layer on a TPU, for few rows: each expert multiplies all rows, by weights that are
0 where a row did not choose it.

XLA would first take the layer's experts out of the stack of all layers. Here a step of the grid
reads a block of one expert's three matrices where they are, while the step before it multiplies,
and adds what it makes to the sum. So a token costs what reading the experts does.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

TILE_WIDTH = 128  # of a vector register
# of a step's blocks of the three matrices, each held twice; a kernel has 16 MiB on v5e
BLOCK_BYTES = 5 << 20
# of a chip (v4, v5p), which share the parallel axis of a grid; a chip of one core runs it in turn
MAX_CORES = 2


def hidden_block(width: int, hidden: int, item_bytes: int) -> int:
    """Return how many hidden values of an expert a step computes.

    The most whole tiles that divide them and whose three blocks of matrices fit in BLOCK_BYTES; all
    of them where they are no whole tiles. `width`: D; `hidden`: F; `item_bytes`: of a weight."""
    if hidden % TILE_WIDTH:
        return hidden

    tiles = hidden // TILE_WIDTH
    tile_bytes = 3 * width * TILE_WIDTH * item_bytes  # of all three matrices
    most_tiles = min(tiles, max(1, BLOCK_BYTES // tile_bytes))
    return TILE_WIDTH * max(count for count in range(1, most_tiles + 1) if tiles % count == 0)


def core_count(experts: int) -> int:
    return MAX_CORES if experts % MAX_CORES == 0 else 1


def step_count(experts: int, width: int, hidden: int, item_bytes: int) -> int:
    """Steps of the grid, on all cores together."""
    return experts * (hidden // hidden_block(width, hidden, item_bytes))


def _kernel(
    layer: Any, rows: Any, expert_weights: Any, gate: Any, up: Any, down: Any, out: Any
) -> None:
    """Run a step: add what one block of one expert makes of all rows to the core's sum `out`.

    Its arrays: rows and out [r D], the expert's weights of the rows [r 1], blocks of gate and up [D
    f], and of down [f D]. `layer` only serves to find the blocks."""

    # the first step of a core: the grid is (cores, experts of a core, blocks of an expert)
    @pl.when((pl.program_id(1) == 0) & (pl.program_id(2) == 0))
    def _begin() -> None:
        out[...] = jnp.zeros_like(out)

    x = rows[...]
    gated = jax.nn.silu(jnp.dot(x, gate[...], preferred_element_type=jnp.float32))
    hidden = gated * jnp.dot(x, up[...], preferred_element_type=jnp.float32) * expert_weights[...]
    out[...] += jnp.dot(hidden.astype(x.dtype), down[...], preferred_element_type=jnp.float32)


def multiply_by_all_experts(
    rows: Float[Array, "r D"],
    expert_weights: Float[Array, "r E"],
    matrices: Sequence[Float[Array, "L E _ _"]],
    layer: Int[Array, ""],
    interpret: bool = False,
) -> Float[Array, "r D"]:
    """Sum over the experts of `layer` what each makes of all rows, times its weight of the row.

    `rows` [r D], few: all are in a core's memory at once. `expert_weights` [r E]: 0 where a row did
    not choose the expert. `matrices`: gate and up [L E D F], and down [L E F D], of all layers, in
    this order. `interpret`: for tests, on any backend. Return: [r D] in the rows' precision."""
    gate, _, _ = matrices
    _, experts, width, hidden = gate.shape
    r = len(rows)
    block = hidden_block(width, hidden, gate.dtype.itemsize)
    cores = core_count(experts)
    experts_of_core = experts // cores

    # Which block of each array a step (core, expert, part of the hidden values) has. Indices count
    # blocks of the shapes below, in which an axis of None has one entry.
    def whole_rows(core: Any, expert: Any, part: Any, layer: Any) -> tuple:
        return 0, 0

    def of_expert(core: Any, expert: Any, part: Any, layer: Any) -> tuple:
        return core * experts_of_core + expert, 0, 0

    def gate_or_up(core: Any, expert: Any, part: Any, layer: Any) -> tuple:
        return layer[0], core * experts_of_core + expert, 0, part

    def down(core: Any, expert: Any, part: Any, layer: Any) -> tuple:
        return layer[0], core * experts_of_core + expert, part, 0

    layer_scalar = layer.reshape(1)
    weight_columns = expert_weights.T[..., None].astype(jnp.float32)  # [E r 1]
    sums = pl.pallas_call(
        _kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(cores, experts_of_core, hidden // block),
            in_specs=[
                pl.BlockSpec((r, width), whole_rows),
                pl.BlockSpec((None, r, 1), of_expert),
                pl.BlockSpec((None, None, width, block), gate_or_up),
                pl.BlockSpec((None, None, width, block), gate_or_up),
                pl.BlockSpec((None, None, block, width), down),
            ],
            # the same block in all steps of a core, which add up in it
            out_specs=pl.BlockSpec((None, r, width), lambda core, *_: (core, 0, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((cores, r, width), jnp.float32),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
        interpret=interpret,
        name="multiply_by_all_experts",
    )(layer_scalar, rows, weight_columns, *matrices)
    # each core has summed over its own experts
    return sums.sum(0).astype(rows.dtype)
