"""Makes a model's folder (config.json, safetensors in float32, tokenizer) of a GGUF file of any
family that states how llama.cpp holds it (gguf_traits.py).

What llama.cpp turned round for its own arithmetic is undone: pairs that rotate in adjacent rows,
and scales of norms that are stored as 1 + w.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from isojax.core.config import ModelConfig, RopeScaling
from isojax.core.errors import InputError
from isojax.core.tabular import list_some
from isojax.models import families
from isojax.models.hf import hf_export, hf_load
from isojax.models.hf.gguf_file import GGUFFile, open_gguf, sha256_of
from isojax.models.hf.gguf_tokenizer import build_tokenizer, special_token_ids
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.layers.rope import rope_frequencies
from isojax.models.safetensors_io import TensorSources, new_model_folder, write_safetensors
from isojax.models.spec import Spec
from isojax.models.transformer import Decoder

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"
# A key of config.json -> the key of GGUF's metadata, after the architecture's name.
SIZE_KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length",
}
DEFAULTS = {"rope.freq_base": 10_000.0}  # llama.cpp's
# How Llama 3.1 and 3.2 stretch positions: a file has the factors of all frequencies, and not what
# they came from.
LLAMA3_SCALING = RopeScaling()
HUB = "Take the model's own folder: isojax model import ORG/NAME"


def import_gguf(path: Path, folder: Path, source: Mapping[str, Any] | None = None) -> None:
    """Make a model's folder of a GGUF file, whole or not at all.

    `source`: what model_source.json says; None: the file's name and its sha256. InputError where
    the file is not there, or the folder is."""
    if not path.is_file():
        raise InputError(
            where=path,
            found="no such file",
            expected="a GGUF file",
            fix="Fetch one of a model hub first.",
        )
    with new_model_folder(folder) as temp:
        convert(path, temp, source or {"file": path.name, "sha256": sha256_of(path)})


def convert(path: Path, folder: Path, source: Mapping[str, Any]) -> None:
    """Fill a folder with the model of a GGUF file."""
    try:
        _convert(open_gguf(path), folder)
    except InputError as e:
        if e.where.startswith(str(path)):
            raise
        raise e.within(path) from e
    hf_export.write_json(folder / hf_load.SOURCE_FILE, source)


def _convert(file: GGUFFile, folder: Path) -> None:
    """Write the file's model into a folder as transformers reads it: config, tokenizer, weights.

    InputError, without the file's path, where llama.cpp's model is none that runs here."""
    family, traits = find_gguf_family(file)
    check_whole(file)
    tokenizer, tokenizer_config = build_tokenizer(file.metadata)

    config_json = read_config_json(file)
    extra_keys = traits.read(file.settings)
    read_settings = families.family.load(family).traits.settings
    assert read_settings is not None  # a family with GGUFTraits reads config.json too
    config = ModelConfig(family=family, **read_settings(config_json | extra_keys))
    assert config.vocab is not None, "a GGUF file names its vocabulary"

    # config.json as the family writes it, with what it leaves to the file
    full_json = hf_export.make_config_json(config, file.settings["context_length"], "float32")
    for key in ("rope_scaling", "attention_bias", "mlp_bias"):
        if key in config_json:
            full_json[key] = config_json[key]
    token_ids = end_and_begin_ids(file.metadata)
    # what the file says replaces what the family writes
    hf_export.write_json(folder / hf_load.CONFIG_FILE, full_json | extra_keys | token_ids)
    hf_export.write_json(folder / "generation_config.json", token_ids)
    hf_export.write_json(folder / "tokenizer_config.json", tokenizer_config)
    tokenizer.save(str(folder / "tokenizer.json"))

    layouts = hf_load.weight_layouts(Decoder(config, config.vocab))
    write_safetensors(folder, plan_tensors(file, layouts, traits, config.layers), "float32")


def find_gguf_family(file: GGUFFile) -> tuple[str, GGUFTraits]:
    """Return the family of a file's architecture, and what it states of GGUF.

    Such as ("qwen2", its traits). InputError where no family has the architecture."""
    by_architecture: dict[str, tuple[str, GGUFTraits]] = {}
    for name in families.family.names():
        traits = families.family.load(name).traits.gguf
        if traits is None:
            continue
        # Of several that llama.cpp holds alike, the one of its own name.
        if traits.architecture not in by_architecture or name == traits.architecture:
            by_architecture[traits.architecture] = (name, traits)

    if file.architecture not in by_architecture:
        known = ", ".join(sorted(by_architecture))
        raise InputError(
            where="general.architecture",
            found=f"given {file.architecture!r}, which no family here runs",
            expected=f"one of {known}",
            fix="A family of your own is a file like isojax/models/families/qwen3.py.",
        )
    return by_architecture[file.architecture]


def check_whole(file: GGUFFile) -> None:
    """Raise InputError where the file is a part of a model, or of one with experts."""
    parts = file.metadata.get("split.count", 1)
    if parts > 1:
        raise InputError(
            found=f"it is one of {parts} files of a model",
            fix="Merge them with llama.cpp: llama-gguf-split --merge FIRST.gguf WHOLE.gguf.",
        )

    if EMBEDDING not in file.tensors:
        raise InputError(
            found=f"it has no {EMBEDDING}: no language model, or a part of one",
            fix=f"{HUB}.",
        )

    if file.settings.get("expert_count"):
        raise InputError(
            found=f"expert_count = {file.settings['expert_count']}",
            expected="a dense model",
            fix=f"{HUB}.",
        )


def read_config_json(file: GGUFFile) -> dict[str, Any]:
    """Return the keys that every family's config.json has, from the file's metadata.

    InputError where one is missing, or differs between layers. Keys: those of SIZE_KEYS, vocab_size
    and tie_word_embeddings, and where the file says so attention_bias, mlp_bias and rope_scaling.
    """
    settings = DEFAULTS | file.settings
    heads = settings.get("attention.head_count")
    settings.setdefault("attention.head_count_kv", heads)
    # a list where layers differ, which is refused below
    if isinstance(heads, int) and "attention.key_length" not in settings:
        settings["attention.key_length"] = settings.get("embedding_length", 0) // heads

    needed = (*SIZE_KEYS.values(), "context_length")
    missing = [f"{file.architecture}.{key}" for key in needed if settings.get(key) is None]
    if missing:
        raise InputError(
            found=f"it lacks {list_some(missing)}",
            fix=f"{HUB}.",
        )
    for key in SIZE_KEYS.values():
        if isinstance(settings[key], list):
            raise InputError(
                found=f"{file.architecture}.{key} differs between layers: {settings[key]}",
                expected="one number for all",
                fix="This model cannot run here.",
            )

    config_json = {key: settings[name] for key, name in SIZE_KEYS.items()}
    config_json |= {
        "vocab_size": file.shape(EMBEDDING)[0],
        "tie_word_embeddings": HEAD not in file.tensors,
    }
    # layer 0 stands for all
    biases = {"attention_bias": "blk.0.attn_output.bias", "mlp_bias": "blk.0.ffn_gate.bias"}
    config_json |= {key: True for key, name in biases.items() if name in file.tensors}
    scaling = read_scaling(file)
    if scaling is not None:
        config_json["rope_scaling"] = scaling
    return config_json


def read_scaling(file: GGUFFile) -> dict[str, Any] | None:
    """Return how rotary positions are stretched, as config.json says it; None where they are not.

    Such as {"rope_type": "linear", "factor": 8.0}, or Llama 3's (`llama3_scaling`)."""
    settings = DEFAULTS | file.settings
    if ROPE_FACTORS in file.tensors:
        return llama3_scaling(file.read(ROPE_FACTORS), settings["rope.freq_base"])

    # Older files have a factor alone, of linear stretching.
    default_type = "linear" if "rope.scale_linear" in settings else "none"
    rope_type = settings.get("rope.scaling.type", default_type)
    factor = settings.get("rope.scaling.factor", settings.get("rope.scale_linear", 1.0))
    is_unstretched = factor in (0, 1)  # 0 says nothing
    if rope_type == "none" or (rope_type == "linear" and is_unstretched):
        return None
    return {"rope_type": rope_type, "factor": factor}


