"""Rows of rollouts by hand: 3 problems with n = 4 on 5 shards, of which the last owns none."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from isojax.sampling.layout import Layout
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
