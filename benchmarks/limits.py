"""What this machine can do, and the fastest rollouts that allows: JSON lines.

    python benchmarks/limits.py MODEL [--rows 32,64] [--prompt 64] [--new 128] [--repeats 5]

The limits, in float32, by JAX: a square matrix product of 2048; the unembedding of R rows, [R, D] x
[D, V], the best of the two ways in which the matrix can lie and of the second's transpose, which is
the sampler's own; and the memory's bandwidth over 1 GiB, the better of a sum and of adding one in
place (which reads and writes). They hold for the cores that the process may run on (taskset); on
one core the time is the processor's, which other work on the machine does not stretch.

The serial floor of a decode step of R slots is what these would take one after the other:

    2 (parameters without the embedding) R / matrix rate + 2 V D R / unembedding rate + (parameters
    + live cache) / bandwidth

with the cache's mean of P + T / 2 live positions a slot; but of each T steps one, whose tokens are
drawn from their prompts, takes the unembedding alone. Prompts, sampling, norms and softmax cost
nothing in it.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOAT = 4  # bytes
GIGABYTE = 10**9


@dataclass(frozen=True)
class Shape:
    """What the floor needs of a model: parameters without the embedding (and unembedding),
    vocabulary V, width D, and the bytes that the keys and values of one position take in all
    layers."""

    blocks: int
    vocab: int
    width: int
    position_bytes: int


@dataclass(frozen=True)
class Limits:
    """Operations a second of the square product and of the unembedding of R rows, and bytes a
    second."""

    product: float
    unembedding: float
    bandwidth: float


def floor(shape: Shape, limits: Limits, rows: int, prompt: int, new: int) -> float:
    """The serial floor's rollout tokens per second; lengths in tokens."""
    table = shape.vocab * shape.width
    cache = rows * (prompt + new / 2) * shape.position_bytes

    # seconds of a step: products, and then what they read
    products = 2 * shape.blocks * rows / limits.product
    layers = products + (FLOAT * shape.blocks + cache) / limits.bandwidth
    unembedding = 2 * table * rows / limits.unembedding + FLOAT * table / limits.bandwidth
    return rows / (layers * (new - 1) / new + unembedding)


def read_shape(model: Path) -> Shape:
    """The shape of the model in a folder."""
    config = json.loads((model / "config.json").read_text())
    width = config["hidden_size"]
    heads = config["num_attention_heads"]
    layers = config["num_hidden_layers"]
    head = config.get("head_dim") or width // heads
    kv_heads = config.get("num_key_value_heads", heads)
    layer = (
        2 * width * head * (heads + kv_heads) + 3 * width * config["intermediate_size"] + 2 * width
    )
    return Shape(
        layers * layer + width, config["vocab_size"], width, 2 * layers * kv_heads * head * FLOAT
    )


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """The median time of a call, compiled before."""
    import jax

    clock = time.process_time if len(os.sched_getaffinity(0)) == 1 else time.perf_counter
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        began = clock()
        jax.block_until_ready(call())
        times.append(clock() - began)
    return statistics.median(times)


def measure(shape: Shape, rows: int, repeats: int) -> dict[str, float]:
    """The machine's limits: GFLOP/s and GB/s."""
    import jax
    import jax.numpy as jnp

    def product(equation: str, *shapes: tuple[int, ...]) -> float:
        arrays = [jnp.ones(s) for s in shapes]
        form = jax.jit(lambda a, b: jnp.einsum(equation, a, b))
        operations = 2 * shapes[0][0] * shapes[1][0] * shapes[1][1]
        return operations / seconds(lambda: form(*arrays), repeats) / GIGABYTE

    V, D = shape.vocab, shape.width
    result = {"product_gflops": product("ij,jk->ik", (2048, 2048), (2048, 2048))}
    ways = (
        ("rd,dv->rv", (rows, D), (D, V)),
        ("rd,vd->rv", (rows, D), (V, D)),
        ("vd,rd->vr", (V, D), (rows, D)),
    )
    result["unembedding_gflops"] = max(product(*way) for way in ways)
    held = [jnp.ones((GIGABYTE // FLOAT // 1000, 1000))]
    # in place: fresh pages would cost more than the memory
    read = jax.jit(jnp.sum)
    write = jax.jit(lambda x: x + 1, donate_argnums=0)

    def copy() -> Any:
        held[0] = write(held[0])
        return held[0]

    result["read_gbps"] = 1 / seconds(lambda: read(held[0]), repeats)
    result["write_gbps"] = 2 / seconds(copy, repeats)
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a folder with a language model")
    parser.add_argument("--rows", default="32,64", help="slots R, one line each")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens of a response")
    parser.add_argument("--repeats", type=int, default=5, help="calls that a median is taken of")
    args = parser.parse_args()

    shape = read_shape(args.model)
    for rows in map(int, args.rows.split(",")):
        result = measure(shape, rows, args.repeats)
        limits = Limits(
            product=GIGABYTE * result["product_gflops"],
            unembedding=GIGABYTE * result["unembedding_gflops"],
            bandwidth=GIGABYTE * result["read_gbps"],
        )
        tokens_per_second = floor(shape, limits, rows, args.prompt, args.new)
        line = {"rows": rows, **result, "floor_tokens_per_second": tokens_per_second}
        print(json.dumps({k: round(v, 1) for k, v in line.items()}), flush=True)


if __name__ == "__main__":
    main()
