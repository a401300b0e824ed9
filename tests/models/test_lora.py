"""LoRA: adapters change nothing at first, their gradient is a plain program's, merged weights are
the same policy, and a training state holds them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from isojax.core.config import ModelConfig, load_config
from isojax.core.config.model import LoraConfig, LoraTarget
from isojax.models.hf import hf_export
from isojax.models.layers.mixture import MixtureOfExperts
from isojax.models.layers.rope import Rope
from isojax.models.lora import merge_adapters, policy_params, split_adapters
from isojax.models.transformer import ComputeOptions, Decoder, Params
from isojax.rl.optimizer import build_init_state, train_state_shapes
from tests.device import CONFIG, DECODER, MESHES, VOCAB, mesh, policy, quick_jit
from tests.models import agreement
from tests.refusals import refused
from tests.rl.test_last_token import N, assert_gradient_of_whole_sequences

pytestmark = pytest.mark.slow

TARGETS: tuple[LoraTarget, ...] = ("query", "key", "value", "out", "gate", "up", "down")


def lora_decoder(targets: tuple[LoraTarget, ...] = TARGETS) -> Decoder:
    return Decoder(
        CONFIG.model_copy(update={"lora": LoraConfig(rank=3, alpha=6.0, targets=targets)}), VOCAB
    )


def random_params(decoder: Decoder) -> Params:
    """The base policy of tests/device.py, and adapters of which neither part is zero."""
    rng, (adapters, _) = np.random.default_rng(5), split_adapters(decoder.shapes())
    drawn = jax.tree.map(lambda x: rng.normal(0, 0.1, x.shape).astype(np.float32), adapters)
    return policy_params(drawn, policy())


def plainly_merged(params: Params) -> Params:
    """W + 2 A B, each axis by its name."""
    blocks = params["blocks"]
    equations = dict.fromkeys(("query", "key", "value"), "ldr,lrnh->ldnh")
    equations |= {"out": "lnhr,lrd->lnhd"} | dict.fromkeys(("gate", "up", "down"), "ldr,lrf->ldf")
    merged = {
        name: blocks[name]
        + 2 * jnp.einsum(equation, blocks[f"{name}_lora_a"], blocks[f"{name}_lora_b"])
        for name, equation in equations.items()
        if f"{name}_lora_a" in blocks
    }
    return {
        **params,
        "blocks": {name: w for name, w in blocks.items() if "_lora_" not in name} | merged,
    }


def logits(decoder: Decoder, params: Params, tokens: Any) -> np.ndarray:
    def run(params: Params) -> Any:
        return decoder.logits(
            params, decoder.forward(params, tokens, jnp.zeros(len(tokens), jnp.int32))
        )

    return np.asarray(quick_jit(run)(params))


TOKENS = np.random.default_rng(0).integers(0, VOCAB, (3, 7))


def test_the_policy_begins_as_the_base_policy() -> None:
    decoder = lora_decoder()
    adapters = build_init_state(decoder, mesh("data=1"))(policy()).params
    with_adapters = logits(decoder, policy_params(jax.device_get(adapters), policy()), TOKENS)
    np.testing.assert_array_equal(with_adapters, logits(DECODER, policy(), TOKENS))
    a = adapters["blocks"]["gate_lora_a"]
    assert 0.9 * CONFIG.width**-0.5 < abs(a).max() < CONFIG.width**-0.5


@pytest.mark.parametrize("targets", [TARGETS, ("value",), ("out", "down")])
def test_merged_weights_are_the_same_policy(targets: tuple[LoraTarget, ...]) -> None:
    decoder = lora_decoder(targets)
    params = random_params(decoder)
    expected = logits(DECODER, plainly_merged(params), TOKENS)
    assert abs(expected - logits(DECODER, policy(), TOKENS)).max() > 0.05
    np.testing.assert_allclose(logits(decoder, params, TOKENS), expected, atol=2e-5)
    merged = merge_adapters(params, decoder.config.lora)
    assert jax.tree.structure(merged) == jax.tree.structure(policy())
    np.testing.assert_allclose(logits(DECODER, merged, TOKENS), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("axes", "m"), [("auto", 4), (MESHES[1], 4), ("data=2", 2 * N), ("sequence=2,tensor=2", 4)]
)
def test_the_gradient_is_that_of_merged_weights(axes: str, m: int) -> None:
    decoder = lora_decoder()
    assert_gradient_of_whole_sequences(
        decoder, random_params(decoder), mesh(axes), T=3, m=m, merge=plainly_merged
    )


@pytest.mark.parametrize(("compute", "atol"), [("float32", 3e-5), ("bfloat16", 0.2)])
def test_every_way_of_running_has_the_adapters(compute: str, atol: float) -> None:
    """The sampler merges them in float32, and has them beside its weights in bfloat16."""
    decoder = lora_decoder().with_options(
        ComputeOptions(compute_dtype=compute, cache_dtype=compute)
    )
    params = random_params(decoder)
    expected = logits(DECODER, plainly_merged(params), TOKENS)
    assert abs(expected - logits(DECODER, policy(), TOKENS)).max() > 4 * atol
    lengths = np.full(len(TOKENS), TOKENS.shape[1])
    for path, off in agreement.differences(decoder, params, TOKENS, lengths, expected).items():
        assert abs(off).max() < atol, path


def test_a_training_state_holds_adapters_alone() -> None:
    state = train_state_shapes(lora_decoder(("query", "down")), mesh("data=1"))
    names = {"query_lora_a", "query_lora_b", "down_lora_a", "down_lora_b"}
    for tree in (state.params, state.moments.mu, state.moments.nu):
        assert tree.keys() == {"blocks"} and tree["blocks"].keys() == names


def test_what_is_not_trained_is_kept_as_products_are_computed() -> None:
    decoder = lora_decoder().with_options(ComputeOptions(compute_dtype="bfloat16"))
    adapters, base = split_adapters(decoder.shapes())
    assert {x.dtype for x in jax.tree.leaves(adapters)} == {jnp.dtype("float32")}
    assert {x.dtype for x in jax.tree.leaves(base)} == {jnp.dtype("bfloat16")}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_are_stored_in_the_dtype_asked_for(tmp_path: Path, dtype: str) -> None:
    decoder = lora_decoder(("query", "down"))
    adapters, _ = split_adapters(random_params(decoder))
    config = decoder.config.model_copy(update={"family": "llama"})
    hf_export.save_adapter(adapters, config, "base", tmp_path / "adapter", dtype)
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    # read by whoever may read one
    assert len({path.stat().st_mode for path in (tmp_path / "adapter").iterdir()}) == 1
    assert {x.dtype for x in stored.values()} == {jnp.dtype(dtype)}
    expected = jnp.asarray(adapters["blocks"]["down_lora_a"][0].T, dtype)
    np.testing.assert_array_equal(
        stored["base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"], expected
    )


def test_each_target_is_named_once() -> None:
    with refused():
        load_config("quickstart", ["cell.model.lora.targets=[query,query]"])


def test_a_target_that_no_layer_has_is_refused() -> None:
    """One that was named; the default leaves out those that a family lacks."""
    shape = {"layers": 1, "width": 8, "heads": 2, "kv_heads": 1, "head_dim": 4, "mlp": 8}
    dense = ModelConfig(**shape, lora=LoraConfig(targets=("query", "experts")))
    with refused():
        Decoder(dense, 11)
    options = {"experts": 4, "top_k": 2, "expert_mlp": 8}
    sparse = ModelConfig(
        **shape, family="qwen3_moe", qk_norm=True, options=options, lora=LoraConfig()
    )
    assert [spec.name for spec in Decoder(sparse, 11).stacks[0].specs if spec.name.endswith(
        "_lora_a"
    )] == [
        "query_lora_a", "key_lora_a", "value_lora_a", "out_lora_a"
    ]  # fmt: skip


def test_sizes_that_a_layer_cannot_have_are_refused() -> None:
    with refused():
        Rope(3, 10_000.0)
    with refused():
        MixtureOfExperts(ModelConfig(), experts=4, hidden=8, top_k=5, renormalises=True)
