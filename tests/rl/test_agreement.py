"""Sampler and trainer mean one policy: each token's log-probability before the first update, at
top-p 1 and .9, in a vocabulary of 2000.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from isojax.core.config import SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import ProblemArrays
from isojax.tasks.protocol import StopConditions
from tests.device import CONFIG, MESHES, P, mesh

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of this copy", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import logprob_agreement  # noqa: E402

V, T, B_p, n = 2000, 16, 26, 16
LARGE = Decoder(CONFIG, V)
STOPS = StopConditions((3, 1999), None)


def policy(scale: float) -> Params:
    """Logits of about this standard deviation."""
    rng = np.random.default_rng(1)
    drawn = jax.tree.map(lambda x: rng.normal(0, 0.2, x.shape).astype(np.float32), LARGE.shapes())
    return drawn | {
        "norm": np.ones(CONFIG.width, np.float32),
        "unembed": drawn["unembed"] / 0.2 * np.float32(scale / CONFIG.width**0.5),
    }


@pytest.mark.parametrize(
    ("top_p", "axes", "scales"),
    [(1.0, "auto", (0.1, 1.5, 6.0)), (0.9, "auto", (0.1, 6.0)), (0.9, MESHES[0], (1.5,))],
)
def test_sampler_and_trainer_agree_before_the_first_update(
    top_p: float, axes: str, scales: tuple[float, ...]
) -> None:
    """At temperature .6, from nearly flat logits (nuclei of 1,700 tokens) to ones where a single
    token often is the nucleus.
    """
    on = mesh(axes)
    sampler_shapes = SamplerShapes([(B_p, n)], shard_count(on), 52, 16, P, T)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, P + 1, sampler_shapes.problem_rows).astype(np.int32)
    prompts = rng.integers(4, V, (len(lengths), P)).astype(np.int32)
    problems = ProblemArrays(
        prompts,
        lengths,
        np.zeros((len(lengths), 0), np.int32),
        np.arange(len(lengths), dtype=np.int32),
    )
    sampling = SamplingConfig(prompt_length=P, response_length=T, temperature=0.6, top_p=top_p)
    measure = logprob_agreement.Agreement(LARGE, STOPS, sampler_shapes, sampling, on)
    for scale in scales:
        params = jax.device_put(policy(scale), LARGE.shardings(on))
        result = measure(params, problems, (B_p, n), gradient_too=True)
        assert result["tokens"] > 5000
        assert result["sampler_logp_gap_max"] < 1e-4 and result["sampler_logp_gap"] < 1e-5, (
            scale,
            result,
        )
        assert all(np.isfinite(x) for x in result.values()) and result["gradient_norm"] > 0
