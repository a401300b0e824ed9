"""Families that somebody adds by docs/extending.md: the one that it shows, as its reader would have
it, a file beside the config; and glm4.py. Both have checkpoints in which one tensor holds several
matrices."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from isojax.core import registry
from isojax.core.config import ModelConfig
from isojax.core.config.model import LoraConfig, LoraTarget
from isojax.distributed.mesh_spec import MeshShape
from isojax.models import safetensors_io
from isojax.models.describe_sizes import count_parameters, describe_sizes
from isojax.models.hf import hf_export, hf_load
from isojax.models.hf.gguf_export import write_tensors
from isojax.models.hf.gguf_file import open_gguf
from isojax.models.hf.gguf_import import plan_tensors
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.lora import merge_adapters, policy_params, split_adapters
from isojax.models.transformer import Decoder
from tests.device import mesh, quick_jit
from tests.models.agreement import differences
from tests.models.test_families import MOST, REFERENCES
from tests.refusals import refused

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
FAMILIES = {"phi3": "phi3", "glm4": "tests.models.glm4"}
TARGETS: tuple[LoraTarget, ...] = ("query", "key", "value", "out", "gate", "up", "down")
FUSED = {"phi3": ("qkv_proj", "gate_up_proj"), "glm4": ("gate_up_proj",)}


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    code = re.search(r"```python\n# phi3\.py\n(.*?)```", PAGE.read_text(), re.S)
    assert code
    (tmp_path / "phi3.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    registry.set_plugin_folders(())
    return request.param


@pytest.fixture
def config(name: str) -> ModelConfig:
    return read(REFERENCES / name, name)


def read(folder: Path, name: str) -> ModelConfig:
    return hf_load.resolve_model(ModelConfig(path=str(folder), family=FAMILIES[name]))


def load(config: ModelConfig, axes: str = "auto") -> Any:
    assert config.path
    return hf_load.load(Path(config.path), config, Decoder(config), mesh(axes))


def stored_in(folder: Path) -> dict[str, np.ndarray]:
    return {
        key: value
        for file in folder.glob("*.safetensors")
        for key, value in load_file(file).items()
    }


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        np.testing.assert_array_equal(found[tensor], value, err_msg=tensor)


@pytest.mark.parametrize(
    "axes", ["auto", pytest.param("data=2,fsdp=2,tensor=2", marks=pytest.mark.slow)]
)
def test_logits_equal_transformers(name: str, config: ModelConfig, axes: str) -> None:
    assert config.options == {"phi3": {"window": 8}, "glm4": {"rotated_share": 0.5}}[name]
    decoder = Decoder(config)
    batch = np.load(REFERENCES / name / "batch.npz")
    params = load(config, axes)
    if axes != "auto":
        specs = {key: x.sharding.spec for key, x in params["blocks"].items()}
        assert tuple(specs["query"]) == (None, "fsdp", "tensor", None)
        assert tuple(specs["key"]) == tuple(specs["value"]) == tuple(specs["query"])
        assert name == "phi3" or tuple(specs["gate"]) == tuple(specs["up"]) == (
            None,
            "fsdp",
            "tensor",
        )
    for way, difference in differences(
        decoder, params, batch["tokens"], batch["lengths"], batch["logits"]
    ).items():
        assert np.abs(difference).max() < MOST, way


def test_gradients_equal_torchs(name: str, config: ModelConfig, tmp_path: Path) -> None:
    """As test_families.py compares them, of whole tensors."""
    decoder, batch = Decoder(config), np.load(REFERENCES / name / "batch.npz")
    tokens = batch["tokens"]
    follows = np.arange(1, 40)[None] < batch["lengths"][:, None]

    def mean_logp(params: Any) -> Any:
        logits = decoder.logits(
            params, decoder.forward(params, tokens, jnp.zeros(len(tokens), jnp.int32))
        )
        of_tokens = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], 2)[
            ..., 0
        ]
        return (of_tokens * follows).sum() / follows.sum()

    gradients = jax.device_get(quick_jit(jax.grad(mean_logp))(load(config)))
    hf_export.save(gradients, config, REFERENCES / name, tmp_path / "gradients")
    found = stored_in(tmp_path / "gradients")

    expected = json.loads((REFERENCES / name / "gradients.json").read_text())
    assert found.keys() == expected.keys()
    for tensor, (norm, *entries) in expected.items():
        gradient = found[tensor].ravel().astype(np.float64)
        places = np.linspace(0, gradient.size - 1, len(entries)).astype(int)
        assert np.linalg.norm(gradient) == pytest.approx(norm, rel=1e-4), tensor
        typical = norm * gradient.size**-0.5
        np.testing.assert_allclose(
            gradient[places], entries, rtol=1e-4, atol=1e-4 * typical, err_msg=tensor
        )


def test_an_export_is_the_folder_that_was_loaded(
    name: str, config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of several files, in which a device reads its part of each part."""
    expected = stored_in(REFERENCES / name)
    assert count_parameters(config) == sum(value.size for value in expected.values())

    monkeypatch.setattr(safetensors_io, "MAX_FILE_BYTES", 8000)
    hf_export.save(load(config), config, REFERENCES / name, tmp_path / "sharded")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    assert_same(stored_in(tmp_path / "sharded"), expected)

    again = read(tmp_path / "sharded", name)
    hf_export.save(
        load(again, "data=2,fsdp=2,tensor=2"), again, tmp_path / "sharded", tmp_path / "again"
    )
    assert_same(stored_in(tmp_path / "again"), expected)


