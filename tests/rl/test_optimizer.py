"""The learning rate's numbers: its growth with B from an anchor by three rules, ten updates of
warm-up; and AdamW against optax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isojax.core.config import RLConfig
from isojax.rl.optimizer import ADAM, adamw_update, learning_rate


def rules(scaling: str) -> RLConfig:
    return RLConfig(lr_reference_batch=1024, warmup=10, lr_scaling=scaling)


def rate(step: int, B: int, scaling: str) -> float:
    return float(learning_rate(rules(scaling), jnp.int32(step), jnp.int32(B), np.float32(1e-3)))


@pytest.mark.parametrize(
    ("step", "B", "expected"),
    [
        (0, 1024, 1e-4),
        (4, 1024, 5e-4),
        (9, 1024, 1e-3),
        (10, 1024, 1e-3),
        (5000, 1024, 1e-3),
        (9, 256, 5e-4),
        (0, 256, 5e-5),
        (100, 4096, 2e-3),
    ],
)
def test_by_hand(step: int, B: int, expected: float) -> None:
    assert rate(step, B, "sqrt") == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("scaling", "small", "large"),
    [("constant", 1e-3, 1e-3), ("linear", 2.5e-4, 4e-3), ("sqrt", 5e-4, 2e-3)],
)
def test_each_rule_at_a_quarter_of_the_anchors_batch_and_at_four_times(
    scaling: str, small: float, large: float
) -> None:
    assert rate(100, 256, scaling) == pytest.approx(small, rel=1e-6)
    assert rate(100, 4096, scaling) == pytest.approx(large, rel=1e-6)
    assert rate(4, 256, scaling) == pytest.approx(small / 2, rel=1e-6)  # half way up the warm-up
    assert rate(100, 1024, scaling) == pytest.approx(1e-3, rel=1e-6)  # at the anchor all agree


def test_one_program_serves_every_batch_and_step() -> None:
    """B, the step and the anchor are traced; only the rule is compiled in."""
    traced = 0

    @jax.jit
    def compiled(step: jax.Array, B: jax.Array, anchor: jax.Array) -> jax.Array:
        nonlocal traced
        traced += 1
        return learning_rate(rules("linear"), step, B, anchor)

    got = [
        float(compiled(jnp.int32(s), jnp.int32(B), jnp.float32(a)))
        for s, B, a in ((9, 512, 1.0), (0, 2048, 3.0))
    ]
    assert got == pytest.approx([0.5, 0.6], rel=1e-6)
    assert traced == 1


def test_a_gradient_as_small_as_adams_epsilon_takes_half_a_step() -> None:
    """g / (|g| + 1e-8) with g = +-1e-8, and no step of g = 0; the decay is of what the parameter
    was."""
    params = {"w": jnp.array([2.0, 2.0, 2.0])}
    after, _ = adamw_update(
        params,
        ADAM.init(params),
        {"w": jnp.array([1e-8, -1e-8, 0.0])},
        grad_norm=jnp.float32(1e-8),
        max_grad_norm=1.0,
        lr=jnp.float32(0.5),
        weight_decay=0.1,
        skip=jnp.bool_(False),
    )
    np.testing.assert_allclose(after["w"], [2 - 0.25 - 0.1, 2 + 0.25 - 0.1, 2 - 0.1], rtol=1e-4)


@pytest.mark.parametrize(("decay", "max_norm"), [(0.0, 1e9), (0.1, 1e9), (0.1, 0.5)])
def test_apply_equals_optax(decay: float, max_norm: float) -> None:
    """Clipping by the global norm, then AdamW, over 5 steps whose gradients straddle the clip; a
    sixth is skipped, and changes no bit.
    """
    rng = np.random.default_rng(0)
    params = {
        "a": rng.normal(size=(4, 3)).astype(np.float32),
        "b": rng.normal(size=5).astype(np.float32),
    }
    tx = optax.chain(optax.clip_by_global_norm(max_norm), optax.adamw(0.01, weight_decay=decay))
    got, state, expected, moments = params, ADAM.init(params), params, tx.init(params)
    theirs = jax.jit(tx.update)

    @jax.jit
    def ours(params: Any, moments: Any, gradient: Any, norm: Any, skip: Any) -> Any:
        lr = jnp.float32(0.01)
        return adamw_update(
            params,
            moments,
            gradient,
            grad_norm=norm,
            max_grad_norm=max_norm,
            lr=lr,
            weight_decay=decay,
            skip=skip,
        )

    for i in range(5):
        gradient = jax.tree.map(
            lambda p, scale=0.03 * 4**i: (rng.normal(size=p.shape) * scale).astype(np.float32),
            params,
        )
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values())).astype(np.float32)
        got, state = ours(got, state, gradient, norm, np.bool_(False))
        updates, moments = theirs(gradient, moments, expected)
        expected = optax.apply_updates(expected, updates)
        for k in params:
            np.testing.assert_allclose(got[k], expected[k], atol=1e-6)
    nothing = jax.tree.map(lambda p: np.full_like(p, np.nan), params)
    after = ours(got, state, nothing, np.float32(np.nan), np.bool_(True))
    assert jax.tree.all(jax.tree.map(np.array_equal, after, (got, state)))
