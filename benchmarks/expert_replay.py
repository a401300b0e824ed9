"""How far sampler and trainer are apart in a mixture of experts, with and without
`cell.rl.replay_experts`.

    python benchmarks/expert_replay.py                # on a CPU about two minutes

A random Qwen3-MoE samples; then the update's own forward pass scores the samples, once with the
experts of the trainer's choice and once with the sampler's. One JSON line for each way of sampling
and each of the two: the mean and the largest absolute difference of a token's log-probabilities,
and the share of (token, layer) pairs in which both choose the same experts.
"""

import argparse
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isojax.core.config import ModelConfig, RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.sharding import make_mesh
from isojax.models.transformer import ComputeOptions, Decoder
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.metric import values
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from isojax.sampling.batch import ProblemArrays, RoutedRollouts
from isojax.sampling.engine import build_sampler
from isojax.tasks.protocol import StopConditions

VOCAB, P, T, B_P, N = 512, 16, 32, 8, 4
SAMPLERS = {
    "float32": ComputeOptions(),
    "bfloat16": ComputeOptions(compute_dtype="bfloat16", cache_dtype="bfloat16"),
    "int8": ComputeOptions(rollout_weights="int8"),
}


def make_model(experts: int, top_k: int) -> ModelConfig:
    options: dict[str, Any] = {"experts": experts, "top_k": top_k, "expert_mlp": 64}
    return ModelConfig(
        family="qwen3_moe",
        layers=8,
        width=128,
        heads=4,
        kv_heads=2,
        head_dim=32,
        qk_norm=True,
        options=options,
    )


def make_problems(rows: int) -> ProblemArrays:
    rng = np.random.default_rng(0)
    columns = (
        rng.integers(0, VOCAB, (B_P, P)).astype(np.int32),
        rng.integers(P // 2, P + 1, B_P).astype(np.int32),
        np.zeros((B_P, T), np.int32),
        np.arange(B_P, dtype=np.int32),
    )
    return ProblemArrays(*(np.resize(x, (rows, *x.shape[1:])) for x in columns))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=SAMPLERS)
    arguments = parser.parse_args()

    mesh = make_mesh(MeshShape(), jax.devices())
    shapes = SamplerShapes(
        [(B_P, N)], 1, slots=16, microbatch=8, prompt_length=P, response_length=T
    )
    sampling = SamplingConfig(prompt_length=P, response_length=T)
    problems = make_problems(shapes.problem_rows)
    described = Decoder(make_model(arguments.experts, arguments.top_k), VOCAB)
    params = described.init(jax.random.key(1))

    for name in arguments.samplers:
        decoder = described.with_options(SAMPLERS[name])
        sampler = build_sampler(
            decoder, shapes, mesh, sampling, StopConditions((), None), records_experts=True
        )
        sizes = np.int32(B_P), np.int32(N)
        rollouts = jax.jit(sampler)(params, problems, *sizes, jax.random.key(2))
        assert isinstance(rollouts, RoutedRollouts)

        nothing = LossWeights(*[jnp.zeros(rollouts.lengths.shape)] * 4)
        inputs = PolicyInputs(rollouts.logps, rollouts.nucleus_mass, nothing)
        recorded = rollouts.prompt_experts, rollouts.experts
        responses = ResponseBatch(rollouts.tokens, rollouts.mask, inputs, *recorded)
        for replays in (False, True):
            rl = RLConfig(replay_experts=replays)
            objective = PolicyObjective(decoder, rl, sampling, vocab_split=False)
            gradient = build_gradient(
                objective, shapes, mesh, decoder.logical_axes(), decoder.shapes()
            )
            update = UpdateInputs(params, {}, problems, make_coefficients(rl))
            # Without the gradient, which is not read, the compiler leaves it out.
            metrics = jax.jit(lambda *given, gradient=gradient: gradient(*given)[1])(
                update, responses, *sizes
            )
            shown = values(jax.tree.map(float, metrics))
            keys = ("sampler_logp_gap", "sampler_logp_gap_max", "expert_agreement")
            line = {"sampler": name, "replays": replays} | {
                key: float(f"{shown[key]:.3g}") for key in keys
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
