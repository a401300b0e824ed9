"""Tensors in files: what a folder of safetensors holds, parts of it read by byte ranges, and new files written tensor
by tensor. No jax.

The format (github.com/huggingface/safetensors): 8 bytes little-endian length, a JSON header of that length with dtype,
shape and byte offsets of each tensor, then the tensors row by row. The library maps whole files into memory, or takes
all of a file's tensors at once; here neither more than a block of rows nor more than one tensor is ever held. Pickles
(*.bin, *.pt) are never opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from isojax.core.errors import InputError

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
DTYPES: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}
DTYPE_CODES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
READ_BLOCK_BYTES = 4 << 20  # bytes read at once
FINGERPRINT_BLOCKS = 64


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its dtype as the header names it, its shape, and the bytes [start, end) of the file that hold
    it.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def read_blocks(self, first_row: int, row_end: int) -> Iterator[tuple[int, np.ndarray]]:
        """(number of its first row, [rows, columns] as stored) for rows first .. last - 1, a few at a time.

        A vector of n entries has n rows of one column. Raises InputError where the file ends too early.
        """
        rows, dtype = max(self.shape[0], 1), DTYPES[self.dtype]
        row_bytes = (self.end - self.start) // rows
        rows_per_block = max(1, READ_BLOCK_BYTES // max(row_bytes, 1))
        with self.file.open("rb") as f:
            for row in range(first_row, row_end, rows_per_block):
                count = min(rows_per_block, row_end - row)
                f.seek(self.start + row * row_bytes)
                data = f.read(count * row_bytes)
                if len(data) != count * row_bytes:
                    raise InputError(
                        f"{self.file}: ends at byte {f.tell()}, inside a tensor; expected {self.end} bytes. Copy it "
                        "anew."
                    )
                yield row, np.frombuffer(data, dtype).reshape(count, -1)

    def read_all(self) -> np.ndarray:
        """All of it, as stored."""
        return np.concatenate([block for _, block in self.read_blocks(0, self.shape[0])]).reshape(self.shape)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; InputError with the line where it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as e:
        raise InputError(f"{path}, line {e.lineno}: not JSON ({e.msg}). Copy the file anew, or mend that line.") from e
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"cannot read {path}: {e}. Expected a JSON file.") from e
    if not isinstance(data, dict):
        raise InputError(f"{path}: given a {type(data).__name__} at the top, expected a JSON object.")
    return data


def read_header(file: Path) -> dict[str, StoredTensor]:
    """What one safetensors file holds, by name; InputError where it is damaged."""
    try:
        size = file.stat().st_size
        with file.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            if length > size - 8:
                raise ValueError(f"its header should be {length} bytes, the file has {size}")
            header = json.loads(f.read(length))
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            start, end = (8 + length + int(x) for x in entry["data_offsets"])
            tensors[name] = StoredTensor(file, str(entry["dtype"]), tuple(int(n) for n in entry["shape"]), start, end)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error) as e:
        raise InputError(f"{file}: not a whole safetensors file ({e}). Copy it anew.") from e
    for name, stored in tensors.items():
        item_bytes = DTYPES[stored.dtype].itemsize if stored.dtype in DTYPES else None
        if stored.end > size or (
            item_bytes and stored.end - stored.start != item_bytes * int(np.prod(stored.shape, dtype=np.int64))
        ):
            raise InputError(
                f"{file}: {name} should lie in bytes {stored.start} to {stored.end} with shape {list(stored.shape)}; "
                f"the file has {size} "
                "bytes. It is cut off or damaged; copy it anew."
            )
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model's folder: model.safetensors, or those its index names, or all there are.

    Raises:
        InputError: the folder or a file that the index names is missing, or there are only pickles.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder}: no such folder; expected a model's folder with config.json, *.safetensors and a tokenizer."
        )
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    if (folder / INDEX_FILE).is_file():
        names = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise InputError(
                f"{folder / INDEX_FILE}: has no weight_map; expected tensor names and the file of each. Copy it anew."
            )
        paths = [folder / Path(str(name)).name for name in sorted(set(names.values()))]
        if missing := [path.name for path in paths if not path.is_file()]:
            raise InputError(
                f"{folder}: {INDEX_FILE} names {', '.join(missing)}, which is not there. Copy the missing files into "
                "the folder."
            )
        return paths
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
        suggestion = (
            "Get the *.safetensors of the same model, or convert it with transformers: model.save_pretrained(FOLDER)."
        )
        found_instead = (
            f"it has {', '.join(pickles[:3])}, and pickles can run code, so only safetensors are read"
            if pickles
            else "it has none"
        )
        raise InputError(
            f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE} with its files; {found_instead}. {suggestion}"
        )
    return paths


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model's folder, by name."""
    return {name: stored for file in weight_files(folder) for name, stored in read_header(file).items()}


