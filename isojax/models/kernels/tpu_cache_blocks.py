"""The order and the number of positions of a cache that tpu_decode.py reads.

Without Pallas, which a plan need not load."""

TILE_WIDTH = 128  # of a vector register
# of 128 positions in a block, whichever number is the most that divides the cache
MAX_BLOCK_UNITS = 4


def is_transposed(head_dim: int) -> bool:
    """Whether a cache for this kernel has keys and values [H, C], else [C, H]."""
    return head_dim % TILE_WIDTH != 0


def pad_to_blocks(positions: int) -> int:
    """Return the next number of positions that divides into blocks.

    A multiple of 128; above 512 of 384 or 512, so that blocks are 3 or 4 units of 128."""
    units = -(-positions // TILE_WIDTH)
    while units > MAX_BLOCK_UNITS and units % 3 and units % 4:
        units += 1
    return TILE_WIDTH * units
