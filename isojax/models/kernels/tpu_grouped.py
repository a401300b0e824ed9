"""Products of groups of rows on a TPU, each group with a matrix of its own, by megablox
(arXiv:2211.15841).

XLA has a kernel for the product alone (`ragged_dot`). The gradient of the matrices it computes by
products of all rows with masks for each group, which takes as many times as long as there are
groups; and for that of the rows it copies the matrices, turned round.
"""

import math
from typing import Any

import jax
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm
from jaxtyping import Array, Float, Int

MAX_TILE_ROWS = 512
MAX_TILE_WIDTH = 1024


def tile_sizes(rows: int, inputs: int, outputs: int) -> tuple[int, int, int]:
    """The sizes of a tile, along rows, inputs and outputs. Only tiles of rows must divide them."""
    tile_rows = math.gcd(rows, MAX_TILE_ROWS)
    return tile_rows, min(inputs, MAX_TILE_WIDTH), min(outputs, MAX_TILE_WIDTH)


def grouped_product(
    x: Float[Array, "r i"],
    matrices: Float[Array, "E i o"],
    group_sizes: Int[Array, " E"],
    interpret: bool = False,
) -> Float[Array, "r o"]:
    """Multiply each row by the matrix of its group, as `lax.ragged_dot`.

    group_sizes[0] rows are of the first matrix, the next ones of the second, and so on. Rows beyond
    the last group hold anything, and so do their gradients."""
    return _grouped_product(x, matrices, group_sizes, interpret)


def _product(x: Array, matrices: Array, group_sizes: Array, interpret: bool) -> Array:
    rows, inputs = x.shape
    tiles = tile_sizes(rows, inputs, matrices.shape[2])
    return gmm(x, matrices, group_sizes, x.dtype, tiles, interpret=interpret)


def _forward(x: Array, matrices: Array, group_sizes: Array, interpret: bool) -> tuple[Array, Any]:
    return _product(x, matrices, group_sizes, interpret), (x, matrices, group_sizes)


def _backward(interpret: bool, saved: Any, d: Array) -> tuple[Array, Array, None]:
    x, matrices, group_sizes = saved
    rows, inputs = x.shape
    outputs = d.shape[1]

    # Of the rows: d times each group's matrix, transposed, so that inputs and outputs change
    # places.
    tiles = tile_sizes(rows, outputs, inputs)
    dx = gmm(d, matrices, group_sizes, x.dtype, tiles, transpose_rhs=True, interpret=interpret)

    # Of the matrices: x^T d over each group's rows.
    tiles = tile_sizes(rows, inputs, outputs)
    d_matrices = tgmm(x.swapaxes(0, 1), d, group_sizes, matrices.dtype, tiles, interpret=interpret)
    return dx, d_matrices, None


_grouped_product: Any = jax.custom_vjp(_product, nondiff_argnums=(3,))
_grouped_product.defvjp(_forward, _backward)