def llama3_scaling(factors: np.ndarray, base: float) -> dict[str, Any]:
    """Return config.json's rope_scaling of Llama 3 whose frequencies are divided by these factors.

    `factors`: f32[head_dim / 2]; the largest is Llama's `factor`, because low frequencies are
    divided by all of it. `base`: theta. InputError where the others are not those of Llama 3.1 and
    3.2."""
    head_dim = 2 * len(factors)
    scaling = LLAMA3_SCALING.model_copy(update={"factor": float(factors.max())})
    expected = rope_frequencies(head_dim, base, None) / rope_frequencies(head_dim, base, scaling)
    if not np.allclose(factors, expected, rtol=1e-4):
        raise InputError(
            found=(
                f"{ROPE_FACTORS} has factors up to {factors.max():g} that are not those of "
                "Llama 3.1 and 3.2"
            ),
            fix=f"{HUB}.",
        )
    return {"rope_type": "llama3", **scaling.model_dump()}


def end_and_begin_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what config.json and generation_config.json say of special tokens.

    Such as {"bos_token_id": 1, "eos_token_id": [2, 107]}: several where a turn ends by another
    token than a text."""
    ids: dict[str, Any] = dict(special_token_ids(metadata))
    end_of_turn = metadata.get("tokenizer.ggml.eot_token_id")
    if end_of_turn is not None and end_of_turn != ids.get("eos"):
        ids["eos"] = [ids["eos"], end_of_turn] if "eos" in ids else end_of_turn
    return {f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad") if name in ids}


def gguf_names(specs: list[Spec], traits: GGUFTraits, layers: int) -> dict[str, str]:
    """Map the tensors' names in a checkpoint to those in a GGUF file.

    Such as "model.layers.0.mlp.up_proj.weight" -> "blk.0.ffn_up.weight". `layers`: of the model.
    InputError where llama.cpp's architecture has no such tensor."""
    architectures = {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}
    name_map = gguf.get_tensor_name_map(architectures[traits.architecture], layers)
    names = {
        name: name_map.get_name(name, (".weight", ".bias"))
        for spec in specs
        for name in spec.tensor_names()
    }

    unknown = [name for name, gguf_name in names.items() if gguf_name is None]
    if unknown:
        raise InputError(
            found=f"llama.cpp's {traits.architecture} has no tensor for {list_some(unknown)}",
        )
    return {name: str(gguf_name) for name, gguf_name in names.items()}


