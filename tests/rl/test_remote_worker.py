"""The weights that processes which train send to those which only sample; the runs are in tests/e2e/test_hosts.py."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.sharding import make_mesh
from isojax.rl.async_rl.remote_worker import place_weights, weight_parts
from tests.device import DECODER, policy


@pytest.mark.parametrize(
    ("trainer", "sampler"),
    [(MeshShape(fsdp=2, tensor=2), MeshShape(data=4)), (MeshShape(data=4), MeshShape(fsdp=2, tensor=2))],
)
def test_weights_arrive_whole(trainer: MeshShape, sampler: MeshShape) -> None:
    """Each part is sent once, however many devices have it; only what the sampler's devices need is filled."""
    devices = jax.devices()
    shardings = DECODER.shardings(make_mesh(sampler, devices[4:]))
    params = jax.device_put(policy(), DECODER.shardings(make_mesh(trainer, devices)))
    parts = weight_parts(params, shardings, process=0)
    assert sum(x.size for _, _, x in parts) == sum(x.size for x in jax.tree.leaves(params))
    placed = place_weights(parts, params, shardings)
    jax.tree.map(np.testing.assert_array_equal, placed, params)
    assert jax.tree.map(lambda x: x.sharding, placed) == shardings
    assert not weight_parts(params, shardings, process=1)  # it has none of the sampler's devices
