"""Which files of a checkpoint a process needs, where processes share no folder.

An array is then a folder with its header, `.zarray`, and a file for each shard as it was saved
(train/checkpoint.py, `_handlers_of_parts`; the format is Zarr's, version 2). A process fetches the
files of which its devices need some part, under whatever mesh they were saved.
"""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import jax

from isojax.core.atomic_files import read_file

HEADER = ".zarray"


def fetch_shards(
    fetch: Callable[[Path, Callable[[str], bool]], None], item: Path, template: Any
) -> None:
    """Bring what this process needs of the arrays of an item of a checkpoint.

    fetch: as `RemoteCheckpoints.fetch`. item: the item's folder, checkpoint/M/state or
    checkpoint/M/pending. template: the arrays to read, a tree of arrays or of ShapeDtypeStructs
    with shardings.
    """
    fetch(item, lambda name: Path(name).name == HEADER)
    needed = shard_files(item, template)
    fetch(item, lambda name: needed is None or name in needed)


def shard_files(item: Path, template: Any) -> set[str] | None:
    """The files that hold what this process's devices need of the arrays, such as
    {"params.embed/0.0", "params.embed/0.1"}: relative to `item`, and without headers.

    Arguments as of `fetch_shards`. None where some array has no header that can be read: then all
    files are needed. Such are checkpoints in Orbax's usual format, and damaged ones.
    """
    needed: set[str] = set()
    for path, x in jax.tree_util.tree_leaves_with_path(template):
        name = ".".join(_key_text(key) for key in path)  # as Orbax names the array's folder
        try:
            chunk_shape = json.loads(read_file(item / name / HEADER))["chunks"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        for index in x.sharding.addressable_devices_indices_map(x.shape).values():
            needed |= {f"{name}/{chunk}" for chunk in _chunk_names(index, x.shape, chunk_shape)}
    return needed


def _chunk_names(index: tuple[slice, ...], shape: tuple[int, ...], chunk_shape: list[int]) -> list:
    """The names of the chunks that overlap a part of an array, such as ["0.2", "0.3"].

    index: a slice for each axis of `shape`. A chunk's name is its number along each axis; that of
    an array without axes is "0".
    """
    chunks_by_axis = []
    for part, size, chunk_size in zip(index, shape, chunk_shape, strict=True):
        start, stop, _ = part.indices(size)
        chunks_by_axis.append(range(start // chunk_size, -(-stop // chunk_size)))
    return [".".join(map(str, numbers)) or "0" for numbers in product(*chunks_by_axis)]


def _key_text(key: Any) -> str:
    """A key of a tree's path as a text: of a dict, of a NamedTuple, or an index of a sequence."""
    if isinstance(key, jax.tree_util.DictKey):
        return str(key.key)
    if isinstance(key, jax.tree_util.GetAttrKey):
        return key.name
    return str(key.idx)
