"""Weights in and out of a folder as a hub gives it (config.json, *.safetensors, a tokenizer), straight onto the mesh.
No torch.

A parameter is filled from its layers' tensors a block of rows at a time, every device's part in a buffer of its own,
and handed to the devices one by one. The largest parameters go first: while they are in hand, the least lies on the
devices.
"""

import functools
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float

from isojax.core import registry
from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.core.yaml_files import flatten
from isojax.models.hf.hf_config import find_family
from isojax.models.hf.hf_layout import IndexRange, StoredRegion, WeightLayout, weight_layouts
from isojax.models.safetensors_io import (
    DTYPES,
    StoredTensor,
    TensorSources,
    atomic_folder,
    read_headers,
    read_json,
    write_safetensors,
)
from isojax.models.transformer import Decoder, Params

CONFIG_FILE = "config.json"
# What a model's folder holds beside config.json and weights: an export takes it over as it is.
COPIED_FILES = (
    *(
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
    ),
    *(
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tiktoken.model",
        "tekken.json",
    ),
    *("chat_template.jinja", "chat_template.json", "LICENSE*", "NOTICE*"),
)
# max_position_embeddings of a config.json that no source gave: serving engines take it as a limit, no weight knows it
DEFAULT_MAX_POSITIONS = 32768
MAX_LISTED = 4


def resolve_model(model: ModelConfig) -> ModelConfig:
    """The model with its shape and family read from config.json where `path` is set, or as it is.

    Raises:
        InputError: no folder or config.json there, one that is damaged, an architecture unknown here, or a field set in
        `model` that
            says otherwise.
    """
    if model.path is None:
        return model
    folder = Path(model.path)
    config_json = read_config(folder)
    architectures = config_json.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise InputError(
            f"{folder / CONFIG_FILE}: architectures = {architectures!r}; expected a list such as ['LlamaForCausalLM']."
        )
    try:
        family = model.family if "." in model.family else find_family(str(architectures[0]))
        settings = registry.load("models.families", family, "settings").settings(config_json)
    except InputError as e:
        raise InputError(f"{folder}/{e}") from e
    from_file = ModelConfig(family=family, path=model.path).model_copy(update=settings)
    requested_fields, file_fields = model.model_dump(), from_file.model_dump()
    for key in sorted(model.model_fields_set):
        if requested_fields[key] != file_fields[key] and (key, requested_fields[key]) != ("vocab", None):
            raise InputError(
                f"cell.model.{key}: given {requested_fields[key]!r}, but {folder / CONFIG_FILE} says {file_fields[key]!r}. Leave the key out: with a path, the "
                "shape comes from there."
            )
    return from_file


def read_config(folder: Path) -> dict[str, Any]:
    """A model's config.json."""
    if not folder.is_dir():
        raise InputError(
            f"cell.model.path = {folder}: no such folder; expected one with config.json, *.safetensors and a tokenizer."
        )
    if not (folder / CONFIG_FILE).is_file():
        gguf = next(folder.glob("*.gguf"), None)
        suggestion = (
            f"Make such a folder of {gguf.name}: isojax model import {gguf}"
            if gguf
            else "Copy the whole folder of the model."
        )
        raise InputError(
            f"{folder}: has no {CONFIG_FILE}; expected a model's folder with config.json, *.safetensors and a tokenizer. {suggestion}"
        )
    return read_json(folder / CONFIG_FILE)


