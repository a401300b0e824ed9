"""Tensors in files: what a folder of safetensors holds, parts of it read by byte ranges, and new files written tensor by tensor. No jax.

The format (github.com/huggingface/safetensors): 8 bytes little-endian length, a JSON header of that length with dtype, shape and byte
offsets of each tensor, then the tensors row by row. The library maps whole files into memory, or takes all of a file's tensors at once;
here neither more than a block of rows nor more than one tensor is ever held. Pickles (*.bin, *.pt) are never opened.
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

from isojax.types import InputError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES: Mapping[str, np.dtype] = {"F32": np.dtype(np.float32), "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16)}
NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
BLOCK = 4 << 20  # bytes read at once
SAMPLES = 64


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its dtype as the header names it, its shape, and the bytes [start, end) of the file that hold it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def blocks(self, first: int, last: int) -> Iterator[tuple[int, np.ndarray]]:
        """(number of its first row, [rows, columns] as stored) for rows first .. last - 1, a few at a time.

        A vector of n entries has n rows of one column. Raises InputError where the file ends too early.
        """
        rows, dtype = max(self.shape[0], 1), DTYPES[self.dtype]
        width = (self.end - self.start) // rows
        step = max(1, BLOCK // max(width, 1))
        with self.file.open("rb") as f:
            for row in range(first, last, step):
                count = min(step, last - row)
                f.seek(self.start + row * width)
                data = f.read(count * width)
                if len(data) != count * width:
                    raise InputError(f"{self.file}: ends at byte {f.tell()}, inside a tensor; expected {self.end} bytes. Copy it anew.")
                yield row, np.frombuffer(data, dtype).reshape(count, -1)

    def whole(self) -> np.ndarray:
        """All of it, as stored."""
        return np.concatenate([block for _, block in self.blocks(0, self.shape[0])]).reshape(self.shape)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; InputError with the line where it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as e:
        raise InputError(f"{path}, line {e.lineno}: not JSON ({e.msg}). Copy the file anew, or mend that line.") from e
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"cannot read {path}: {e}. Expected a JSON file.") from e
    if not isinstance(found, dict):
        raise InputError(f"{path}: given a {type(found).__name__} at the top, expected a JSON object.")
    return found


def read_header(file: Path) -> dict[str, Stored]:
    """What one safetensors file holds, by name; InputError where it is damaged."""
    try:
        size = file.stat().st_size
        with file.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8))
            if length > size - 8:
                raise ValueError(f"its header should be {length} bytes, the file has {size}")
            header = json.loads(f.read(length))
        header.pop("__metadata__", None)
        found = {}
        for name, entry in header.items():
            start, end = (8 + length + int(x) for x in entry["data_offsets"])
            found[name] = Stored(file, str(entry["dtype"]), tuple(int(n) for n in entry["shape"]), start, end)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error) as e:
        raise InputError(f"{file}: not a whole safetensors file ({e}). Copy it anew.") from e
    for name, stored in found.items():
        width = DTYPES[stored.dtype].itemsize if stored.dtype in DTYPES else None
        if stored.end > size or (width and stored.end - stored.start != width * int(np.prod(stored.shape, dtype=np.int64))):
            raise InputError(
                f"{file}: {name} should lie in bytes {stored.start} to {stored.end} with shape {list(stored.shape)}; the file has {size} "
                "bytes. It is cut off or damaged; copy it anew."
            )
    return found


def files(folder: Path) -> list[Path]:
    """The safetensors files of a model's folder: model.safetensors, or those its index names, or all there are.

    Raises:
        InputError: the folder or a file that the index names is missing, or there are only pickles.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; expected a model's folder with config.json, *.safetensors and a tokenizer.")
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        names = read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise InputError(f"{folder / INDEX}: has no weight_map; expected tensor names and the file of each. Copy it anew.")
        found = [folder / Path(str(name)).name for name in sorted(set(names.values()))]
        if missing := [path.name for path in found if not path.is_file()]:
            raise InputError(f"{folder}: {INDEX} names {', '.join(missing)}, which is not there. Copy the missing files into the folder.")
        return found
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in folder.glob(pattern))
        mend = "Get the *.safetensors of the same model, or convert it with transformers: model.save_pretrained(FOLDER)."
        given = f"it has {', '.join(pickles[:3])}, and pickles can run code, so only safetensors are read" if pickles else "it has none"
        raise InputError(f"{folder}: expected {SINGLE} or {INDEX} with its files; {given}. {mend}")
    return found


def contents(folder: Path) -> dict[str, Stored]:
    """Every tensor of a model's folder, by name."""
    return {name: stored for file in files(folder) for name, stored in read_header(file).items()}


def fingerprint(folder: Path) -> str:
    """12 hex digits that tell whether a checkpoint was exchanged: of config.json and each weight file's name, size, header and a sample.

    The sample is SAMPLES blocks of 4 KiB, evenly spaced: another training run's file has the same header, but not the same weights.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in files(folder):
        size = file.stat().st_size
        with file.open("rb") as f:
            (length,) = struct.unpack("<Q", f.read(8).ljust(8, b"\0"))
            digest.update(f"{file.name} {size} ".encode() + f.read(min(length, size)))
            for i in range(SAMPLES):
                f.seek(size * i // SAMPLES)
                digest.update(f.read(4096))
    return digest.hexdigest()[:12]


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name when all is in it: another process, or a kill, sees it whole or not at all.

    Raises:
        InputError: it is there already, or cannot be written.
    """
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder} is there already, and nothing is overwritten; choose another name, or remove it first.")
    folder = folder.absolute()
    temp = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temp.mkdir(parents=True)
        yield temp
        temp.rename(folder)
    except OSError as e:
        raise InputError(f"cannot write {folder}: {e.strerror or e}. Choose a place that you may write, with room for it.") from e
    finally:
        shutil.rmtree(temp, ignore_errors=True)


Tensors = Mapping[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]]  # name -> its shape, and how to get it in float32


def write(folder: Path, tensors: Tensors, dtype: str, max_shard_bytes: float) -> None:
    """Write model*.safetensors (with an index where there are several), getting one tensor at a time.

    dtype: float32, bfloat16 or float16. A file holds at most `max_shard_bytes`, or one tensor that is larger.
    """
    width = DTYPES[NAMES[dtype]].itemsize
    sizes = {name: width * int(np.prod(shape, dtype=np.int64)) for name, (shape, _) in tensors.items()}
    shards: list[list[str]] = [[]]
    for name in tensors:
        if shards[-1] and sum(sizes[n] for n in shards[-1]) + sizes[name] > max_shard_bytes:
            shards.append([])
        shards[-1].append(name)
    many = len(shards) > 1
    place = {i: f"model-{i + 1:05}-of-{len(shards):05}.safetensors" if many else SINGLE for i in range(len(shards))}
    for i, names in enumerate(shards):
        _write_file(folder / place[i], {name: tensors[name] for name in names}, NAMES[dtype])
    if many:
        where = {name: place[i] for i, names in enumerate(shards) for name in names}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(where.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_file(path: Path, tensors: Tensors, dtype: str) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file that does not say so
    end = 0
    for name, (shape, _) in tensors.items():
        start, end = end, end + DTYPES[dtype].itemsize * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors start aligned
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, (shape, get) in tensors.items():
            value = get()
            assert value.shape == shape, f"{name}: {value.shape}, expected {shape}"
            np.ascontiguousarray(value, dtype=DTYPES[dtype]).tofile(f)
        f.flush()
        os.fsync(f.fileno())
