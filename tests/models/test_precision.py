"""Decoding in other precisions than float32: near it, and what is said to be stored is stored."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models.decode import Decoding
from isojax.models.transformer import ComputeOptions
from tests.device import DECODER, P, policy, random_problems, response_logits

T, ROWS = 5, 8


@pytest.mark.parametrize(
    ("options", "unrolled", "dtypes", "bound"),
    [
        (ComputeOptions(cache_dtype="bfloat16"), True, {"bfloat16"}, 0.01),
        (ComputeOptions(cache_dtype="bfloat16"), False, {"bfloat16"}, 0.01),
        (ComputeOptions(cache_dtype="int8"), False, {"int8", "float32"}, 0.02),
        (ComputeOptions(rollout_weights="int8"), True, {"float32"}, 0.03),
        (
            ComputeOptions(compute_dtype="bfloat16", cache_dtype="bfloat16"),
            True,
            {"bfloat16"},
            0.04,
        ),
        (ComputeOptions(compute_dtype="bfloat16", cache_dtype="float32"), False, {"float32"}, 0.04),
    ],
)
def test_decoding_in_less_precision_is_near_float32(
    options: ComputeOptions, unrolled: bool, dtypes: set[str], bound: float
) -> None:
    """The relative L2 distance of all logits from NumPy's in float32: below what so many bits lose,
    and not nothing."""
    problems, group = random_problems(ROWS), np.arange(ROWS)
    responses = np.random.default_rng(1).integers(0, DECODER.vocab, (ROWS, T)).astype(np.int32)
    decoding = Decoding(DECODER.with_options(options), ROWS, 1, P, T, unrolled)

    @jax.jit
    def run(params):
        weights = decoding.prepare_weights(params)
        entries, last = decoding.prefill(params, problems.prompts, problems.lengths)
        cache = decoding.admit(
            decoding.empty_cache(), entries, jnp.asarray(group), np.ones(ROWS, bool)
        )
        assert {str(x.dtype) for x in jax.tree.leaves(cache)} == dtypes

        def step(cache, of_step):
            tokens, t = of_step
            positions = problems.lengths + t
            hidden, cache = decoding.step(weights, cache, tokens, positions, jnp.full(ROWS, t))
            return cache, decoding.logits(weights, hidden)

        following = jax.lax.scan(step, cache, (responses[:, :-1].T, jnp.arange(T - 1)))[1]
        return jnp.concatenate([decoding.logits(weights, last)[None], following]).swapaxes(0, 1)

    got = np.asarray(run(policy()))
    expected = response_logits(np, policy(), problems, group, responses)
    assert got.dtype == np.float32
    assert 1e-5 < np.linalg.norm(got - expected) / np.linalg.norm(expected) < bound


@pytest.mark.parametrize("unrolled", [True, False])
def test_logits_of_bfloat16_are_added_up_and_left_in_float32(unrolled: bool) -> None:
    """As the trainer's are: rounded to bfloat16 they would be off by 2e-3 of themselves."""
    decoding = Decoding(
        DECODER.with_options(ComputeOptions(compute_dtype="bfloat16", cache_dtype="bfloat16")),
        ROWS,
        1,
        P,
        T,
        unrolled,
    )
    hidden = jax.random.normal(jax.random.key(0), (ROWS, DECODER.config.width), jnp.bfloat16)
    got = jax.jit(lambda params: decoding.logits(decoding.prepare_weights(params), hidden))(
        policy()
    )
    exact = np.asarray(hidden, np.float64) @ np.asarray(
        jnp.asarray(policy()["unembed"], jnp.bfloat16), np.float64
    )
    np.testing.assert_allclose(got, exact, atol=1e-5)
