"""How fast a language model decodes on this machine, against its own matrix products: one JSON line
for each number of slots.

    python benchmarks/decode_step.py models/smollm2-135m [--slots 32,64] [--positions 64]

A step is `Decoding.step`, the logits and a draw at temperature .6, top-p 1, in a loop of 8 that
carries the cache, as the sampler runs it, with layers unrolled and stacked. `share` is the step's
floating-point operations (2 a parameter and slot) over its time, as a share of what a square matrix
product of 2048 reaches in the same process.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from isojax.core.config import ModelConfig
from isojax.core.shapes import TRANSPOSE_MAX_SLOTS
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.models.decode import Decoding
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder
from isojax.sampling.logits import log_probs, sample_token

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--slots", default="32,64")
    parser.add_argument("--positions", type=int, default=64)
    args = parser.parse_args()

    config = hf_load.resolve_model(ModelConfig(path=str(args.model)))
    decoder = Decoder(config)
    params = hf_load.load(
        args.model, config, decoder, make_mesh(parse_mesh("auto", 1), jax.devices())
    )
    size = sum(x.size for x in jax.tree.leaves(params))
    square = jnp.ones((2048, 2048))
    product = jax.jit(jnp.matmul)
    rate = 2 * 2048**3 / seconds(lambda: product(square, square))

    for slots, unrolled in itertools.product(map(int, args.slots.split(",")), (True, False)):
        decoding = Decoding(
            decoder,
            slots,
            1,
            args.positions // 2,
            args.positions - args.positions // 2,
            unrolled,
            allow_transposed=slots <= TRANSPOSE_MAX_SLOTS,
        )

        @jax.jit
        def steps(
            weights: Any, cache: Any, tokens: Any, start: Any, decoding: Decoding = decoding
        ) -> Any:
            def one(i: Any, carry: Any) -> Any:
                cache, tokens = carry
                hidden, cache = decoding.step(weights, cache, tokens, start + i, start)
                tokens, _ = sample_token(
                    log_probs(decoding.logits(weights, hidden), 0.6), jnp.full(tokens.shape, 0.5)
                )
                return cache, tokens

            return lax.fori_loop(0, STEPS, one, (cache, tokens))

        inputs = (
            jax.jit(decoding.prepare_weights)(params),
            decoding.empty_cache(),
            jnp.zeros(slots, jnp.int32),
        )
        step = (
            seconds(
                lambda f=steps, g=inputs, n=slots: f(
                    *g, jnp.full(n, args.positions - STEPS, jnp.int32)
                )
            )
            / STEPS
        )
        line = {
            "slots": slots,
            "positions": args.positions,
            "unrolled": unrolled,
            "ms_per_step": 1000 * step,
            "tokens_per_second": slots / step,
        }
        line |= {"matmul_gflops": rate / 1e9, "share": 2 * size * slots / step / rate}
        print(json.dumps({k: round(v, 4) for k, v in line.items()}), flush=True)


if __name__ == "__main__":
    main()
