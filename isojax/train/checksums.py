"""Checksums of what a checkpoint holds."""

import json
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, UInt32


def json_checksum(data: dict[str, Any]) -> int:
    """A checksum of plain data as JSON reads it back."""
    return crc32(json.dumps(data, sort_keys=True).encode())


def array_checksums(tree: Any) -> dict[str, int]:
    """A checksum of each array's bits by its path in the tree; it does not depend on how the array is sharded."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    values = _leaf_checksums([x for _, x in leaves])
    return {jax.tree_util.keystr(path): int(value) for (path, _), value in zip(leaves, values, strict=True)}


@jax.jit
def _leaf_checksums(arrays: list[Array]) -> list[UInt32[Array, ""]]:
    return [_array_checksum(x) for x in arrays]


def _array_checksum(x: Array) -> UInt32[Array, ""]:
    """The sum modulo 2^32 of all words, each times an odd number that depends on its position: it changes when one word
    changes, and when two are exchanged."""
    if jnp.issubdtype(x.dtype, jnp.bool_):
        words = x.astype(jnp.uint32)
    else:
        words = lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}")).astype(jnp.uint32)
    word_index, stride = jnp.uint32(0), 1
    for axis in reversed(range(x.ndim)):
        word_index += lax.broadcasted_iota(jnp.uint32, x.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= x.shape[axis]
    return (words * (2 * word_index + 1)).sum(dtype=jnp.uint32)
