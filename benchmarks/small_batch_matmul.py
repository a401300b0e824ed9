"""Products of the few rows of a decode step, plain and as the sampler has them on a CPU
(`small_batch_matmul`): one JSON line per number of rows.

    python benchmarks/small_batch_matmul.py [--rows 16,32,64,128] [--shapes
    576x1536,1536x576,576x49152]

The shapes, inputs x outputs, are SmolLM2-135M's: half of its MLP, the other half, its unembedding.
Weights of `LAYERS` layers (of the largest shape 1) follow one another, so that they come from
memory as in a step. Medians; both forms take turns.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from isojax.models.cpu import small_batch_matmul
from isojax.models.fsdp import matmul

LAYERS, REPEATS = 30, 5
LARGE = 2**24  # numbers of a matrix that is read from memory in any case


def program(form: Callable[[Any, Any], Any]) -> Callable[[Any, list[Any]], list[Any]]:
    """A product with every layer's weights, compiled."""
    return jax.jit(lambda x, weights: [form(x, w) for w in weights])


FORMS = {"plain": program(matmul), "small_batch": program(small_batch_matmul)}


def seconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of each call; they take turns, the first to compile."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(REPEATS + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(spent) for name, spent in times.items()}


def measure(rows: int, shapes: list[tuple[int, int]]) -> dict[str, Any]:
    """Milliseconds of all shapes together, and each form's operations a second."""
    spent, operations = {"plain": 0.0, "small_batch": 0.0}, 0
    for inputs, outputs in shapes:
        layers = 1 if inputs * outputs >= LARGE else LAYERS
        x = jax.random.normal(jax.random.key(0), (rows, inputs))
        held = [jax.random.normal(jax.random.key(i), (inputs, outputs)) for i in range(layers)]
        weights = {"plain": held, "small_batch": [w.T for w in held]}
        calls = {name: partial(form, x, weights[name]) for name, form in FORMS.items()}
        for name, used in seconds(calls).items():
            spent[name] += used
        operations += 2 * rows * inputs * outputs * layers
    line = {f"{name}_ms": round(1000 * used, 4) for name, used in spent.items()}
    line |= {f"{name}_gflops": round(operations / used / 1e9, 1) for name, used in spent.items()}
    return {"rows": rows, **line, "faster": float(f"{spent['plain'] / spent['small_batch']:.3g}")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="16,32,64,128")
    parser.add_argument("--shapes", default="576x1536,1536x576,576x49152")
    args = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes.split(",")]
    for rows in map(int, args.rows.split(",")):
        print(json.dumps(measure(rows, shapes)), flush=True)


if __name__ == "__main__":
    main()
