"""Explains a checkpoint whose tensors are not as config.json says, by what they are called and how
large they are: what they are, and what makes a model of them."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from isojax.core.config import ModelConfig
from isojax.models.architecture import EMBEDDING_WEIGHT, HEAD_WEIGHT, LAYER_PREFIX
from isojax.models.folder_kinds import CONFIG_AND_TOKENIZER, NEW, TOKENIZER, python_command
from isojax.models.safetensors_io import StoredTensor
from isojax.models.spec import Spec

# From folder_kinds: commands write to the folder NEW; TOKENIZER and CONFIG_AND_TOKENIZER say which
# files to copy to it then.

Shapes = Mapping[str, tuple[int, ...]]  # of the tensors that a model needs, by name

ADAPTER_PART = re.compile(
    r"(^|\.)(lora_|base_layer\.|modules_to_save\.|original_module\.|ia3_|hada_|oft_)"
)
LAYER_NUMBER = re.compile(re.escape(LAYER_PREFIX).replace(r"\{layer\}", r"(\d+)"))
TEXT_PART = re.compile(r"(^|\.)language_model\.")
COPY = "Copy the whole folder of one model."

# Parts of the names that other programs give a decoder's tensors -> whose names they are.
FOREIGN_NAMES = {
    "tok_embeddings.": "Meta's and Mistral's own",
    "decoder.layers.": "Megatron's",
    "gpt_neox.": "GPT-NeoX's",
    "transformer.h.": "GPT-2's",
    ".qkv_proj.": "those of queries, keys and values in one matrix",
    ".W_pack.": "those of queries, keys and values in one matrix",
}


def describe_adapters(unused_names: Collection[str]) -> str:
    """Say what adapters are among tensors that the model does not need, and the remedy.

    Empty where there are none. `unused_names`: such as "base_model.model.lm_head.lora_A.weight"."""
    adapters = sorted(name for name in unused_names if ADAPTER_PART.search(name))
    if not adapters:
        return ""
    held = f"holds adapters beside the base weights, not merged into them, such as {adapters[0]}"
    merge = f"model.merge_and_unload().save_pretrained('{NEW}') on the model of PEFT"
    return f"{held}. Merge them in the program that wrote this folder: {merge}; {TOKENIZER}."


def explain_mismatch(
    folder: Path, config: ModelConfig, specs: Sequence[Spec], stored: Mapping[str, StoredTensor]
) -> str:
    """Say what to do where tensors are missing, or have other shapes or dtypes than expected.

    `specs`: of the parameters that config.json asks for. `stored`: the folder's tensors, by name.
    The first explanation that fits is taken, so their order counts."""
    expected = [name for spec in specs for name in spec.tensor_names()]
    missing = [name for name in expected if name not in stored]
    needed = [stored[name] for name in expected if name in stored]

    if missing == [HEAD_WEIGHT]:
        return (
            "If the model is tied, as small ones are, set tie_word_embeddings to true in "
            f"config.json; else copy the file with {HEAD_WEIGHT}."
        )
    if any(0 in tensor.shape for tensor in needed):
        command = f"python zero_to_fp32.py CHECKPOINT {NEW} --safe_serialization"
        return (
            "Empty tensors are what DeepSpeed's ZeRO-3 writes of weights that it holds in shards. "
            f"Merge these: {command}, of the trainer's checkpoint."
        )
    if any(tensor.dtype == "F64" for tensor in needed):
        load = f"M.from_pretrained('{folder}', dtype='float32').save_pretrained('{NEW}')"
        command = python_command("from transformers import AutoModelForCausalLM as M", load)
        return f"Convert them to float32: {command}; {TOKENIZER}."
    if missing:
        return _explain_names(folder, config, specs, stored)
    return _explain_shapes(config, specs, stored)


def _explain_names(
    folder: Path, config: ModelConfig, specs: Sequence[Spec], stored: Mapping[str, StoredTensor]
) -> str:
    """Say what to do where tensors are missing, by the names of those that are there.

    The arguments are those of `explain_mismatch`. The surest signs come first."""
    expected = {name for spec in specs for name in spec.tensor_names()}
    missing = expected - stored.keys()

    # Names that are right but for what stands before them, or lacks; the embedding, which all have,
    # shows it.
    embeddings = [name for name in stored if name.endswith(EMBEDDING_WEIGHT.removeprefix("model."))]
    if embeddings and all(map(TEXT_PART.search, embeddings)):
        rename = _rename_command(folder, "k.replace('language_model.', '')")
        return (
            "Names are those of the text part of a model of images or sound. "
            f"Write them as its own: {rename}"
        )

    with_prefix = [name for name in stored if name.endswith("." + EMBEDDING_WEIGHT)]
    if with_prefix:
        prefix = min(name.removesuffix(EMBEDDING_WEIGHT) for name in with_prefix)
        rename = _rename_command(folder, f"k.removeprefix('{prefix}')")
        return (
            f"Names begin with {prefix!r}, which is no part of the model. "
            f"Write them without it: {rename}"
        )

    if all(name.removeprefix("model.") in stored for name in missing if name != HEAD_WEIGHT):
        saved = "The names lack 'model.', as AutoModel writes a model without its head"
        if config.tied:
            rename = _rename_command(folder, "'model.' + k")
            return f"{saved}. Write them with it: {rename}"
        return f"{saved}. Save the whole one, AutoModelForCausalLM: model.save_pretrained('{NEW}')."

    # Names of another program.
    for part, whose in FOREIGN_NAMES.items():
        foreign = [name for name in stored if part in name and name not in expected]
        if foreign:
            fix = "Write the model with transformers' names in the program that it comes from"
            return f"Names are {whose}, such as {foreign[0]}. {fix}."

    # The last layers are missing.
    layers = _layer_numbers(stored)
    missing_layers = _layer_numbers(missing)
    if layers and missing_layers and min(missing_layers) > max(layers):
        return (
            f"The files hold {max(layers) + 1} layers, and config.json says num_hidden_layers = "
            f"{config.layers}. Correct it, or copy the files that are missing."
        )
    return COPY


def _rename_command(folder: Path, new_name: str) -> str:
    """Writes the model anew, each tensor k under the name that this Python expression gives."""
    files = f"glob.glob('{folder}/*.safetensors')"
    read = f"t = {{k: v for f in {files} for k, v in load_file(f).items()}}"
    renamed = f"{{{new_name}: v for k, v in t.items()}}"
    write = f"save_file({renamed}, '{NEW}/model.safetensors', {{'format': 'pt'}})"
    # ml_dtypes: for bfloat16
    imports = "import glob, os, ml_dtypes; from safetensors.numpy import load_file, save_file"
    command = python_command(imports, f"os.makedirs('{NEW}'); {read}; {write}")
    return f"{command}; {CONFIG_AND_TOKENIZER}."


def _explain_shapes(
    config: ModelConfig, specs: Sequence[Spec], stored: Mapping[str, StoredTensor]
) -> str:
    """Say which values of config.json the tensors' shapes are right for.

    The shapes are those of the embedding, and of the first layer's query, key and gate (or up). The
    arguments are those of `explain_mismatch`."""
    by_name = {spec.name: spec for spec in specs}
    inner = "gate" if "gate" in by_name else "up"
    keys = ("embed", "query", "key", inner)
    names = {key: by_name[key].tensor_names()[0] if key in by_name else "" for key in keys}
    are_matrices = all(name in stored and len(stored[name].shape) == 2 for name in names.values())
    if names["embed"] != EMBEDDING_WEIGHT or not are_matrices:
        return COPY  # a family of other names

    # a stored matrix has its outputs as rows, and the embedding the tokens
    rows = {key: stored[name].shape[0] for key, name in names.items()}
    # key of config.json -> the value that the shapes are right for, and the value there
    fitting = {"vocab_size": (rows["embed"], config.vocab)}
    if by_name["query"].part is None:  # else the rows of several do not tell heads from their sizes
        head_dim = max(rows["query"] // config.heads, 1)
        fitting["head_dim"] = (head_dim, config.head_dim)
        fitting["num_key_value_heads"] = (rows["key"] // head_dim, config.kv_heads)
    part = by_name[inner].part
    inner_size = by_name[inner].matrix_shape[1]
    parts = 1 if part is None else part.total // inner_size  # of one size: gate, and up
    fitting["intermediate_size"] = (rows[inner] // parts, config.mlp)

    changes = []
    for key, (value, configured) in fitting.items():
        if value != configured:
            changes.append(f"{key} = {value} instead of {configured}")
    if not changes:
        return COPY
    return (
        f"The shapes fit {', '.join(changes)}: correct config.json if the files are this model's, "
        f"as after the embedding was resized; else {COPY[0].lower()}{COPY[1:]}"
    )


def _layer_numbers(names: Collection[str]) -> set[int]:
    return {int(match[1]) for match in map(LAYER_NUMBER.match, names) if match}


def unused_layers(config: ModelConfig, names: Collection[str]) -> int:
    """How many layers the tensors are of beyond those of config.json."""
    return max(_layer_numbers(names), default=-1) + 1 - config.layers


def is_beyond(config: ModelConfig, name: str) -> bool:
    """Whether a tensor is of a layer beyond those of config.json."""
    return unused_layers(config, [name]) > 0
