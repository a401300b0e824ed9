"""What the devices at hand can do, measured in about a second: products of matrices, and memory."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

MIN_SECONDS = 0.1  # one measurement is repeated for so long at least
BUFFER_BYTES = 2**26  # bytes of memory that is written and read: beyond any cache


class MeasuredRates(NamedTuple):
    """The rates of one device."""

    decode: float  # operations per second of products with few rows, as in decoding
    update: float  # operations per second of products with many rows, as in an update
    bandwidth: float  # bytes of memory per second


def device_memory(device: Any) -> int | None:
    """Bytes that an accelerator can give; None on a CPU, whose devices share the machine's."""
    stats = device.memory_stats()
    return int(stats["bytes_limit"]) if stats and "bytes_limit" in stats else None


def measure_rates(
    devices: Sequence[Any], rows: tuple[int, int], width: int, columns: int, dtype: str
) -> MeasuredRates:
    """The mean rates of one device while all of `devices` work at the same time.

    They are of products [rows, width] x [width, columns], and of adding to an array in place.

    rows: (rows of decoding, rows of an update), such as (64, 4096).
    width, columns: such as the policy's width and that of its MLP.
    dtype: of the matrices, such as "bfloat16".
    """
    measure = partial(_measure_device, rows=rows, width=width, columns=columns, dtype=dtype)
    with ThreadPoolExecutor(len(devices)) as pool:
        device_rates = list(pool.map(measure, devices))
    return MeasuredRates(*(sum(rates) / len(rates) for rates in zip(*device_rates, strict=True)))


def _measure_device(
    device: Any, rows: tuple[int, int], width: int, columns: int, dtype: str
) -> MeasuredRates:
    """`measure_rates` of one device, in a thread for each."""
    with jax.default_device(device):
        down = jnp.ones((width, columns), dtype) / width
        up = jnp.ones((columns, width), dtype) / columns
        # Of ones times these, each product is ones again: no number overflows.

        # Captures `down` [width, columns] and `up` [columns, width].
        def matmul_rate(row_count: int) -> float:
            """Operations per second of products with so many rows. A product has a multiplication
            and an addition for each row, input and output."""
            repeats = 8  # pairs of products in one call, so that its overhead is small
            products = jax.jit(lambda x: lax.fori_loop(0, repeats, lambda _, x: x @ down @ up, x))
            operations = repeats * 2 * (2 * row_count * width * columns)
            return operations / seconds_per_call(products, jnp.ones((row_count, width), dtype))

        increment = jax.jit(lambda x: x + 1, donate_argnums=0)
        buffer = jnp.zeros(BUFFER_BYTES // 4)  # float32
        bandwidth = 2 * BUFFER_BYTES / seconds_per_call(increment, buffer)  # read and written

        decode_rows, update_rows = rows
        return MeasuredRates(matmul_rate(decode_rows), matmul_rate(update_rows), bandwidth)


def seconds_per_call(function: Callable[[Any], Any], x: Any) -> float:
    """The mean time of one call, repeated for MIN_SECONDS, without compilation.

    Each call gets the result of the call before, so `function` must return what it takes.
    """
    x = jax.block_until_ready(function(x))
    calls, started_at = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started_at) < MIN_SECONDS:
        x = jax.block_until_ready(function(x))
        calls += 1
    return elapsed / calls
