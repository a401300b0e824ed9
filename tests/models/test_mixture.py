"""Experts: against a loop over tokens, and the same on meshes, with gradients."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from safetensors.numpy import load_file

from benchmarks.model_logprobs import Sequences, sample, whole_pass
from isojax.core.config import ModelConfig, RLConfig, SamplingConfig
from isojax.core.config.model import LoraConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count, vocabulary_is_split
from isojax.models.decode import Decoding
from isojax.models.describe_sizes import describe_sizes
from isojax.models.families.qwen3_moe import config_json, settings
from isojax.models.hf.hf_export import save_adapter
from isojax.models.kernels import tpu_experts, tpu_grouped
from isojax.models.layers import mixture
from isojax.models.layers.mixture import MixtureOfExperts, add_all_experts, add_own_experts
from isojax.models.lora import merge_adapters, policy_params, split_adapters
from isojax.models.spec import LayerDescription
from isojax.models.transformer import ComputeOptions, Decoder
from isojax.models.weight_forms import StackedExperts
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from tests.device import VOCAB, P, T, mesh, quick_jit, random_problems
from tests.refusals import refused

pytestmark = pytest.mark.seconds(60)

D, F, E, K = 16, 12, 4, 2
OPTIONS: dict[str, Any] = {"experts": E, "top_k": K, "expert_mlp": F, "dense_layers": [0]}
CONFIG = ModelConfig(
    family="qwen3_moe",
    layers=3,
    width=D,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp=24,
    options=OPTIONS,
    qk_norm=True,
)
DECODER = Decoder(CONFIG, VOCAB)

# Each is a program of its own, of some seconds: of gradients in slow tests alone. Fast tests run
# the logits where rows, experts and hidden values are split at once.
ALL_KINDS_AT_ONCE = "data=2,expert=2,tensor=2"
# CI sees one of each kind: experts split along two axes, or not at all; the others run nightly.
MESHES_OF_CI = (ALL_KINDS_AT_ONCE, "tensor=8", "fsdp=2,expert=4", "sequence=2,expert=2,tensor=2")
MESHES_OF_NIGHTS = (
    "tensor=4",
    "data=2,fsdp=2,tensor=2",
    "fsdp=8",
    "expert=2",
    "data=2,expert=4",
    "expert=8",
    "fsdp=2,expert=2,tensor=2",
    "tensor=2,expert=4",
)


def at_night(axes: str) -> Any:
    """A parameter that CI leaves out."""
    return pytest.param(axes, marks=pytest.mark.nightly)


def experts_by_hand(
    x: np.ndarray, weights: dict[str, np.ndarray], renormalises: bool
) -> np.ndarray:
    """Each token's own experts, one after the other, in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    out = np.zeros_like(x, np.float64)
    for r, row in enumerate(x.astype(np.float64)):
        scores = row @ w["router"]
        probabilities = np.exp(scores - scores.max())
        probabilities /= probabilities.sum()
        chosen = np.argsort(-probabilities)[:K]
        total = probabilities[chosen].sum() if renormalises else 1.0
        for e in chosen:
            gate = row @ w["expert_gate"][e]
            hidden = gate / (1 + np.exp(-gate)) * (row @ w["expert_up"][e])
            out[r] += probabilities[e] / total * (hidden @ w["expert_down"][e])
    return out


@pytest.mark.parametrize("renormalises", [True, False])
def test_experts_equal_a_loop_over_tokens(renormalises: bool) -> None:
    module = MixtureOfExperts(CONFIG, experts=E, hidden=F, top_k=K, renormalises=renormalises)
    described = LayerDescription(module)
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(size=spec.shape).astype(np.float32)
        for name, spec in described.specs.items()
    }
    x = rng.normal(size=(3, 5, D)).astype(np.float32)
    found = quick_jit(lambda weights, x: described.bind(weights)(x))(weights, x)
    np.testing.assert_allclose(
        np.asarray(found).reshape(-1, D),
        experts_by_hand(x.reshape(-1, D), weights, renormalises),
        rtol=2e-4,
        atol=2e-4,
    )


