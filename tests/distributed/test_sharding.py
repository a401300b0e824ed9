"""Meshes as people write them, and where arrays lie by the table."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from isojax.distributed import sharding
from isojax.distributed.mesh_spec import MeshShape, axes_that_split, parse_mesh
from isojax.distributed.sharding import (
    copy_to_mesh,
    copyable_sharding,
    make_mesh,
    manual_spec,
    padded_positions,
    partition_spec,
    shard_count,
    take_rows,
)
from isojax.rl.optimizer import ADAM, build_init_state
from tests.device import CONFIG, DECODER, MESHES, VOCAB, mesh, placed, policy
from tests.refusals import refused

L = CONFIG.layers
D = CONFIG.width
N = CONFIG.heads
K = CONFIG.kv_heads
H = CONFIG.head_dim
F = CONFIG.mlp


@pytest.mark.parametrize(
    ("text", "shape", "shards"),
    [
        ("auto", (1, 1, 1, 1, 1), 1),
        ("data=2,tensor=1", (2, 1, 1, 1, 1), 2),
        ("tensor=2,data=2,fsdp=2", (2, 2, 1, 2, 1), 4),
        (" data=4 , tensor=2", (4, 1, 1, 2, 1), 4),
        ("data=-1,tensor=2", (4, 1, 1, 2, 1), 4),
        ("fsdp=-1", (1, 8, 1, 1, 1), 8),
        ("data=2,sequence=2,tensor=2", (2, 1, 2, 2, 1), 2),
        ("sequence=-1,fsdp=2", (1, 2, 4, 1, 1), 2),
        ("expert=2,fsdp=2,tensor=2", (1, 2, 1, 2, 2), 2),
        ("data=2,expert=-1", (2, 1, 1, 1, 4), 2),
    ],
)
def test_meshes_by_hand(text: str, shape: tuple[int, int, int, int, int], shards: int) -> None:
    parsed = parse_mesh(text, 8)
    assert parsed == MeshShape(*shape)
    assert (parsed.devices, parsed.shards) == (np.prod(shape), shards)
    made = make_mesh(parsed, jax.devices())
    assert dict(made.shape) == dict(
        zip(("data", "fsdp", "sequence", "tensor", "expert"), shape, strict=True)
    )
    assert set(made.axis_types) == {AxisType.Auto}
    assert shard_count(made) == shards


@pytest.mark.parametrize(
    ("axis", "size", "parts", "axes"),
    [
        ("expert", 128, 8, ("tensor", "expert")),
        # 8 do not divide it, and tensor makes more parts than expert
        ("kv_heads", 4, 4, ("tensor",)),
        ("heads", 6, 2, ("expert",)),
        ("mlp", 7, 1, ()),
        ("embed", 16, 1, ()),  # over fsdp, which this mesh has not
    ],
)
def test_the_mesh_axes_that_make_most_parts(
    axis: str, size: int, parts: int, axes: tuple[str, ...]
) -> None:
    shape = MeshShape(tensor=4, expert=2)
    assert axes_that_split(axis, size, shape.sizes) == axes
    assert shape.split("tensor", "expert").size(((axis, size),)) == size // parts
    assert "expert" not in axes_that_split(axis, size, shape.sizes, used=("expert",))


@pytest.mark.parametrize(
    "text",
    [
        "model=2",
        "data=2,data=2",
        "data=0",
        "data=two",
        "data",
        "sequence=0",
        "sequence=2,tensor=2,sequence=2",
        "data=2,sequence=-1,tensor=-1",
        "data=4,sequence=4",
        "data=-1,fsdp=-1",
        "data=4,tensor=4",
        "data=-1,tensor=16",
    ],
)
def test_meshes_refused(text: str) -> None:
    with refused(where="mesh"):
        parse_mesh(text, 8)


def test_what_another_mesh_has_taken() -> None:
    assert (
        parse_mesh("data=-1", 8, devices_in_use=3) == MeshShape(data=5)
        and parse_mesh("auto", 8, devices_in_use=7) == MeshShape()
    )
    with refused(where="mesh"):
        parse_mesh("auto", 8, devices_in_use=8)


def test_the_table_by_hand() -> None:
    on = mesh(MESHES[1])
    assert partition_spec(
        ("layer", "embed", "heads", "head_dim"), (2, 32, 4, 8), on
    ) == PartitionSpec(None, "fsdp", "tensor", None)
    assert partition_spec(("vocab", "embed"), (24, 32), on) == PartitionSpec("tensor", "fsdp")
    assert partition_spec(("shard", "position"), (4, 7), on) == PartitionSpec(
        ("data", "fsdp"), None
    )
    # what does not divide stays whole: 3 heads, 31 wide
    assert partition_spec(
        ("layer", "embed", "heads", "head_dim"), (2, 31, 3, 8), on
    ) == PartitionSpec(None, None, None, None)
    # an axis of one device splits nothing
    assert partition_spec(("vocab", "embed"), (24, 32), mesh(MESHES[0])) == PartitionSpec(
        "tensor", None
    )
    # positions of prompts over sequence; those without elements stay whole
    on = mesh("data=2,sequence=4")
    assert partition_spec(("shard", "kv_heads", "position"), (2, 4, 8), on) == PartitionSpec(
        ("data", "fsdp"), None, "sequence"
    )
    assert partition_spec(("position", "position"), (7, 0), on) == PartitionSpec(None, None)
    assert [padded_positions(positions, on) for positions in (0, 1, 4, 5)] == [0, 4, 4, 8]
    assert [padded_positions(5, mesh(axes)) for axes in ("auto", "sequence=2", "sequence=8")] == [
        5,
        6,
        8,
    ]
    assert tuple(manual_spec(PartitionSpec(None, "fsdp", "tensor"))) in [
        (None, "fsdp", None),
        (None, ("fsdp",), None),
    ]


def device_bytes(tree: Any) -> set[int]:
    """Bytes on each device, of all leaves together."""
    total: dict[Any, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            total[shard.device] = total.get(shard.device, 0) + shard.data.nbytes
    assert len(total) == 8
    return set(total.values())


# Parameters that tensor splits (embeddings, heads, MLP), those with key/value heads among them, and
# norms, which only fsdp splits.
KV_WEIGHTS = 2 * L * D * K * H
SPLIT = 2 * VOCAB * D + 2 * L * D * N * H + 3 * L * D * F
NORMS = 2 * L * D + D


@pytest.mark.parametrize(
    ("axes", "numbers"),
    [
        (MESHES[0], (SPLIT + KV_WEIGHTS) // 2 + NORMS),
        (MESHES[1], (SPLIT + KV_WEIGHTS) // 4 + NORMS // 2),
        ("fsdp=8", (SPLIT + KV_WEIGHTS + NORMS) // 8),
        ("data=2,tensor=4", SPLIT // 4 + KV_WEIGHTS + NORMS),  # 4 does not divide 2 key/value heads
        ("data=8", SPLIT + KV_WEIGHTS + NORMS),
    ],
)
def test_bytes_of_parameters_and_moments(axes: str, numbers: int) -> None:
    params = placed(policy(), mesh(axes))
    assert device_bytes(params) == {4 * numbers}
    if axes in MESHES:
        state = build_init_state(DECODER, mesh(axes))(params)
        assert device_bytes(state.params) == {4 * numbers}
        assert device_bytes(state.moments) == {2 * 4 * numbers + 4}  # and one count
        assert jax.tree.leaves(state.moments.mu)[0].dtype == jnp.float32
        assert isinstance(state.moments, type(ADAM.init(policy())))


@pytest.mark.parametrize(
    ("source_axes", "target_axes", "expected"),
    [
        ("embed mlp", "embed mlp", PartitionSpec("fsdp", "tensor")),
        ("embed mlp", "none mlp", PartitionSpec(None, "tensor")),
        ("embed mlp", "mlp none", PartitionSpec()),
        ("none none", "embed none", PartitionSpec()),
    ],
)
def test_arrays_are_copied_within_a_process(
    source_axes: str, target_axes: str, expected: PartitionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each of several processes does, from four of its devices to four others."""
    monkeypatch.setattr(sharding, "is_multiprocess", lambda: True)
    source, target = (
        NamedSharding(
            make_mesh(MeshShape(fsdp=2, tensor=2), devices),
            PartitionSpec(*[{"embed": "fsdp", "mlp": "tensor"}.get(name) for name in axes.split()]),
        )
        for axes, devices in ((source_axes, jax.devices()[:4]), (target_axes, jax.devices()[4:]))
    )
    values = np.arange(32.0).reshape(4, 8)
    copyable = copyable_sharding(jax.ShapeDtypeStruct((4, 8), "float32"), source, target)
    assert copyable.mesh == source.mesh and copyable.spec == expected
    copied = copy_to_mesh(jax.device_put(values, copyable), target)
    assert copied.sharding == target and np.array_equal(copied, values)


