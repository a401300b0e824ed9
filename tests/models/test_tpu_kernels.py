"""The kernels of attention and experts compiled ahead of time for the four chips of a v5e:2x2, at
the shapes of published models.

`python tests/models/test_tpu_kernels.py [MODEL ...]` prints what each takes. The test runs it in a
process of its own, because libtpu stays with the process that loaded it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.libtpu import needs_libtpu

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = {  # mesh, heads of queries, of keys and values, their size
    "smollm2-135m": ("data=4", 9, 3, 64),
    "qwen2.5-0.5b": ("data=2,tensor=2", 14, 2, 64),
    "llama-3.1-8b": ("data=2,tensor=2", 32, 8, 128),
}
# width, hidden values, experts
MIXTURES = {"qwen3-30b-a3b": (2048, 768, 128), "mixtral-8x7b": (4096, 14336, 8)}
# of a device: a GiB of cache and more, far above the 128 MiB of VMEM
LAYERS = 16
SLOTS = 256
POSITIONS = 1024


def decode(mesh: Any, N: int, K: int, H: int, kind: str) -> dict[str, Any]:
    """A loop over tokens and layers, its cache in the carry, as the sampler has it."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from isojax.distributed.sharding import ROLLOUT_AXES, shard_count
    from isojax.models.cache_attention import (
        SlotPositions,
        decode_attention,
        live_blocks,
        position_axes,
    )
    from tests.distributed.test_tpu import compile_ahead

    R = SLOTS
    slot = (H, POSITIONS) if position_axes("pallas", H)[0] == -1 else (POSITIONS, H)
    shapes = [((LAYERS, R, K, *slot), kind)] * 2
    shapes += [((LAYERS, R, K, POSITIONS), "float32")] * 2 if kind == "int8" else []

    def shard(q: Any, k: Any, v: Any, positions: Any) -> Any:
        cache = tuple(jnp.zeros(shape, dtype) for shape, dtype in shapes)

        def token(state: tuple) -> tuple:
            def layer(carry: tuple, i: Any) -> tuple:
                q, cache, at = carry
                out, cache = decode_attention(
                    "pallas", q, k * q.mean(), v, cache, i, SlotPositions(at, at), live
                )
                return (out, cache, at), None

            i, q, cache, at = state
            live = live_blocks("pallas", at, cache, H)
            (q, cache, _), _ = lax.scan(layer, (q, cache, at), jnp.arange(LAYERS))
            return i + 1, q, cache, at + 1

        return lax.while_loop(lambda s: s[0] < 8, token, (jnp.int32(0), q, cache, positions))[1]

    rows = P(ROLLOUT_AXES)
    step = jax.jit(
        jax.shard_map(
            shard,
            mesh=mesh,
            in_specs=(rows,) * 4,
            out_specs=rows,
            axis_names=set(ROLLOUT_AXES),
            check_vma=False,
        )
    )
    S = R * shard_count(mesh)
    heads = NamedSharding(mesh, P(ROLLOUT_AXES, "tensor"))
    arrays = [jax.ShapeDtypeStruct((S, n, H), jnp.bfloat16, sharding=heads) for n in (N, K, K)]
    used = compile_ahead(
        step, *arrays, jax.ShapeDtypeStruct((S,), jnp.int32, sharding=NamedSharding(mesh, rows))
    )
    cache = sum(jnp.dtype(dtype).itemsize * math.prod(shape) for shape, dtype in shapes)
    return {**used, "cache": cache // mesh.shape["tensor"]}


def train(mesh: Any, N: int, K: int, H: int) -> dict[str, Any]:
    """Attention of 4 responses of 300 tokens, each with a prefix of up to 200, and its
    gradients."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from isojax.distributed.sharding import ROLLOUT_AXES, shard_count
    from isojax.models.attention import self_attention
    from isojax.models.kernels.prefix import PrefixKV
    from tests.distributed.test_tpu import compile_ahead

    def shard(live: Any, *arrays: Any) -> Any:
        def total(q: Any, k: Any, v: Any, *prefix: Any) -> Any:
            out = self_attention("pallas", q, k, v, PrefixKV(*prefix, live))
            return out.astype(jnp.float32).sum()

        return jax.grad(total, range(5))(*arrays)

    rows = P(ROLLOUT_AXES)
    step = jax.jit(
        jax.shard_map(
            shard,
            mesh=mesh,
            in_specs=(rows,) * 6,
            out_specs=rows,
            axis_names=set(ROLLOUT_AXES),
            check_vma=False,
        )
    )
    b = 4 * shard_count(mesh)
    shapes = [
        ((b, 300, N, H), P(ROLLOUT_AXES, None, "tensor")),
        *[((b, K, c, H), P(ROLLOUT_AXES, "tensor")) for c in (300, 300, 200, 200)],
    ]
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in shapes
    ]
    return compile_ahead(
        step, jax.ShapeDtypeStruct((b,), jnp.int32, sharding=NamedSharding(mesh, rows)), *arrays
    )


def experts(mesh: Any, D: int, F: int, E: int) -> dict[str, Any]:
    """A loop over layers whose experts stay in their stack, as the sampler has them."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from isojax.models.kernels.tpu_experts import multiply_by_all_experts
    from tests.distributed.test_tpu import compile_ahead

    L, R = 4, 128

    def shard(rows: Any, by_expert: Any, *matrices: Any) -> Any:
        def layer(x: Any, i: Any) -> tuple:
            return x + multiply_by_all_experts(x, by_expert, matrices, i), None

        return lax.scan(layer, rows, jnp.arange(L))[0]

    split, whole = P(None, "tensor"), P()
    in_specs = (whole, split, split, split, split)
    step = jax.jit(
        jax.shard_map(shard, mesh=mesh, in_specs=in_specs, out_specs=whole, check_vma=False)
    )
    shapes = [(R, D), (R, E), (L, E, D, F), (L, E, D, F), (L, E, F, D)]
    arrays = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, in_specs, strict=True)
    ]
    return {
        **compile_ahead(step, *arrays),
        "matrices": 3 * L * E * D * F * 2 // mesh.shape["tensor"],
    }