@pytest.mark.parametrize("has_adapters", [False, True])
def test_the_cpus_products_are_those_of_each_rows_own_experts(has_adapters: bool) -> None:
    """Of a device that has experts 1 and 2 of 4: values and gradients, also of rows of which
    neither is chosen."""
    rng = np.random.default_rng(2)
    shapes = [(2, D, F), (2, D, F), (2, F, D)]
    if has_adapters:  # of rank 3, to gate, up and down
        shapes += [(2, D, 3), (2, 3, F), (2, D, 3), (2, 3, F), (2, F, 3), (2, 3, D)]
    weights = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    rows = jnp.asarray(rng.normal(size=(6, D)), jnp.float32)
    chosen = jnp.array([[0, 1], [1, 2], [2, 0], [3, 0], [2, 1], [0, 3]])
    chosen_weights = jnp.asarray(rng.uniform(size=(6, 2)), jnp.float32)

    def value_and_gradient(add_experts: Any) -> Any:
        def loss(weights: Any, rows: Any, chosen_weights: Any) -> Any:
            out = add_experts(jnp.int32(1), weights, rows, chosen, chosen_weights)
            return (out**2).sum(), out

        return quick_jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(
            weights, rows, chosen_weights
        )

    expected = value_and_gradient(add_own_experts)
    found = value_and_gradient(add_all_experts)
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    np.testing.assert_array_equal(found[1][3], np.zeros(D))


@jax.custom_vjp
def kernel_like_ragged_dot(x: Any, matrices: Any, group_sizes: Any) -> Any:
    """As a kernel may have it: rows of no group, of which none is computed, hold anything."""
    in_a_group = (jnp.arange(len(x)) < group_sizes.sum())[:, None]
    return jnp.where(in_a_group, lax.ragged_dot(x, matrices, group_sizes), jnp.nan)


def kernel_like_gradient(saved: Any, d: Any) -> Any:
    x, matrices, group_sizes = saved
    in_a_group = (jnp.arange(len(x)) < group_sizes.sum())[:, None]
    x, d = jnp.where(in_a_group, x, 0), jnp.where(in_a_group, d, 0)
    dx, d_matrices = jax.vjp(
        lambda x, matrices: lax.ragged_dot(x, matrices, group_sizes), x, matrices
    )[1](d)
    return jnp.where(in_a_group, dx, jnp.nan), d_matrices, None


kernel_like_ragged_dot.defvjp(
    lambda *inputs: (kernel_like_ragged_dot(*inputs), inputs), kernel_like_gradient
)


def test_what_a_kernel_leaves_in_rows_of_no_group_reaches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the choices are of experts on another device. Neither values nor gradients have what
    a kernel left."""
    rng = np.random.default_rng(4)
    weights = [
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((2, D, F), (2, D, F), (2, F, D))
    ]
    rows = jnp.asarray(rng.normal(size=(3, D)), jnp.float32)
    chosen_weights = jnp.full((3, 2), 0.5)
    chosen = jnp.array([[0, 1], [2, 3], [3, 0]])

    def value_and_gradient(weights: Any, rows: Any, chosen_weights: Any) -> Any:
        out = add_own_experts(0, weights, rows, chosen, chosen_weights)
        return (out**2).sum(), out

    def differentiate() -> Any:
        program = quick_jit(jax.grad(value_and_gradient, argnums=(0, 1, 2), has_aux=True))
        return program(weights, rows, chosen_weights)

    expected = differentiate()
    monkeypatch.setattr(mixture, "product_by_group", kernel_like_ragged_dot)
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(differentiate()), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


def test_a_tpus_products_of_groups_are_ragged_dots() -> None:
    """Values and gradients of rows in groups, of which one is empty; rows beyond the last group
    hold anything."""
    rng = np.random.default_rng(8)
    x, d = (jnp.asarray(rng.normal(size=(128, width)), jnp.float32) for width in (128, 256))
    matrices = jnp.asarray(rng.normal(size=(3, 128, 256)), jnp.float32)
    group_sizes, in_a_group = jnp.array([50, 0, 60]), jnp.arange(128)[:, None] < 110

    def value_and_gradient(product: Any) -> Any:
        def loss(x: Any, matrices: Any) -> Any:
            out = jnp.where(in_a_group, product(x, matrices, group_sizes), 0)
            return (out * d).sum(), out

        (dx, d_matrices), out = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, matrices)
        return out, jnp.where(in_a_group, dx, 0), d_matrices

    found = value_and_gradient(partial(tpu_grouped.grouped_product, interpret=True))
    for want, have in zip(value_and_gradient(lax.ragged_dot), found, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("axes", [at_night("expert=8"), ALL_KINDS_AT_ONCE])
def test_the_gradient_is_the_same_where_kernels_need_every_axis(
    axes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts in a shard_map over all axes, also over those that do not split them, as on a TPU."""
    expected = gradient_on("auto")
    monkeypatch.setattr(mixture, "traced_platform", lambda: "tpu")
    monkeypatch.setattr(mixture, "MAX_ROWS_OF_ALL_EXPERTS", 0)
    monkeypatch.setattr(mixture, "product_by_group", lax.ragged_dot)
    for want, have in zip(
        jax.tree.leaves(expected), jax.tree.leaves(gradient_on.__wrapped__(axes)), strict=True
    ):
        np.testing.assert_allclose(have, want, atol=1e-4 * np.abs(want).max())


