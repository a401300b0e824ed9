"""Decode attention on NVIDIA GPUs: a Triton kernel through Pallas, with a program for each slot and
key/value head.

A program reads the live part of its keys and values once, in blocks, for all queries of the head;
of the blocks so far it keeps the largest score, the sum of the weights and the weighted sum of
values (arXiv:2205.14135).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

MASKED_SCORE = -1e30
BLOCK_POSITIONS = 128  # that a program reads at a time
LEAST_ROWS = 16  # of a matrix that a tensor core multiplies


class SoftmaxSums(NamedTuple):
    """What a program keeps of the blocks so far, for each query; both sums are of exp(score -
    max_score)."""

    weighted_values: Float[Array, "rows H"]
    max_score: Float[Array, " rows"]
    weights: Float[Array, " rows"]


def triton_decode(
    q: Float[Array, "R N H"],
    keys: Float[Array, "R K C H"],
    values: Float[Array, "R K C H"],
    positions: Int[Array, " R"],
    interpret: bool = False,
) -> Float[Array, "R N H"]:
    """Attend from each slot's query to positions 0 .. positions[r] of its keys and values.

    In bfloat16 or float16, the same for q, keys and values; H is a power of 2, at least 16. K
    divides N: query heads k G ... k G + G - 1 read key head k. `positions`: int32, at least 0 and
    below C. `interpret`: whether the kernel runs in Python, on any backend, for tests."""
    R, N, H = q.shape
    K, C = values.shape[1:3]
    G = N // K  # query heads of a key/value head
    rows = max(LEAST_ROWS, pl.next_power_of_2(G))  # of which the first G are queries

    def kernel(q_ref: Any, keys_ref: Any, values_ref: Any, position_ref: Any, out_ref: Any) -> None:
        """One program: all G queries of one slot and key head, over the slot's live blocks.

        Its arrays: queries and output [G H], keys and values [C H], the slot's position, a scalar.
        From outside come R, K, C, G, H and `rows`, of which those from G on are padding, never
        stored."""
        is_query = (jnp.arange(rows) < G)[:, None]
        q = triton.load(q_ref.at[pl.ds(0, rows)], mask=is_query, other=0.0)
        position = position_ref[()]

        def load_block(ref: Any, start: Array, is_live: Array) -> Array:
            """Return keys or values [block H] from `start` on, 0 beyond the slot's position."""
            block = ref.at[pl.ds(start, BLOCK_POSITIONS)]
            return triton.load(block, mask=is_live[:, None], other=0.0)

        def attend_to_block(block: Array, so_far: SoftmaxSums) -> SoftmaxSums:
            """Add block number `block`, of BLOCK_POSITIONS positions, to the sums `so_far`.

            From outside come q [rows H], `position`, up to which the slot reads, and the keys and
            values."""
            start = block * BLOCK_POSITIONS
            is_live = start + jnp.arange(BLOCK_POSITIONS) <= position
            keys = load_block(keys_ref, start, is_live)
            values = load_block(values_ref, start, is_live)
            scores = jnp.where(is_live[None], triton.dot(q, keys.T) * H**-0.5, MASKED_SCORE)

            # What the blocks before have summed was relative to their own largest score.
            new_max = jnp.maximum(so_far.max_score, scores.max(-1))
            weights = jnp.exp(scores - new_max[:, None])
            decay = jnp.exp(so_far.max_score - new_max)
            before = so_far.weighted_values * decay[:, None]
            of_block = triton.dot(weights.astype(values.dtype), values)
            return SoftmaxSums(
                weighted_values=before + of_block,
                max_score=new_max,
                weights=so_far.weights * decay + weights.sum(-1),
            )

        zeros = jnp.zeros(rows, jnp.float32)
        nothing = SoftmaxSums(
            weighted_values=jnp.zeros((rows, H), jnp.float32),
            max_score=zeros + MASKED_SCORE,
            weights=zeros,
        )
        # the block that `position` is in is live too
        live_block_count = position // BLOCK_POSITIONS + 1
        sums = lax.fori_loop(0, live_block_count, attend_to_block, nothing)

        attended = (sums.weighted_values / sums.weights[:, None]).astype(q.dtype)
        triton.store(out_ref.at[pl.ds(0, rows)], attended, mask=is_query)

    def of_head(*shape: int) -> pl.BlockSpec:
        """What a program has of an array [R K *shape]."""
        return pl.BlockSpec((None, None, *shape), lambda r, k: (r, k, 0, 0))

    position_of_slot = pl.BlockSpec((None,), lambda r, _: (r,))
    out = pl.pallas_call(
        kernel,
        grid=(R, K),
        in_specs=[of_head(G, H), of_head(C, H), of_head(C, H), position_of_slot],
        out_specs=of_head(G, H),
        out_shape=jax.ShapeDtypeStruct((R, K, G, H), q.dtype),
        # only the speed depends on these
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="decode_attention",
    )(q.reshape(R, K, G, H), keys, values, positions)
    return out.reshape(R, N, H)
