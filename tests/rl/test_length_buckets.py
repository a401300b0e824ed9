"""Microbatches of responses of like length: by hand, and the gradient against a dense program that
knows no microbatches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes, bucket_widths
from isojax.distributed.sharding import shard_count
from isojax.rl import logprobs
from isojax.rl.gradient import (
    PromptBlock,
    ResponseBatch,
    build_gradient,
    microbatch_buckets,
    response_lengths,
    sort_by_length,
)
from isojax.rl.metric import value
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.layout import Layout
from tests.device import (
    DECODER,
    MESHES,
    P,
    log_softmax,
    mesh,
    placed,
    policy,
    quick_jit,
    random_problems,
    response_logits,
    scatter,
)

pytestmark = pytest.mark.slow

B_P, N, WIDE = 7, 5, 32  # responses of up to 32 tokens: widths 16 and 32
PROBLEMS = random_problems(B_P, seed=4)
GROUP = np.arange(B_P * N) // N


@pytest.mark.parametrize(
    ("T", "expected"),
    [(4, (4,)), (31, (31,)), (32, (16, 32)), (100, (25, 50, 100)), (256, (32, 64, 128, 256))],
)
def test_widths(T: int, expected: tuple[int, ...]) -> None:
    assert bucket_widths(T) == expected


def block(low: int, high: int) -> PromptBlock:
    """The rows [low, high); the rest of it decides no width."""
    return PromptBlock(jnp.int32(0), jnp.int32(low), jnp.int32(high), jnp.int32(0))


def test_order_and_choices_by_hand() -> None:
    """Shard 0 of 2 owns the rollouts 0 .. 5 of 3 problems with n = 4: block 0 (g = 1) is rows 0-3,
    block 1 rows 4 and 5; 2 are padding.
    """
    mask = jnp.arange(8)[None] < jnp.array([2, 0, 8, 5, 1, 6, 7, 7])[:, None]
    # a token that counts after some that do not: all up to it are needed
    mask = mask.at[1, 2].set(True)
    length = response_lengths(mask)
    assert length.tolist() == [2, 3, 8, 5, 1, 6, 7, 7]
    part = Layout(jnp.int32(3), jnp.int32(4), shards=2).shard_slice(jnp.int32(0))
    row = sort_by_length(length, part, jnp.int32(4), 1, 8)
    assert row.tolist() == [2, 3, 1, 0, 5, 4, 6, 7]
    widths = (2, 4, 8)
    shapes = SamplerShapes([(3, 4)], 1, 6, 2, P, 8)
    first_block = microbatch_buckets(length[row], block(0, 4), shapes, widths).tolist()
    assert first_block[:2] == [2, 1]  # 8, 5 and 3, 2
    second_block = microbatch_buckets(
        length[row], block(4, 6), replace(shapes, microbatch=1), widths
    ).tolist()
    assert second_block[:2] == [2, 0]  # 6 and 1
    assert second_block[2:] == [0] * 6  # none of this block's


def ragged() -> tuple[np.ndarray, ...]:
    """Tokens, the sampler's log-probabilities, mask and advantages of B_P * N rollouts; one in four
    is longer than 16.
    """
    rng = np.random.default_rng(0)
    lengths = np.where(
        rng.random(B_P * N) < 0.25,
        rng.integers(17, WIDE + 1, B_P * N),
        rng.integers(1, 17, B_P * N),
    )
    mask = np.arange(WIDE)[None] < lengths[:, None]
    tokens = np.where(mask, rng.integers(0, 24, mask.shape), 0).astype(np.int32)
    logps = np.where(mask, rng.normal(-3.2, 0.3, mask.shape), 0).astype(np.float32)
    return tokens, logps, mask, rng.normal(size=len(mask)).astype(np.float32)


def dense() -> tuple[Any, Any]:
    """The gradient of the token mean, and the mean entropy, of whole sequences in one piece."""
    tokens, sampler, mask, advantages = ragged()

    def objective(params: Any) -> Any:
        log_p = log_softmax(jnp, response_logits(jnp, params, PROBLEMS, GROUP, tokens))
        ratio = jnp.exp(
            jnp.where(
                mask, jnp.take_along_axis(log_p, tokens[..., None], -1)[..., 0] - sampler, 0.0
            )
        )
        surrogate = jnp.minimum(
            ratio * advantages[:, None], jnp.clip(ratio, 0.8, 1.2) * advantages[:, None]
        )
        return -(surrogate * mask).sum() / mask.sum(), (
            -(jnp.exp(log_p) * log_p).sum(-1) * mask
        ).sum() / mask.sum()

    return quick_jit(jax.grad(objective, has_aux=True))(policy())


@pytest.mark.parametrize(
    ("axes", "m"), [(MESHES[0], 3), ("fsdp=2,sequence=2", 3), ("data=2,fsdp=2", 2 * N)]
)
def test_gradients_equal_a_dense_program(
    axes: str, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each shard has other lengths, and the model is split, all must still agree on each
    microbatch's width; also where it holds all responses to a block of two prompts, which go
    through the layers with it.

    The 24 tokens of the vocabulary are read in blocks of 6; where devices share them, the plain
    form is taken.
    """
    monkeypatch.setattr(logprobs, "MAX_DENSE_LOGITS", 0)
    monkeypatch.setattr(logprobs, "MAX_BLOCK_TOKENS", 7)
    on = mesh(axes)
    sampler_shapes = SamplerShapes([(B_P, N)], shard_count(on), 8, m, P, WIDE, prefill_batch=2)
    tokens, logps, mask, advantages = (jnp.asarray(scatter(sampler_shapes, x)) for x in ragged())
    weight = jnp.full(advantages.shape, 1 / mask.sum())
    responses = ResponseBatch(
        tokens,
        mask,
        PolicyInputs(
            logps, jnp.ones((*mask.shape[:2], 1)), LossWeights(advantages, weight, weight, weight)
        ),
    )
    problems = ProblemArrays(
        *(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:])) for x in PROBLEMS)
    )
    sampling = SamplingConfig(prompt_length=P, response_length=WIDE)
    objective = PolicyObjective(DECODER, RLConfig(), sampling, vocab_split=on.shape["tensor"] > 1)
    gradient = build_gradient(
        objective, sampler_shapes, on, DECODER.logical_axes(), DECODER.shapes()
    )

    @quick_jit
    def program(params: Any) -> Any:
        inputs = UpdateInputs(params, params, problems, make_coefficients(RLConfig()))
        return gradient(inputs, responses, jnp.int32(B_P), jnp.int32(N))

    got, metrics = program(placed(policy(), on))
    expected, spread = dense()
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert float(np.linalg.norm(one - two) / np.linalg.norm(two)) < 2e-5
    assert float(value(metrics["entropy"])) == pytest.approx(float(spread), rel=1e-5)
