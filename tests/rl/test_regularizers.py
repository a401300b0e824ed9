"""k3 and entropy by hand; their slopes by finite differences; k3 estimates the KL that enumeration
gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.rl.kl_estimators.k3 import estimate as k3
from isojax.rl.logprobs import entropy


@pytest.mark.parametrize(("policy", "base"), [(0.5, 0.25), (0.25, 0.5), (0.3, 0.3), (0.9, 0.01)])
def test_k3_by_hand(policy: float, base: float) -> None:
    ratio = base / policy
    value, slope = jax.value_and_grad(lambda x: k3(x, jnp.log(base)))(jnp.log(policy))
    assert float(value) == pytest.approx(ratio - 1 - np.log(ratio), abs=1e-6)
    assert float(slope) == pytest.approx(1 - ratio, abs=1e-6)  # d/dx of exp(b - x) - 1 - (b - x)


def test_k3_has_the_mean_of_the_kl() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    values = np.asarray(k3(jnp.log(p), jnp.log(q)))
    assert (values >= 0).all()
    assert (p * values).sum() == pytest.approx((p * np.log(p / q)).sum(), abs=1e-6)


def test_entropy_by_hand() -> None:
    p = jnp.array([[0.25] * 4, [0.5, 0.25, 0.125, 0.125]])
    np.testing.assert_allclose(entropy(jnp.log(p)), [np.log(4), 1.75 * np.log(2)], rtol=1e-6)


def test_entropys_slope_by_finite_differences() -> None:
    x = np.random.default_rng(0).normal(size=6)

    def exact(x: np.ndarray) -> float:
        p = np.exp(x) / np.exp(x).sum()
        return float(-(p * np.log(p)).sum())

    slope = jax.grad(lambda x: entropy(jax.nn.log_softmax(x)))(jnp.array(x, jnp.float32))
    h = 1e-5
    np.testing.assert_allclose(
        slope, [(exact(x + h * e) - exact(x - h * e)) / (2 * h) for e in np.eye(6)], atol=1e-5
    )
