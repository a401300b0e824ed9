"""int8 weights for rollouts: their rounding by hand, decoding against NumPy on weights rounded by
NumPy, meshes, and what of a policy they are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import SamplingConfig
from isojax.core.config.model import LoraConfig
from isojax.core.shapes import SamplerShapes
from isojax.models.decode import Decoding
from isojax.models.layers.linear import Linear
from isojax.models.lora import merge_adapters
from isojax.models.spec import LayerDescription
from isojax.models.transformer import ComputeOptions, Decoder, Params
from isojax.models.weight_forms import Int8Linear, int8_layer, quantise
from isojax.sampling.engine import build_engine
from isojax.sampling.stream import build_prepare_weights
from isojax.tasks.protocol import StopConditions
from tests.device import (
    CONFIG,
    DECODER,
    MESHES,
    P,
    mesh,
    placed,
    policy,
    random_problems,
    response_logits,
)

T, ROWS = 5, 8
INT8 = ComputeOptions(rollout_weights="int8")
MATRICES = ("query", "key", "value", "out", "gate", "up", "down")
INPUTS = {"out": 2}  # axes of inputs of a layer's matrix, where it is not one


def rounded_by_numpy(name: str, stacked: np.ndarray) -> np.ndarray:
    """A matrix of each layer [L *inputs *outputs], as its int8 values mean it."""
    input_axes = tuple(range(1, 1 + INPUTS.get(name, 1)))
    scale = np.abs(stacked).max(input_axes, keepdims=True) / np.float32(127)
    return np.round(stacked / scale) * scale


def rounded_policy(params: Params) -> Params:
    rounded = {}
    for stack, weights in params.items():
        rounded[stack] = weights
        if isinstance(weights, dict):
            rounded[stack] = {
                k: rounded_by_numpy(k, np.asarray(w)) if k in MATRICES else w
                for k, w in weights.items()
            }
    return rounded


def test_values_and_scales_by_hand() -> None:
    """Of two outputs the largest inputs are 2.54 and -1.27: steps of 0.02 and 0.01. The third is
    all zeros."""
    linear = Linear("gate", {"embed": 3}, {"mlp": 3}, "mlp.gate_proj")
    w = jnp.array([[2.54, -1.27, 0.0], [-0.031, 0.006, 0.0], [1.0, 0.5, 0.0]])
    values, scale = quantise(w, linear.spec)
    assert values.dtype == jnp.int8 and scale.dtype == jnp.float32
    np.testing.assert_array_equal(values, [[127, -127, 0], [-2, 1, 0], [50, 50, 0]])
    np.testing.assert_allclose(scale, [0.02, 0.01, 0.0], rtol=1e-6)


@pytest.mark.parametrize("inputs", [{"embed": 40}, {"heads": 4, "head_dim": 10}])
def test_rounding_is_within_half_a_step_and_a_product_is_that_of_the_rounded_matrix(
    inputs: dict[str, int],
) -> None:
    rng = np.random.default_rng(0)
    linear = Linear("some", inputs, {"kv_heads": 3, "rank": 7}, "some", bias=True)
    w = rng.normal(size=linear.spec.shape).astype(np.float32)
    bias = rng.normal(size=(3, 7)).astype(np.float32)
    values, scale = quantise(jnp.asarray(w), linear.spec)
    rounded = np.asarray(values, np.float64) * np.asarray(scale, np.float64)
    assert (np.abs(rounded - w) <= np.asarray(scale) / 2 * (1 + 1e-5)).all()
    # every output uses the whole range
    assert np.abs(values).max((*range(len(inputs)),)).min() == 127

    layer = int8_layer(LayerDescription(linear), stacked=True)
    assert isinstance(layer.layer, Int8Linear)
    assert {name: spec.dtype for name, spec in layer.specs.items()} == {
        "some": "int8",
        "some_scale": "float32",
        "some_bias": "float32",
    }
    x = rng.normal(size=(5, *inputs.values())).astype(np.float32)
    got = layer.bind({"some": values, "some_scale": scale, "some_bias": jnp.asarray(bias)})(
        jnp.asarray(x)
    )
    expected = np.tensordot(x.astype(np.float64), rounded, len(inputs)) + bias
    np.testing.assert_allclose(got, expected, atol=1e-5)


def decode(
    decoder: Decoder, params: Params, unrolled: bool, responses: np.ndarray, positions: int = P
) -> np.ndarray:
    """The sampler's logits [b T V] of responses to random prompts."""
    problems = random_problems(ROWS)
    decoding = Decoding(decoder, ROWS, 1, positions, responses.shape[1], unrolled)

    @jax.jit
    def run(params: Params) -> Any:
        weights = decoding.prepare_weights(params)
        prefilled_with = weights if decoding.quantises_weights else params
        prompts, lengths = jnp.asarray(problems.prompts), jnp.asarray(problems.lengths)
        entries, last = decoding.prefill(prefilled_with, prompts, lengths)
        groups = jnp.arange(ROWS)
        cache = decoding.admit(decoding.empty_cache(), entries, groups, groups >= 0)

        def step(cache: Any, of_step: Any) -> Any:
            tokens, t = of_step
            hidden, cache = decoding.step(weights, cache, tokens, lengths + t, jnp.full(ROWS, t))
            return cache, decoding.logits(weights, hidden)

        steps = jnp.asarray(responses[:, :-1].T), jnp.arange(responses.shape[1] - 1)
        following = jax.lax.scan(step, cache, steps)[1].swapaxes(0, 1)
        return jnp.concatenate([decoding.logits(weights, last)[:, None], following], 1)

    return np.asarray(run(params))


