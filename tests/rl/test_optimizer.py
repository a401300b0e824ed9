"""The learning rate's numbers: its growth with B from an anchor by three rules, ten updates of
warm-up."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import RLConfig
from isojax.rl.optimizer import learning_rate


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
