"""Parts of layers that a family of one's own may take, against plain numpy in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.errors import InputError
from isojax.models.hf.rope_config import read_rotated_share, rope_settings
from isojax.models.layers.linear import Linear
from isojax.models.layers.norm import LayerNorm
from isojax.models.layers.rope import Rope
from isojax.models.spec import Constant, LayerDescription, Spec
from isojax.models.weight_forms import to_output_major

EPS = 1e-3
B, T, HEADS, H, D = 2, 5, 3, 10, 7


@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm(bias: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(2, 3, (B, T, D))
    weights = {"norm": rng.normal(size=D), "norm_bias": rng.normal(size=D)}
    centred = x - x.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS) * weights["norm"]
    if bias:
        expected = expected + weights["norm_bias"]

    described = LayerDescription(LayerNorm("norm", {"embed": D}, "ln", EPS, bias=bias))
    assert {spec.tensor for spec in described.specs.values()} == ({"ln.weight", "ln.bias"} if bias else {"ln.weight"})

    norm = described.bind({name: jnp.asarray(w, jnp.float32) for name, w in weights.items()})
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, rtol=1e-5, atol=1e-5)
    assert norm(jnp.asarray(x, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("rotated", [H, 6])
def test_rotations_of_halves_and_of_neighbours(rotated: int, neighbours: bool) -> None:
    """Each pair is a complex number, times e^(i position base^(-2 pair / rotated))."""
    theta = 100.0
    x, positions = np.random.default_rng(0).normal(size=(B, T, HEADS, H)), np.arange(B * T).reshape(B, T)
    pairs = np.arange(rotated).reshape(-1, 2) if neighbours else np.arange(rotated).reshape(2, -1).T

    expected = x.copy()
    for i, (first, second) in enumerate(pairs):
        angle = positions[..., None] * theta ** (-2 * i / rotated)
        turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angle)
        expected[..., first], expected[..., second] = turned.real, turned.imag

    rope = Rope(rotated, theta, neighbours=neighbours)
    y = rope.rotate(jnp.asarray(x, jnp.float32), rope.cos_sin(jnp.asarray(positions)))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


PART: dict[str, Any] = {"partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    "config_json", [PART, {"rope_parameters": PART}, {"rope_scaling": None, "rope_parameters": PART} | PART]
)
def test_a_family_may_rotate_a_part_of_heads(config_json: dict[str, Any]) -> None:
    assert read_rotated_share(config_json) == 0.5
    with pytest.raises(InputError, match=r"partial_rotary_factor = 0\.5"):
        rope_settings(config_json)
    assert rope_settings(config_json, own_keys=PART)["rope_base"] == 10_000


def test_shares_that_differ_are_refused() -> None:
    assert read_rotated_share({}, 0.25) == 0.25
    with pytest.raises(InputError, match=r"0\.25 and 0\.5.*Keep"):
        read_rotated_share({"partial_rotary_factor": 0.25, "rope_parameters": PART})


def test_the_sampler_stores_only_matrices_of_linears_in_other_shapes() -> None:
    """A weight that another module multiplies by stays as it is, also where it has inputs and outputs."""
    rng = np.random.default_rng(0)
    own = Spec("own", (("heads", H),), (("head_dim", H),), Constant(1.0), "own.weight")
    linear = Linear("gate", {"embed": D}, {"mlp": H}, "mlp.gate_proj").spec
    weights = {"own": rng.normal(size=(H, H)), "gate": rng.normal(size=(D, H))}

    stored = to_output_major(jax.tree.map(jnp.asarray, weights), {"own": own, "gate": linear})
    np.testing.assert_array_equal(stored["own"], jnp.asarray(weights["own"]))
    np.testing.assert_array_equal(stored["gate"], jnp.asarray(weights["gate"]).T)