def some_responses(vocab: int = DECODER.vocab) -> np.ndarray:
    return np.random.default_rng(1).integers(0, vocab, (ROWS, T)).astype(np.int32)


@pytest.mark.parametrize("unrolled", [True, False])
def test_decoding_is_numpys_on_weights_that_numpy_rounds(unrolled: bool) -> None:
    """To float32's rounding; and the rounding of weights alone makes 10,000 times as much."""
    problems = random_problems(ROWS)
    groups = np.arange(ROWS)
    responses = some_responses()
    got = decode(DECODER.with_options(INT8), policy(), unrolled, responses)
    expected = response_logits(np, rounded_policy(policy()), problems, groups, responses)
    exact = response_logits(np, policy(), problems, groups, responses)
    np.testing.assert_allclose(got, expected, atol=2e-5)
    assert 0.003 < np.linalg.norm(got - exact) / np.linalg.norm(exact) < 0.03


@pytest.mark.parametrize("unrolled", [True, False])
def test_stacks_and_windows(unrolled: bool) -> None:
    """Gemma 3's layers, of which some slide: the same as its own decoding of weights that NumPy
    rounds."""
    config = CONFIG.model_copy(update={"family": "gemma3", "layers": 4, "tied": True})
    config = config.model_copy(update={"options": {"window": 3, "sliding_layers": [0, 1, 3]}})
    decoder = Decoder(config, DECODER.vocab)
    assert len(decoder.stacks) > 1 and any(stack.attention.window for stack in decoder.stacks)
    rng = np.random.default_rng(4)
    params = jax.tree.map(
        lambda x: rng.normal(0, 0.15, x.shape).astype(np.float32), decoder.shapes()
    )
    got = decode(decoder.with_options(INT8), params, unrolled, some_responses())
    expected = decode(decoder, rounded_policy(params), unrolled, some_responses())
    np.testing.assert_allclose(got, expected, atol=3e-5)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_adapters(compute: str) -> None:
    """In float32 they are merged before weights are rounded; in bfloat16 they are beside int8
    weights of the base policy, and lose nothing.
    """
    config = CONFIG.model_copy(
        update={"lora": LoraConfig(rank=4, targets=("query", "out", "down"))}
    )
    plain = Decoder(config, DECODER.vocab)
    decoder = plain.with_options(ComputeOptions(compute_dtype=compute, rollout_weights="int8"))
    rng = np.random.default_rng(3)
    params = jax.tree.map(lambda x: rng.normal(0, 0.15, x.shape).astype(np.float32), plain.shapes())
    decoding = Decoding(decoder, ROWS, 1, P, T, unrolled_layers=False)
    weights = decoding.cast_weights(params)["blocks"]
    stored = {name: str(w.dtype) for name, w in weights.items() if name.startswith("query")}
    if compute == "float32":
        assert stored == {"query": "int8", "query_scale": "float32"}
        merged = rounded_policy(jax.device_get(merge_adapters(params, config.lora)))
        expected = response_logits(
            np, merged, random_problems(ROWS), np.arange(ROWS), some_responses()
        )
        bound = 1e-5
    else:
        assert stored == {
            "query": "int8", "query_scale": "float32", "query_lora_a": "bfloat16",
            "query_lora_b": "bfloat16",
        }  # fmt: skip
        merged = jax.device_get(merge_adapters(rounded_policy(params), config.lora))
        expected = response_logits(
            np, merged, random_problems(ROWS), np.arange(ROWS), some_responses()
        )
        bound = 0.04
    got = decode(decoder, params, False, some_responses())
    assert np.linalg.norm(got - expected) / np.linalg.norm(expected) < bound


def test_what_is_stored_follows_from_the_description() -> None:
    """Bytes of one layer: a byte of each of 7,680 weights, 224 scales; the norms, embeddings and
    the head as they are.
    """
    decoding = Decoding(DECODER.with_options(INT8), ROWS, 1, P, T, unrolled_layers=False)
    weights = jax.eval_shape(decoding.cast_weights, DECODER.shapes())
    described = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), decoding.stored_decoder.specs()
    )
    assert weights == described
    D, N, K, H, F = 32, 4, 2, 8, 48
    matrices = 2 * D * (N + K) * H + 3 * D * F
    scales = N * H + 2 * K * H + D + 2 * F + D
    assert (matrices, scales) == (7680, 224)
    stored = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(weights["blocks"]))
    assert stored == CONFIG.layers * (matrices + 4 * scales + 4 * 2 * D)
    assert {str(weights[name].dtype) for name in ("embed", "norm", "unembed")} == {"float32"}


@pytest.mark.parametrize("axes", [*MESHES, "fsdp=8", "tensor=2"])
def test_shards_store_what_one_device_does(axes: str) -> None:
    """Made of shards before they are gathered: every value and scale, bit for bit."""
    devices, decoder = mesh(axes), DECODER.with_options(INT8)
    shapes = SamplerShapes([(8, 4)], devices.shape["data"] * devices.shape["fsdp"], 4, 4, P, T)
    engine = build_engine(
        decoder,
        shapes,
        devices,
        SamplingConfig(prompt_length=P, response_length=T),
        StopConditions((0,), None),
    )
    weights = build_prepare_weights(engine, devices)(placed(policy(), devices))
    assert weights.stacked is None
    expected = jax.jit(engine.decoding.prepare_weights)(policy())
    jax.tree.map(partial(np.testing.assert_array_equal, strict=True), weights.decode, expected)
    gate = weights.decode["blocks"][0]["gate"]
    assert gate.dtype == np.int8 and gate.sharding.shard_shape(gate.shape) == (
        32,
        48 // devices.shape["tensor"],
    )