def plan_tensors(
    file: GGUFFile, layouts: list[hf_load.WeightLayout], traits: GGUFTraits, layers: int
) -> TensorSources:
    """Say of each tensor of a checkpoint its shape, and how it is read from the file.

    `layouts`: of all parameters. `layers`: of the model. InputError where the file lacks a tensor,
    has more than these, or one has another shape; values are read later, one by one."""
    names = gguf_names([layout.spec for layout in layouts], traits, layers)
    missing = sorted(set(names.values()) - file.tensors.keys())
    unused = sorted(file.tensors.keys() - set(names.values()) - {ROPE_FACTORS})
    if missing or unused:
        problem = f"it has {list_some(unused)} beside the model's tensors"
        if missing:
            problem = f"it lacks {list_some(missing)}"
        raise InputError(
            found=f"{problem}, as no {traits.architecture} here does",
            fix=f"{HUB}.",
        )

    sources = {}
    for name, parts in hf_load.tensor_parts(layouts).items():
        specs = [part.layout.spec for part in parts]
        shape = specs[0].stored_shape
        if file.shape(names[name]) != shape:
            raise InputError(
                found=f"{names[name]} is {file.shape(names[name])}",
                expected=f"{shape} by the file's metadata",
                fix="Copy it again.",
            )
        sources[name] = (shape, partial(read_tensor, file, names[name], specs, traits))
    return sources


def read_tensor(file: GGUFFile, name: str, specs: list[Spec], traits: GGUFTraits) -> np.ndarray:
    """Read one tensor of a checkpoint from the file, in float32.

    `name`: in the file. `specs`: of the parameters that the tensor holds, in their order there."""
    value = file.read(name)
    if len(specs) == 1:
        return from_llama_cpp(value, specs[0], traits)

    axis = specs[0].stored_outputs_axis
    firsts = [spec.part.first for spec in specs[1:] if spec.part is not None]
    stored_parts = zip(np.split(value, firsts, axis), specs, strict=True)
    return np.concatenate([from_llama_cpp(part, spec, traits) for part, spec in stored_parts], axis)


def from_llama_cpp(value: np.ndarray, spec: Spec, traits: GGUFTraits) -> np.ndarray:
    """Return a tensor of one parameter, without what llama.cpp turned round or added.

    `value`: as a checkpoint has its axes, outputs first."""
    if is_norm(spec):
        return value - np.float32(traits.norm_offset) if traits.norm_offset else value
    if not is_rotated(spec, traits):
        return value
    _, heads = spec.outputs[0]
    # [heads H/2 2 ...] becomes [heads 2 H/2 ...]: neighbours go into the two halves of a head.
    pairs = value.reshape(heads, -1, 2, *value.shape[1:])
    return pairs.swapaxes(1, 2).reshape(value.shape)


def is_norm(spec: Spec) -> bool:
    return not spec.inputs and spec.name.endswith("norm")


def is_rotated(spec: Spec, traits: GGUFTraits) -> bool:
    """Whether its rows are queries' or keys', in llama.cpp's order of pairs."""
    return traits.adjacent_pairs and spec.name.removesuffix("_bias") in ("query", "key")
