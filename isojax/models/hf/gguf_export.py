"""Parameters to a GGUF file that llama.cpp loads, with their tokenizer: the way back of
gguf_import.py."""

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

from isojax.core.atomic_files import TEMP_CHARACTERS, write_error
from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.core.yaml_files import flatten
from isojax.models.families import family
from isojax.models.hf.gguf_import import ROPE_FACTORS, gguf_names, is_norm, is_rotated
from isojax.models.hf.gguf_tokenizer_export import add_tokenizer
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.hf.hf_export import join_parts
from isojax.models.hf.hf_load import WeightLayout, read_text_config, tensor_parts, weight_layouts
from isojax.models.layers.rope import rope_frequencies
from isojax.models.spec import Spec
from isojax.models.transformer import Decoder, Params

# How matrices are stored, and what `general.file_type` says of it. Norms and biases are float32
# always.
TYPES = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
}
Q8_BLOCK = 32  # values that share a scale: rows must be of whole blocks


def gguf_traits_of(config: ModelConfig) -> GGUFTraits:
    """Return how llama.cpp's files hold the config's family; InputError where they do not."""
    traits = family.load(config.family).traits.gguf
    if traits is None:
        problem = f"a model of family {config.family!r} cannot be written as GGUF"
        raise InputError(
            where=problem,
            found="the family does not say how llama.cpp holds it (@family(gguf=...))",
        )
    return traits


def write_gguf(params: Params, config: ModelConfig, source: Path, path: Path, dtype: str) -> None:
    """Write a GGUF file, whole or not at all, with the tokenizer of the folder `source`.

    `params`: the policy's, without adapters. `source`: a model's folder, with config.json and
    tokenizer.json. `path`: of the new file. `dtype`: "f32", "f16", "bf16" or "q8_0". InputError
    where the file exists or cannot be written, or where llama.cpp does not compute such a model or
    has no such tokenizer; RunFailed where the disk is full."""
    if path.exists() or path.is_symlink():
        raise InputError(
            where=path,
            found="exists, and nothing is overwritten",
            fix="Choose another name, or remove it first.",
        )
    traits = gguf_traits_of(config)
    # TEMP_CHARACTERS of the name and not all: with the rest, file systems take 255 bytes
    temp = path.with_name(f".{path.name[:TEMP_CHARACTERS]}.{os.getpid()}")
    # It only collects in memory until `write_tensors` writes the header: so its folder need not be
    # there yet, and there is nothing to remove if the settings are refused.
    writer = gguf.GGUFWriter(temp, traits.architecture)
    add_settings(writer, config, traits, source, dtype)
    add_tokenizer(writer, source, params["embed"].shape[0])

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(writer, params, config, traits, dtype)
        os.replace(temp, path)
    except OSError as e:
        raise write_error(path, e) from e
    finally:
        with suppress(OSError):
            temp.unlink(missing_ok=True)


def add_settings(
    writer: gguf.GGUFWriter, config: ModelConfig, traits: GGUFTraits, source: Path, dtype: str
) -> None:
    """Put the model's shape into the metadata, and its name, notice and type of weights.

    `source`: the model's folder, whose config.json must have max_position_embeddings. `dtype`: a
    key of TYPES."""
    writer.add_name(source.name)
    if (source / "NOTICE").is_file():
        writer.add_description((source / "NOTICE").read_text(encoding="utf-8"))
    _, file_type = TYPES[dtype]
    writer.add_file_type(file_type)

    writer.add_context_length(read_text_config(source)["max_position_embeddings"])
    writer.add_block_count(config.layers)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.mlp)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.norm_eps)

    for key, value in traits.write(config).items():
        add_value(writer, f"{traits.architecture}.{key}", value)


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Put a value into the metadata, as the kind that its type in Python tells."""
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


def write_tensors(
    writer: gguf.GGUFWriter, params: Params, config: ModelConfig, traits: GGUFTraits, dtype: str
) -> None:
    """Write the file: all tensors' names and shapes, then their values in the same order.

    One tensor after the other is made, so that no second copy of the model is held. `params`:
    without adapters. `dtype`: a key of TYPES."""
    values = dict(flatten(params))  # by dotted name, such as "blocks.query"
    layouts = weight_layouts(Decoder(config, params["embed"].shape[0]))
    # from a tensor's name in a checkpoint: its name in the GGUF file, and the parameters that it
    # holds, mostly one
    names = gguf_names([layout.spec for layout in layouts], traits, config.layers)
    tensors = tensor_parts(layouts)

    # By what llama.cpp divides each frequency of the rotary positions.
    plain = rope_frequencies(config.head_dim, config.rope_base, None)
    # float32 [head_dim / 2]
    factors = plain / rope_frequencies(config.head_dim, config.rope_base, config.rope_scaling)
    has_factors = config.rope_scaling is not None

    if has_factors:
        writer.add_tensor_info(ROPE_FACTORS, factors.shape, factors.dtype, factors.nbytes)
    for name, parts in tensors.items():
        announce_tensor(writer, names[name], parts[0].layout.spec, dtype)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if has_factors:
        writer.write_tensor_data(factors)
    for parts in tensors.values():
        spec = parts[0].layout.spec
        stored = []
        for part in parts:
            value = np.asarray(part.select(values[part.layout.key]), np.float32)
            stored.append(as_llama_cpp(part.layout, value, traits))
        whole = np.ascontiguousarray(join_parts(stored, spec))
        writer.write_tensor_data(quantize(whole, stored_type(spec, dtype)))
    writer.close()


def announce_tensor(writer: gguf.GGUFWriter, name: str, spec: Spec, dtype: str) -> None:
    """Announce a tensor's shape, type and size for the head of the file.

    `name`: in the GGUF file. `dtype`: a key of TYPES. Values must be written in the same order
    later."""
    kind = stored_type(spec, dtype)
    *rows_shape, columns = spec.stored_shape
    row = quantize(np.zeros((1, columns), np.float32), kind)  # as all rows are stored
    shape = (*rows_shape, row.shape[-1])
    num_bytes = row.nbytes * math.prod(rows_shape)
    writer.add_tensor_info(name, shape, row.dtype, num_bytes, raw_dtype=kind)


def stored_type(spec: Spec, dtype: str) -> gguf.GGMLQuantizationType:
    """Return how a tensor is stored, in a file whose matrices are of `dtype`, a key of TYPES.

    Norms and biases are F32 always; rows that are no whole blocks of Q8_0 are F16, as llama.cpp
    does it."""
    if not spec.inputs:  # a norm or a bias
        return gguf.GGMLQuantizationType.F32
    if dtype == "q8_0" and spec.stored_shape[-1] % Q8_BLOCK:
        return gguf.GGMLQuantizationType.F16
    return TYPES[dtype][0]


def as_llama_cpp(layout: WeightLayout, value: np.ndarray, traits: GGUFTraits) -> np.ndarray:
    """Return a parameter's value in one layer as llama.cpp's tensor has it.

    `value`: with the axes of the parameter's Spec, without stacked ones."""
    stored = layout.to_stored(value)
    if is_norm(layout.spec):
        return stored + np.float32(traits.norm_offset)
    if not is_rotated(layout.spec, traits):
        return stored

    # llama.cpp rotates neighbouring numbers of a head against each other, isojax its two halves: so
    # the i-th numbers of both halves become neighbours, [heads 2 H/2 ...] -> [heads H/2 2 ...].
    _, heads = layout.spec.outputs[0]
    halves = stored.reshape(heads, 2, -1, *stored.shape[1:])
    return halves.swapaxes(1, 2).reshape(stored.shape)
