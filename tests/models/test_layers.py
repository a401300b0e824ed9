"""Parts of layers that a family of one's own may take, against plain numpy in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import ModelConfig
from isojax.models.hf.hf_load import WeightLayout
from isojax.models.hf.rope_config import read_rotated_share, rope_settings
from isojax.models.layers.block import ParallelBlock
from isojax.models.layers.linear import Linear
from isojax.models.layers.mlp import MLP
from isojax.models.layers.norm import LayerNorm, RMSNorm
from isojax.models.layers.rope import Rope
from isojax.models.spec import Constant, LayerDescription, Spec
from isojax.models.weight_forms import to_output_major
from tests.refusals import refused

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
    assert {spec.tensor for spec in described.specs.values()} == (
        {"ln.weight", "ln.bias"} if bias else {"ln.weight"}
    )

    norm = described.bind({name: jnp.asarray(w, jnp.float32) for name, w in weights.items()})
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, rtol=1e-5, atol=1e-5)
    assert norm(jnp.asarray(x, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("centred", [False, True])
def test_norms_with_scales_of_each_head(centred: bool) -> None:
    rng = np.random.default_rng(1)
    x, scale = rng.normal(1, 2, (B, T, HEADS, H)), rng.normal(size=(HEADS, H))
    y = x - x.mean(-1, keepdims=True) if centred else x
    expected = y / np.sqrt((y**2).mean(-1, keepdims=True) + EPS) * scale

    kind = LayerNorm if centred else RMSNorm
    described = LayerDescription(
        kind("norm", {"head_dim": H}, "q_norm", EPS, each={"heads": HEADS})
    )
    (spec,) = described.specs.values()
    assert spec.stored_shape == (HEADS, H) and spec.axes == ("heads", "head_dim")
    layout = WeightLayout("norm", spec)
    np.testing.assert_array_equal(layout.to_stored(scale), scale)
    assert layout.stored_index((slice(1, 3), slice(0, H))) == (slice(1, 3), slice(0, H))

    norm = described.bind({"norm": jnp.asarray(scale, jnp.float32)})
    np.testing.assert_allclose(norm(jnp.asarray(x, jnp.float32)), expected, rtol=1e-5, atol=1e-5)

    joined = LayerDescription(kind("norm", {"heads": HEADS, "head_dim": H}, "q_norm", EPS)).specs[
        "norm"
    ]
    assert joined.stored_shape == (HEADS * H,)


CONFIG = ModelConfig(width=D, heads=HEADS, kv_heads=1, head_dim=H, mlp=11, layers=2)


def bound(layer: Any, seed: int = 0) -> tuple[Any, dict[str, np.ndarray]]:
    """A layer with random weights, and these."""
    described, rng = LayerDescription(layer), np.random.default_rng(seed)
    weights = {name: rng.normal(size=spec.shape) for name, spec in described.specs.items()}
    return described.bind(jax.tree.map(lambda w: jnp.asarray(w, jnp.float32), weights)), weights


def test_mlp_without_a_gate() -> None:
    mlp, w = bound(MLP(CONFIG, jnp.square, bias=True))
    x = np.random.default_rng(2).normal(size=(B, T, D))
    expected = (x @ w["up"] + w["up_bias"]) ** 2 @ w["down"] + w["down_bias"]
    np.testing.assert_allclose(mlp(jnp.asarray(x, jnp.float32)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mlp_norm", [False, True])
def test_parallel_block(mlp_norm: bool) -> None:
    """x + attention(norm(x)) + mlp(norm(x)), where both norms may be one."""

    def norm_of(name: str) -> RMSNorm:
        return RMSNorm(name, {"embed": D}, name, EPS)

    def attention(x: Any, rotations: Any, attend: Any) -> tuple[Any, str]:
        return jnp.sin(x), "kept"

    def mlp(x: Any, first_tokens: slice | None) -> Any:
        return x**2

    norms = {"attention_norm": norm_of("first")} | (
        {"mlp_norm": norm_of("second")} if mlp_norm else {}
    )
    block, w = bound(ParallelBlock(attention, mlp, **norms))
    x = np.random.default_rng(3).normal(size=(B, T, D))
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
    expected = (
        x + np.sin(normed * w["first"]) + (normed * w["second" if mlp_norm else "first"]) ** 2
    )
    y, kept = block(jnp.asarray(x, jnp.float32), {}, None)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    assert kept == "kept"


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("rotated", [H, 6])
def test_rotations_of_halves_and_of_neighbours(rotated: int, neighbours: bool) -> None:
    """Each pair is a complex number, times e^(i position base^(-2 pair / rotated))."""
    theta = 100.0
    x = np.random.default_rng(0).normal(size=(B, T, HEADS, H))
    positions = np.arange(B * T).reshape(B, T)
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
    "config_json",
    [PART, {"rope_parameters": PART}, {"rope_scaling": None, "rope_parameters": PART} | PART],
)
def test_a_family_may_rotate_a_part_of_heads(config_json: dict[str, Any]) -> None:
    assert read_rotated_share(config_json) == 0.5
    with refused(where="config.json"):
        rope_settings(config_json)
    assert rope_settings(config_json, own_keys=PART)["rope_base"] == 10_000


def test_shares_that_differ_are_refused() -> None:
    assert read_rotated_share({}, 0.25) == 0.25
    with refused(where="config.json"):
        read_rotated_share({"partial_rotary_factor": 0.25, "rope_parameters": PART})


def test_the_sampler_stores_only_matrices_of_linears_in_other_shapes() -> None:
    """A weight that another module multiplies by stays as it is, also where it has inputs and
    outputs."""
    rng = np.random.default_rng(0)
    own = Spec("own", (("heads", H),), (("head_dim", H),), Constant(1.0), "own.weight")
    linear = Linear("gate", {"embed": D}, {"mlp": H}, "mlp.gate_proj").spec
    weights = {"own": rng.normal(size=(H, H)), "gate": rng.normal(size=(D, H))}

    stored = to_output_major(jax.tree.map(jnp.asarray, weights), {"own": own, "gate": linear})
    np.testing.assert_array_equal(stored["own"], jnp.asarray(weights["own"]))
    np.testing.assert_array_equal(stored["gate"], jnp.asarray(weights["gate"]).T)
