"""What the devices at hand can do, measured in about a second: products of matrices, and memory."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

SECONDS = 0.1  # one measurement is repeated for so long at least
PIECE = 2**26  # bytes of memory that is written and read: beyond any cache


def device_memory(device: Any) -> int | None:
    """Bytes that an accelerator can give; None on a CPU, whose devices share the machine's."""
    stats = device.memory_stats()
    return int(stats["bytes_limit"]) if stats and "bytes_limit" in stats else None


def rates(devices: Sequence[Any], rows: tuple[int, int], width: int, columns: int, dtype: str) -> tuple[float, float, float]:
    """Of one device while all of `devices` work: operations a second of products [rows, width] x [width, columns] with either number of
    rows, and bytes a second of adding to an array in place."""
    with ThreadPoolExecutor(len(devices)) as pool:
        found = list(pool.map(partial(_rates, rows=rows, width=width, columns=columns, dtype=dtype), devices))
    decode, update, bandwidth = (sum(x) / len(x) for x in zip(*found, strict=True))
    return decode, update, bandwidth


def _rates(device: Any, rows: tuple[int, int], width: int, columns: int, dtype: str) -> tuple[float, float, float]:
    with jax.default_device(device):
        down, up = jnp.ones((width, columns), dtype) / width, jnp.ones((columns, width), dtype) / columns

        def there_and_back(x: Any) -> Any:
            return lax.fori_loop(0, 8, lambda _, x: x @ down @ up, x)

        def product(r: int) -> float:
            return 8 * 4 * r * width * columns / _seconds(jax.jit(there_and_back), jnp.ones((r, width), dtype))

        moved = 2 * PIECE / _seconds(jax.jit(lambda x: x + 1, donate_argnums=0), jnp.zeros(PIECE // 4))
        return product(rows[0]), product(rows[1]), moved


def _seconds(call: Callable[[Any], Any], x: Any) -> float:
    """Of one call on its own result, once compiled."""
    x = jax.block_until_ready(call(x))
    calls, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < SECONDS:
        x = jax.block_until_ready(call(x))
        calls += 1
    return spent / calls
