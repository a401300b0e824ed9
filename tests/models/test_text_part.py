"""Folders of Gemma 3 that read images too: their language model is read, trained and exported as
one of its own."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from isojax.core.config import ModelConfig
from isojax.core.config.model import LoraConfig
from isojax.core.yaml_files import flatten
from isojax.models.hf import hf_export, hf_load
from isojax.models.hf.text_part import text_config_json
from isojax.models.lora import split_adapters
from isojax.models.transformer import Decoder
from tests.device import mesh
from tests.refusals import refused

TEXT = Path(__file__).parent / "references" / "gemma3"
VISION = {
    "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight": (6, 6),
    "multi_modal_projector.mm_input_projection_weight": (6, 20),
}


def published_name(name: str) -> str:
    return f"language_model.{name}"


def name_in_transformers(name: str) -> str:
    return f"model.language_model.{name.removeprefix('model.')}"


def name_without_head(name: str) -> str:
    """As AutoModel writes it, which has no head."""
    return f"language_model.{name.removeprefix('model.')}"


SPELLINGS = {published_name: "", name_in_transformers: "model.", name_without_head: ""}


def config_json(**more: Any) -> dict[str, Any]:
    """As the published files of 4B and larger: the section has no more than differs from its
    class's defaults, and the whole model's end tokens are those of its chat."""
    text = json.loads((TEXT / "config.json").read_text())
    for key in (
        "architectures",
        "hidden_activation",
        "attention_bias",
        "tie_word_embeddings",
        "layer_types",
        "dtype",
    ):
        text.pop(key, None)
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "image_token_index": 73,
        "text_config": text | {"eos_token_id": 1},
        "torch_dtype": "bfloat16",
        "vision_config": {
            "hidden_size": 6,
            "model_type": "siglip_vision_model",
            "num_hidden_layers": 1,
        },
    } | more


def make_folder(folder: Path, rename: Any = published_name, **more: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_json(**more)))
    tensors = {
        rename(name): tensor for name, tensor in load_file(TEXT / "model.safetensors").items()
    }
    tensors |= {
        SPELLINGS[rename] + name: np.ones(shape, np.float32) for name, shape in VISION.items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder: Path) -> tuple[ModelConfig, dict[str, Any]]:
    config = hf_load.resolve_model(ModelConfig(path=str(folder)))
    params = hf_load.load(folder, config, Decoder(config), mesh("auto"))
    return config.model_copy(update={"path": None}), dict(flatten(params))


@pytest.mark.parametrize("rename", SPELLINGS)
def test_the_language_model_is_that_of_a_text_folder(
    rename: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "whole", rename)
    config, params = load(folder)
    text_config, text_params = load(TEXT)
    assert config == text_config
    assert params.keys() == text_params.keys()
    for name, value in text_params.items():
        np.testing.assert_array_equal(params[name], value, err_msg=name)

    (line,) = [line for line in capsys.readouterr().err.splitlines() if str(folder) in line]
    assert line.startswith("note: ")
    assert "2 tensors of " in line and "vision_tower" in line and "multi_modal_projector" in line


def test_what_a_section_leaves_out_are_the_defaults_of_its_class() -> None:
    """text_config of Gemma 3 4B as it is published."""
    section = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    text = text_config_json(config_json(text_config=section))
    assert text is not None
    assert (text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]) == (
        8,
        4,
        256,
    )
    assert (text["vocab_size"], text["max_position_embeddings"]) == (262_208, 131_072)
    assert (text["architectures"], text["model_type"]) == (["Gemma3ForCausalLM"], "gemma3_text")
    assert (text["eos_token_id"], text["torch_dtype"]) == ([1, 106], "bfloat16")


def test_an_export_is_the_language_model_alone(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "whole")
    (folder / "NOTICE").write_text("Gemma is provided under its terms.\n")
    config = hf_load.resolve_model(ModelConfig(path=str(folder)))
    params = hf_load.load(folder, config, Decoder(config), mesh("auto"))
    hf_export.save(params, config, folder, tmp_path / "text")

    exported = load_file(tmp_path / "text" / "model.safetensors")
    expected = load_file(TEXT / "model.safetensors")
    assert exported.keys() == expected.keys()
    assert all(np.array_equal(exported[name], expected[name]) for name in expected)
    assert load(tmp_path / "text")[0] == load(TEXT)[0]
    written = json.loads((tmp_path / "text" / "config.json").read_text())
    assert (written["architectures"], written["model_type"]) == (
        ["Gemma3ForCausalLM"],
        "gemma3_text",
    )
    assert (written["vocab_size"], written["eos_token_id"], written["torch_dtype"]) == (
        74,
        [1, 106],
        "float32",
    )
    assert not {"text_config", "vision_config", "image_token_index"} & written.keys()
    assert (tmp_path / "text" / "NOTICE").read_text().startswith("Gemma is provided")


def test_adapters_are_those_of_the_whole_model(tmp_path: Path) -> None:
    """PEFT wraps the base model that the folder names, in which the vision tower has a q_proj
    too."""
    folder = make_folder(tmp_path / "whole")
    model = ModelConfig(path=str(folder), lora=LoraConfig(rank=2, targets=("query", "down")))
    config = hf_load.resolve_model(model)
    adapters, _ = split_adapters(Decoder(config).shapes())
    adapters = jax.tree.map(lambda x: np.ones(x.shape, np.float32), adapters)
    hf_export.save_adapter(adapters, config, str(folder), tmp_path / "adapter")

    names = load_file(tmp_path / "adapter" / "adapter_model.safetensors").keys()
    assert len(names) == 2 * 2 * 8
    assert "base_model.model.model.language_model.layers.7.self_attn.q_proj.lora_A.weight" in names
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    pattern = settings["target_modules"]
    assert re.fullmatch(pattern, "model.language_model.layers.7.mlp.down_proj")
    assert not re.fullmatch(pattern, "model.language_model.layers.7.mlp.up_proj")
    assert not re.fullmatch(
        pattern, "model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj"
    )


REFUSED = {
    "no section": {"text_config": None},
    "another language model": {
        "text_config": config_json()["text_config"] | {"model_type": "llama"}
    },
    "a soft cap": {"text_config": config_json()["text_config"] | {"final_logit_softcapping": 30.0}},
    "two flags": {
        "tie_word_embeddings": True,
        "text_config": config_json()["text_config"] | {"tie_word_embeddings": False},
    },
    "quantised": {"quantization_config": {"quant_method": "bitsandbytes"}},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    more = REFUSED[case]
    with refused() as e:
        load(make_folder(tmp_path / "whole", **more))
    assert f"{tmp_path / 'whole'}/config.json" in str(e.value)


def test_a_missing_tensor_and_a_second_copy_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "whole")
    tensors = load_file(folder / "model.safetensors")
    fewer = {
        name: tensor
        for name, tensor in tensors.items()
        if not name.endswith("layers.3.mlp.up_proj.weight")
    }
    save_file(fewer, folder / "model.safetensors")
    with refused(where="whole"):
        load(folder)

    again = {name_in_transformers("model.norm.weight"): np.ones(20, np.float32)}
    save_file(tensors | again, folder / "model.safetensors")
    with refused(where="whole"):
        load(folder)


def test_another_model_of_images_is_refused_with_what_it_is(tmp_path: Path) -> None:
    shutil.copytree(TEXT, tmp_path / "other")
    config = config_json(architectures=["LlavaForConditionalGeneration"])
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    with refused(where="config.json") as e:
        load(tmp_path / "other")
    assert "Gemma3ForConditionalGeneration" in str(e.value)