@pytest.mark.parametrize("name", ["phi3"], indirect=True)
def test_a_planner_finds_what_it_finds_of_a_llama(name: str, config: ModelConfig) -> None:
    """The same matrices, however a checkpoint stores them: bytes of each device, also of adapters
    and of gradients."""
    shape = config.model_copy(update={"options": None, "lora": LoraConfig(rank=2)})
    of_phi3, of_llama = (
        describe_sizes(shape.model_copy(update={"family": family})) for family in (name, "llama")
    )
    assert of_phi3.weights == of_llama.weights
    for split in (MeshShape().split(), MeshShape(tensor=2).split("tensor")):
        expected = of_llama.layer_sizes("bfloat16", "tpu", split)
        assert of_phi3.layer_sizes("bfloat16", "tpu", split) == expected


def test_config_json_comes_back(name: str, config: ModelConfig, tmp_path: Path) -> None:
    written = hf_export.make_config_json(config, 4096, "float32")
    assert written["pad_token_id"] is None  # transformers' own default for Phi-3 is 32000
    (tmp_path / "new").mkdir()
    hf_export.write_json(tmp_path / "new" / "config.json", written)
    assert read(tmp_path / "new", name).model_copy(update={"path": config.path}) == config


@pytest.mark.parametrize("targets", [TARGETS, ("value", "up"), ("query", "value", "gate")])
def test_adapters_of_parts_are_one_of_their_module(
    name: str, config: ModelConfig, tmp_path: Path, targets: tuple[LoraTarget, ...]
) -> None:
    """PEFT adds alpha / rank * B A to a module, with the module's own rank and alpha where a
    pattern names it."""
    lora = LoraConfig(rank=2, alpha=3.0, targets=targets)
    config = config.model_copy(update={"lora": lora})
    decoder, rng = Decoder(config), np.random.default_rng(0)
    shapes, _ = split_adapters(decoder.shapes())
    assert {
        key.removesuffix("_lora_a") for key in shapes["blocks"] if key.endswith("_lora_a")
    } == set(targets)
    adapters = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)

    hf_export.save_adapter(adapters, config, "base", tmp_path / "adapter")
    about = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")

    expected = stored_in(REFERENCES / name)
    for key, a in stored.items():
        if not key.endswith(".lora_A.weight"):
            continue
        module = key.removesuffix(".lora_A.weight")
        kind = module.rpartition(".")[2]
        rank = about.get("rank_pattern", {}).get(kind, about["r"])
        alpha = about.get("alpha_pattern", {}).get(kind, about["lora_alpha"])
        assert kind in about["target_modules"] and a.shape[0] == rank
        expected[module.removeprefix("base_model.model.") + ".weight"] += (
            alpha / rank * stored[f"{module}.lora_B.weight"] @ a
        )

    base = load(config.model_copy(update={"lora": None}))
    merged = merge_adapters(policy_params(adapters, base), lora)
    hf_export.save(merged, decoder.base.config, REFERENCES / name, tmp_path / "merged")
    found = stored_in(tmp_path / "merged")
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        np.testing.assert_allclose(found[tensor], value, rtol=1e-5, atol=1e-5, err_msg=tensor)

    if targets == TARGETS:
        sizes = {"qkv_proj": 3 * 2, "gate_up_proj": 2 * 2}
        assert about["rank_pattern"] == {kind: sizes[kind] for kind in FUSED[name]}
    elif targets == ("value", "up"):
        assert "rank_pattern" not in about


def test_a_target_that_no_layer_has_is_refused(config: ModelConfig) -> None:
    with refused(where="cell.model.lora.targets = experts"):
        Decoder(config.model_copy(update={"lora": LoraConfig(targets=("experts",))}))


