"""Slots that each hold their prompt's keys and values, against slots that share them: tokens per
second of the same rollouts, for several prompt lengths. One JSON line for each length.

    python benchmarks/shared_prefixes.py models/smollm2-135m [--prompts 64,256,1024] [--response 64]
    [--n 16] [--slots 32] [--width 8] [--problems 4]

Fixed lengths (no stop), temperature 1, float32. Both samplers are compiled and warm, their repeats
interleaved; medians. `--layers` cuts the model short, for a quick look.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from isojax.core.config import ModelConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.engine import build_sampler
from isojax.tasks.protocol import StopConditions

REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", default="64,256,1024")
    for name, default in (
        ("response", 64),
        ("n", 16),
        ("slots", 32),
        ("width", 8),
        ("problems", 4),
        ("layers", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()

    config = hf_load.resolve_model(ModelConfig(path=str(args.model)))
    mesh = make_mesh(parse_mesh("auto", 1), jax.devices())
    params: Any = hf_load.load(args.model, config, Decoder(config), mesh)
    if args.layers:
        config = config.model_copy(update={"layers": args.layers})
        params = {**params, "blocks": jax.tree.map(lambda w: w[: args.layers], params["blocks"])}
    decoder = Decoder(config)

    for length in map(int, args.prompts.split(",")):
        rng, cells = np.random.default_rng(0), [(args.problems, args.n)]
        samplers, times = {}, {}
        for width in (1, args.width):
            sampler_shapes = SamplerShapes(
                cells, 1, args.slots, args.slots, length, args.response, args.problems, width
            )
            sampling = SamplingConfig(prompt_length=length, response_length=args.response)
            samplers[width] = jax.jit(
                build_sampler(decoder, sampler_shapes, mesh, sampling, StopConditions((), None))
            )
            rows = sampler_shapes.problem_rows
        problems = ProblemArrays(
            rng.integers(0, config.vocab, (rows, length)).astype(np.int32),
            np.full(rows, length, np.int32),
            np.zeros((rows, 0), np.int32),
            np.arange(rows, dtype=np.int32),
        )
        inputs = params, problems, np.int32(args.problems), np.int32(args.n), jax.random.key(0)
        for repeat in range(REPEATS + 1):  # the first compiles
            for width, sample in samplers.items():
                start = time.perf_counter()
                jax.block_until_ready(sample(*inputs))
                if repeat:
                    times.setdefault(width, []).append(time.perf_counter() - start)
        tokens = args.problems * args.n * args.response
        separate, shared = (tokens / statistics.median(times[width]) for width in (1, args.width))
        line = {"P": length, "T": args.response, "n": args.n, "R": args.slots, "W": args.width}
        print(
            json.dumps(
                line
                | {
                    "separate": round(separate, 1),
                    "shared": round(shared, 1),
                    "ratio": round(shared / separate, 3),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
