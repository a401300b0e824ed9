"""The matrix that makes logits, by its description."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import ModelConfig
from isojax.models.transformer import Decoder

D, V = 12, 29


def decoder(tied: bool) -> Decoder:
    sizes: dict[str, Any] = {
        "layers": 1,
        "width": D,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 6,
        "mlp": 8,
    }
    return Decoder(ModelConfig(**sizes, vocab=V, tied=tied))


@pytest.mark.parametrize(("tied", "name", "axis"), [(True, "embed", 0), (False, "unembed", 1)])
def test_logits_are_hidden_states_times_the_described_matrix(
    tied: bool, name: str, axis: int
) -> None:
    """In float32, though hidden states and weights are bfloat16; the same of a block of the
    vocabulary."""
    policy = decoder(tied)
    assert policy.architecture.unembedding.name == name
    params = jax.tree.map(lambda w: w.astype(jnp.bfloat16), policy.init(jax.random.key(3)))
    hidden = jax.random.normal(jax.random.key(4), (5, 7, D), jnp.bfloat16)

    matrix = np.asarray(params[name], np.float64)
    expected = np.asarray(hidden, np.float64) @ (matrix.T if tied else matrix)
    logits = policy.logits(params, hidden)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)

    unembedding = policy.unembedding(params)
    assert unembedding.vocab_axis == axis
    block = unembedding._replace(matrix=jax.lax.slice_in_dim(unembedding.matrix, 10, 20, axis=axis))
    np.testing.assert_allclose(block.logits(hidden), expected[..., 10:20], rtol=1e-5, atol=1e-6)