def change(name: str, folder: Path, tensors: dict[str, np.ndarray]) -> ModelConfig:
    """A copy of a reference with other tensors."""
    folder.mkdir()
    (folder / "config.json").write_text((REFERENCES / name / "config.json").read_text())
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return read(folder, name)


GATE_UP = "model.layers.1.mlp.gate_up_proj.weight"


def test_a_tensor_of_another_size_is_refused_by_name(
    name: str, config: ModelConfig, tmp_path: Path
) -> None:
    tensors, F = stored_in(REFERENCES / name), config.mlp
    changed = tensors | {GATE_UP: tensors[GATE_UP][:-1].copy()}
    with refused(where="short") as e:
        hf_load.check_weights(change(name, tmp_path / "short", changed))
    assert f"1 weights are not as config.json says: {GATE_UP} has shape [{2 * F - 1}, " in str(
        e.value
    )
    assert f"expected [{2 * F}, " in str(e.value)

    wider = {
        key: np.concatenate([x, x[:6]]) if "gate_up" in key else x for key, x in tensors.items()
    }
    wider = {key: np.pad(x, ((0, 0), (0, 3))) if "down" in key else x for key, x in wider.items()}
    with refused(where="wider"):
        hf_load.check_weights(change(name, tmp_path / "wider", wider))


def test_what_is_missing_or_not_fused_is_named(
    name: str, config: ModelConfig, tmp_path: Path
) -> None:
    tensors = stored_in(REFERENCES / name)
    without = {key: x for key, x in tensors.items() if key != GATE_UP}
    with refused(where="missing") as e:
        hf_load.check_weights(change(name, tmp_path / "missing", without))
    assert f"1 weights are not as config.json says: {GATE_UP} is missing, expected shape" in str(
        e.value
    )
    # names of this family are no other program's
    assert str(e.value).endswith("Copy the whole folder of one model.")

    gate, up = np.split(tensors[GATE_UP], 2)
    unfused = without | {
        GATE_UP.replace("gate_up", "gate"): gate,
        GATE_UP.replace("gate_up", "up"): up.copy(),
    }
    with refused(where="unfused"):
        hf_load.check_weights(change(name, tmp_path / "unfused", unfused))


PLUGIN = """
from dataclasses import replace
from isojax.models.architecture import llama_architecture
from isojax.models.families import family

@family
def plugin(config, vocab):
    return replace(llama_architecture(config, vocab), **CHANGE)
"""


@pytest.mark.parametrize(
    "change",
    [
        'dict(fused={"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up")})',
        'dict(renamed={"mlp.up_proj": "mlp.gate_proj"})',
    ],
)
def test_a_family_that_contradicts_itself_is_told(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin.py").write_text(PLUGIN.replace("CHANGE", change))
    monkeypatch.chdir(tmp_path)
    registry.set_plugin_folders(())
    with refused():
        hf_load.tensor_parts(hf_load.weight_layouts(Decoder(ModelConfig(family="plugin", vocab=8))))


@pytest.mark.parametrize("name", ["phi3"], indirect=True)
def test_gguf_has_fused_tensors_whole(name: str, config: ModelConfig, tmp_path: Path) -> None:
    """llama.cpp's Phi-3 rotates halves; were its pairs adjacent, rows of queries and keys would be
    turned, and those of values not."""
    decoder, tensors = Decoder(config), stored_in(REFERENCES / name)
    layouts = hf_load.weight_layouts(decoder)
    N = config.heads
    K = config.kv_heads
    H = config.head_dim
    for adjacent_pairs in (False, True):
        traits = GGUFTraits("phi3", adjacent_pairs=adjacent_pairs)
        path = tmp_path / f"{adjacent_pairs}.gguf"
        write_tensors(gguf.GGUFWriter(path, "phi3"), load(config), config, traits, "f32")
        stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
        np.testing.assert_array_equal(stored["blk.1.ffn_up.weight"], tensors[GATE_UP])

        expected = tensors["model.layers.1.self_attn.qkv_proj.weight"].copy()
        if adjacent_pairs:
            rotated, D = (N + K) * H, config.width
            turned = expected[:rotated].reshape(N + K, 2, H // 2, D).swapaxes(1, 2)
            expected[:rotated] = turned.reshape(rotated, D)
        np.testing.assert_array_equal(stored["blk.1.attn_qkv.weight"], expected)

        sources = plan_tensors(open_gguf(path), layouts, traits, config.layers)
        assert_same({key: read() for key, (_, read) in sources.items()}, tensors)
        assert {key: shape for key, (shape, _) in sources.items()} == {
            key: x.shape for key, x in tensors.items()
        }
