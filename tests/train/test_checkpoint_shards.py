"""The files of arrays that a process needs, by the shardings of its devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from isojax.train.checkpoint_shards import fetch_shards, shard_files


class Moments(NamedTuple):
    mu: dict[str, jax.ShapeDtypeStruct]


class PartOfAnArray(NamedTuple):
    """As an array of which this process has two devices, with these parts."""

    shape: tuple[int, ...]
    parts: tuple[tuple[slice, ...], ...]

    @property
    def sharding(self) -> PartOfAnArray:
        return self

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict[int, Any]:
        return dict(enumerate(self.parts))


def header(item: Path, name: str, chunks: list[int]) -> None:
    (item / name).mkdir(parents=True)
    (item / name / ".zarray").write_text(json.dumps({"chunks": chunks}))


def test_chunks_that_overlap_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved in chunks of 2 x 6 of an array 8 x 12. Rows 3 and 4 are in the chunks 1 and 2, row 5 in
    chunk 2, and the columns from 6 on in chunk 1."""
    header(tmp_path, "w", [2, 6])
    columns = slice(6, None)
    part = PartOfAnArray((8, 12), ((slice(3, 5), columns), (slice(5, 6), columns)))
    leaves = [((jax.tree_util.DictKey("w"),), part)]
    monkeypatch.setattr(jax.tree_util, "tree_leaves_with_path", lambda tree: leaves)
    assert shard_files(tmp_path, {}) == {"w/1.1", "w/2.1"}


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_devices_of_this_process(tmp_path: Path, axis: str) -> None:
    """Eight devices, all of this process: every chunk is needed once, whatever the mesh."""
    header(tmp_path, "params.w", [2, 3])
    header(tmp_path, "moments.mu.w", [8, 12])
    header(tmp_path, "step", [])
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    spec = PartitionSpec("x") if axis == "rows" else PartitionSpec(None, "x")
    w = jax.ShapeDtypeStruct((8, 12), np.float32, sharding=NamedSharding(mesh, spec))
    step = jax.ShapeDtypeStruct((), np.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    template = {"params": {"w": w}, "moments": Moments({"w": w}), "step": step}
    expected = {f"params.w/{i}.{j}" for i in range(4) for j in range(4)}
    assert shard_files(tmp_path, template) == expected | {"moments.mu.w/0.0", "step/0"}

    fetched: list[str] = []
    names = ["_METADATA", "params.w/.zarray", "params.w/0.0", "params.w/9.9", "other/0.0"]

    def fetch(folder: Path, is_wanted: Any) -> None:
        fetched.extend(name for name in names if is_wanted(name))

    fetch_shards(fetch, tmp_path, template)
    assert fetched == ["params.w/.zarray", "params.w/0.0"]

    # a checkpoint in another format, or with a damaged header: all
    (tmp_path / "step" / ".zarray").write_text("{")
    assert shard_files(tmp_path, template) is None
