"""Parameters to a folder that transformers and vLLM load: config.json, *.safetensors, a
tokenizer."""

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
from isojax.models.hf.adapted_modules import adapted_modules
from isojax.models.hf.hf_config import model_type_of
from isojax.models.hf.hf_load import (
    CONFIG_FILE,
    TensorPart,
    read_text_config,
    reads_images,
    tensor_parts,
    weight_layouts,
)
from isojax.models.safetensors_io import (
    TEXT_FILES,
    TensorSources,
    new_model_folder,
    write_safetensors,
)
from isojax.models.spec import Spec
from isojax.models.transformer import Decoder, Params

# what an export copies from the base model's folder
COPIED_FILES = (*TEXT_FILES, "LICENSE*", "NOTICE*")


def save(
    params: Params, config: ModelConfig, source: Path, folder: Path, dtype: str = "float32"
) -> None:
    """Write a model's folder, whole or not at all, with config.json and tokenizer of `source`.

    `params`: the policy's, without adapters. `source`: the base model's folder. `dtype`: of the
    weights, "float32" or "bfloat16". InputError where the folder exists, cannot be
    written, or the family has no published architecture."""
    architecture_of(config)  # InputError where the family has none
    decoder = Decoder(config, params["embed"].shape[0])
    values = dict(flatten(params))

    # Called when the tensor is written, so that one at a time is in memory. `values`: by dotted
    # name, such as "blocks.query".
    def read_tensor(parts: list[TensorPart]) -> np.ndarray:
        stored = []
        for part in parts:
            value = np.asarray(part.select(values[part.layout.key]), np.float32)
            stored.append(part.layout.to_stored(value))
        return join_parts(stored, parts[0].layout.spec)

    # `parts`: the parameters that a checkpoint's tensor holds in one layer, mostly one. The Spec of
    # any of them has the whole tensor's shape.
    tensors: TensorSources = {
        name: (parts[0].layout.spec.stored_shape, partial(read_tensor, parts))
        for name, parts in tensor_parts(weight_layouts(decoder)).items()
    }
    with new_model_folder(folder) as temp:
        config_json = read_text_config(source)
        if reads_images(source):  # whose section leaves out most of the shape
            config_json |= own_config_json(config)
        # under the key that the file has: transformers 5 writes the first, 4 the second
        dtype_keys = [key for key in ("dtype", "torch_dtype") if key in config_json]
        config_json |= dict.fromkeys(dtype_keys or ["dtype"], dtype)

        for pattern in COPIED_FILES:
            for path in source.glob(pattern):
                if path.is_file():
                    shutil.copyfile(path, temp / path.name)
        write_json(temp / CONFIG_FILE, config_json)
        write_safetensors(temp, tensors, dtype)


def join_parts(stored: list[np.ndarray], spec: Spec) -> np.ndarray:
    """The tensor that a checkpoint has of these, in its order. `spec`: of one of them."""
    if len(stored) == 1:
        return stored[0]
    return np.concatenate(stored, axis=spec.stored_outputs_axis)


def save_adapter(
    adapters: Params, config: ModelConfig, base: str, folder: Path, dtype: str = "float32"
) -> None:
    """Write the adapters as PEFT's folder, whole or not at all.

    `adapters`: by stack, as training holds them. `base`: the base model's folder or hub name, which
    the folder names. `dtype`: of the weights, such as "float32". InputError where the folder exists
    or cannot be written."""
    lora = config.lora
    assert lora is not None
    specs = Decoder(config, config.vocab or 1).specs()  # adapters know no vocabulary
    # each with its name in the published model, the end of it as kind ("q_proj"), rank, A and B
    modules = adapted_modules(adapters, specs)

    target_modules: list[str] | str = list(dict.fromkeys(module.kind for module in modules))
    parts_of_base = "model."
    if config.path is not None and reads_images(Path(config.path)):
        # The base is the whole model, whose vision tower has layers of these names too.
        parts_of_base = "model.language_model."
        target_modules = rf".*\blanguage_model\..*\.({'|'.join(target_modules)})"

    tensors: dict[str, np.ndarray] = {}
    for module in modules:
        name = f"base_model.model.{parts_of_base}{module.name.removeprefix('model.')}"
        tensors[f"{name}.lora_A.weight"] = module.a
        tensors[f"{name}.lora_B.weight"] = module.b

    # Of modules that hold several adapted matrices: the same alpha / rank.
    ranks = {module.kind: module.rank for module in modules if module.rank != lora.rank}
    alphas = {kind: lora.alpha * rank / lora.rank for kind, rank in ranks.items()}
    patterns = {"rank_pattern": ranks, "alpha_pattern": alphas} if ranks else {}
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": target_modules,
        **patterns,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    sources: TensorSources = {
        name: (tensor.shape, partial(np.asarray, tensor)) for name, tensor in tensors.items()
    }
    with new_model_folder(folder) as temp:
        write_json(temp / "adapter_config.json", settings)
        write_safetensors(temp, sources, dtype, stem="adapter_model")


def architecture_of(config: ModelConfig) -> str:
    """The name in config.json of the config's family; InputError where it is no published one."""
    names = family.load(config.family).traits.architectures
    if not names:
        published = [name for name in family.names() if family.load(name).traits.architectures]
        raise InputError(
            found=(
                f"a model of family {config.family!r} cannot be exported: no published "
                "architecture is its own, so no other program could load it"
            ),
            expected=f"one of {', '.join(published)}",
        )
    return names[0]


def make_config_json(config: ModelConfig, max_positions: int, dtype: str) -> dict[str, Any]:
    """Return a config.json that transformers 5 and 4 read, of a model that has none yet.

    `max_positions`: of a text. `dtype`: of the weights, such as "float32". InputError where the
    family does not say how it is written."""
    return {
        "architectures": [architecture_of(config)],
        "model_type": model_type_of(config.family),
        # else transformers takes the published models', which a small vocabulary may not have
        "pad_token_id": None,
        **own_config_json(config),
        "max_position_embeddings": max_positions,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def own_config_json(config: ModelConfig) -> dict[str, Any]:
    """What the family itself writes of its shape; InputError where it does not say how."""
    write_shape = family.load(config.family).traits.config_json
    if write_shape is None:
        raise InputError(
            found=(
                f"the family {config.family} has no `config_json`, by which {CONFIG_FILE} "
                "could be written"
            ),
            expected="@family(config_json=...) in its file",
        )
    return write_shape(config)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file as hubs print it."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
