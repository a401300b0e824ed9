"""Memory of a device for long prompts, by the number of devices that split their positions. One
JSON line for each mesh; nothing is executed.

    python benchmarks/long_prompts.py [--topology v5e:2x2] [--meshes "sequence=1 sequence=2
    sequence=4"] [--prompt 4096] [--response 64]

The sampler and the gradient of SmolLM2-135M's shape (`--layers` cuts it short) are compiled for
this machine's devices, or for the chips of a TPU topology. `sampler`, `gradient`: temporaries by
XLA's memory analysis, the caches among the sampler's. `prefix`: keys and values of prompts, in the
queue's table and in the slots' caches, as they are sharded. bfloat16 on a TPU, float32 on a CPU;
one prompt at a time, 16 slots that share a prefix, `remat=layer`.
"""

import argparse
import json
import math
import os
import time
from typing import Any

os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count=4 {os.environ.get('XLA_FLAGS', '')}"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no metadata server to ask
# no chip is opened, so another process may do the same
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from isojax.core.config import RLConfig, SamplingConfig, load_config
from isojax.core.shapes import SamplerShapes
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import ROLLOUT_AXES, make_mesh, replicated, shard_count
from isojax.models.transformer import ComputeOptions, Decoder
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.engine import build_engine, build_sampler
from isojax.sampling.stream import sampler_state_shardings
from isojax.tasks.protocol import StopConditions

CELL, SLOTS, MICROBATCH = (4, 16), 16, 4
STOPS = StopConditions((0,), None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology")
    parser.add_argument(
        "--meshes", default="sequence=1 sequence=2 sequence=4", help="separated by blanks"
    )
    for name, default in (("prompt", 4096), ("response", 64), ("layers", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()

    model = load_config("models/smollm2-135m", []).cell.model.model_copy(
        update={"layers": args.layers}
    )
    assert model.vocab is not None
    dtype = "bfloat16" if args.topology else "float32"
    decoder = Decoder(model).with_options(ComputeOptions(dtype, dtype, remat="layer"))
    for text in args.meshes.split():
        mesh = make_mesh(parse_mesh(text, 4), chips(args.topology))
        start = time.perf_counter()
        sizes = shard_count(mesh), SLOTS, MICROBATCH, args.prompt, args.response
        sampler_shapes = SamplerShapes([CELL], *sizes, prefill_batch=1, slots_per_prefix=SLOTS)
        result = {
            "sampler": sampler(decoder, sampler_shapes, mesh),
            "gradient": gradient(decoder, sampler_shapes, mesh),
        }
        result = {
            "mesh": text,
            **result,
            "prefix": prefix(decoder, sampler_shapes, mesh),
            "seconds": round(time.perf_counter() - start),
        }
        print(json.dumps(result), flush=True)


def chips(topology: str | None) -> list[Any]:
    """The devices of a topology, or those here."""
    if topology is None:
        return jax.devices()
    from jax.experimental.topologies import get_topology_desc

    return list(get_topology_desc(platform="tpu", topology_name=topology).devices)


def whole(mesh: Mesh, *shape: int, dtype: Any = jnp.int32) -> Any:
    """The shape of an array that every device holds."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=replicated(mesh))


def given(decoder: Decoder, sampler_shapes: SamplerShapes, mesh: Mesh) -> tuple[Any, ProblemArrays]:
    """Shapes of parameters and problems."""
    params = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        decoder.shapes(),
        decoder.shardings(mesh),
    )
    rows = sampler_shapes.problem_rows
    shapes = (
        (rows, sampler_shapes.prompt_length),
        (rows,),
        (rows, sampler_shapes.response_length),
        (rows,),
    )
    return params, ProblemArrays(*(whole(mesh, *shape) for shape in shapes))


def temporaries(function: Any, *arguments: Any) -> int:
    """Bytes of a jitted function's temporaries."""
    return function.lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def sampler(decoder: Decoder, sampler_shapes: SamplerShapes, mesh: Mesh) -> int:
    """Of a whole batch's sampling."""
    sample = build_sampler(decoder, sampler_shapes, mesh, sampling(sampler_shapes), STOPS)
    key = whole(mesh, dtype=jax.eval_shape(lambda: jax.random.key(0)).dtype)
    return temporaries(
        jax.jit(sample), *given(decoder, sampler_shapes, mesh), whole(mesh), whole(mesh), key
    )


def gradient(decoder: Decoder, sampler_shapes: SamplerShapes, mesh: Mesh) -> int:
    """Of an update's gradient, without a KL term."""
    rl, T = RLConfig(kl=0.0), sampler_shapes.response_length
    objective = PolicyObjective(decoder, rl, sampling(sampler_shapes), mesh.shape["tensor"] > 1)
    function = build_gradient(
        objective, sampler_shapes, mesh, decoder.logical_axes(), decoder.shapes()
    )
    over = NamedSharding(mesh, PartitionSpec(ROLLOUT_AXES))

    def rows(*more: int, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct(
            (sampler_shapes.shards, sampler_shapes.buffer_rows, *more), dtype, sharding=over
        )

    specific = PolicyInputs(rows(T), rows(1), LossWeights(rows(), rows(), rows(), rows()))
    responses = ResponseBatch(rows(T, dtype=jnp.int32), rows(T, dtype=jnp.bool_), specific)
    params, problems = given(decoder, sampler_shapes, mesh)
    coefficients = jax.tree.map(lambda x: whole(mesh, dtype=x.dtype), make_coefficients(rl))
    jitted = jax.jit(function, out_shardings=(decoder.shardings(mesh), None))
    return temporaries(
        jitted,
        UpdateInputs(params, {}, problems, coefficients),
        responses,
        whole(mesh),
        whole(mesh),
    )


def prefix(decoder: Decoder, sampler_shapes: SamplerShapes, mesh: Mesh) -> int:
    """Bytes of the sampler's keys and values of prompts, in the table and in the slots' caches."""
    engine = build_engine(decoder, sampler_shapes, mesh, sampling(sampler_shapes), STOPS)
    cache, table = jax.eval_shape(
        lambda: (
            engine.decoding.empty_cache(),
            engine.decoding.empty_prefix_table(sampler_shapes.prefix_entries),
        )
    )
    shardings = sampler_state_shardings(engine, mesh)
    arrays = zip(
        jax.tree.leaves((cache.prefix_kv, table)),
        jax.tree.leaves((shardings.cache.prefix_kv, shardings.table)),
        strict=True,
    )
    return sum(
        math.prod(s.shard_shape((sampler_shapes.shards, *x.shape))) * np.dtype(x.dtype).itemsize
        for x, s in arrays
    )


def sampling(sampler_shapes: SamplerShapes) -> SamplingConfig:
    """Lengths alone."""
    return SamplingConfig(
        prompt_length=sampler_shapes.prompt_length, response_length=sampler_shapes.response_length
    )


if __name__ == "__main__":
    main()
