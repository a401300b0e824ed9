"""The batch without the groups that teach nothing: the same rollouts, laid out as a smaller batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.rl.compact import compact
from isojax.sampling.batch import Geometry, Problems, Rollouts, make_geometry
from tests.device import P, T, gather, quick_jit, random_problems, scatter

CELLS = [(13, 7), (5, 4)]


def batch(geometry: Geometry, B_p: int, n: int, silent: list[int]) -> tuple[Problems, Rollouts, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng([B_p, n])
    B = B_p * n
    gains = rng.normal(size=B).astype(np.float32)
    gains[np.isin(np.arange(B) // n, silent)] = 0
    flat = {
        "tokens": rng.integers(0, 24, (B, T)).astype(np.int32),
        "logps": rng.normal(size=(B, T)).astype(np.float32),
        "mask": rng.random((B, T)) < 0.8,
        "kept": np.ones((B, 1), np.float32),
        "ended": rng.random(B) < 0.5,
        "gains": gains,
    }
    problems = Problems(*(np.resize(x, (geometry.problem_rows, *x.shape[1:])) for x in random_problems(B_p)))
    buffers = {k: scatter(geometry, v) for k, v in flat.items()}
    return problems, Rollouts(*(buffers[k] for k in Rollouts._fields)), buffers["gains"], flat


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(("B_p", "n", "silent"), [(13, 7, [0, 3, 4, 12]), (13, 7, []), (5, 4, [0, 1, 2, 4]), (5, 4, [0, 1, 2, 3, 4])])
def test_what_is_left_is_the_batch_of_the_others(shards: int, B_p: int, n: int, silent: list[int]) -> None:
    geometry = make_geometry(CELLS, shards, 8, 8, P, T)
    problems, rollouts, gains, flat = batch(geometry, B_p, n, silent)
    moved_problems, moved, moved_gains, count = quick_jit(lambda *x: compact(geometry, *x))(
        problems, rollouts, gains, jnp.int32(B_p), jnp.int32(n)
    )
    left = [q for q in range(B_p) if q not in silent]
    assert int(count) == len(left)
    np.testing.assert_array_equal(moved_problems.ids[: len(left)], problems.ids[left])
    rows = np.isin(np.arange(B_p * n) // n, left)
    if left:
        for name in Rollouts._fields:
            np.testing.assert_array_equal(gather(geometry, len(left) * n, getattr(moved, name)), flat[name][rows], err_msg=name)
        np.testing.assert_array_equal(gather(geometry, len(left) * n, moved_gains), flat["gains"][rows])
    # rows beyond hold no rollout, so that no token of them is counted
    assert int(np.asarray(moved.mask).sum()) == int(flat["mask"][rows].sum())
    assert np.asarray(moved_gains).astype(bool).sum() == flat["gains"].astype(bool).sum()
    assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, rollouts)