def test_the_router_keeps_what_bfloat16_would_round_away() -> None:
    """Logits 256 + 1 and 256: rounded to bfloat16, both are 256, and the first expert would be
    chosen."""
    module = MixtureOfExperts(CONFIG, experts=2, hidden=F, top_k=1, renormalises=False)
    router = np.zeros((D, 2), np.float32)
    router[0], router[1, 1] = 256, 1
    weights = {
        name: jnp.zeros(spec.shape, jnp.bfloat16)
        for name, spec in LayerDescription(module).specs.items()
    } | {"router": jnp.asarray(router, jnp.bfloat16)}
    routing = LayerDescription(module).bind(weights).route(jnp.ones((1, D), jnp.bfloat16))
    np.testing.assert_array_equal(routing.logits, [[256, 257]])
    np.testing.assert_array_equal(routing.experts, [[1]])
    np.testing.assert_allclose(routing.weights, [[1 / (1 + np.exp(-1))]], rtol=1e-6)


def drawn_params(decoder: Decoder, on: Any, rng: np.random.Generator) -> Any:
    """Of which no part of an adapter is 0, as its B is in the beginning."""

    def draw(x: jax.ShapeDtypeStruct) -> np.ndarray:
        return rng.normal(0, 0.3, x.shape).astype(np.float32)

    return jax.device_put(jax.tree.map(draw, decoder.shapes()), decoder.shardings(on))


@cache
def gradient_on(axes: str, decoder: Decoder = DECODER) -> Any:
    """Of 8 prompts with 4 responses each, by the update's own gradient."""
    on = mesh(axes)
    trained_axes = decoder.trained(decoder.logical_axes())
    trained_shapes = decoder.trained(decoder.shapes())
    shapes = SamplerShapes([(8, 4)], shard_count(on), 8, 4, P, T, 4)
    sampling = SamplingConfig(prompt_length=P, response_length=T)
    objective = PolicyObjective(decoder, RLConfig(), sampling, vocabulary_is_split(on))
    gradient = build_gradient(objective, shapes, on, trained_axes, trained_shapes)

    rng = np.random.default_rng(1)
    rollouts = 32
    rows = shapes.shards, shapes.buffer_rows
    tokens, weight = np.zeros((*rows, T), np.int32), np.zeros(rows, np.float32)
    drawn, advantages = rng.integers(4, VOCAB, (rollouts, T)), rng.normal(size=rollouts)
    per_shard = rollouts // shapes.shards
    for shard in range(shapes.shards):
        own = slice(shard * per_shard, (shard + 1) * per_shard)
        tokens[shard, :per_shard], weight[shard, :per_shard] = drawn[own], advantages[own]

    mask = jnp.broadcast_to((weight != 0)[..., None], tokens.shape)
    zeros = jnp.zeros(tokens.shape)
    unused, counted = jnp.zeros(weight.shape), jnp.asarray(weight != 0, jnp.float32)
    loss_weights = LossWeights(jnp.asarray(weight), 0.1 * counted, unused, unused)
    inputs = PolicyInputs(zeros, zeros[..., :1], loss_weights)
    problems = jax.tree.map(
        lambda x: np.resize(x, (shapes.problem_rows, *x.shape[1:])), random_problems(8)
    )
    params = drawn_params(decoder, on, rng)
    update = UpdateInputs(
        decoder.trained(params), base_of(decoder, params), problems, make_coefficients(RLConfig())
    )
    program = quick_jit(gradient, out_shardings=(decoder.trained(decoder.shardings(on)), None))
    result, _ = program(
        update, ResponseBatch(jnp.asarray(tokens), mask, inputs), np.int32(8), np.int32(4)
    )
    return jax.tree.map(np.asarray, result)


