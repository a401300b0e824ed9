"""The batch without the groups that have no advantage: the same rollouts, laid out as a smaller
batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.shapes import SamplerShapes
from isojax.rl.train_step import drop_groups
from isojax.sampling.batch import ProblemArrays, Rollouts
from isojax.sampling.layout import Layout
from tests.device import P, T, gather, quick_jit, random_problems, scatter

CELLS = [(13, 7), (5, 4)]


def batch(
    sampler_shapes: SamplerShapes, B_p: int, n: int, dropped: list[int]
) -> tuple[ProblemArrays, Rollouts, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng([B_p, n])
    B = B_p * n
    advantages = rng.normal(size=B).astype(np.float32)
    advantages[np.isin(np.arange(B) // n, dropped)] = 0
    flat = {
        "tokens": rng.integers(0, 24, (B, T)).astype(np.int32),
        "logps": rng.normal(size=(B, T)).astype(np.float32),
        "mask": rng.random((B, T)) < 0.8,
        "nucleus_mass": np.ones((B, 1), np.float32),
        "stopped": rng.random(B) < 0.5,
        "lengths": np.full(B, T, np.int32),
        "advantages": advantages,
    }
    problems = ProblemArrays(
        *(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:])) for x in random_problems(B_p))
    )
    buffers = {k: scatter(sampler_shapes, v) for k, v in flat.items()}
    return problems, Rollouts(*(buffers[k] for k in Rollouts._fields)), buffers["advantages"], flat


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize(
    ("B_p", "n", "dropped"),
    [(13, 7, [0, 3, 4, 12]), (13, 7, []), (5, 4, [0, 1, 2, 4]), (5, 4, [0, 1, 2, 3, 4])],
)
def test_what_is_left_is_the_batch_of_the_others(
    shards: int, B_p: int, n: int, dropped: list[int]
) -> None:
    sampler_shapes = SamplerShapes(CELLS, shards, 8, 8, P, T)
    problems, rollouts, advantages, flat = batch(sampler_shapes, B_p, n, dropped)
    groups, live = Layout(jnp.int32(B_p), jnp.int32(n), sampler_shapes.shards).row_groups(
        sampler_shapes.buffer_rows
    )
    used = live & ~jnp.isin(groups, jnp.array([*dropped, -1]))
    left_over = quick_jit(lambda *x: drop_groups(sampler_shapes, *x))(
        problems, (rollouts, advantages), used, jnp.int32(B_p), jnp.int32(n), jnp.int32(n)
    )
    moved_problems, (moved, moved_advantages), remaining, count = left_over
    left = [q for q in range(B_p) if q not in dropped]
    assert int(count) == len(left)
    np.testing.assert_array_equal(moved_problems.ids[: len(left)], problems.ids[left])
    rows = np.isin(np.arange(B_p * n) // n, left)
    if left:
        for name in Rollouts._fields:
            np.testing.assert_array_equal(
                gather(sampler_shapes, len(left) * n, getattr(moved, name)),
                flat[name][rows],
                err_msg=name,
            )
        np.testing.assert_array_equal(
            gather(sampler_shapes, len(left) * n, moved_advantages), flat["advantages"][rows]
        )
    assert int(np.asarray(remaining).sum()) == len(left) * n  # rows beyond hold no rollout
    assert int((np.asarray(moved.mask) & np.asarray(remaining)[..., None]).sum()) == int(
        flat["mask"][rows].sum()
    )
    assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, rollouts)


@pytest.mark.parametrize("shards", [1, 4])
def test_some_rollouts_of_a_group_make_a_batch_of_smaller_groups(shards: int) -> None:
    """3 of 7 rollouts of every problem but two."""
    sampler_shapes = SamplerShapes(CELLS, shards, 8, 8, P, T)
    problems, rollouts, advantages, flat = batch(sampler_shapes, 13, 7, [])
    selected = np.sort(
        np.random.default_rng(5).permuted(np.tile(np.arange(7), (13, 1)), axis=1)[:, :3]
        + 7 * np.arange(13)[:, None]
    )
    selected = np.delete(selected, [2, 9], 0).reshape(-1)
    used = scatter(sampler_shapes, np.isin(np.arange(91), selected))
    left_problems, (moved, moved_advantages), _, left_B_p = quick_jit(
        lambda *x: drop_groups(sampler_shapes, *x)
    )(problems, (rollouts, advantages), used, jnp.int32(13), jnp.int32(7), jnp.int32(3))
    assert int(left_B_p) == 11
    np.testing.assert_array_equal(
        left_problems.ids[:11], np.delete(np.asarray(problems.ids[:13]), [2, 9])
    )
    np.testing.assert_array_equal(
        gather(sampler_shapes, 33, moved_advantages), flat["advantages"][selected]
    )
    np.testing.assert_array_equal(
        gather(sampler_shapes, 33, moved.tokens), flat["tokens"][selected]
    )
