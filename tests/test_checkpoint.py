"""A run's state to disk and back, bit for bit, onto the same mesh and onto others; the newest is what comes back."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from isojax.checkpoint import Checkpoints, Position
from isojax.rl.step import State, build_init, state_shardings
from tests.device import DECODER, MESHES, mesh, placed, policy


def some_state(axes: str, seed: int) -> State:
    """A state whose every number was drawn, on a mesh."""
    on = mesh(axes)
    rng = np.random.default_rng(seed)
    like = build_init(DECODER, on)(placed(policy(), on))
    drawn = jax.tree.map(lambda x: (rng.normal(size=x.shape) * 100).astype(x.dtype), like)
    return jax.device_put(drawn, state_shardings(DECODER, on))


def check(got: State, like: State, expected: State) -> None:
    for a, b, c in zip(*(jax.tree.leaves(x) for x in (got, like, expected)), strict=True):
        assert a.sharding == b.sharding and a.dtype == c.dtype
        np.testing.assert_array_equal(np.asarray(a).view(np.uint32), np.asarray(c).view(np.uint32))


def test_nothing_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoint")
    assert checkpoints.restore(some_state("auto", 0)) is None
    checkpoints.close()


@pytest.mark.parametrize("axes", [MESHES[0], MESHES[1], "auto"])
def test_back_bit_for_bit(tmp_path: Path, axes: str) -> None:
    """Saved on data=4,tensor=2."""
    saved, position = some_state(MESHES[0], 1), Position(M=70, evaluation=9, tokens=123_456_789_012)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(saved, position)
    checkpoints.close()
    again = Checkpoints(tmp_path)
    like = some_state(axes, 2)
    restored = again.restore(like)
    again.close()
    assert restored is not None and restored[1] == position
    check(restored[0], like, saved)


def test_the_newest_of_several(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    states = [some_state("auto", seed) for seed in range(3)]
    for i, state in enumerate(states):
        checkpoints.save(state, Position(10 * i, i, 100 * i))
    checkpoints.close()
    again = Checkpoints(tmp_path)
    restored = again.restore(states[0])
    again.close()
    assert restored is not None and restored[1] == Position(20, 2, 200)
    check(restored[0], states[0], states[2])


def test_saving_waits_for_no_later_change(tmp_path: Path) -> None:
    """The run goes on, and gives the saved buffers away, while they are being written."""
    checkpoints = Checkpoints(tmp_path)
    state = some_state("auto", 3)
    kept = jax.device_get(state)
    kept = jax.tree.map(np.copy, kept)
    checkpoints.save(state, Position(1, 1, 1))
    jax.block_until_ready(jax.jit(lambda s: jax.tree.map(lambda x: x * 0 + 1, s), donate_argnums=0)(state))
    checkpoints.close()
    again = Checkpoints(tmp_path)
    like = some_state("auto", 4)
    restored = again.restore(like)
    again.close()
    assert restored is not None
    check(restored[0], like, kept)