def check_tensors(folder: Path, layouts: list[WeightLayout], stored_tensors: Mapping[str, StoredTensor]) -> None:
    """InputError unless every needed tensor is there in its shape and a dtype that is read; tensors nobody needs are
    named on stderr.

    Expected beside the needed ones, and left alone: rotary tables of old checkpoints, and a tied model's second copy of
    its embedding.
    """
    mismatches = []
    for weight in layouts:
        for name in weight.tensor_names:
            stored = stored_tensors.get(name)
            if stored is None:
                mismatches.append(f"{name} is missing, expected shape {list(weight.stored_shape)}")
            elif stored.shape != weight.stored_shape:
                mismatches.append(
                    f"{name} has shape {list(stored.shape)} in {stored.file.name}, expected {list(weight.stored_shape)}"
                )
            elif stored.dtype not in DTYPES:
                mismatches.append(
                    f"{name} is stored as {stored.dtype} in {stored.file.name}, expected {', '.join(DTYPES)}"
                )
    if mismatches:
        remainder = f"; and {len(mismatches) - MAX_LISTED} more" if len(mismatches) > MAX_LISTED else ""
        raise InputError(
            f"{folder}: {len(mismatches)} weights are not as {CONFIG_FILE} says: {'; '.join(mismatches[:MAX_LISTED])}{remainder}. Copy the whole "
            "folder of one model."
        )
    known_names = {name for weight in layouts for name in weight.tensor_names} | {"lm_head.weight"}
    extra = sorted(
        name for name in stored_tensors if name not in known_names and not name.endswith("rotary_emb.inv_freq")
    )
    if extra:
        shown = ", ".join(extra[:MAX_LISTED]) + (", ..." if len(extra) > MAX_LISTED else "")
        _warn_once(f"warning: {folder} holds {len(extra)} tensors that this architecture does not use: {shown}")


@functools.cache  # a sweep reads its base model once a cell: what is said of it is said once
def _warn_once(text: str) -> None:
    print(text, file=sys.stderr)


def check_weights(config: ModelConfig) -> None:
    """InputError unless the weights of a resolved `config.path` are there as `load` needs them; reads their files'
    headers alone.
    """
    if config.path is not None:
        decoder = registry.load("models.families", config.family, "build").build(config, config.vocab)
        check_tensors(Path(config.path), weight_layouts(config, decoder), read_headers(Path(config.path)))


def load(folder: Path, config: ModelConfig, decoder: Decoder, mesh: Mesh) -> Params:
    """The checkpoint's parameters in float32, laid out by `decoder.shardings(mesh)`; each process reads what its
    devices hold.

    Raises:
        InputError: before any is read, where tensors are missing, misshapen or of another dtype.
    """
    stored_tensors = read_headers(folder)
    layouts = weight_layouts(config, decoder)
    check_tensors(folder, layouts, stored_tensors)
    shardings = dict(flatten(decoder.shardings(mesh)))
    order = sorted(layouts, key=lambda w: -w.size)
    params = {weight.key: load_weight(weight, stored_tensors, shardings[weight.key]) for weight in order}
    return unflatten_dict({weight.key: params[weight.key] for weight in layouts}, sep=".")


def load_weight(
    layout: WeightLayout, stored_tensors: Mapping[str, StoredTensor], sharding: NamedSharding
) -> Float[Array, "..."]:
    """One parameter on the devices of this process; what a device does not hold is never copied to it."""
    devices_by_region: dict[StoredRegion, list[Any]] = {}
    shapes_by_region: dict[StoredRegion, tuple[int, ...]] = {}
    for device, index in sharding.addressable_devices_indices_map(layout.shape).items():
        assert index is not None
        region = layout.stored_region(index)
        devices_by_region.setdefault(region, []).append(device)
        shapes_by_region[region] = tuple(len(range(*i.indices(n))) for i, n in zip(index, layout.shape, strict=True))
    shards = read_shards(layout, stored_tensors, list(devices_by_region))
    arrays = []
    for region, devices in devices_by_region.items():
        shard = shards.pop(region).reshape(shapes_by_region[region])
        arrays += [jax.block_until_ready(jax.device_put(shard, device)) for device in devices]
    return jax.make_array_from_single_device_arrays(layout.shape, sharding, arrays)


