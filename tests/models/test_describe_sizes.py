"""What the planner reads off a policy's description, by hand."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isojax.core.config import ModelConfig, PrecisionConfig, load_config
from isojax.core.config.model import LoraConfig
from isojax.core.policy_sizes import CacheShape, KeptBytes, LayerSizes
from isojax.distributed.mesh_spec import MeshShape
from isojax.models import describe_sizes as sizes_module
from isojax.models.describe_sizes import (
    DescribedPolicy,
    count_parameters,
    describe_sizes,
    kept_bytes,
    stack_sizes,
)
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import pre_norm_block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.rope import Rope
from isojax.models.remat import remat_policy
from isojax.models.spec import LayerDescription
from isojax.models.stack import Stack
from isojax.models.transformer import Decoder

PRESETS = sorted((Path(__file__).parents[2] / "configs" / "models").glob("*.yaml"))
L, D, N, K, H, F, V = 3, 64, 4, 2, 16, 128, 1000
SIZES: dict[str, Any] = {
    "layers": L,
    "width": D,
    "heads": N,
    "kv_heads": K,
    "head_dim": H,
    "mlp": F,
    "vocab": V,
    "tied": True,
}
LLAMA = ModelConfig(family="llama", **SIZES)
E, TOP_K, EXPERT_F = 8, 2, 48
EXPERTS: dict[str, Any] = {"experts": E, "top_k": TOP_K, "expert_mlp": EXPERT_F}
MOE = ModelConfig(family="qwen3_moe", **SIZES, options=EXPERTS)
ONE = MeshShape().split("tensor")
FLOAT32 = PrecisionConfig(compute="float32", cache="float32")
BFLOAT16 = PrecisionConfig(compute="bfloat16", cache="bfloat16")


def kept(
    model: ModelConfig, tensor: int = 1, compute: str = "float32", platform: str = "tpu"
) -> KeptBytes:
    """Of a token, in the first stack of layers."""
    return (
        describe_sizes(model)
        .layer_sizes(compute, platform, MeshShape(tensor=tensor).split("tensor"))[0]
        .kept
    )


def test_a_layer_keeps_its_products_and_two_hidden_states() -> None:
    """Of a token: its state before attention and before the MLP; queries, keys, values, gate and
    up."""
    products = N * H + 2 * K * H + 2 * F
    assert kept(LLAMA) == KeptBytes(states=4 * 2 * D, products=4 * products)
    assert kept(LLAMA, compute="bfloat16") == KeptBytes(states=2 * 2 * D, products=2 * products)


@pytest.mark.parametrize("model", [LLAMA, MOE], ids=["llama", "experts"])
def test_a_layer_that_is_computed_again_keeps_one_state(model: ModelConfig) -> None:
    """As jax finds it where it differentiates the layer."""
    (sizes,) = describe_sizes(model).layer_sizes("bfloat16", "tpu", ONE)
    assert sizes.kept_by_remat == KeptBytes(states=2 * D, products=0)
    (stack,) = Decoder(model).stacks
    policy = remat_policy("layer", None)
    assert kept_bytes(stack.described, D, "bfloat16", policy) == sizes.kept_by_remat


def test_layers_of_one_kind_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten layers, (S S F) x 3 and F: two of the four stacks are like another."""
    measured = []

    def measure(decoder: Decoder, stack: Stack, *question: Any) -> LayerSizes:
        measured.append(stack.name)
        return stack_sizes(decoder, stack, *question)

    monkeypatch.setattr(sizes_module, "stack_sizes", measure)
    options = {"window": 8, "sliding_layers": [0, 1, 3, 4, 6, 7]}
    model = LLAMA.model_copy(update={"family": "qwen2", "layers": 10, "options": options})
    decoder = Decoder(model)
    sizes = DescribedPolicy(decoder).layer_sizes("float32", "tpu", ONE)
    assert measured == ["blocks", "blocks_2"]
    assert [x.layers for x in sizes] == [len(stack.layers) for stack in decoder.stacks]
    for stack, of_stack in zip(decoder.stacks, sizes, strict=True):
        assert of_stack == stack_sizes(decoder, stack, "float32", "tpu", ONE)


