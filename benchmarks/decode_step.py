"""How fast a language model decodes on this machine, against its own matrix products: one JSON line for each number of slots.

    python benchmarks/decode_step.py models/smollm2-135m [--slots 32,64] [--positions 64]

A step is `Decoder.decode_step`, the logits and a draw at temperature .6, top-p 1, in a loop of 8 that carries the cache, as the sampler
runs it. `share` is the step's floating-point operations (2 a parameter and slot) over its time, as a share of what a square matrix
product of 2048 reaches in the same process.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from isojax import registry
from isojax.config import ModelConfig
from isojax.models import hf
from isojax.sampling.logits import draw, log_probs
from isojax.sharding import make_mesh, parse_mesh

STEPS, REPEATS = 8, 5


def seconds(call: Callable[[], Any]) -> float:
    """The median time of a call, compiled before."""
    jax.block_until_ready(call())
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--slots", default="32,64")
    parser.add_argument("--positions", type=int, default=64)
    args = parser.parse_args()

    config = hf.resolve(ModelConfig(path=str(args.model)))
    decoder = registry.load("models", config.family, "build").build(config, config.vocab)
    params = hf.load(args.model, config, decoder, make_mesh(parse_mesh("auto", 1), jax.devices()))
    size = sum(x.size for x in jax.tree.leaves(params))
    square = jnp.ones((2048, 2048))
    product = jax.jit(jnp.matmul)
    rate = 2 * 2048**3 / seconds(lambda: product(square, square))

    @jax.jit
    def steps(params: Any, cache: Any, tokens: Any, start: Any) -> Any:
        def one(i: Any, carry: Any) -> Any:
            cache, tokens = carry
            hidden, cache = decoder.decode_step(params, cache, tokens, start + i)
            tokens, _ = draw(log_probs(decoder.logits(params, hidden), 0.6), jnp.full(tokens.shape, 0.5))
            return cache, tokens

        return lax.fori_loop(0, STEPS, one, (cache, tokens))

    for slots in map(int, args.slots.split(",")):
        cache = decoder.empty_cache(slots, args.positions, jnp.float32)
        tokens, start = jnp.zeros(slots, jnp.int32), jnp.full(slots, args.positions - STEPS, jnp.int32)
        step = seconds(lambda c=cache, t=tokens, s=start: steps(params, c, t, s)) / STEPS
        told = {"slots": slots, "positions": args.positions, "ms_a_step": 1000 * step, "tokens_a_second": slots / step}
        told |= {"matmul_gflops": rate / 1e9, "share": 2 * size * slots / step / rate}
        print(json.dumps({k: round(v, 4) for k, v in told.items()}), flush=True)


if __name__ == "__main__":
    main()
