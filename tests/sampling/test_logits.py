"""The inverse-CDF draw by hand, and keys that know the problem, the rollout and the position."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.sampling.logits import draw, log_probs, rollout_keys, uniforms


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_log_probs_at_a_temperature(temperature: float) -> None:
    # weights 1, 2, 5 as logits; at temperature t they are raised to 1/t
    weights = np.array([1.0, 2.0, 5.0]) ** (1 / temperature)
    got = log_probs(jnp.log(jnp.array([[1.0, 2.0, 5.0]])), temperature)
    np.testing.assert_allclose(got[0], np.log(weights / weights.sum()), atol=1e-6)


def test_log_probs_are_float32_and_survive_large_logits() -> None:
    got = log_probs(jnp.array([[1000.0, 990.0, -1000.0]], jnp.bfloat16), 1.0)
    assert got.dtype == jnp.float32
    # bfloat16 holds 992, not 990
    np.testing.assert_allclose(got[0], [-np.log1p(np.exp(-8.0)), -8 - np.log1p(np.exp(-8.0)), -2000], rtol=1e-4)


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (0.2499, 1), (0.2501, 2), (0.7499, 2), (0.7501, 4), (1 - 2**-23, 4)])
def test_draw_by_hand(uniform: float, token: int) -> None:
    """Probabilities 0, 1/4, 1/2, 0, 1/4, 0: what has none is never drawn, at either end."""
    p = jnp.array([[0, 0.25, 0.5, 0, 0.25, 0]])
    got, logp = draw(jnp.log(p), jnp.array([uniform], jnp.float32))
    assert int(got[0]) == token
    assert float(logp[0]) == pytest.approx(np.log(p[0, token]), rel=1e-6)


def test_the_last_uniform_never_draws_a_token_without_probability() -> None:
    """A real vocabulary: rounding of 50,000 sums must not push the largest uniform of jax.random past the last token that may be drawn."""
    logits = np.random.default_rng(0).normal(0, 2, (64, 50_000)).astype(np.float32)
    logits[:, -100:] = -np.inf  # rows that pad a vocabulary
    tokens, logps = jax.jit(draw)(log_probs(jnp.array(logits), 1.0), jnp.full(64, 1 - 2**-23, jnp.float32))
    assert (np.asarray(tokens) < 50_000 - 100).all()
    assert np.isfinite(logps).all()


def test_uniforms_differ_by_problem_rollout_position_and_key_and_by_nothing_else() -> None:
    problem, rollout = (x.reshape(-1) for x in np.mgrid[0:20, 0:30].astype(np.int32))
    both = []
    for key in (jax.random.key(0), jax.random.key(1)):
        for position in (0, 1):
            keys = rollout_keys(key, problem, rollout)
            both.append(np.asarray(uniforms(keys, np.full(600, position, np.int32))))
            mixed = np.random.default_rng(2).permutation(600)  # other slots
            again = uniforms(rollout_keys(key, problem[mixed], rollout[mixed]), np.full(600, position, np.int32))
            np.testing.assert_array_equal(again, both[-1][mixed])
    every = np.stack(both)
    assert len(np.unique(every)) > 0.999 * every.size
    assert every.min() >= 0 and every.max() < 1
    assert abs(every.mean() - 0.5) < 4 / np.sqrt(12 * every.size)
    correlations = np.corrcoef(every)[np.triu_indices(4, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(600)