def test_devices_share_the_products_by_heads_and_hidden_values() -> None:
    """Four share 4 heads and the MLP, not 2 heads of keys."""
    assert kept(LLAMA, tensor=2).products == kept(LLAMA).products // 2
    assert kept(LLAMA, tensor=4).products == 4 * (N * H // 4 + 2 * K * H + 2 * F // 4)
    assert kept(LLAMA, tensor=4).states == kept(LLAMA).states  # which they share by tokens


class FixedHeads(Attention):
    """A layer that says its number of heads itself."""

    def __call__(self, x: Any, rotations: Any, attend: Any) -> Any:
        def attend_to_all(q: Any, k: Any, v: Any, window: int | None) -> Any:
            return attend(q.reshape(*q.shape[:2], N, H), k, v, window)

        return super().__call__(x, rotations, attend_to_all)


def test_a_layer_that_a_part_of_its_weights_does_not_fit_is_taken_whole() -> None:
    decoder = Decoder(LLAMA)
    (stack,) = decoder.stacks
    attention = FixedHeads(LLAMA, Rope(H, 10_000.0))
    described = LayerDescription(pre_norm_block(LLAMA, attention, GatedMLP(LLAMA)))
    fixed = replace(stack, described=described, base=described)
    sizes = stack_sizes(decoder, fixed, "float32", "tpu", MeshShape(tensor=2).split("tensor"))
    assert sizes.kept == kept(LLAMA) and sizes.mlp_values == F


def test_norms_after_a_product_need_what_they_norm() -> None:
    """Of OLMo 2, both sublayers' outputs."""
    olmo2 = LLAMA.model_copy(update={"family": "olmo2"})
    assert kept(olmo2).products == kept(LLAMA).products + 4 * 2 * D


def test_an_adapter_keeps_what_its_first_half_makes() -> None:
    """The outputs of the second, as large as the product that they are added to, are computed
    again."""
    adapted = LLAMA.model_copy(update={"lora": LoraConfig(rank=4)})
    targets = len(LoraConfig(rank=4).targets)
    assert kept(adapted).products == kept(LLAMA).products + 4 * targets * 4


def test_experts_keep_their_first_products() -> None:
    """Those of a token with its own experts. A CPU, which multiplies all rows by all experts'
    matrices, keeps all."""
    attention_and_router = N * H + 2 * K * H + E
    assert kept(MOE).products == 4 * (attention_and_router + 2 * TOP_K * EXPERT_F)
    assert kept(MOE, platform="cpu").products == 4 * (attention_and_router + 2 * E * EXPERT_F)
    sizes = describe_sizes(MOE).layer_sizes("float32", "tpu", ONE)[0]
    # gate and up of each copy, and the copy before and after
    assert sizes.mlp_values == 2 * TOP_K * (EXPERT_F + D)
    assert describe_sizes(MOE).layer_sizes("float32", "cpu", ONE)[0].mlp_values == 2 * E * EXPERT_F


@pytest.mark.parametrize(
    ("lora", "copies"),
    [(None, 2), (LoraConfig(rank=4), 1), (LoraConfig(rank=4, targets=("query", "experts")), 2)],
)
def test_experts_that_nothing_trains_need_no_inputs(lora: LoraConfig | None, copies: int) -> None:
    """While they are differentiated: gate and up of each copy of a token, their gradients and the
    copy's, and the copy itself where it makes a gradient of matrices or adapters. A CPU has all
    experts' products, and no copies."""
    model = MOE.model_copy(update={"lora": lora})
    of_tpu, of_cpu = (
        describe_sizes(model).layer_sizes("float32", platform, ONE)[0]
        for platform in ("tpu", "cpu")
    )
    assert of_tpu.mlp_gradient_values == TOP_K * (4 * EXPERT_F + copies * D)
    assert of_cpu.mlp_gradient_values == 4 * E * EXPERT_F


def stored_bytes(model: ModelConfig, precision: PrecisionConfig) -> int:
    item_bytes = {"float32": 4, "bfloat16": 2, "int8": 1}
    return sum(
        weight.layers * item_bytes[weight.dtype] * math.prod(size for _, size in weight.axes)
        for weight in describe_sizes(model).sampler_weights(precision)
    )


MATRICES = 2 * D * (N + K) * H + 3 * D * F  # of a layer
NORMS = 2 * D
OUTPUTS = N * H + 2 * K * H + D + 2 * F + D  # of its matrices
OUTER = V * D + D


def test_weights_of_a_sampler_are_cast_merged_or_int8() -> None:
    """An int8 matrix has a float32 scale for each output."""
    numbers = L * (MATRICES + NORMS) + OUTER
    assert stored_bytes(LLAMA, BFLOAT16) == 2 * numbers
    int8 = BFLOAT16.model_copy(update={"rollout_weights": "int8"})
    assert stored_bytes(LLAMA, int8) == L * (MATRICES + 2 * NORMS + 4 * OUTPUTS) + 2 * OUTER

    adapted = LLAMA.model_copy(update={"lora": LoraConfig(rank=4, targets=("query",))})
    adapters = L * 4 * (D + N * H)
    assert stored_bytes(adapted, FLOAT32) == 4 * numbers
    # which bfloat16 would round away
    assert stored_bytes(adapted, BFLOAT16) == 2 * (numbers + adapters)


SLOTS, ENTRIES, P, T = 6, 3, 20, 12
TOGETHER = CacheShape(SLOTS, 1, ENTRIES, P, T, positions_split=False)


@pytest.mark.parametrize(("tensor", "parts"), [(1, 1), (2, 2), (4, 1)])
def test_a_cache_has_slots_and_a_table_of_prompts(tensor: int, parts: int) -> None:
    """Heads of keys that devices cannot share are on each of them."""
    found = describe_sizes(LLAMA).cache_bytes(
        TOGETHER, FLOAT32, "plain", MeshShape(tensor=tensor).split("tensor")
    )
    assert found == 4 * 2 * L * K * H * (SLOTS * (P + T) + ENTRIES * P) // parts


def test_an_int8_cache_has_scales() -> None:
    int8 = FLOAT32.model_copy(update={"cache": "int8"})
    positions = SLOTS * (P + T) + ENTRIES * P
    assert (
        describe_sizes(LLAMA).cache_bytes(TOGETHER, int8, "plain", ONE)
        == 2 * L * K * (H + 4) * positions
    )


def test_slots_may_share_a_prompt() -> None:
    """Six slots in groups of three hold responses, and two groups a prompt each."""
    shared = CacheShape(SLOTS, 3, ENTRIES, P, T, positions_split=False)
    positions = SLOTS * T + 2 * P + ENTRIES * P
    assert (
        describe_sizes(LLAMA).cache_bytes(shared, FLOAT32, "plain", ONE)
        == 4 * 2 * L * K * H * positions
    )


def test_layers_that_slide_hold_their_window() -> None:
    """Of slots' 32 positions and of a prompt's 20."""
    window = 8
    options = {"window": window, "sliding_layers": [0, 1]}
    sliding = LLAMA.model_copy(update={"family": "qwen2", "options": options})
    full_layer = SLOTS * (P + T) + ENTRIES * P
    positions = full_layer + 2 * (SLOTS + ENTRIES) * window
    assert (
        describe_sizes(sliding).cache_bytes(TOGETHER, FLOAT32, "plain", ONE)
        == 4 * 2 * K * H * positions
    )


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_preset_has_the_published_number_of_parameters(preset: Path) -> None:
    """Its first line has it, as the model's card does; no parameter of the shape may be wrong."""
    published = re.search(r"([\d,]+) parameters", preset.read_text())
    assert published is not None
    model = load_config(str(preset)).cell.model
    assert count_parameters(model) == int(published[1].replace(",", ""))
