"""The learning rate's numbers: sqrt(B) from an anchor, ten updates of warm-up."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from isojax.rl.schedule import learning_rate


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
    assert float(learning_rate(jnp.int32(step), jnp.int32(B), np.float32(1e-3), 1024, 10)) == pytest.approx(expected, rel=1e-6)
