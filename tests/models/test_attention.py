"""Every kernel is the plain form, on odd sizes; the plain form is a loop in NumPy. Pallas kernels
run as array code (`interpret`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import shard_map
from jax.sharding import PartitionSpec as P

from isojax.models.attention import query_key_products, self_attention, weighted_values
from isojax.models.cache_attention import (
    SlotPositions,
    cache_positions,
    decode_attention,
    live_blocks,
    move_positions,
    position_axes,
    quantize,
    to_cache_dtype,
)
from isojax.models.cpu import MAX_TRANSPOSED_POSITIONS, small_head_products
from isojax.models.kernels import gpu_decode, tpu_cache_blocks, tpu_decode
from isojax.models.kernels.cudnn import cudnn_attention
from isojax.models.kernels.prefix import PrefixKV
from isojax.models.kv_ring import ring_positions
from tests.device import mesh, quick_jit
from tests.hlo import collectives

pytestmark = pytest.mark.seconds(25)


def draw(shape: tuple[int, ...], seed: int, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def float64(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def far(got: Any, want: Any) -> float:
    """Relative distance (L2)."""
    got, want = float64(got), float64(want)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def numpy_attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """One query [H] over keys and values [c H]."""
    s = keys @ q * len(q) ** -0.5
    w = np.exp(s - s.max())
    return w @ values / w.sum()


# Prompts and responses.

PREFIX_LIVE = np.array([0, 5, 3], np.int32)


def rows(
    b: int, t: int, p: int, N: int, K: int, H: int, dtype: Any = jnp.float32
) -> tuple[Any, ...]:
    q = draw((b, t, N, H), 1, dtype)
    k = draw((b, K, t, H), 2, dtype)
    v = draw((b, K, t, H), 3, dtype)
    return (q, k, v, draw((b, K, p, H), 4, dtype), draw((b, K, p, H), 5, dtype)) if p else (q, k, v)


def attended(attention: Any, *arrays: Any) -> Any:
    """With the first rows of PREFIX_LIVE, where there is a prefix."""
    live = (
        jnp.minimum(jnp.asarray(PREFIX_LIVE[: len(arrays[0])]), arrays[3].shape[2])
        if len(arrays) > 3
        else None
    )
    return attention(*arrays[:3], PrefixKV(*arrays[3:], live) if live is not None else None)


def with_gradients(attention: Any, arrays: tuple[Any, ...]) -> list[Any]:
    """Output and the gradients of an uneven sum of it."""

    def total(*arrays: Any) -> Any:
        out = attended(attention, *arrays)
        return (out.astype(jnp.float32) * draw(out.shape, 9)).sum(), out

    (_, out), gradients = quick_jit(
        jax.value_and_grad(total, tuple(range(len(arrays))), has_aux=True)
    )(*arrays)
    return [out, *gradients]


def test_plain_self_attention_is_a_loop() -> None:
    arrays = rows(3, 4, 5, 6, 2, 8)
    out = float64(quick_jit(partial(attended, partial(self_attention, "plain")))(*arrays))
    q, k, v, pk, pv = map(float64, arrays)
    for b, live in enumerate(PREFIX_LIVE):
        for i in range(4):
            for n in range(6):
                keys, values = (
                    np.concatenate([x[b, n // 3, :live], y[b, n // 3, : i + 1]])
                    for x, y in ((pk, k), (pv, v))
                )
                np.testing.assert_allclose(
                    out[b, i, n], numpy_attention(q[b, i, n], keys, values), rtol=2e-5, atol=1e-6
                )


def joined(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention without a mask of [b K q H] to [b K c H], as it is written on paper."""
    return (
        jax.nn.softmax(jnp.einsum("bkqh,bkch->bkqc", q, k).astype(jnp.float32), -1).astype(v.dtype)
        @ v
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("positions", [1, 9, MAX_TRANSPOSED_POSITIONS + 3])
def test_gradients_of_queries_keys_and_values(positions: int, dtype: Any) -> None:
    q = draw((2, 3, 7, 8), 1, dtype)
    k = draw((2, 3, positions, 8), 2, dtype)
    v = draw((2, 3, positions, 8), 3, dtype)
    d = draw((2, 3, 7, 8), 4)

    def ours(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return (
            weighted_values(jax.nn.softmax(query_key_products(q, k), -1).astype(v.dtype), v) * d
        ).sum()

    got = quick_jit(jax.grad(ours, (0, 1, 2)))(q, k, v)
    want = quick_jit(jax.grad(lambda *x: (joined(*x) * d).sum(), (0, 1, 2)))(
        *(np.asarray(x, np.float32) for x in (q, k, v))
    )
    for g, w in zip(got, want, strict=True):
        assert g.dtype == dtype
        assert np.linalg.norm(float64(g) - float64(w)) <= (
            1e-6 if dtype == jnp.float32 else 2e-2
        ) * (1 + np.linalg.norm(float64(w)))


@pytest.mark.parametrize(
    ("platform", "positions", "turned"),
    [
        ("cpu", MAX_TRANSPOSED_POSITIONS, True),
        ("cpu", MAX_TRANSPOSED_POSITIONS + 1, False),
        ("tpu", MAX_TRANSPOSED_POSITIONS, False),
    ],
)
def test_queries_are_turned_last_where_it_helps(
    platform: str, positions: int, turned: bool
) -> None:
    shapes = [jax.ShapeDtypeStruct((2, 3, n, 8), jnp.float32) for n in (7, positions)]
    gradient = jax.jit(jax.grad(lambda q, k: query_key_products(q, k).sum(), 1))
    assert (
        "optimization_barrier"
        in gradient.trace(*shapes).lower(lowering_platforms=(platform,)).as_text()
    ) == turned


@pytest.mark.parametrize(
    ("b", "t", "p", "N", "K", "H"),
    [
        (2, 1, 3, 3, 1, 64),  # one position
        (1, 128, 0, 2, 2, 64),  # one block to the last position
        (2, 129, 127, 7, 1, 128),  # a block and a position, two of keys to the last
    ],
)
def test_splash_attention_and_its_gradients(b: int, t: int, p: int, N: int, K: int, H: int) -> None:
    arrays = rows(b, t, p, N, K, H)
    want = with_gradients(partial(self_attention, "plain"), arrays)
    got = with_gradients(partial(self_attention, "interpret"), arrays)
    for name, x, y in zip(
        ("out", "q", "k", "v", "prefix keys", "prefix values"), got, want, strict=False
    ):
        assert far(x, y) < 2e-6, (name, far(x, y))


@pytest.mark.parametrize(("t", "p"), [(7, 0), (7, 4), (6, 5)])  # odd numbers of queries, keys, both
def test_what_cudnn_is_asked_for(t: int, p: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call, computed by XLA."""

    def by_xla(
        *arrays: Any, implementation: str, call: Any = jax.nn.dot_product_attention, **options: Any
    ) -> Any:
        assert implementation == "cudnn"
        return call(*arrays, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    arrays = rows(2, t, p, 6, 2, 8)
    want = with_gradients(partial(self_attention, "plain"), arrays)
    got = with_gradients(cudnn_attention, arrays)
    for x, y in zip(got, want, strict=True):
        assert far(x, y) < 2e-6


# One token a slot. One program of a few operations compiles sooner than each of them.

stored_as = quick_jit(to_cache_dtype, static_argnums=2)


def slots(R: int, C: int, N: int, K: int, H: int, kind: str) -> tuple[Any, ...]:
    """Queries, new keys and values, and a cache of two layers [L R K C H]."""
    dtype = jnp.float32 if kind == "float32" else jnp.bfloat16
    q = draw((R, N, H), 1, dtype)
    k = draw((R, K, H), 2, dtype)
    v = draw((R, K, H), 3, dtype)
    keys, values = draw((2, R, K, C, H), 4, dtype), draw((2, R, K, C, H), 5, dtype)
    return q, k, v, stored_as(keys, values, "int8" if kind == "int8" else dtype)


def decode(
    implementation: str, q: Any, k: Any, v: Any, cache: Any, layer: int, positions: Any
) -> tuple[Any, Any]:
    """`decode_attention` of a cache [L R K C H], as the implementation has its positions and
    back."""
    axes = position_axes(implementation, q.shape[-1])
    cache, positions = move_positions(*cache, axes=axes), jnp.asarray(positions)
    live = live_blocks(implementation, positions, cache, q.shape[-1])
    out, written = decode_attention(
        implementation, q, k, v, cache, jnp.int32(layer), SlotPositions(positions, positions), live
    )
    return out, move_positions(*written, axes=axes)


def numpy_decode(
    q: Any, k: Any, v: Any, cache: Any, layer: int, positions: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Attention in float64 over what the cache stands for, the new position in it."""
    filled = [float64(x).copy() for x in cache]
    for r, at in enumerate(positions):
        for full, x in zip(filled, map(float64, stored_as(k, v, cache[0].dtype)), strict=True):
            full[layer, r, :, at] = x[r]
    keys, values = filled[0][layer], filled[1][layer]
    if len(filled) == 4:
        keys = keys * filled[2][layer][..., None]
        values = values * filled[3][layer][..., None]
    group = q.shape[1] // k.shape[1]
    out = [
        [
            numpy_attention(x, keys[r, n // group, : at + 1], values[r, n // group, : at + 1])
            for n, x in enumerate(float64(q)[r])
        ]
        for r, at in enumerate(positions)
    ]
    return np.array(out), filled


TOLERANCE = {"float32": 1e-6, "bfloat16": 6e-3, "int8": 6e-3}


@pytest.mark.parametrize(
    ("implementation", "C", "N", "K", "H", "kind"),
    [
        ("plain", 9, 6, 2, 8, "float32"),
        ("plain", 9, 6, 2, 8, "int8"),
        ("interpret", 128, 3, 3, 64, "float32"),
        ("interpret", 640, 6, 2, 64, "bfloat16"),
        ("interpret", 640, 7, 1, 128, "float32"),
        ("interpret", 256, 14, 2, 64, "int8"),
        ("interpret", 640, 3, 1, 128, "int8"),
    ],
)
def test_decoding_is_a_loop(
    implementation: str, C: int, N: int, K: int, H: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu_cache_blocks, "MAX_BLOCK_UNITS", 1)  # blocks of 128 positions
    monkeypatch.setattr(tpu_decode, "MAX_GROUP_SLOTS", 2)
    positions = np.array(
        sorted({0, 1, 7, C // 2, C - 2, C - 1, *(x for x in (127, 128, 511, 512) if x < C)}),
        np.int32,
    )
    q, k, v, cache = slots(len(positions), C, N, K, H, kind)
    want, filled = numpy_decode(q, k, v, cache, 1, positions)
    out, written = quick_jit(partial(decode, implementation))(q, k, v, cache, 1, positions)
    assert far(out, want) < TOLERANCE[kind]
    # the new positions, and not a bit more
    for x, y, before in zip(written, filled, cache, strict=True):
        assert x.dtype == before.dtype and (float64(x) == y).all()


@pytest.mark.parametrize(
    ("implementation", "ring", "N", "K", "H", "kind"),
    [
        ("plain", 5, 6, 2, 8, "float32"),
        ("plain", 5, 6, 2, 8, "int8"),
        ("triton", 130, 6, 2, 64, "float32"),
        ("interpret", 1, 2, 1, 64, "float32"),
        ("interpret", 5, 6, 2, 64, "bfloat16"),
        ("interpret", 128, 4, 1, 256, "float32"),
        ("interpret", 300, 3, 1, 128, "float32"),
        ("interpret", 300, 4, 2, 64, "int8"),
        ("interpret", 131, 7, 1, 128, "int8"),
    ],
)
def test_decoding_over_a_ring_is_a_loop_over_the_last_positions(
    implementation: str,
    ring: int,
    N: int,
    K: int,
    H: int,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rings of sizes that no block divides: not yet full, just full, and gone round more than once.
    What no token has written yet, and the room beyond the ring, hold other values, which nothing
    sees."""
    monkeypatch.setattr(tpu_cache_blocks, "MAX_BLOCK_UNITS", 1)  # blocks of 128 positions
    monkeypatch.setattr(tpu_decode, "MAX_GROUP_SLOTS", 2)
    monkeypatch.setattr(
        gpu_decode, "triton_decode", partial(gpu_decode.triton_decode, interpret=True)
    )
    positions = np.array(
        [0, ring // 2, ring - 1, ring, ring + 1, 2 * ring - 1, 2 * ring + ring // 2, 3 * ring]
    )
    R, C = len(positions), cache_positions(implementation, ring)
    # of each slot, all the keys and values before its own
    q, k, v, texts = slots(R, 3 * ring, N, K, H, kind)
    *_, cache = slots(R, C, N, K, H, kind)
    # in NumPy: jax would dispatch an operation for each position
    ring_arrays = [np.array(x) for x in cache]
    for x in ring_arrays:
        x *= 1 if x.dtype == np.int8 else x.dtype.type(3)
    text_arrays = [np.asarray(text) for text in texts]
    for r, position in enumerate(positions):
        held = np.arange(max(0, position - ring), position)
        for x, text in zip(ring_arrays, text_arrays, strict=True):
            x[:, r, :, held % ring] = text[:, r, :, held]
    cache = tuple(map(jnp.asarray, ring_arrays))

    axes = position_axes(implementation, H)
    at = quick_jit(ring_positions, static_argnums=1)(positions, ring)

    @quick_jit
    def step(cache: Any) -> Any:
        in_its_layout = move_positions(*cache, axes=axes)
        live = live_blocks(implementation, at.last, in_its_layout, H)
        out, written = decode_attention(
            implementation, q, k, v, in_its_layout, jnp.int32(1), at, live
        )
        return out, move_positions(*written, axes=axes)

    out, written = step(cache)
    new_kv = [np.asarray(x) for x in stored_as(k, v, cache[0].dtype)]
    queries = float64(q)
    for r, position in enumerate(positions):
        first = max(0, position - ring + 1)
        seen = [
            np.concatenate([float64(text)[1, r, :, first:position], float64(new)[r][:, None]], 1)
            for text, new in zip(texts, new_kv, strict=True)
        ]
        keys, values = seen[:2]
        if kind == "int8":
            keys, values = keys * seen[2][..., None], values * seen[3][..., None]
        want = [
            numpy_attention(queries[r, n], keys[n // (N // K)], values[n // (N // K)])
            for n in range(N)
        ]
        assert far(out[r], want) < TOLERANCE[kind], position

    # the new positions, and not a bit more
    for after, before, new in zip(written, cache, new_kv, strict=True):
        expected = np.array(before)
        for r, position in enumerate(positions):
            expected[1, r, :, position % ring] = new[r]
        assert after.dtype == before.dtype and (np.asarray(after) == expected).all()


def test_a_kernel_reads_nothing_past_the_last_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_cache_blocks, "MAX_BLOCK_UNITS", 1)
    q, k, v, cache = slots(3, 640, 2, 1, 64, "float32")
    positions = np.array([0, 130, 638], np.int32)
    dead = (np.arange(640)[None] > positions[:, None])[None, :, None, :, None]
    spoiled = tuple(np.where(dead, np.float32(1e30), x) for x in cache)
    step = quick_jit(partial(decode, "interpret"))
    clean, _ = step(q, k, v, cache, 0, positions)
    assert (step(q, k, v, spoiled, 0, positions)[0] == clean).all()


def test_the_steps_of_a_kernel_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores of two groups of two slots, blocks of 128: groups of 1 and 3 blocks, and of 2 and
    2."""
    monkeypatch.setattr(tpu_cache_blocks, "MAX_BLOCK_UNITS", 1)
    monkeypatch.setattr(tpu_decode, "MAX_GROUP_SLOTS", 2)
    positions = jnp.array([0, 127, 300, 5, 128, 3, 130, 255])
    cache = (np.zeros((1, 8, 1, 384, 128)),)
    live = quick_jit(tpu_decode.live_blocks, static_argnums=2)(positions, cache, 128)
    assert live.steps.tolist() == [4, 4]
    assert live.group[:, :4].tolist() == [[0, 1, 1, 1], [2, 2, 3, 3]]
    assert live.block[:, :4].tolist() == [[0, 0, 1, 2], [0, 1, 0, 1]]
    # a step that does nothing stays where it is
    assert (live.group[:, 4:] == jnp.array([[1], [3]])).all()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("H", "c"), [(16, 10), (32, 31), (32, 32), (64, 10)])
def test_a_slots_scores(H: int, c: int, dtype: Any) -> None:
    q, keys = draw((5, 3, 2, H), 1, dtype), draw((5, 3, H, c), 2, dtype)
    got = quick_jit(small_head_products)(q, keys)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, float64(q) @ float64(keys), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("N", "K", "H"), [(6, 2, 64), (34, 2, 32), (4, 4, 16)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpus_decode_attention(N: int, K: int, H: int, dtype: str) -> None:
    """On both sides of a block's end, and of the cache's, which no block divides."""
    q, _, _, cache = slots(6, 300, N, K, H, dtype)
    positions = np.array([0, 3, 127, 128, 255, 299], np.int32)
    k, v = (np.asarray(x)[0, np.arange(6), :, positions] for x in cache)
    want, _ = numpy_decode(q, k, v, cache, 0, positions)  # what is written was there
    step = quick_jit(partial(gpu_decode.triton_decode, interpret=True))
    assert far(step(q, cache[0][0], cache[1][0], jnp.asarray(positions)), want) < (
        1e-6 if dtype == "float32" else 4e-3
    )


def test_a_gpus_decode_attention_lowers_for_one_that_is_not_here() -> None:
    shapes = [
        jax.ShapeDtypeStruct(s, "bfloat16") for s in ((8, 14, 64), (8, 2, 300, 64), (8, 2, 300, 64))
    ]
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    with jax.sharding.use_abstract_mesh(
        jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
    ):
        traced = jax.jit(gpu_decode.triton_decode).trace(
            *shapes, jax.ShapeDtypeStruct((8,), "int32")
        )
        assert "decode_attention" in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("implementation", ["plain", "triton"])
def test_a_layers_own_cache_is_one_of_a_stack(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gpu_decode, "triton_decode", partial(gpu_decode.triton_decode, interpret=True)
    )
    q, k, v, cache = slots(4, 9, 6, 2, 8, "float32")
    cache = move_positions(*cache, axes=position_axes(implementation, 8))
    positions = np.array([0, 3, 7, 8], np.int32)

    @partial(quick_jit, static_argnums=1)
    def step(cache: Any, layer: int | None) -> Any:
        return decode_attention(
            implementation, q, k, v, cache, layer, SlotPositions(positions, positions), ()
        )

    (out, stack), (own_out, own) = step(cache, 1), step(tuple(x[1] for x in cache), None)
    np.testing.assert_allclose(own_out, out, rtol=1e-5, atol=1e-6)
    for x, y in zip(own, stack, strict=True):
        np.testing.assert_array_equal(x, y[1])


def test_quantize_is_within_half_a_scale() -> None:
    x = np.float32(np.array(draw((50, 64), 0)) * np.logspace(-6, 6, 50)[:, None])
    x[7] = 0
    values, scale = quick_jit(quantize)(x)
    assert values.dtype == jnp.int8 and scale.dtype == jnp.float32
    error = np.abs(float64(values) * float64(scale)[:, None] - float64(x))
    assert (error <= float64(scale)[:, None] / 2 * (1 + 1e-5)).all()
    assert (np.abs(values).max(-1) == np.where(np.arange(50) == 7, 0, 127)).all()


def test_the_positions_of_a_cache() -> None:
    # 1250 is 9.8 units of 128: 12 are three blocks of 4, where 10 were five of 2 and 11 eleven of
    # 1.
    assert [cache_positions("pallas", n) for n in (1, 128, 129, 1000, 1025, 1250)] == [
        128,
        128,
        256,
        1024,
        1152,
        1536,
    ]
    assert cache_positions("plain", 129) == cache_positions("triton", 129) == 129


# Over devices: rows over data (manual), heads over tensor (automatic), as in the sampler and the
# trainer.


def sharded(function: Any, inputs: tuple[P, ...], outputs: Any) -> Any:
    return shard_map(
        function,
        mesh=mesh("data=4,tensor=2"),
        in_specs=inputs,
        out_specs=outputs,
        axis_names={"data", "fsdp"},
        check_vma=False,
    )


@pytest.mark.parametrize("K", [2, 1])  # split over tensor; one head of keys, which cannot be
@pytest.mark.parametrize("implementation", ["interpret", "triton"])
def test_decoding_over_devices(
    implementation: str, K: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gpu_decode, "triton_decode", partial(gpu_decode.triton_decode, interpret=True)
    )
    q, k, v, cache = slots(8, 128, 4, K, 64, "float32")
    positions = jnp.asarray(np.arange(8) * 18, jnp.int32)
    rows, table = P("data"), P(None, "data")

    def step(*x: Any) -> Any:
        return decode(implementation, *x[:3], x[3:5], 1, x[5])

    on = mesh("data=4,tensor=2")
    heads = "tensor" if K > 1 else None
    spread = [
        jax.device_put(x, jax.NamedSharding(on, P("data", "tensor" if x is q else heads)))
        for x in (q, k, v)
    ]
    caches = [jax.device_put(x, jax.NamedSharding(on, P(None, "data", heads))) for x in cache]
    arguments = (*spread, *caches, jax.device_put(positions, jax.NamedSharding(on, P("data"))))
    step = quick_jit(sharded(step, (rows, rows, rows, table, table, rows), (rows, (table, table))))
    compiled = step.lower(*arguments).compile()
    out, written = compiled(*arguments)
    want, filled = quick_jit(partial(decode, "plain"))(q, k, v, cache, 1, positions)
    assert far(out, want) < 1e-6
    assert all((x == y).all() for x, y in zip(written, filled, strict=True))
    # A head of keys that is whole on each device has its queries gathered, never the cache.
    moved = [
        c for c in collectives(compiled.as_text()) if "128,64" in c.result or "64,128" in c.result
    ]
    assert not moved, moved


def test_self_attention_and_its_gradients_over_devices() -> None:
    arrays = rows(4, 5, 3, 4, 2, 64)
    live = jnp.array([0, 1, 2, 3])
    weights = draw(arrays[0].shape, 9)

    def total(attention: Any) -> Any:
        def of_rows(weights: Any, live: Any, *arrays: Any) -> Any:
            def attend(*arrays: Any) -> Any:
                return attention(*arrays[:3], PrefixKV(*arrays[3:], live))

            out = attend(*arrays)
            gradient = jax.grad(lambda *arrays: (attend(*arrays) * weights).sum(), range(5))
            return gradient(*arrays), out

        return of_rows

    want = quick_jit(total(partial(self_attention, "plain")))(weights, live, *arrays)
    each = P("data")
    step = quick_jit(
        sharded(total(partial(self_attention, "interpret")), (each,) * 7, ((each,) * 5, each))
    )
    got = step(weights, live, *arrays)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert far(x, y) < 2e-6


def test_flash_decode_takes_a_layer_by_its_number() -> None:
    """Layer 0 is not touched when layer 1 is written, and the other way round."""
    q, k, v, cache = slots(2, 128, 1, 1, 64, "float32")
    step = quick_jit(partial(decode, "interpret"))
    for layer in (0, 1):
        _, written = step(q, k, v, cache, layer, np.array([3, 4]))
        assert all(
            (x[1 - layer] == y[1 - layer]).all() for x, y in zip(written, cache, strict=True)
        )
        assert (written[1][layer, 0, :, 3] == v[0]).all() and (
            written[0][layer, 1, :, 4] == k[1]
        ).all()
