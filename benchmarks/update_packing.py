"""What microbatches of like length gain: an update of a small decoder on long-tailed response
lengths. One JSON line.

    python benchmarks/update_packing.py [--widths 1,2,3,4]

256 responses of lognormal length (sigma .8, mean 60, cut at 256) to 16 problems; T = 256,
microbatches of 16. `packed` has the widths of rl/gradient.py, `flat` computes every response at T.
Runs take turns; tokens per second (those that count, prompts aside) by medians of the process's own
CPU seconds. `positions`: how many each program computes for every token that counts.
"""

import argparse
import json
import statistics
import time
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from isojax.core import shapes
from isojax.core.config import ModelConfig, RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.models.transformer import Decoder
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from isojax.sampling.batch import ProblemArrays

B_P, N, M, P, T, VOCAB, REPEATS = 16, 16, 16, 32, 256, 512, 5
MODEL = ModelConfig(layers=4, width=128, heads=4, kv_heads=2, head_dim=32, mlp=384)


def lengths(count: int) -> np.ndarray:
    """Lognormal, of mean 60 before the cut."""
    draws = np.random.default_rng(0).lognormal(np.log(60) - 0.8**2 / 2, 0.8, count)
    return np.clip(np.ceil(draws), 1, T).astype(int)


def positions(length: np.ndarray, prompts: int, choices: tuple[int, ...]) -> int:
    """Response positions that an update computes."""
    total = 0
    for block in length.reshape(-1, prompts * N):
        ordered = -np.sort(-block) if len(choices) > 1 else block
        total += sum(
            M * min(w for w in choices if w >= ordered[i : i + M].max())
            for i in range(0, len(block), M)
        )
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--widths",
        default=f"1,{shapes.MAX_BUCKETS}",
        help="how many widths, the first to compare with",
    )
    counts = [int(x) for x in parser.parse_args().widths.split(",")]

    decoder = Decoder(MODEL, VOCAB)
    on = make_mesh(parse_mesh("auto", 1), jax.devices()[:1])
    params = decoder.init(jax.random.key(0))
    sampler_shapes = SamplerShapes([(B_P, N)], 1, 16, M, P, T)
    rng = np.random.default_rng(1)
    rows = sampler_shapes.buffer_rows
    Q = sampler_shapes.problem_rows
    tokens, prompts = (
        rng.integers(0, VOCAB, shape).astype(np.int32) for shape in ((1, rows, T), (Q, P))
    )
    problems = ProblemArrays(
        prompts, np.full(Q, P, np.int32), np.zeros((Q, 1), np.int32), np.arange(Q, dtype=np.int32)
    )
    length = lengths(B_P * N)
    mask = jnp.arange(T)[None, None] < jnp.asarray(np.resize(length, rows))[None, :, None]
    live = int(length.sum())
    weight = jnp.full((1, rows), 1 / live)
    terms = LossWeights(rng.normal(size=(1, rows)).astype(np.float32), weight, weight, weight)
    responses = ResponseBatch(
        jnp.asarray(tokens),
        mask,
        PolicyInputs(jnp.full((1, rows, T), -6.0), jnp.ones((1, rows, 1)), terms),
    )

    programs: dict[int, Any] = {}
    line: dict[str, Any] = {
        "tokens": live,
        "microbatch": M,
        "T": T,
        "backend": jax.default_backend(),
    }
    for count in counts:
        with patch.object(shapes, "MAX_BUCKETS", count):
            sampling = SamplingConfig(prompt_length=P, response_length=T)
            objective = PolicyObjective(decoder, RLConfig(), sampling, vocab_split=False)
            gradient = build_gradient(
                objective, sampler_shapes, on, decoder.logical_axes(), decoder.shapes()
            )

            def program(params: Any, gradient: Any = gradient) -> Any:
                inputs = UpdateInputs(params, params, problems, make_coefficients(RLConfig()))
                return gradient(inputs, responses, jnp.int32(B_P), jnp.int32(N))

            start = time.process_time()
            programs[count] = jax.jit(program).lower(params).compile()
            line[f"compile_s_{count}"] = round(time.process_time() - start, 1)
            line[f"positions_{count}"] = round(
                positions(length, sampler_shapes.prefill_batch, shapes.bucket_widths(T)) / live, 2
            )
    spent: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(REPEATS + 1):
        for count, compiled in programs.items():
            start = time.process_time()
            jax.block_until_ready(compiled(params))
            if turn:
                spent[count].append(time.process_time() - start)
    medians = {count: statistics.median(times) for count, times in spent.items()}
    line |= {
        f"tokens_per_second_{count}": round(live / seconds) for count, seconds in medians.items()
    }
    line |= {
        f"gain_{count}": float(f"{medians[counts[0]] / medians[count]:.3g}") for count in counts[1:]
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
