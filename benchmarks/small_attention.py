"""Attention of short sequences and small heads on a CPU, as XLA does it by itself and as isojax
asks for it: one JSON line per shape.

    python benchmarks/small_attention.py [--gradient 64x2x6x6x16,...] [--scores 128x2x2x10x16,...]

A shape is rows x heads of keys x queries of each x positions x numbers of a head. gradient: the
trainer's scores and mixed values with their gradient (`models/attention.py`: `query_key_products`,
`weighted_values`); scores: a decode step's (`models/cpu.py`: `small_head_products`). The shapes are
the quickstart's, and for the gradient SmolLM2's few-shot and 4 x 8 steps. Medians; both forms take
turns.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from isojax.models import attention, cpu

ARRAYS, REPEATS = 20, 15  # of a call, one after the other; calls
GRADIENT = "64x2x6x6x16,64x2x6x3x16,64x3x12x45x64,4x3x381x64x64"
SCORES = "128x2x2x10x16"


def gradients(dot_keys: Callable[..., Any], mix_values: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of attention without a mask, made of these two products."""
    return jax.grad(
        lambda q, k, v: jnp.square(mix_values(jax.nn.softmax(dot_keys(q, k), -1), v)).sum(),
        (0, 1, 2),
    )


def plain_scores(q: Any, k: Any) -> Any:
    return jnp.einsum("zkgh,zkhc->zkgc", q, k)


FORMS = {
    "gradient": {
        "plain": gradients(
            lambda q, k: jnp.einsum("bkqh,bkch->bkqc", q, k),
            lambda w, v: jnp.einsum("bkqc,bkch->bkqh", w, v),
        ),
        "isojax": gradients(attention.query_key_products, attention.weighted_values),
    },
    "scores": {"plain": plain_scores, "isojax": cpu.small_head_products},
}


def measure(what: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Microseconds of both forms."""
    b, K, q, c, H = shape
    shapes = (
        ((b, K, q, H), (b, K, c, H), (b, K, c, H))
        if what == "gradient"
        else ((b, K, q, H), (b, K, H, c))
    )
    draw = [jax.random.normal(jax.random.key(i), (ARRAYS, *s)) for i, s in enumerate(shapes)]
    programs = {
        name: jax.jit(lambda *x, form=form: jax.lax.map(lambda one: form(*one), x))
        for name, form in FORMS[what].items()
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(REPEATS + 1):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program(*draw))
            if turn:  # the first compiles
                times[name].append((time.perf_counter() - start) / ARRAYS)
    plain, ours = (1e6 * statistics.median(times[name]) for name in ("plain", "isojax"))
    return {
        "what": what,
        "shape": shape,
        "plain_us": round(plain, 1),
        "isojax_us": round(ours, 1),
        "faster": float(f"{plain / ours:.3g}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gradient", default=GRADIENT)
    parser.add_argument("--scores", default=SCORES)
    args = parser.parse_args()
    for what in FORMS:
        for shape in vars(args)[what].split(","):
            print(json.dumps(measure(what, tuple(map(int, shape.split("x"))))), flush=True)


if __name__ == "__main__":
    main()
