"""Sampler and trainer mean one policy: each token's log-probability before the first update, at
top-p 1 and .9, in a vocabulary of 2000.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from isojax.core.config import RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
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
from isojax.sampling.batch import ProblemArrays, Rollouts
from isojax.sampling.engine import build_sampler
from isojax.tasks.protocol import StopConditions
from tests.device import CONFIG, MESHES, P, mesh

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

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


class Agreement:
    """Samples a batch, then computes the log-probability of each token by the update's program."""

    def __init__(self, sampler_shapes: SamplerShapes, sampling: SamplingConfig, on: Mesh) -> None:
        self._sample = jax.jit(build_sampler(LARGE, sampler_shapes, on, sampling, STOPS))
        objective = PolicyObjective(LARGE, RLConfig(), sampling, vocab_split=on.shape["tensor"] > 1)
        self._gradient = build_gradient(
            objective, sampler_shapes, on, LARGE.logical_axes(), LARGE.shapes()
        )
        self._score = jax.jit(self._score_rollouts)

    def _score_rollouts(
        self, params: Params, problems: ProblemArrays, rollouts: Rollouts
    ) -> tuple[Any, Any]:
        """The update's metrics, and the norm of a gradient in which every response has an advantage
        of 1 and every token the same weight."""
        ones = jnp.ones(rollouts.stopped.shape)
        weight = ones / rollouts.mask.sum()
        policy_inputs = PolicyInputs(
            rollouts.logps, rollouts.nucleus_mass, LossWeights(ones, weight, weight, weight)
        )
        responses = ResponseBatch(rollouts.tokens, rollouts.mask, policy_inputs)
        update_inputs = UpdateInputs(params, params, problems, make_coefficients(RLConfig()))

        gradient, metrics = self._gradient(update_inputs, responses, np.int32(B_p), np.int32(n))
        return metrics, optax.tree.norm(gradient)

    def measure(self, params: Params, problems: ProblemArrays) -> dict[str, float]:
        """The update's metrics, with `tokens` (how many were compared) and `gradient_norm`."""
        rollouts = self._sample(params, problems, np.int32(B_p), np.int32(n), jax.random.key(0))
        metrics, norm = self._score(params, problems, rollouts)
        tokens = float(np.asarray(rollouts.mask).sum())
        return {**values(metrics), "tokens": tokens, "gradient_norm": float(norm)}


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
    agreement = Agreement(sampler_shapes, sampling, on)

    for scale in scales:
        params = jax.device_put(policy(scale), LARGE.shardings(on))
        result = agreement.measure(params, problems)
        assert result["tokens"] > 5000
        assert result["sampler_logp_gap_max"] < 1e-4 and result["sampler_logp_gap"] < 1e-5, (
            scale,
            result,
        )
        assert all(np.isfinite(x) for x in result.values()) and result["gradient_norm"] > 0
