"""Weights in and out of a folder as a hub gives it (config.json, *.safetensors, a tokenizer), straight onto the mesh. No torch.

A parameter is filled from its layers' tensors a block of rows at a time, every device's part in a buffer of its own, and handed to the
devices one by one. The largest parameters go first: while they are in hand, the least lies on the devices.
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

from isojax import registry
from isojax.config import ModelConfig
from isojax.files import leaves
from isojax.models.decoder import Decoder, Params
from isojax.models.layout import Box, Span, Weight, weights
from isojax.models.published import find_family
from isojax.models.tensors import DTYPES, Stored, Tensors, contents, new_folder, read_json, write
from isojax.types import InputError

CONFIG = "config.json"
# What a model's folder holds beside config.json and weights: an export takes it over as it is.
COMPANIONS = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "tekken.json"),
    *("chat_template.jinja", "chat_template.json", "LICENSE*", "NOTICE*"),
)
POSITIONS = 32768  # max_position_embeddings of a config.json that no source gave: serving engines take it as a limit, no weight knows it
SHOWN = 4


def resolve(model: ModelConfig) -> ModelConfig:
    """The model with its shape and family read from config.json where `path` is set, or as it is.

    Raises:
        InputError: no folder or config.json there, one that is damaged, an architecture unknown here, or a field set in `model` that
            says otherwise.
    """
    if model.path is None:
        return model
    folder = Path(model.path)
    hf = read_config(folder)
    architectures = hf.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise InputError(f"{folder / CONFIG}: architectures = {architectures!r}; expected a list such as ['LlamaForCausalLM'].")
    try:
        family = model.family if "." in model.family else find_family(str(architectures[0]))
        settings = registry.load("models", family, "settings").settings(hf)
    except InputError as e:
        raise InputError(f"{folder}/{e}") from e
    found = ModelConfig(family=family, path=model.path).model_copy(update=settings)
    given, read = model.model_dump(), found.model_dump()
    for key in sorted(model.model_fields_set):
        if given[key] != read[key] and (key, given[key]) != ("vocab", None):
            raise InputError(
                f"cell.model.{key}: given {given[key]!r}, but {folder / CONFIG} says {read[key]!r}. Leave the key out: with a path, the "
                "shape comes from there."
            )
    return found


def read_config(folder: Path) -> dict[str, Any]:
    """A model's config.json."""
    if not folder.is_dir():
        raise InputError(f"cell.model.path = {folder}: no such folder; expected one with config.json, *.safetensors and a tokenizer.")
    if not (folder / CONFIG).is_file():
        gguf = next(folder.glob("*.gguf"), None)
        mend = f"Make such a folder of {gguf.name}: isojax model import {gguf}" if gguf else "Copy the whole folder of the model."
        raise InputError(f"{folder}: has no {CONFIG}; expected a model's folder with config.json, *.safetensors and a tokenizer. {mend}")
    return read_json(folder / CONFIG)


def check(folder: Path, needed: list[Weight], found: Mapping[str, Stored]) -> None:
    """InputError unless every needed tensor is there in its shape and a dtype that is read; tensors nobody needs are named on stderr.

    Expected beside the needed ones, and left alone: rotary tables of old checkpoints, and a tied model's second copy of its embedding.
    """
    wrong = []
    for weight in needed:
        for name in weight.names:
            stored = found.get(name)
            if stored is None:
                wrong.append(f"{name} is missing, expected shape {list(weight.stored_shape)}")
            elif stored.shape != weight.stored_shape:
                wrong.append(f"{name} has shape {list(stored.shape)} in {stored.file.name}, expected {list(weight.stored_shape)}")
            elif stored.dtype not in DTYPES:
                wrong.append(f"{name} is stored as {stored.dtype} in {stored.file.name}, expected {', '.join(DTYPES)}")
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise InputError(
            f"{folder}: {len(wrong)} weights are not as {CONFIG} says: {'; '.join(wrong[:SHOWN])}{more}. Copy the whole "
            "folder of one model."
        )
    known = {name for weight in needed for name in weight.names} | {"lm_head.weight"}
    extra = sorted(name for name in found if name not in known and not name.endswith("rotary_emb.inv_freq"))
    if extra:
        shown = ", ".join(extra[:SHOWN]) + (", ..." if len(extra) > SHOWN else "")
        _say(f"warning: {folder} holds {len(extra)} tensors that this architecture does not use: {shown}")


@functools.cache  # a sweep reads its base model once a cell: what is said of it is said once
def _say(text: str) -> None:
    print(text, file=sys.stderr)


def check_weights(config: ModelConfig) -> None:
    """InputError unless the weights of a resolved `config.path` are there as `load` needs them; reads their files' headers alone."""
    if config.path is not None:
        decoder = registry.load("models", config.family, "build").build(config, config.vocab)
        check(Path(config.path), weights(config, decoder), contents(Path(config.path)))


def load(folder: Path, config: ModelConfig, decoder: Decoder, mesh: Mesh) -> Params:
    """The checkpoint's parameters in float32, laid out by `decoder.shardings(mesh)`; each process reads what its devices hold.

    Raises:
        InputError: before any is read, where tensors are missing, misshapen or of another dtype.
    """
    found = contents(folder)
    needed = weights(config, decoder)
    check(folder, needed, found)
    shardings = dict(leaves(decoder.shardings(mesh)))
    order = sorted(needed, key=lambda w: -w.size)
    placed = {weight.key: place(weight, found, shardings[weight.key]) for weight in order}
    return unflatten_dict({weight.key: placed[weight.key] for weight in needed}, sep=".")


