"""Do sampler and trainer mean the same policy? Largest difference of their log-probabilities before
the first update; one JSON line each.

    python benchmarks/logprob_agreement.py models/smollm2-135m                    200 sums x 16 rollouts, then free text
    python benchmarks/logprob_agreement.py models/smollm2-135m --sums 20          fewer prompts

MODEL: a folder as `isojax model import smollm2` writes it. Few-shot sums with answers of at most 8
tokens, and 64 tokens of free text from 16 openings, 8 rollouts each; at temperature .6 with top-p 1
and .9. The bound is 1e-4.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from isojax.core.config import (
    CellConfig,
    DataConfig,
    ModelConfig,
    PromptConfig,
    RLConfig,
    SamplingConfig,
    VerifierConfig,
)
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh, shard_count
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder, Params
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.metric import values
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.engine import build_sampler
from isojax.tasks.problem_sources import InMemorySource, open_source
from isojax.tasks.protocol import StopConditions
from isojax.tasks.task import TextTask

BOUND = 1e-4
SHOTS = "3 + 4 = 7\n15 + 2 = 17\n8 + 26 = 34\n34 + 52 = 86\n{prompt}"
OPENINGS = [
    "The history of bread begins",
    "Once upon a time",
    "def fibonacci(n):",
    "Dear Sir or Madam,",
    "The three laws of",
    "1. Wash your hands",
]
OPENINGS += [
    "In 1969,",
    "Water boils at",
    "My favourite colour is",
    "Q: What is a whale?\nA:",
    "import numpy as np",
    "She opened the door and",
]
OPENINGS += ["The capital of France", "| name | age |", "To bake a cake, first", "Light travels"]


class Agreement:
    """Samples a batch, then computes the log-probability of each token by the gradient's
    program."""

    def __init__(
        self,
        decoder: Decoder,
        stops: StopConditions,
        sampler_shapes: SamplerShapes,
        sampling: SamplingConfig,
        on: Mesh,
    ):
        self._sample = jax.jit(build_sampler(decoder, sampler_shapes, on, sampling, stops))
        objective = PolicyObjective(
            decoder, RLConfig(), sampling, vocab_split=on.shape["tensor"] > 1
        )
        gradient = build_gradient(
            objective, sampler_shapes, on, decoder.logical_axes(), decoder.shapes()
        )

        def score(
            params: Params,
            problems: ProblemArrays,
            rollouts: Any,
            B_p: Any,
            n: Any,
            gradient_too: bool,
        ) -> Any:
            alike = jnp.ones(rollouts.stopped.shape)
            weight = alike / rollouts.mask.sum()
            specific = PolicyInputs(
                rollouts.logps, rollouts.nucleus_mass, LossWeights(alike, weight, weight, weight)
            )
            responses = ResponseBatch(rollouts.tokens, rollouts.mask, specific)
            inputs = UpdateInputs(params, params, problems, make_coefficients(RLConfig()))
            result, metrics = gradient(inputs, responses, B_p, n)
            return metrics, optax.tree.norm(
                result
            ) if gradient_too else None  # where nobody asks for it, no gradient is computed

        self._score = jax.jit(score, static_argnums=5)

    def __call__(
        self,
        params: Params,
        problems: ProblemArrays,
        cell: tuple[int, int],
        gradient_too: bool = False,
    ) -> dict[str, float]:
        """The update's metrics of a batch of `cell` = (B_p, n); with tokens (compared) and
        gradient_norm (where asked).
        """
        coefficients = (np.int32(cell[0]), np.int32(cell[1]))
        rollouts = self._sample(params, problems, *coefficients, jax.random.key(0))
        metrics, norm = jax.block_until_ready(
            self._score(params, problems, rollouts, *coefficients, gradient_too)
        )
        result = values(metrics) | {"tokens": float(np.asarray(rollouts.mask).sum())}
        return result | ({"gradient_norm": float(norm)} if gradient_too else {})


def report(
    name: str,
    task: TextTask,
    model: ModelConfig,
    count: int,
    n: int,
    lengths: tuple[int, int],
    top_p: float,
) -> None:
    """One JSON line."""
    began = time.perf_counter()
    decoder = Decoder(model, task.vocab)
    on = make_mesh(parse_mesh("auto", 1), jax.devices()[:1])
    sampling = SamplingConfig(
        prompt_length=lengths[0], response_length=lengths[1], temperature=0.6, top_p=top_p
    )
    sampler_shapes = SamplerShapes(
        [(count, n)], shard_count(on), min(64, count * n), 256 // lengths[1], *lengths
    )
    selected = task.problems(count, np.random.default_rng(0))
    problems = ProblemArrays(
        *(
            np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:]))
            for x in task.encode(selected, lengths[0])
        )
    )
    params = hf_load.load(task.folder, model, decoder, on)
    result = Agreement(decoder, task.stops, sampler_shapes, sampling, on)(
        params, problems, (count, n)
    )
    row = {
        "prompts": name,
        "top_p": top_p,
        "temperature": 0.6,
        "rollouts": count * n,
        "tokens": round(result["tokens"]),
    }
    row |= {
        "max_difference": result["sampler_logp_gap_max"],
        "mean_difference": result["sampler_logp_gap"],
        "within_1e-4": result["sampler_logp_gap_max"] < BOUND,
    }
    print(json.dumps(row | {"seconds": round(time.perf_counter() - began, 1)}), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--sums", type=int, default=200)
    inputs = parser.parse_args()
    model = hf_load.resolve_model(ModelConfig(path=inputs.model))
    shots, free = PromptConfig(template=SHOTS, stop=("\n",)), PromptConfig()
    verifier = VerifierConfig(use="integer")
    sums = TextTask(
        open_source("addition", DataConfig()),
        CellConfig(model=model, prompt=shots, verifier=verifier),
    )
    openings = InMemorySource([Problem(i, opening, "") for i, opening in enumerate(OPENINGS)])
    text = TextTask(openings, CellConfig(model=model, prompt=free, verifier=verifier))
    for top_p in (1.0, 0.9):
        report("free text", text, model, len(OPENINGS), 8, (12, 64), top_p)
        report("sums", sums, model, inputs.sums, 16, (48, 8), top_p)


if __name__ == "__main__":
    main()