def base_of(decoder: Decoder, params: Any) -> Any:
    return params if decoder.config.lora is None else split_adapters(params)[1]


@pytest.mark.slow
@pytest.mark.parametrize("axes", [*MESHES_OF_CI, *map(at_night, MESHES_OF_NIGHTS)])
def test_the_gradient_is_the_same_on_meshes(axes: str) -> None:
    """Experts split whole over 2 and 4 devices, along one axis or two; 8 do not divide 4 experts,
    nor 12 hidden values, and have all. With tensor=2,expert=4, experts are split over 4 devices,
    and each one's 12 hidden values over 2."""
    expected, found = gradient_on("auto"), gradient_on(axes)
    for (path, want), (_, have) in zip(
        jax.tree_util.tree_leaves_with_path(expected),
        jax.tree_util.tree_leaves_with_path(found),
        strict=True,
    ):
        name, scale = jax.tree_util.keystr(path), np.abs(want).max()
        assert scale > 0, name
        np.testing.assert_allclose(have, want, atol=1e-4 * scale, err_msg=name)


@cache
def logits_on(axes: str, decoder: Decoder = DECODER) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of the trainer's pass and of the sampler's steps, and the tokens of those, by one
    seed."""
    on, rng = mesh(axes), np.random.default_rng(5)
    lengths = np.array([9, 5, 7, 4], np.int32)
    given = Sequences(rng.integers(4, VOCAB, (4, 9)).astype(np.int32), lengths)
    params = drawn_params(decoder, on, rng)
    logits = whole_pass(decoder, on, params, given)
    sampled = sample(decoder, on, params, given, platform="tpu")
    return logits, sampled.logits, sampled.tokens


@pytest.mark.parametrize(
    "axes",
    [ALL_KINDS_AT_ONCE, *map(at_night, ("expert=8", "fsdp=2,expert=4"))],
)
def test_logits_and_the_samplers_steps_are_the_same_on_meshes(axes: str) -> None:
    """Layers as a TPU has them, in a scan."""
    for want, have in zip(logits_on("auto"), logits_on(axes), strict=True):
        np.testing.assert_allclose(have, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("block_bytes", [tpu_experts.BLOCK_BYTES, 1])
def test_the_kernel_equals_products_of_all_experts(
    block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the middle one of three layers, experts in one block of hidden values or in two."""
    monkeypatch.setattr(tpu_experts, "BLOCK_BYTES", block_bytes)
    assert tpu_experts.hidden_block(D, 256, 4) == (256 if block_bytes > 1 else 128)

    rng = np.random.default_rng(7)
    shapes = (3, 4, D, 256), (3, 4, D, 256), (3, 4, 256, D)
    stacks = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    rows = jnp.asarray(rng.normal(size=(6, D)), jnp.float32)
    chosen = jnp.array([[0, 1], [1, 2], [2, 0], [3, 0], [2, 1], [0, 3]])
    chosen_weights = jnp.asarray(rng.uniform(size=(6, 2)), jnp.float32)

    by_expert = mixture.weights_by_expert(0, 4, chosen, chosen_weights)
    found = tpu_experts.multiply_by_all_experts(
        rows, by_expert, stacks, jnp.int32(1), interpret=True
    )
    expected = add_all_experts(0, [x[1] for x in stacks], rows, chosen, chosen_weights)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["auto", ALL_KINDS_AT_ONCE])
def test_the_sampler_reads_experts_where_they_lie(axes: str) -> None:
    """With a TPU's kernels, interpreted, the sampler's logits are those of plain array code."""
    kernels = DECODER.with_options(ComputeOptions(decode_attention="interpret"))
    for want, have in zip(logits_on("auto")[1:], logits_on(axes, kernels)[1:], strict=True):
        np.testing.assert_allclose(have, want, atol=1e-4 * np.abs(want).max())


def test_a_device_holds_a_part_of_the_experts() -> None:
    spec = DECODER.shardings(mesh("fsdp=2,tensor=4"))["blocks_1"]["expert_gate"].spec
    assert tuple(spec) == (None, "tensor", "fsdp", None)


