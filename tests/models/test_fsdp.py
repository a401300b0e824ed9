"""Products of few rows."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from isojax.models.cpu import small_batch_matmul

ROWS, INPUTS = 32, 64


def test_the_samplers_loops_read_weights_as_they_are_held() -> None:
    """As the sampler has them: a loop of chunks, whose rows go through the weights, and in it a
    loop of tokens, whose rows go through their transpose. Unhindered, XLA:CPU moves the transpose
    out of both loops and cancels it, and each product packs the weights again."""

    def sample(w: Array, x: Array) -> Array:
        held = w.T

        def chunk(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            tokens, x = carry
            return tokens + 1, lax.fori_loop(
                0, tokens, lambda _, x: small_batch_matmul(x, held), x @ w
            )

        return lax.while_loop(lambda carry: carry[0] < 3, chunk, (jnp.int32(1), x))[1]

    w = np.random.default_rng(0).normal(size=(INPUTS, INPUTS)) / np.sqrt(INPUTS)
    x = np.ones((ROWS, INPUTS))
    inputs = jax.device_put((w.astype(np.float32), x.astype(np.float32)), jax.devices("cpu")[0])
    compiled = jax.jit(sample).lower(*inputs).compile()
    products = re.findall(
        r"f32\[(\d+),\d+\]\S* dot\(.*lhs_contracting_dims={(\d)}, rhs_contracting_dims={(\d)}",
        compiled.as_text(),
    )
    assert sorted(products) == [(str(ROWS), "1", "0"), (str(INPUTS), "1", "1")]

    expected = x @ w @ w @ w @ w @ w  # a chunk of one token and a chunk of two
    np.testing.assert_allclose(compiled(*inputs), expected, rtol=1e-4, atol=1e-5)
