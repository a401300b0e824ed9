"""The TPU's kernels under Pallas' interpreter of a TPU, which keeps memory, copies and semaphores
as a chip does and reports what two of them touch without an order between them.

It knows what no other run on a CPU shows: a block that is read before its copy has arrived, a
buffer that is filled again while a step still reads it, memory that nothing has written (NaN here),
an address beyond an array. Copies are made as they start ("eager"), so that one which nobody waits
for is seen at all; "on_wait" would leave it out, and the race with it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from isojax.models.attention import self_attention
from isojax.models.kernels import tpu_decode, tpu_experts, tpu_grouped
from isojax.models.kernels.prefix import PrefixKV

# The interpreter takes some ten seconds per kernel. CI runs the decode kernel on its smallest
# cache, one planted race, and the experts; the nightly tests run the others.
pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

# The last position that each slot holds: in the first and the third of five blocks, at the ends of
# a block and of the cache, and a slot that holds its first token.
LAST = np.array([5, 300, 127, 639, 128, 0, 255, 511])
POSITIONS = 640  # C
BLOCK = 128
HEADS = 2  # N, of queries; keys and values have one


@contextlib.contextmanager
def simulated_tpu(cores: int = 1) -> Iterator[None]:
    """Every kernel that is called within runs on a simulated TPU of so many cores."""
    params = pltpu.InterpretParams(
        detect_races=True, dma_execution_mode="eager", num_cores_or_threads=cores
    )
    with pltpu.force_tpu_interpret_mode(params):
        yield


@pytest.fixture
def races(capfd: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """The lines in which the interpreter has reported a race, or a copy that nobody waited for."""

    def reported() -> list[str]:
        lines = capfd.readouterr().out.splitlines()
        return [line for line in lines if "RACE DETECTED" in line or "non-zero count" in line]

    return reported


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32)


# ------------------------------------------------------------------ a token of each slot


def float32_cache(R: int, head_dim: int) -> tuple[jax.Array, ...]:
    """Keys and values [L R K C H] of two layers."""
    shape = (2, R, 1, POSITIONS, head_dim)
    return normal(1, *shape), normal(2, *shape)


def int8_cache(R: int, head_dim: int) -> tuple[jax.Array, ...]:
    """Keys and values [L R K H C] of two layers, and their scales [L R K C]."""
    draws = np.random.default_rng(0)
    shape = (2, R, 1, head_dim, POSITIONS)
    numbers = [jnp.asarray(draws.integers(-127, 128, shape), jnp.int8) for _ in range(2)]
    scales = [jnp.asarray(draws.uniform(0.01, 0.02, (2, R, 1, POSITIONS)), jnp.float32)] * 2
    return *numbers, *scales


def decode(cache: tuple[jax.Array, ...], head_dim: int, group_slots: int) -> np.ndarray:
    """What the decode kernel attends to in layer 1 [R N H], of the first R slots of LAST.

    group_slots: of a step. With fewer than R / 2, each of the grid's two cores has two groups or
    more, so that the buffers of one are filled again for the next.
    """
    R = cache[0].shape[1]
    new_kv = normal(3, R, 1, head_dim), normal(4, R, 1, head_dim)
    q = normal(5, R, HEADS, head_dim)
    last = jnp.asarray(LAST[:R], jnp.int32)

    with mock.patch.object(tpu_decode, "MAX_GROUP_SLOTS", group_slots):
        layout = tpu_decode.cache_layout(cache, head_dim)
        sizes = layout.cores, layout.group_slots, layout.block_positions
        assert sizes == (2, group_slots, BLOCK)
        live = tpu_decode.live_blocks(last, cache, head_dim)
        mixed, _ = tpu_decode.flash_decode(
            q, new_kv, cache, jnp.int32(1), written=last, last=last, live=live
        )
    return np.asarray(mixed)


def plain_decode(keys: Any, values: Any, head_dim: int) -> np.ndarray:
    """The same by NumPy in float64; keys, values: of layer 1 [R C H], without the new token."""
    R = len(keys)
    q, k, v = (
        np.asarray(normal(seed, R, count, head_dim), np.float64)
        for seed, count in ((5, HEADS), (3, 1), (4, 1))
    )
    mixed = np.zeros((R, HEADS, head_dim))
    for r in range(R):
        seen_keys = np.concatenate([keys[r, : LAST[r]], k[r]])
        seen_values = np.concatenate([values[r, : LAST[r]], v[r]])
        weights = np.exp(q[r] @ seen_keys.T / np.sqrt(head_dim))
        mixed[r] = weights / weights.sum(-1, keepdims=True) @ seen_values
    return mixed


@pytest.mark.nightly
def test_the_decode_kernel_has_no_race(races: Callable[[], list[str]]) -> None:
    """On a chip of two cores, each with two groups of two slots; nothing that no copy has filled
    (NaN) reaches a result."""
    cache = float32_cache(R=8, head_dim=128)
    with simulated_tpu(cores=2):
        mixed = decode(cache, head_dim=128, group_slots=2)

    assert races() == []
    keys, values = (np.asarray(x[1, :, 0], np.float64) for x in cache)
    np.testing.assert_allclose(mixed, plain_decode(keys, values, 128), atol=1e-5)


def test_the_decode_kernel_of_an_int8_cache_has_no_race(races: Callable[[], list[str]]) -> None:
    """On a chip of one core. Its heads are transposed, and the token itself is rounded."""
    cache = int8_cache(R=4, head_dim=64)
    with simulated_tpu():
        mixed = decode(cache, head_dim=64, group_slots=1)

    assert races() == []
    keys, values = (
        np.asarray(numbers[1, :, 0] * scales[1, :, 0, None], np.float64).swapaxes(1, 2)
        for numbers, scales in (cache[::2], cache[1::2])
    )
    # The new key and value are whole numbers of 1/127 of their largest entry.
    np.testing.assert_allclose(mixed, plain_decode(keys, values, 64), atol=0.02)


class NeverWaits(tpu_decode.BlockCopies):
    """Blocks are attended to whether or not their copies have arrived."""

    def for_each_read(self, step: Any, act: Callable[[Any], None]) -> None:
        """A step waits for the copies of its own blocks; those that it starts are of another."""
        if step is not self.step:
            super().for_each_read(step, act)


class NeverFinishes(tpu_decode.BlockCopies):
    """A group's tiles are filled while those before are still on their way to the cache."""

    def finish_writes(self, s: int, position: Any) -> None:
        pass


