"""Reads and writes the safetensors files of a model's folder; pickles (*.bin, *.pt) are never
opened."""

import functools
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
from isojax.core.git_lfs import refuse_pointer
from isojax.core.terminal import warn
from isojax.models.weight_files import INDEX_FILE, plain_name, read_weight_map, weight_files

DTYPES = ("F32", "BF16", "F16")  # of weights that can be read, as files name them
# Of a model's folder: what decides how text is read, and how a response ends.
TEXT_FILES = (
    "generation_config.json",
    "*token*.json",
    "*.model",
    "vocab.json",
    "merges.txt",
    "tekken.json",
    "chat_template*",
)
MAX_FILE_BYTES = 5_000_000_000
_warn_once = functools.cache(warn)  # a sweep reads its base model once per cell

# name -> shape, and how to get it
TensorSources = Mapping[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]


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


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a model's folder, by its plain name; values are not read.

    A plain name lacks what wrappers add (`plain_name`). The index decides in which file a tensor is
    read. InputError where a file is damaged, or where without an index a tensor is stored twice."""
    files = weight_files(folder)
    copies: dict[str, list[StoredTensor]] = {}
    for file in files:
        for tensor in _read_header(file):
            copies.setdefault(plain_name(tensor.name), []).append(tensor)

    weight_map = read_weight_map(folder)
    if not set(weight_map.values()) & {file.name for file in files}:
        weight_map = {}  # model.safetensors is read in its place
    tensors = {}
    for name, stored in copies.items():
        tensors[name] = _choose_copy(folder, name, stored, weight_map.get(name))

    twice = [name for name, stored in copies.items() if len(stored) > 1]
    if twice:
        name = twice[0]
        file_read = tensors[name].file.name
        others = sorted({copy.file.name for copy in copies[name]} - {file_read})
        _warn_once(
            f"{folder}: {len(twice)} tensors are stored in several files: {name} is read from "
            f"{file_read}, as {INDEX_FILE} says, not from {', '.join(others)}."
        )
    return tensors


def _choose_copy(
    folder: Path, name: str, copies: list[StoredTensor], indexed_file: str | None
) -> StoredTensor:
    """Return the copy of a tensor in the file that the index names, or the only one.

    `name`: the plain one. `copies`: at least one. `indexed_file`: the file's name in the index;
    None: the index does not have the tensor, or there is none."""
    candidates = [copy for copy in copies if indexed_file in (None, copy.file.name)]
    if not candidates:
        stored = f"which lacks it; {copies[0].file.name} has it"
        raise InputError(
            where=folder / INDEX_FILE,
            found=f"weight_map puts {name} in {indexed_file}, {stored}",
            fix="Write folder and index again, by model.save_pretrained(FOLDER) in transformers.",
        )

    if len(candidates) > 1:
        places = " and ".join(f"in {copy.file.name} as {copy.name}" for copy in candidates)
        raise InputError(
            where=folder,
            found=f"{name} is stored {len(candidates)} times, {places}",
            fix=(
                f"Remove the files of the older save, or put {INDEX_FILE} back, "
                "which says which one is the model's."
            ),
        )
    return candidates[0]


def _read_header(file: Path) -> list[StoredTensor]:
    """Return the tensors of a file, without their values; InputError where it is damaged."""
    tensors = []
    try:
        with safe_open(file, "np") as f:
            for name in f.keys():  # noqa: SIM118 (safe_open is no mapping)
                header = f.get_slice(name)
                shape = tuple(header.get_shape())
                tensors.append(StoredTensor(file, name, header.get_dtype(), shape))
    except (OSError, SafetensorError) as e:
        # InputError where the file is the pointer that git-lfs leaves in a file's place
        refuse_pointer(file, "the weights themselves")
        raise InputError(
            where=file,
            found=f"not a whole safetensors file ({e})",
            fix="Copy it again.",
        ) from e
    return tensors


def fingerprint(folder: Path) -> str:
    """Return 12 hex digits of all bytes of config.json and of the weight files.

    The weight files' names count too."""
    return _hash_files(weight_files(folder), (folder / "config.json").read_bytes())


def text_fingerprint(folder: Path) -> str:
    """Return 12 hex digits of the files that decide how text is read and how a response ends.

    Their names count too."""
    files: set[Path] = set()
    for pattern in TEXT_FILES:
        files |= {file for file in folder.glob(pattern) if file.is_file()}
    return _hash_files(sorted(files))


def _hash_files(files: list[Path], first_bytes: bytes = b"") -> str:
    digest = hashlib.sha256(first_bytes)
    for file in files:
        with file.open("rb") as f:
            digest.update(os.fsencode(file.name) + hashlib.file_digest(f, "sha256").digest())
    return digest.hexdigest()[:12]


def new_model_folder(folder: Path) -> AbstractContextManager[Path]:
    """Return `atomic_folder` of a folder that must not exist: a temporary one, renamed at the end.

    InputError where it exists."""
    if folder.exists() or folder.is_symlink():
        raise InputError(
            where=folder,
            found="exists, and nothing is overwritten",
            fix="Choose another name, or remove it first.",
        )
    return atomic_folder(folder)


def write_safetensors(
    folder: Path, tensors: TensorSources, dtype: str, stem: str = "model"
) -> None:
    """Write STEM*.safetensors of at most MAX_FILE_BYTES each, and an index where there are several.

    `tensors`: name -> (shape, function that returns the values); it is called when its file is
    written, so that one file's tensors are in memory. `dtype`: of all, such as "bfloat16". A tensor
    that is larger than a file may be has one for itself."""
    item_bytes = np.dtype(dtype).itemsize
    sizes = {name: item_bytes * math.prod(shape) for name, (shape, _) in tensors.items()}
    # Made for tensors, it gets their sizes in bytes in their place: so `int` is the size of one.
    split = split_state_dict_into_shards_factory(
        sizes,
        get_storage_size=int,
        filename_pattern=stem + "{suffix}.safetensors",
        max_shard_size=MAX_FILE_BYTES,
    )
    for file_name, names in split.filename_to_tensors.items():
        values = {name: np.ascontiguousarray(tensors[name][1](), dtype=dtype) for name in names}
        # transformers refuses a file that does not say so
        save_file(values, folder / file_name, {"format": "pt"})

        # as other new files: safetensors writes for its owner alone. The mask can only be read by
        # setting it.
        mask = os.umask(0)
        os.umask(mask)
        (folder / file_name).chmod(0o666 & ~mask)

    if split.is_sharded:
        weight_map = dict(sorted(split.tensor_to_filename.items()))
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
