"""What cells of a sweep share of a machine's devices, and what a TPU must not read back."""

from collections.abc import Iterator

import jax
import pytest

from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.local.cell_devices import CellDevices, avoid_unsafe_cache


@pytest.fixture(autouse=True)
def cache_setting() -> Iterator[None]:
    before = jax.config.values["jax_enable_compilation_cache"]
    yield
    jax.config.update("jax_enable_compilation_cache", before)


def keeps_programs(cell_devices: CellDevices) -> bool:
    jax.config.update("jax_enable_compilation_cache", True)
    avoid_unsafe_cache(cell_devices)
    return jax.config.values["jax_enable_compilation_cache"]


ONE_MESH = CellDevices(MeshShape(data=4), None, devices=list(range(4)))
TWO_CELLS = CellDevices(MeshShape(data=2), None, devices=list(range(4)), concurrent_cells=2)
OWN_SAMPLER = CellDevices(MeshShape(data=2), MeshShape(data=2), devices=list(range(4)))


def test_a_tpu_keeps_programs_of_meshes_with_the_first_chip_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert keeps_programs(ONE_MESH)
    assert capsys.readouterr().err == ""

    assert not keeps_programs(TWO_CELLS)
    assert not keeps_programs(OWN_SAMPLER)
    assert "jax issue 38004" in capsys.readouterr().err


def test_other_devices_keep_all_programs() -> None:
    assert keeps_programs(TWO_CELLS)
    assert keeps_programs(OWN_SAMPLER)
