"""GRPO's clipped surrogate: values by hand, slopes by finite differences of the same formula in
float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.rl.losses import Clip
from isojax.rl.losses.grpo import grpo

CLIP = 0.2
CLIPPED = Clip(jnp.float32(CLIP), jnp.float32(CLIP))
# (ratio, advantage, -min(r A, clip(r, .8, 1.2) A), whether that stops the gradient)
BY_HAND = [
    (1.0, 2.0, -2.0, 0),
    (1.5, 2.0, -2.4, 1),  # a gain is held at 1.2
    (1.5, -2.0, 3.0, 0),  # a loss is not
    (0.5, 2.0, -1.0, 0),
    (0.5, -2.0, 1.6, 1),
    (1.1, -3.0, 3.3, 0),
    (1.1, 0.0, 0.0, 0),
]


def call(ratios, advantages, mask):
    logps = jnp.log(jnp.array(ratios, jnp.float32)) - 1.0
    return grpo(
        logps,
        jnp.full_like(logps, -1.0),
        jnp.array(advantages, jnp.float32)[:, None],
        jnp.array(mask),
        CLIPPED,
    )


def test_by_hand() -> None:
    ratios, advantages, values, clipped = (np.array(x) for x in zip(*BY_HAND, strict=True))
    got, metrics = call(
        np.stack([ratios, ratios], 1), advantages, np.array([[True, False]] * len(BY_HAND))
    )
    np.testing.assert_allclose(got, np.stack([values, 0 * values], 1), atol=1e-6)
    np.testing.assert_array_equal(metrics["clip_fraction"], np.stack([clipped, 0 * clipped], 1))


def test_a_masked_token_gives_no_nan_and_no_slope() -> None:
    def total(logps):
        return grpo(
            logps, jnp.array([[-1.0, 0.0]]), jnp.array([[1.0]]), jnp.array([[True, False]]), CLIPPED
        )[0].sum()

    slope = jax.grad(total)(jnp.array([[-1.0, 500.0]]))
    assert slope.tolist() == [[-1.0, 0.0]]


@pytest.mark.parametrize("seed", range(3))
def test_slopes_by_finite_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    new = rng.normal(-1, 0.3, (8, 5))
    old = rng.normal(-1, 0.3, (8, 5))
    gain = rng.normal(size=8)
    ratio = np.exp(new - old)
    assert np.abs(ratio[..., None] - [0.8, 1.2]).min() > 1e-3  # away from the kinks

    def exact(x: np.ndarray) -> np.ndarray:
        r = np.exp(x - old)
        return -np.minimum(r * gain[:, None], np.clip(r, 1 - CLIP, 1 + CLIP) * gain[:, None])

    args = (jnp.array(y, jnp.float32) for y in (old, gain))
    old32, gain32 = args
    slope = jax.grad(
        lambda x: grpo(x, old32, gain32[:, None], jnp.ones((8, 5), bool), CLIPPED)[0].sum()
    )(jnp.array(new, jnp.float32))
    h = 1e-6
    np.testing.assert_allclose(slope, (exact(new + h) - exact(new - h)) / (2 * h), atol=1e-4)