def read_shards(
    layout: WeightLayout, stored_tensors: Mapping[str, StoredTensor], regions: list[StoredRegion]
) -> dict[StoredRegion, Float[np.ndarray, "layers a b"]]:
    """Float32 [layers, rows, columns] of each box ([layers, columns, rows] where stored transposed); a stored row is
    read once.
    """

    def extent(span: IndexRange) -> int:
        return span[1] - span[0]

    shards = {
        b: np.empty([extent(b[0]), *map(extent, (b[2], b[1]) if layout.transposed else b[1:])], np.float32)
        for b in regions
    }
    first_row, row_end = min(rows[0] for _, rows, _ in regions), max(rows[1] for _, rows, _ in regions)
    for layer, name in enumerate(layout.tensor_names):
        layer_regions = [box for box in regions if box[0][0] <= layer < box[0][1]]
        for start, block in stored_tensors[name].read_blocks(first_row, row_end) if layer_regions else ():
            for box in layer_regions:
                layers, rows, columns = box
                low, high = max(start, rows[0]), min(start + len(block), rows[1])
                if low < high:
                    shard = shards[box][layer - layers[0]]
                    target = shard.T if layout.transposed else shard
                    target[low - rows[0] : high - rows[0]] = block[low - start : high - start, slice(*columns)]
    return shards


def save(
    params: Params,
    config: ModelConfig,
    source: Path | None,
    folder: Path,
    dtype: str = "float32",
    max_shard_bytes: float = 5e9,
) -> None:
    """Write a folder that transformers and vLLM load: weights in `dtype`, and config.json and tokenizer of `source`
    where there is one.

    One stored tensor is fetched at a time; every device of the parameters must belong to this process. The folder
    appears whole.

    Raises:
        InputError: the folder is there, cannot be written, or the family has no published architecture.
    """
    architecture_of(config)
    decoder = registry.load("models.families", config.family, "build").build(config, params["embed"].shape[0])
    values = dict(flatten(params))

    def read_tensor(weight: WeightLayout, layer: int) -> np.ndarray:
        value = values[weight.key]
        if weight.key.startswith("blocks."):
            value = value[layer] if isinstance(value, np.ndarray) else fetch_layer(value, layer)
        return weight.to_stored(np.asarray(value, np.float32))

    tensors: TensorSources = {
        name: (weight.stored_shape, lambda weight=weight, layer=layer: read_tensor(weight, layer))
        for weight in weight_layouts(config, decoder)
        for layer, name in enumerate(weight.tensor_names)
    }
    with atomic_folder(folder) as temp:
        if source is None:
            config_json = make_config_json(config, decoder.vocab, DEFAULT_MAX_POSITIONS, dtype)
        else:
            config_json = read_config(source)
            config_json |= {key: dtype for key in ("dtype", "torch_dtype") if key in config_json} or {"dtype": dtype}
            for path in (p for pattern in COPIED_FILES for p in source.glob(pattern) if p.is_file()):
                shutil.copyfile(path, temp / path.name)
        write_config_json(temp, config_json)
        write_safetensors(temp, tensors, dtype, max_shard_bytes)


@jax.jit
def fetch_layer(stacked: Float[Array, "L ..."], layer: int) -> Float[Array, "..."]:
    """One layer of a stacked parameter; one program for all layers."""
    return lax.dynamic_index_in_dim(stacked, layer, 0, keepdims=False)


def architecture_of(config: ModelConfig) -> str:
    """The name in config.json of the config's family; InputError where it is no published one."""
    names = vars(registry.load("models.families", config.family, "build")).get("ARCHITECTURES")
    if not names:
        raise InputError(
            f"a model of family {config.family!r} cannot be exported: no published architecture is its own, so no other program "
            "could load it. Expected llama, qwen2 or qwen3."
        )
    return names[0]


def make_config_json(config: ModelConfig, vocab: int, max_positions: int, dtype: str) -> dict[str, Any]:
    """A config.json for the model, for transformers 5 (`rope_parameters`, `dtype`) and 4 (`rope_theta`, `rope_scaling`,
    `torch_dtype`).
    """
    scaling = {"rope_type": "llama3", **config.rope_scaling.model_dump()} if config.rope_scaling else None
    return {
        "architectures": [architecture_of(config)],
        "model_type": config.family,
        "vocab_size": vocab,
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


def write_config_json(folder: Path, config_json: Mapping[str, Any]) -> None:
    """config.json as hubs print it."""
    (folder / CONFIG_FILE).write_text(json.dumps(config_json, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