@pytest.mark.parametrize(
    "wrong", [NeverWaits, pytest.param(NeverFinishes, marks=pytest.mark.nightly)]
)
def test_a_planted_race_is_found(
    wrong: type[tpu_decode.BlockCopies], races: Callable[[], list[str]]
) -> None:
    with mock.patch.object(tpu_decode, "BlockCopies", wrong), simulated_tpu():
        decode(float32_cache(R=4, head_dim=128), head_dim=128, group_slots=1)

    assert any("RACE DETECTED" in line for line in races())


# ------------------------------------------------------------------ experts, and the trainer


def test_the_kernel_of_all_experts_has_no_race(races: Callable[[], list[str]]) -> None:
    """Four experts in two blocks each, on a chip of two cores, of the second layer of two."""
    L, E, D, F, r = 2, 4, 128, 256, 8
    gate, up = normal(1, L, E, D, F) * 0.1, normal(2, L, E, D, F) * 0.1
    down = normal(3, L, E, F, D) * 0.1
    rows = normal(4, r, D)
    by_expert = jax.random.uniform(jax.random.key(5), (r, E))

    one_tile = 3 * D * tpu_experts.TILE_WIDTH * 4  # bytes of a block of 128 hidden values
    with mock.patch.object(tpu_experts, "BLOCK_BYTES", one_tile), simulated_tpu(cores=2):
        total = tpu_experts.multiply_by_all_experts(rows, by_expert, (gate, up, down), jnp.int32(1))

    assert races() == []
    hidden = jax.nn.silu(jnp.einsum("rd,edf->erf", rows, gate[1]))
    hidden = hidden * jnp.einsum("rd,edf->erf", rows, up[1]) * by_expert.T[..., None]
    np.testing.assert_allclose(total, jnp.einsum("erf,efd->rd", hidden, down[1]), atol=1e-4)


@pytest.mark.nightly
def test_the_products_of_groups_have_no_race(races: Callable[[], list[str]]) -> None:
    """Forward and backward. The second group begins inside a tile of rows, the third is empty."""
    sizes = jnp.array([100, 156, 0], jnp.int32)
    x, matrices = normal(1, 256, 128), normal(2, 3, 128, 128)

    def total(x: jax.Array, matrices: jax.Array) -> jax.Array:
        return (tpu_grouped.grouped_product(x, matrices, sizes) ** 2).sum()

    def plain_total(x: jax.Array, matrices: jax.Array) -> jax.Array:
        return (lax.ragged_dot(x, matrices, sizes) ** 2).sum()

    with mock.patch.object(tpu_grouped, "MAX_TILE_ROWS", 128), simulated_tpu():
        by_kernel = jax.grad(total, (0, 1))(x, matrices)

    assert races() == []
    for found, expected in zip(by_kernel, jax.grad(plain_total, (0, 1))(x, matrices), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)


@pytest.mark.nightly
def test_attention_of_the_trainer_has_no_race(races: Callable[[], list[str]]) -> None:
    """Forward and backward, of a row whose prompt and response both reach into a second block."""
    b, t, p, N, H = 1, 130, 140, 1, 128
    q, k, v = normal(1, b, t, N, H), normal(2, b, N, t, H), normal(3, b, N, t, H)
    prefix = PrefixKV(normal(4, b, N, p, H), normal(5, b, N, p, H), jnp.array([130], jnp.int32))

    def gradients(implementation: str) -> tuple[jax.Array, ...]:
        def total(*qkv: jax.Array) -> jax.Array:
            return (self_attention(implementation, *qkv, prefix) ** 2).sum()

        return jax.grad(total, (0, 1, 2))(q, k, v)

    with simulated_tpu():
        by_kernel = gradients("pallas")

    assert races() == []
    for found, expected in zip(by_kernel, gradients("plain"), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-3)
