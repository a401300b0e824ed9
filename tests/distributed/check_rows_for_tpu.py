"""Compiles the keys that responses continue, and their gradient, for a v6e:4x4 whose mesh splits
four heads over `tensor` alone, and sixteen responses over `tensor` and `expert`."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh, map_over_shards, shape_on, take_rows
from isojax.launch.local.compile_for_topology import topology_devices

if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    devices = topology_devices("v6e:4x4")
    mesh = make_mesh(parse_mesh("fsdp=2,tensor=4,expert=2", 16), devices)
    whole = PartitionSpec()

    def weighted_sum(keys: jax.Array, index: jax.Array) -> jax.Array:
        taken = take_rows(keys, index, (None, "kv_heads", None, None))
        by_response = jax.lax.with_sharding_constraint(
            taken.sum((1, 2, 3)), PartitionSpec(("tensor", "expert"))
        )
        return (by_response * index).sum()

    function: Any = map_over_shards(jax.value_and_grad(weighted_sum), mesh, (whole, whole), whole)
    on_all = NamedSharding(mesh, whole)
    inputs = shape_on(on_all, (16, 4, 64, 128), jnp.float32), shape_on(on_all, (16,))
    print(jax.jit(function).lower(*inputs).compile().as_text())