def fingerprint(folder: Path) -> str:
    """12 hex digits that tell whether a checkpoint was exchanged: of config.json and each weight file's name, size,
    header and a sample.

    The sample is SAMPLES blocks of 4 KiB, evenly spaced: another training run's file has the same header, but not the
    same weights.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in weight_files(folder):
        size = file.stat().st_size
        with file.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8).ljust(8, b"\0"))
            digest.update(f"{file.name} {size} ".encode() + f.read(min(length, size)))
            for i in range(FINGERPRINT_BLOCKS):
                f.seek(size * i // FINGERPRINT_BLOCKS)
                digest.update(f.read(4096))
    return digest.hexdigest()[:12]


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name when all is in it: another process, or a kill, sees it whole or not at
    all.

    Raises:
        InputError: it is there already, or cannot be written.
    """
    if folder.exists() or folder.is_symlink():
        raise InputError(
            f"{folder} is there already, and nothing is overwritten; choose another name, or remove it first."
        )
    folder = folder.absolute()
    temp = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temp.mkdir(parents=True)
        yield temp
        temp.rename(folder)
    except OSError as e:
        raise InputError(
            f"cannot write {folder}: {e.strerror or e}. Choose a place that you may write, with room for it."
        ) from e
    finally:
        shutil.rmtree(temp, ignore_errors=True)


TensorSources = Mapping[
    str, tuple[tuple[int, ...], Callable[[], np.ndarray]]
]  # name -> its shape, and how to get it in float32


def write_safetensors(folder: Path, tensors: TensorSources, dtype: str, max_shard_bytes: float) -> None:
    """Write model*.safetensors (with an index where there are several), getting one tensor at a time.

    dtype: float32, bfloat16 or float16. A file holds at most `max_shard_bytes`, or one tensor that is larger.
    """
    item_bytes = DTYPES[DTYPE_CODES[dtype]].itemsize
    sizes = {name: item_bytes * int(np.prod(shape, dtype=np.int64)) for name, (shape, _) in tensors.items()}
    shards: list[list[str]] = [[]]
    for name in tensors:
        if shards[-1] and sum(sizes[n] for n in shards[-1]) + sizes[name] > max_shard_bytes:
            shards.append([])
        shards[-1].append(name)
    sharded = len(shards) > 1
    file_names = {
        i: f"model-{i + 1:05}-of-{len(shards):05}.safetensors" if sharded else SINGLE_FILE for i in range(len(shards))
    }
    for i, names in enumerate(shards):
        _write_file(folder / file_names[i], {name: tensors[name] for name in names}, DTYPE_CODES[dtype])
    if sharded:
        weight_map = {name: file_names[i] for i, names in enumerate(shards) for name in names}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(path: Path, tensors: TensorSources, dtype: str) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file that does not say so
    end = 0
    for name, (shape, _) in tensors.items():
        start, end = end, end + DTYPES[dtype].itemsize * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    header_bytes = json.dumps(header, separators=(",", ":")).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)  # so that the tensors start aligned
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(header_bytes)) + header_bytes)
        for name, (shape, read_tensor) in tensors.items():
            value = read_tensor()
            assert value.shape == shape, f"{name}: {value.shape}, expected {shape}"
            np.ascontiguousarray(value, dtype=DTYPES[dtype]).tofile(f)
        f.flush()
        os.fsync(f.fileno())
