"""Rows of rollouts by hand: 3 problems with n = 4 on 5 shards, of which the last owns none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.sampling.batch import (
    Rollouts,
    RoutedRollouts,
    SamplingBatch,
    count_turns,
    response_logps,
    response_nucleus_mass,
    response_tokens,
)
from isojax.sampling.layout import Layout, ShardSlice
from tests.device import quick_jit

# b = ceil(12 / 5) = 3 rollouts of a shard: shard 3 owns 9, 10 and 11, and shard 4 none.
SHARD = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
ROW = [0, 1, 2] * 4


@pytest.mark.parametrize("traced", [False, True])
def test_places(traced: bool) -> None:
    rollouts = np.arange(12)
    if traced:
        shard, row = quick_jit(lambda B_p, n: Layout(B_p, n, 5).place(rollouts))(3, 4)
    else:
        shard, row = Layout(3, 4, 5).place(rollouts)
    assert (np.asarray(shard).tolist(), np.asarray(row).tolist()) == (SHARD, ROW)
    assert Layout(3, 4, 5).rollout_at(np.array(SHARD), np.array(ROW)).tolist() == rollouts.tolist()


def test_groups_of_rows_and_which_hold_a_rollout() -> None:
    layout = Layout(3, 4, 5)
    groups, valid = layout.row_groups(rows=4)
    assert groups.tolist() == [[0, 0, 0, 0], [0, 1, 1, 0], [1, 1, 2, 0], [2, 2, 2, 0], [0, 0, 0, 0]]
    assert valid.tolist() == [[True, True, True, False]] * 4 + [[False] * 4]
    assert layout.rollout_of_row(4)[:4, :3].tolist() == np.arange(12).reshape(4, 3).tolist()


def test_what_shards_own() -> None:
    owned = Layout(3, 4, 5).shard_slice(jnp.arange(5))
    assert owned.first_rollout.tolist() == [0, 3, 6, 9, 12]
    assert owned.rollout_count.tolist() == [3, 3, 3, 3, 0]
    assert owned.first_group.tolist() == [0, 0, 1, 2, 3]
    assert owned.group_count.tolist() == [1, 2, 2, 1, 0]


def test_a_last_shard_that_is_not_full() -> None:
    """2 x 4 on 3 shards: 3, 3 and 2."""
    layout = Layout(2, 4, 3)
    buffer = layout.to_buffer(np.arange(1, 9), rows=4)
    assert buffer.tolist() == [[1, 2, 3, 0], [4, 5, 6, 0], [7, 8, 0, 0]]
    assert layout.in_order(buffer).tolist() == list(range(1, 9))
    assert layout.holds_rollout(4).sum() == 8


def test_no_rollouts() -> None:
    assert Layout(0, 4, 3).in_order(np.zeros((3, 2))).shape == (0,)
    assert not Layout(0, 4, 3).to_buffer([], rows=2).any()


def test_what_belongs_to_each_rollout_in_order() -> None:
    """3 rollouts on 2 shards of 3 rows: tokens as far as each response goes, context as ~token and
    without a log-probability."""
    lengths = np.array([[4, 2, 9], [3, 9, 9]], np.int32)
    tokens = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    mask = np.ones((2, 3, 4), bool)
    mask[0, 0, 1] = mask[1, 0, 2] = False
    logps = -0.5 - tokens.astype(np.float32)
    arrays: dict[str, Any] = {
        "tokens": tokens,
        "logps": logps,
        "mask": mask,
        "nucleus_mass": np.full((2, 3, 1), 0.9, np.float32),
        "stopped": mask[..., 0],
        "lengths": lengths,
    }
    rollouts, layout = Rollouts(**arrays), Layout(3, 1, 2)
    assert [x.tolist() for x in response_tokens(rollouts, layout)] == [
        [0, ~1, 2, 3],
        [4, 5],
        [12, 13, ~14],
    ]
    assert [x.tolist() for x in response_logps(rollouts, layout)] == [
        [-0.5, 0, -2.5, -3.5],
        [-4.5, -5.5],
        [-12.5, -13.5, 0],
    ]
    masses = response_nucleus_mass(rollouts, layout)
    assert [len(x) for x in masses] == [4, 2, 3] and masses[1] == pytest.approx([0.9, 0.9])
    assert rollouts.response_mask[0, 1].tolist() == [True, True, False, False]
    routed = RoutedRollouts(*rollouts, prompt_experts=mask, experts=mask)
    assert (routed.response_mask == rollouts.response_mask).all()


def test_rows_of_a_share_and_of_a_ring() -> None:
    """A share that begins at rollout 7 of n = 3 has skipped one of problem 2; a ring of 4 groups
    and 12 rows."""
    share = ShardSlice(*(jnp.int32(x) for x in (7, 9, 2, 4)))
    problems: Any = None
    batch = SamplingBatch(problems, share, jnp.int32(3), jax.random.key(0))
    assert int(batch.skipped_rollouts) == 1
    assert batch.problem_row(jnp.arange(4)).tolist() == [2, 3, 4, 5]
    assert batch.buffer_row(jnp.arange(11, 14)).tolist() == [11, 12, 13]
    ring = batch._replace(ring_groups=jnp.int32(4), ring_rows=jnp.int32(12))
    assert ring.problem_row(jnp.arange(4)).tolist() == [2, 3, 0, 1]
    assert ring.buffer_row(jnp.arange(11, 14)).tolist() == [11, 0, 1]


def test_turns_are_runs_of_drawn_tokens() -> None:
    masks = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 1, 1], [1, 0, 0, 0]], bool)
    assert count_turns(masks).tolist() == [0, 1, 2, 2, 1]
    assert count_turns(jnp.asarray(masks)).tolist() == [0, 1, 2, 2, 1]
