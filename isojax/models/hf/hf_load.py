"""Weights from a folder as a hub gives it (config.json, *.safetensors, a tokenizer), straight onto the mesh. No torch.

A parameter is filled from its layers' tensors a block of rows at a time, the part of every device in a buffer of its
own, and handed to the devices one by one. The largest parameters go first: while they are in hand, the devices hold the
least.
"""

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
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
    read_headers,
    read_json,
)
from isojax.models.transformer import Decoder, Params

CONFIG_FILE = "config.json"
MAX_LISTED = 4


def resolve_model(model: ModelConfig) -> ModelConfig:
    """The model with its shape and family read from config.json where `path` is set, or as it is.

    Raises:
        InputError: there is no folder or config.json, it is damaged, its architecture is unknown here, or a field set
            in `model` says otherwise.
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
                f"cell.model.{key}: given {requested_fields[key]!r}, but {folder / CONFIG_FILE} says "
                f"{file_fields[key]!r}. "
                "Leave the key out: with a path, the shape comes from there."
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
            f"{folder}: has no {CONFIG_FILE}; expected a model's folder with config.json, *.safetensors and a "
            "tokenizer. "
            f"{suggestion}"
        )
    return read_json(folder / CONFIG_FILE)


def check_tensors(folder: Path, layouts: list[WeightLayout], stored_tensors: Mapping[str, StoredTensor]) -> None:
    """InputError unless every needed tensor is there in its shape and a dtype that is read; tensors nobody needs are
    named on stderr.

    Not needed, expected and ignored: rotary tables of old checkpoints, and a tied model's second copy of
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
            f"{folder}: {len(mismatches)} weights are not as {CONFIG_FILE} says: "
            f"{'; '.join(mismatches[:MAX_LISTED])}{remainder}. Copy the whole folder of one model."
        )
    known_names = {name for weight in layouts for name in weight.tensor_names} | {"lm_head.weight"}
    extra = sorted(
        name for name in stored_tensors if name not in known_names and not name.endswith("rotary_emb.inv_freq")
    )
    if extra:
        shown = ", ".join(extra[:MAX_LISTED]) + (", ..." if len(extra) > MAX_LISTED else "")
        _warn_once(f"warning: {folder} holds {len(extra)} tensors that this architecture does not use: {shown}")


@functools.cache  # a sweep reads its base model once per cell, and one warning is enough
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
