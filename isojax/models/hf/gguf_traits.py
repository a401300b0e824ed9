"""How llama.cpp's files (GGUF) hold a family's models: what its file states, and reading and
writing go by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from isojax.core.config import ModelConfig


def no_keys(_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class GGUFTraits:
    architecture: str  # `general.architecture`, with which the names of its metadata begin
    # Whether rotated pairs of a head are adjacent rows of queries and keys there: llama.cpp turns
    # round what it runs by its first kind of rotation. A checkpoint has them in the two halves of a
    # head.
    adjacent_pairs: bool = False
    # what llama.cpp adds to a checkpoint's scales of norms: 1 where the scale is 1 + w
    norm_offset: float = 0.0
    # Metadata without the architecture's prefix -> keys of config.json that other families do not
    # have.
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = no_keys
    # The same back; InputError for what llama.cpp does not compute.
    write: Callable[[ModelConfig], dict[str, Any]] = no_keys