@pytest.mark.parametrize(
    ("axes", "weight", "expected"),
    [
        ("expert=4,tensor=2", "expert_gate", (None, "expert", None, "tensor")),
        ("expert=2,tensor=2", "expert_gate", (None, ("tensor", "expert"), None, None)),
        ("expert=2,tensor=2", "key", (None, None, "tensor", None)),
        ("expert=2,tensor=2", "query", (None, None, ("tensor", "expert"), None)),
        ("expert=4,tensor=2", "query", (None, None, "expert", None)),
        ("expert=8", "query", (None, None, None, None)),
    ],
)
def test_what_expert_splits(axes: str, weight: str, expected: tuple[Any, ...]) -> None:
    """Of 4 experts, 4 heads and 2 key/value heads as many parts as the mesh has axes for."""
    assert tuple(DECODER.shardings(mesh(axes))["blocks_1"][weight].spec) == expected


def test_sizes_for_the_planner() -> None:
    """A token is multiplied by 2 of 4 experts; one layer is dense."""
    sizes = {weight.name: weight for weight in describe_sizes(CONFIG, VOCAB).weights}
    assert sizes["expert_down"].axes == (("expert", E), ("mlp", F), ("embed", D))
    assert (sizes["expert_down"].layers, sizes["expert_down"].share) == (2, 0.5)
    assert sizes["down"].layers == 1


PUBLISHED = {
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "moe_intermediate_size": 12,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "vocab_size": 24,
}


def test_layers_without_experts() -> None:
    """Of every second layer the last has experts, unless config.json names it."""
    options = settings(
        PUBLISHED | {"decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": True}
    )["options"]
    assert options == {
        "experts": 4,
        "top_k": 2,
        "expert_mlp": 12,
        "renormalises": True,
        "dense_layers": [0, 2, 3],
    }
    assert "dense_layers" not in settings(PUBLISHED)["options"]
    with refused(where="config.json"):
        settings({key: value for key, value in PUBLISHED.items() if key != "num_experts"})


@pytest.mark.parametrize("more", [{}, {"dense_layers": None}, {"window": 6}])
def test_its_config_json_says_what_is_read_of_it(more: dict[str, Any]) -> None:
    config = CONFIG.model_copy(
        update={"options": OPTIONS | {"renormalises": False} | more, "vocab": 24}
    )
    read = ModelConfig(family="qwen3_moe", **settings(config_json(config)))
    given = {key: value for key, value in (config.options or {}).items() if value is not None}
    assert read == config.model_copy(update={"options": given})
    with refused(where="cell.model.options.sliding_layers"):
        config_json(
            config.model_copy(update={"options": OPTIONS | {"window": 6, "sliding_layers": [1]}})
        )


def test_bad_options_are_refused() -> None:
    with refused():
        Decoder(CONFIG.model_copy(update={"options": OPTIONS | {"top_k": 5}}), VOCAB)
    with refused(where="cell.model.options.expert"):
        Decoder(CONFIG.model_copy(update={"options": {"expert": 5}}), VOCAB)


def test_adapters_are_of_attention_and_dense_layers() -> None:
    """Experts have none; a target that no layer has is refused."""
    decoder = Decoder(CONFIG.model_copy(update={"lora": LoraConfig(rank=2)}), VOCAB)
    adapted = {
        stack: {name for name in weights if "lora" in name}
        for stack, weights in decoder.specs().items()
        if stack.startswith("blocks")
    }
    assert "gate_lora_a" in adapted["blocks"] and "query_lora_a" in adapted["blocks_1"]
    assert not any("expert" in name for names in adapted.values() for name in names)
    only_mlp = LoraConfig(rank=2, targets=("gate",))
    all_sparse = OPTIONS | {"dense_layers": []}
    with refused(where="cell.model.lora.targets = gate"):
        Decoder(CONFIG.model_copy(update={"lora": only_mlp, "options": all_sparse}), VOCAB)


def test_what_a_sampler_records_of_a_token() -> None:
    """2 experts of each of 2 sparse layers, a byte each; two bytes where there are more than 256
    experts."""
    assert describe_sizes(CONFIG, VOCAB).recorded_bytes == 4
    many = CONFIG.model_copy(update={"options": OPTIONS | {"experts": 257}})
    assert describe_sizes(many, VOCAB).recorded_bytes == 8
    assert describe_sizes(ModelConfig(), VOCAB).recorded_bytes == 0


EXPERT_LORA = LoraConfig(rank=2, alpha=3.0, targets=("query", "experts"))