@pytest.mark.parametrize(
    "axes", ["fsdp=2,tensor=2,expert=2", "fsdp=2,tensor=4", "data=4,expert=2", "auto"]
)
def test_rows_are_taken_of_each_devices_part(axes: str) -> None:
    """Rows 2, 0, 2 of [4 K=2 3 5], where 2 or 4 devices share the two heads, or not; and the
    gradient, to which each row that is taken twice gets both."""
    rows = np.arange(120, dtype=np.float32).reshape(4, 2, 3, 5)
    index, weights = np.array([2, 0, 2], np.int32), np.array([1, 10, 100], np.float32)

    def take(rows: jax.Array, index: jax.Array) -> Any:
        def weighted(rows: jax.Array) -> Any:
            taken = take_rows(rows, index, (None, "kv_heads", None, None))
            return (taken * weights[:, None, None, None]).sum(), taken

        return jax.grad(weighted, has_aux=True)(rows)

    whole = PartitionSpec()
    of_shards = sharding.map_over_shards(take, mesh(axes), (whole, whole), whole)
    gradient, taken = jax.jit(of_shards)(rows, index)
    np.testing.assert_array_equal(taken, rows[index])
    row_weights = np.array([10, 0, 101, 0])[:, None, None, None]
    np.testing.assert_array_equal(gradient, np.broadcast_to(row_weights, rows.shape))
