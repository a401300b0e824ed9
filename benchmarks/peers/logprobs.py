"""The sampler's log-probabilities against a full recomputation by transformers in double precision.
One JSON line a temperature.

    python benchmarks/peers/logprobs.py MODEL [--B_p 4] [--n 8] [--prompt 64] [--new 128]

`make bench-peers` makes the environment of transformers first. MODEL: SmolLM2-135M as `isojax model
import smollm2` writes it. At temperatures 1 and .6 isojax draws B_p x n rollouts in float32, and
transformers computes the log-probability of each of their tokens in float64 and in float32. A line
has the largest and the mean difference of isojax's from either, and of transformers' float32 from
its float64: what recomputing in float32 is worth.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import compare
import jax
import numpy as np
from isojax_setup import Setup
from tokenizers import Tokenizer

from isojax.sampling.engine import build_sampler

TEMPERATURES = (1.0, 0.6)


def recomputed(model: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What transformers makes of prompts and tokens: float64 and float32, [B_p n, T] each."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.npz"
        np.savez(path, **given)  # pyright: ignore[reportArgumentType]
        words = [
            str(compare.ENVIRONMENTS / "transformers" / "bin" / "python"),
            str(compare.HERE / "logprobs_transformers.py"),
        ]
        list(compare.run([*words, str(model), str(path)]))
        return dict(np.load(path))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=compare.model_folder)
    for name, default in {"--B_p": 4, "--n": 8, "--prompt": 64, "--new": 128}.items():
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    ids, _ = compare.make_prompts(
        Tokenizer.from_file(str(args.model / "tokenizer.json")), args.B_p, args.prompt
    )
    setup = Setup(args.model, ids, args.n, args.new, "auto")
    for temperature in TEMPERATURES:
        sampling = setup.cell.sampling.model_copy(update={"temperature": temperature})
        sample = jax.jit(
            build_sampler(setup.decoder, setup.sampler_shapes, setup.mesh, sampling, setup.stops)
        )
        rollouts = sample(
            setup.params, setup.problems, np.int32(args.B_p), np.int32(args.n), jax.random.key(0)
        )
        ours = (
            np.asarray(rollouts.logps).reshape(-1, args.new)[: args.B_p * args.n].astype(np.float64)
        )
        tokens = np.asarray(rollouts.tokens).reshape(-1, args.new)[: args.B_p * args.n]
        theirs = recomputed(
            args.model,
            {"prompts": np.array(ids), "tokens": tokens, "temperature": np.array(temperature)},
        )
        differences = {
            "isojax_float64": abs(ours - theirs["float64"]),
            "isojax_float32": abs(ours - theirs["float32"]),
            "transformers_float32_float64": abs(theirs["float32"] - theirs["float64"]),
        }
        line = {"temperature": temperature, "tokens": ours.size}
        line |= {
            f"{name}_{kind}": float(f"{getattr(x, kind)():.2g}")
            for name, x in differences.items()
            for kind in ("max", "mean")
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as e:  # transformers' process failed, or has no environment
        sys.exit(str(e))