def programs(names: Sequence[str]) -> dict[str, Any]:
    from tests.distributed.test_tpu import tpu_mesh

    result: dict[str, Any] = {}
    for name in names:
        if name in MIXTURES:
            result[name] = experts(tpu_mesh("v5e:2x2", "tensor=4"), *MIXTURES[name])
            continue

        text, N, K, H = MODELS[name]
        mesh = tpu_mesh("v5e:2x2", text)
        by_kind = {kind: decode(mesh, N, K, H, kind) for kind in ("bfloat16", "int8")}
        result[name] = by_kind | {"train": train(mesh, N, K, H)}
    return result


@needs_libtpu
@pytest.mark.parametrize(
    "names",
    [
        ("qwen2.5-0.5b", "qwen3-30b-a3b"),
        pytest.param(("smollm2-135m", "llama-3.1-8b", "mixtral-8x7b"), marks=pytest.mark.nightly),
    ],
    ids=" ".join,
)
def test_the_kernels_compile_for_a_tpu(names: tuple[str, ...]) -> None:
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, __file__, *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert tuple(result) == names
    for name, used in result.items():
        if name in MIXTURES:
            # no layer's are copied
            assert used["peak"] < 1.03 * used["matrices"], used
            continue
        for kind in ("bfloat16", "int8"):
            assert used[kind]["peak"] < 1.03 * used[kind]["cache"], (
                name,
                kind,
                used[kind],
            )  # the cache once, no copy of it
            assert all(size == 1 for _, size, _ in used[kind]["collectives"]), (
                name,
                kind,
                used[kind],
            )  # the mean of this loop's queries
        assert not used["train"]["collectives"], (name, used["train"])


if __name__ == "__main__":
    print(json.dumps(programs(sys.argv[1:] or [*MODELS, *MIXTURES])))