def place(weight: Weight, found: Mapping[str, Stored], sharding: NamedSharding) -> Float[Array, "..."]:
    """One parameter on the devices of this process; what a device does not hold is never copied to it."""
    owners: dict[Box, list[Any]] = {}
    sizes: dict[Box, tuple[int, ...]] = {}
    for device, index in sharding.addressable_devices_indices_map(weight.shape).items():
        assert index is not None
        box = weight.box(index)
        owners.setdefault(box, []).append(device)
        sizes[box] = tuple(len(range(*i.indices(n))) for i, n in zip(index, weight.shape, strict=True))
    parts = read_parts(weight, found, list(owners))
    arrays = []
    for box, devices in owners.items():
        part = parts.pop(box).reshape(sizes[box])
        arrays += [jax.block_until_ready(jax.device_put(part, device)) for device in devices]
    return jax.make_array_from_single_device_arrays(weight.shape, sharding, arrays)


def read_parts(weight: Weight, found: Mapping[str, Stored], boxes: list[Box]) -> dict[Box, Float[np.ndarray, "layers a b"]]:
    """Float32 [layers, rows, columns] of each box ([layers, columns, rows] where stored transposed); a stored row is read once."""

    def extent(span: Span) -> int:
        return span[1] - span[0]

    parts = {b: np.empty([extent(b[0]), *map(extent, (b[2], b[1]) if weight.transposed else b[1:])], np.float32) for b in boxes}
    first, last = min(rows[0] for _, rows, _ in boxes), max(rows[1] for _, rows, _ in boxes)
    for layer, name in enumerate(weight.names):
        here = [box for box in boxes if box[0][0] <= layer < box[0][1]]
        for start, block in found[name].blocks(first, last) if here else ():
            for box in here:
                layers, rows, columns = box
                low, high = max(start, rows[0]), min(start + len(block), rows[1])
                if low < high:
                    part = parts[box][layer - layers[0]]
                    target = part.T if weight.transposed else part
                    target[low - rows[0] : high - rows[0]] = block[low - start : high - start, slice(*columns)]
    return parts


def save(
    params: Params, config: ModelConfig, source: Path | None, folder: Path, dtype: str = "float32", max_shard_bytes: float = 5e9
) -> None:
    """Write a folder that transformers and vLLM load: weights in `dtype`, and config.json and tokenizer of `source` where there is one.

    One stored tensor is fetched at a time; every device of the parameters must belong to this process. The folder appears whole.

    Raises:
        InputError: the folder is there, cannot be written, or the family has no published architecture.
    """
    architecture(config)
    decoder = registry.load("models", config.family, "build").build(config, params["embed"].shape[0])
    values = dict(leaves(params))

    def tensor(weight: Weight, layer: int) -> np.ndarray:
        value = values[weight.key]
        if weight.key.startswith("blocks."):
            value = value[layer] if isinstance(value, np.ndarray) else fetch(value, layer)
        return weight.to_stored(np.asarray(value, np.float32))

    tensors: Tensors = {
        name: (weight.stored_shape, lambda weight=weight, layer=layer: tensor(weight, layer))
        for weight in weights(config, decoder)
        for layer, name in enumerate(weight.names)
    }
    with new_folder(folder) as temp:
        if source is None:
            described = describe(config, decoder.vocab, POSITIONS, dtype)
        else:
            described = read_config(source)
            described |= {key: dtype for key in ("dtype", "torch_dtype") if key in described} or {"dtype": dtype}
            for path in (p for pattern in COMPANIONS for p in source.glob(pattern) if p.is_file()):
                shutil.copyfile(path, temp / path.name)
        write_config(temp, described)
        write(temp, tensors, dtype, max_shard_bytes)


@jax.jit
def fetch(stacked: Float[Array, "L ..."], layer: int) -> Float[Array, "..."]:
    """One layer of a stacked parameter; one program for all layers."""
    return lax.dynamic_index_in_dim(stacked, layer, 0, keepdims=False)


def architecture(config: ModelConfig) -> str:
    """The name in config.json of the config's family; InputError where it is no published one."""
    names = vars(registry.load("models", config.family, "build")).get("ARCHITECTURES")
    if not names:
        raise InputError(
            f"a model of family {config.family!r} cannot be exported: no published architecture is its own, so no other program "
            "could load it. Expected llama, qwen2 or qwen3."
        )
    return names[0]


def describe(config: ModelConfig, vocab: int, positions: int, dtype: str) -> dict[str, Any]:
    """A config.json for the model, for transformers 5 (`rope_parameters`, `dtype`) and 4 (`rope_theta`, `rope_scaling`, `torch_dtype`)."""
    scaling = {"rope_type": "llama3", **config.rope_scaling.model_dump()} if config.rope_scaling else None
    return {
        "architectures": [architecture(config)],
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
        "max_position_embeddings": positions,
        "rope_theta": config.rope_base,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": config.rope_base, **(scaling or {"rope_type": "default"})},
        "tie_word_embeddings": config.tied,
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """config.json as hubs print it."""
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
