"""Reads and writes the safetensors files of a model's folder; pickles (*.bin, *.pt) are never opened."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from isojax.core.atomic_files import atomic_folder
from isojax.core.errors import InputError
from isojax.core.table_files import paths_below, read_json_object

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
DTYPES = ("F32", "BF16", "F16")  # of weights that can be read, as files name them
# Of a model's folder: what decides how text is read, and how a response ends.
TEXT_FILES = (
    "generation_config.json", "*token*.json", "*.model", "vocab.json", "merges.txt", "tekken.json", "chat_template*"
)  # fmt: skip
MAX_FILE_BYTES = 5_000_000_000

TensorSources = Mapping[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]  # name -> shape, and how to get it


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its name, its dtype as the file names it, and its shape."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self, index: tuple[slice, ...]) -> np.ndarray:
        """A part of it, as stored. The file is mapped into memory for this call alone."""
        with safe_open(self.file, "np") as f:
            return f.get_slice(self.name)[index]


def weight_files(folder: Path) -> list[Path]:
    """The folder's model.safetensors, the index's files, or all there are; InputError where some are missing."""
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if paths := [folder / name for name in indexed_names(folder)]:
        if missing := [path.name for path in paths if not path.is_file()]:
            raise InputError(f"{folder}: {INDEX_FILE} names {', '.join(missing)}, which is not there. Copy it too.")
        return paths
    if paths := [path for path in paths_below(folder, "*.safetensors", nested=False) if path.is_file()]:
        return paths
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    found_instead = "it has none"
    if pickles:
        found_instead = f"it has {', '.join(pickles[:3])}, and pickles can run code, so only safetensors are read"
    raise InputError(
        f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE} with its files; {found_instead}. Get the *.safetensors of "
        "the same model, or convert it with transformers: model.save_pretrained(FOLDER)."
    )


def indexed_names(folder: Path) -> list[str]:
    """The files that the folder's index names; none where there is no index."""
    if not (folder / INDEX_FILE).is_file():
        return []
    names = read_json_object(folder / INDEX_FILE).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise InputError(f"{folder / INDEX_FILE}: has no weight_map (tensor -> file). Copy it again.")
    return sorted({Path(str(name)).name for name in names.values()})


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model's folder, by name; InputError where a file is damaged."""
    tensors = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, "np") as f:
                for name in f.keys():  # noqa: SIM118 (safe_open is no mapping)
                    header = f.get_slice(name)
                    tensors[name] = StoredTensor(file, name, header.get_dtype(), tuple(header.get_shape()))
        except (OSError, SafetensorError) as e:
            raise InputError(f"{file}: not a whole safetensors file ({e}). Copy it again.") from e
    return tensors


def fingerprint(folder: Path) -> str:
    """12 hex digits of all bytes of config.json and of the weight files, and of these files' names."""
    return _hash_files(weight_files(folder), (folder / "config.json").read_bytes())


def text_fingerprint(folder: Path) -> str:
    """12 hex digits of the files that decide how text is read and how a response ends, and of their names."""
    return _hash_files(sorted({file for pattern in TEXT_FILES for file in folder.glob(pattern) if file.is_file()}))


def _hash_files(files: list[Path], first_bytes: bytes = b"") -> str:
    digest = hashlib.sha256(first_bytes)
    for file in files:
        with file.open("rb") as f:
            digest.update(os.fsencode(file.name) + hashlib.file_digest(f, "sha256").digest())
    return digest.hexdigest()[:12]


def new_model_folder(folder: Path) -> AbstractContextManager[Path]:
    """`atomic_folder` of a folder that must not exist."""
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder} exists, and nothing is overwritten; choose another name, or remove it first.")
    return atomic_folder(folder)


def write_safetensors(folder: Path, tensors: TensorSources, dtype: str, stem: str = "model") -> None:
    """Write STEM*.safetensors of at most MAX_FILE_BYTES (or one larger tensor), and an index of several."""
    item_bytes = np.dtype(dtype).itemsize
    sizes = {name: item_bytes * math.prod(shape) for name, (shape, _) in tensors.items()}
    split = split_state_dict_into_shards_factory(
        sizes, get_storage_size=int, filename_pattern=stem + "{suffix}.safetensors", max_shard_size=MAX_FILE_BYTES
    )
    for file_name, names in split.filename_to_tensors.items():
        values = {name: np.ascontiguousarray(tensors[name][1](), dtype=dtype) for name in names}
        save_file(values, folder / file_name, {"format": "pt"})  # transformers refuses a file that does not say so
        os.umask(mask := os.umask(0))
        (folder / file_name).chmod(0o666 & ~mask)  # as other new files: safetensors writes for its owner alone
    if split.is_sharded:
        weight_map = dict(sorted(split.tensor_to_filename.items()))
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
