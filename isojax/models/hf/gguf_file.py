"""A GGUF file, llama.cpp's format of models: metadata and tensors, of whatever types gguf's
`dequantize` reads."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from isojax.core.errors import InputError


@dataclass(frozen=True)
class GGUFFile:
    metadata: Mapping[str, Any]
    tensors: Mapping[str, gguf.ReaderTensor]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    @property
    def settings(self) -> dict[str, Any]:
        """The architecture's metadata, without its name before the keys: "block_count"."""
        prefix = f"{self.architecture}."
        settings = {}
        for key, value in self.metadata.items():
            if key.startswith(prefix):
                settings[key.removeprefix(prefix)] = readable_float(value)
        return settings

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape as a checkpoint has it; GGUF names axes from the innermost."""
        return tuple(int(size) for size in self.tensors[name].shape[::-1])

    def read(self, name: str) -> np.ndarray:
        """Return a tensor in float32; InputError where gguf cannot dequantise its type."""
        tensor = self.tensors[name]
        try:
            return dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        except NotImplementedError as e:
            held = f"{name} is stored as {tensor.tensor_type.name}"
            raise InputError(
                found=f"{held}, which the package gguf cannot dequantise",
                fix=(
                    "Take a file of F16, Q8_0 or Q4_K_M, or the model's own folder: "
                    "isojax model import ORG/NAME."
                ),
            ) from e


def readable_float(value: Any) -> Any:
    """A float32 as the decimal number that it was written as: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def open_gguf(path: Path) -> GGUFFile:
    """Return a file's metadata and tensors, read as they are needed; InputError if damaged."""
    try:
        reader = gguf.GGUFReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as e:
        raise InputError(
            where=path,
            found=f"no whole GGUF file ({e})",
            fix="Copy it again.",
        ) from e
    return GGUFFile(metadata, {tensor.name: tensor for tensor in reader.tensors})


def sha256_of(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