def test_adapters_of_experts_are_what_is_added_to_their_matrices(tmp_path: Path) -> None:
    """W + 3 / 2 A B, for each expert's gate, up and down. In PEFT's folder, each has two tensors of
    its own."""
    config = CONFIG.model_copy(update={"lora": EXPERT_LORA})
    decoder, rng = Decoder(config, VOCAB), np.random.default_rng(4)
    adapters, base = split_adapters(quick_jit(decoder.init)(jax.random.key(0)))
    assert not np.any(adapters["blocks_1"]["expert_down_lora_b"]) and np.any(
        adapters["blocks_1"]["expert_down_lora_a"]
    )
    drawn = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), jnp.float32), adapters)
    tokens, start = jnp.asarray(rng.integers(4, VOCAB, (2, 7))), jnp.zeros(2, jnp.int32)

    adapted = quick_jit(lambda params: decoder.forward(params, tokens, start))(
        policy_params(drawn, base)
    )
    merged = {name: dict(w) if isinstance(w, dict) else w for name, w in base.items()}
    for stack, parts in drawn.items():
        for name in [name.removesuffix("_lora_a") for name in parts if name.endswith("_lora_a")]:
            a = parts[f"{name}_lora_a"]
            b = parts[f"{name}_lora_b"]
            w = merged[stack][name]
            flat = np.asarray(a) @ np.asarray(b).reshape(*a.shape[:-2], 2, -1)
            merged[stack][name] = w + 1.5 * flat.reshape(w.shape)
    expected = quick_jit(lambda params: decoder.base.forward(params, tokens, start))(merged)
    np.testing.assert_allclose(adapted, expected, rtol=1e-4, atol=1e-4)
    of_sampler = merge_adapters(policy_params(drawn, base), EXPERT_LORA)
    np.testing.assert_allclose(
        of_sampler["blocks_1"]["expert_up"], merged["blocks_1"]["expert_up"], rtol=1e-5
    )

    save_adapter(drawn, config, "base", tmp_path / "adapter")
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    name = "base_model.model.model.layers.2.mlp.experts.3.gate_proj.lora_A.weight"
    np.testing.assert_array_equal(stored[name], drawn["blocks_1"]["expert_gate_lora_a"][1, 3].T)
    # layers, experts, matrices, A and B
    assert sum("experts" in name for name in stored) == 2 * E * 3 * 2


def test_adapters_of_experts_are_split_with_them() -> None:
    config = CONFIG.model_copy(update={"lora": EXPERT_LORA})
    shardings = Decoder(config, VOCAB).shardings(mesh("fsdp=2,tensor=4"))["blocks_1"]
    assert tuple(shardings["expert_gate_lora_a"].spec) == (None, "tensor", "fsdp", None)
    assert tuple(shardings["expert_gate_lora_b"].spec)[:2] == (None, "tensor")


@pytest.mark.slow
@pytest.mark.parametrize("axes", [at_night("data=2,fsdp=2,tensor=2"), "expert=4,tensor=2"])
def test_the_gradient_of_experts_adapters_is_the_same_on_meshes(axes: str) -> None:
    decoder = Decoder(CONFIG.model_copy(update={"lora": EXPERT_LORA}), VOCAB)
    expected, found = gradient_on("auto", decoder), gradient_on(axes, decoder)
    assert (
        "expert_down_lora_b" in expected["blocks_1"] and "expert_down" not in expected["blocks_1"]
    )
    for want, have in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        scale = np.abs(want).max()
        assert scale > 0
        np.testing.assert_allclose(have, want, atol=1e-4 * scale)


@pytest.mark.parametrize(
    ("targets", "compute", "stays"),
    [
        (("query",), "bfloat16", True),
        (("query", "experts"), "bfloat16", False),
        (("query", "experts"), "float32", True),  # merged
    ],
)
def test_the_kernel_of_experts_is_not_for_adapters(targets: Any, compute: str, stays: bool) -> None:
    config = CONFIG.model_copy(update={"lora": LoraConfig(rank=2, targets=targets)})
    decoder = Decoder(config, VOCAB).with_options(
        ComputeOptions(compute, decode_attention="interpret")
    )
    decoding = Decoding(decoder, 4, 1, P, T, unrolled_layers=False)
    layer = decoding._layers["blocks_1"].layer
    assert isinstance(layer.mlp.experts, StackedExperts) == stays
