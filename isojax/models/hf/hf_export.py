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
from isojax.models.hf.hf_config import model_type_of
from isojax.models.hf.hf_load import CONFIG_FILE, WeightLayout, read_text_config, reads_images, weight_layouts
from isojax.models.safetensors_io import TEXT_FILES, TensorSources, new_model_folder, write_safetensors
from isojax.models.stack import stacks_of
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
        config_json = read_text_config(source)
        if reads_images(source):  # whose section leaves out most of the shape
            config_json |= own_config_json(config)
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
    specs = Decoder(config, config.vocab or 1).specs()  # adapters know no vocabulary
    layer_specs = [(stack, spec) for stack, by_name in stacks_of(specs).items() for spec in by_name.values()]
    adapted = [spec.tensor.removesuffix(".weight") for _, spec in layer_specs if spec.adapts in lora.targets]
    target_modules: list[str] | str = list(dict.fromkeys(name.rpartition(".")[2] for name in adapted))
    parts_of_base = "model."
    if config.path is not None and reads_images(Path(config.path)):
        # The base is the whole model, whose vision tower has layers of these names too.
        parts_of_base = "model.language_model."
        target_modules = rf".*\blanguage_model\..*\.({'|'.join(target_modules)})"

    tensors: dict[str, np.ndarray] = {}
    for stack, spec in layer_specs:
        if not spec.is_adapter:
            continue
        value = np.asarray(adapters[stack][spec.name], np.float32)
        of_each = value.reshape(-1, *spec.matrix_shape)  # layers, and experts
        for matrix, name in zip(of_each, spec.tensor_names(), strict=True):
            module = parts_of_base + name.removeprefix("model.")
            tensors[f"base_model.model.{module}"] = np.ascontiguousarray(matrix.T, dtype)
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
        published = [name for name in family.names() if family.load(name).traits.architectures]
        raise InputError(
            f"a model of family {config.family!r} cannot be exported: no published architecture is its own, so no "
            f"other program could load it. Expected one of {', '.join(published)}."
        )
    return names[0]


def make_config_json(config: ModelConfig, max_positions: int, dtype: str) -> dict[str, Any]:
    """A config.json that transformers 5 and 4 read, of a model that has none yet. InputError where the family does not
    say how it is written."""
    return {
        "architectures": [architecture_of(config)],
        "model_type": model_type_of(config.family),
        **own_config_json(config),
        "max_position_embeddings": max_positions,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def own_config_json(config: ModelConfig) -> dict[str, Any]:
    """What the family itself writes of its shape; InputError where it does not say how."""
    write_shape = family.load(config.family).traits.config_json
    if write_shape is None:
        problem = f"the family {config.family} has no `config_json`, by which {CONFIG_FILE} could be written"
        raise InputError(f"{problem}; expected @family(config_json=...) in its file.")
    return write_shape(config)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file as hubs print it."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
