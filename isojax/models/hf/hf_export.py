"""Parameters to a folder that transformers and vLLM load: config.json, *.safetensors, a tokenizer."""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.core.yaml_files import flatten
from isojax.models.families import family
from isojax.models.hf.hf_load import CONFIG_FILE, WeightLayout, read_config, weight_layouts
from isojax.models.safetensors_io import TEXT_FILES, TensorSources, new_model_folder, write_safetensors
from isojax.models.transformer import Decoder, Params

COPIED_FILES = (*TEXT_FILES, "LICENSE*", "NOTICE*")  # what an export copies from the base model's folder


def save(params: Params, config: ModelConfig, source: Path, folder: Path, dtype: str = "float32") -> None:
    """Write a folder, whole or not at all, with weights in `dtype`, and config.json and tokenizer of `source`.
    InputError where the folder exists, cannot be written, or the family has no published architecture."""
    architecture_of(config)
    decoder = Decoder(config, params["embed"].shape[0])
    values = dict(flatten(params))

    def read_tensor(weight: WeightLayout, number: int) -> np.ndarray:
        value = values[weight.key]
        index = np.unravel_index(number, value.shape[: weight.num_stacked]) if weight.num_stacked else ()
        return weight.to_stored(np.asarray(value[index], np.float32))

    tensors: TensorSources = {
        name: (weight.spec.stored_shape, partial(read_tensor, weight, layer))
        for weight in weight_layouts(decoder)
        for layer, name in enumerate(weight.tensor_names)
    }
    with new_model_folder(folder) as temp:
        config_json = read_config(source)
        config_json |= {key: dtype for key in ("dtype", "torch_dtype") if key in config_json} or {"dtype": dtype}
        for path in (p for pattern in COPIED_FILES for p in source.glob(pattern) if p.is_file()):
            shutil.copyfile(path, temp / path.name)
        write_json(temp / CONFIG_FILE, config_json)
        write_safetensors(temp, tensors, dtype)


def save_adapter(adapters: Params, config: ModelConfig, base: str, folder: Path, dtype: str = "float32") -> None:
    """Write the adapters as PEFT's folder, whole or not at all, in `dtype`. `base`: the base model's folder or hub
    name. InputError where the folder exists or cannot be written."""
    lora = config.lora
    assert lora is not None
    layer_specs = Decoder(config).specs()["blocks"]
    tensors: dict[str, np.ndarray] = {}
    target_modules = []
    for spec in layer_specs.values():
        if spec.adapts in lora.targets:
            target_modules.append(spec.tensor.removesuffix(".weight").rpartition(".")[2])
        if spec.is_adapter:
            value = np.asarray(adapters["blocks"][spec.name], np.float32)
            for layer, name in enumerate(spec.tensor_names()):
                stored = value[layer].reshape(spec.matrix_shape).T
                tensors[f"base_model.model.{name}"] = np.ascontiguousarray(stored, dtype)
    with new_model_folder(folder) as temp:
        settings = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_dropout": 0.0,
            "target_modules": target_modules,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
        }
        write_json(temp / "adapter_config.json", settings)
        sources = {name: (tensor.shape, partial(np.asarray, tensor)) for name, tensor in tensors.items()}
        write_safetensors(temp, sources, dtype, stem="adapter_model")


def architecture_of(config: ModelConfig) -> str:
    """The name in config.json of the config's family; InputError where it is no published one."""
    names = family.load(config.family).traits.architectures
    if not names:
        raise InputError(
            f"a model of family {config.family!r} cannot be exported: no published architecture is its own, so no "
            "other program could load it. Expected llama, qwen2 or qwen3."
        )
    return names[0]


def make_config_json(config: ModelConfig, max_positions: int, dtype: str) -> dict[str, Any]:
    """A config.json that transformers 5 (`rope_parameters`) and 4 (`rope_theta`, `rope_scaling`) read."""
    scaling = {"rope_type": "llama3", **config.rope_scaling.model_dump()} if config.rope_scaling else None
    return {
        "architectures": [architecture_of(config)],
        "model_type": family.load(config.family).traits.model_type or config.family,
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "intermediate_size": config.mlp,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": max_positions,
        "rope_theta": config.rope_base,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": config.rope_base, **(scaling or {"rope_type": "default"})},
        "tie_word_embeddings": config.tied,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file as hubs print it."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
