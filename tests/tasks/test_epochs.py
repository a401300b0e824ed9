"""Epochs repeat nothing, a restart goes on where it stopped, and solved problems are left out where
that is set."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest

from isojax.tasks.epochs import EpochOrder
from tests.refusals import refused


@pytest.mark.parametrize(("problems", "B_p"), [(23, 5), (16, 16), (7, 1), (40, 13)])
def test_an_epoch_repeats_nothing(problems: int, B_p: int) -> None:
    an_epoch = problems // B_p
    drawn = list(islice(EpochOrder(problems, B_p, seed=3), 4 * an_epoch))
    epochs = [np.concatenate(drawn[e * an_epoch : (e + 1) * an_epoch]).tolist() for e in range(4)]
    for epoch in epochs:
        assert len(epoch) == an_epoch * B_p == len(set(epoch))
        assert set(epoch) <= set(range(problems))
    assert problems == 1 or len({tuple(e) for e in epochs}) == 4  # shuffled again
    # what one epoch leaves out comes in another
    assert len(set(np.concatenate(epochs).tolist())) == problems


@pytest.mark.parametrize("first", [0, 1, 3, 4, 9, 26])
def test_a_restart_goes_on_where_it_stopped(first: int) -> None:
    full = list(islice(EpochOrder(23, 5, seed=3), 30))
    again = list(islice(EpochOrder(23, 5, seed=3, first_batch=first), 30 - first))
    np.testing.assert_array_equal(np.stack(full[first:]), np.stack(again))


def test_seeds_meet_problems_in_orders_of_their_own() -> None:
    one, two = (next(EpochOrder(1000, 100, seed)).tolist() for seed in (0, 1))
    assert len(set(one) & set(two)) < 30  # 10 expected, standard deviation 3


def test_more_problems_a_batch_than_there_are() -> None:
    with refused(where="B_p"):
        EpochOrder(23, 24, seed=0)


def record(
    order: EpochOrder, index: np.ndarray, always: set[int], never: set[int], n: int = 4
) -> None:
    """Records a batch: some problems are always solved, some never, and the others half of the
    time."""
    order.record_rewards(
        index,
        np.array([n if i in always else 0 if i in never else n / 2 for i in index], np.float32),
        n,
    )


def test_solved_problems_are_left_out_of_epochs_that_begin_later() -> None:
    """Of 23 in batches of 5: 4 batches an epoch. Problems 0 to 5 are solved where they are met; a
    first epoch meets 20.
    """
    order, always = EpochOrder(23, 5, seed=3, drop_above=0.9), set(range(6))
    plain = EpochOrder(23, 5, seed=3)
    first = [next(order) for _ in range(4)]
    np.testing.assert_array_equal(first, [next(plain) for _ in range(4)])
    for batch in first:
        record(order, batch, always, set())
    met = set(np.concatenate(first).tolist()) & always
    assert order.dropped_fraction == 0 and 3 <= len(met)
    left = 23 - len(met)
    assert order.batches_left_in_epoch == left // 5
    second = [next(order) for _ in range(left // 5)]
    expected = [
        i for i in np.random.default_rng([3, 1]).permutation(23) if i not in met
    ]  # the same shuffle, without them
    np.testing.assert_array_equal(np.concatenate(second), expected[: left // 5 * 5])
    assert order.dropped_fraction == len(met) / 23
    for batch in second:
        record(order, batch, always, set())
    for _ in range(40):  # ten epochs or more: all six have been met, and are gone
        batch = next(order)
        assert not set(batch.tolist()) & met
        record(order, batch, always, set())
    assert order.dropped_fraction == 6 / 23


def test_the_pass_rate_is_that_of_all_rollouts_so_far() -> None:
    """3 of 4, then 4 of 4: 7 of 8 is below .9, 11 of 12 is not. The share itself counts as
    reached."""
    order = EpochOrder(2, 1, seed=0, drop_above=0.9)
    rates = iter([3, 4, 4])
    for _ in range(3):
        assert order.batches_left_in_epoch == 2
        for batch in (next(order), next(order)):
            order.record_rewards(batch, np.array([0 if batch[0] == 1 else next(rates)]), 4)
    assert (
        order.reward_sums_by_problem[0],
        order.rollout_counts[0],
        order.batches_left_in_epoch,
    ) == (11, 12, 1)
    assert next(order).tolist() == [1] and order.dropped_fraction == 0.5
    equal = EpochOrder(2, 1, seed=0, drop_above=0.75)
    for _ in range(2):
        batch = next(equal)
        equal.record_rewards(batch, np.array([3 if batch[0] == 0 else 2]), 4)
    assert equal.batches_left_in_epoch == 1 and next(equal).tolist() == [1]


def test_a_batch_of_problems_stays_in_any_case() -> None:
    """The least solved: 3 and 7 half of the time, and of those always solved the first."""
    order = EpochOrder(8, 4, seed=1, drop_above=0.9)
    for _ in range(2):
        record(order, next(order), set(range(8)) - {3, 7}, set())
    for _ in range(3):
        assert order.batches_left_in_epoch == 1
        batch = next(order)
        assert sorted(batch.tolist()) == [0, 1, 3, 7] and order.dropped_fraction == 0.5
        record(order, batch, {0, 1}, set())


@pytest.mark.parametrize("after", [0, 1, 3, 4, 5, 9, 14])
@pytest.mark.parametrize("ahead", [0, 2])
def test_an_order_saved_goes_on_as_it_would_have(after: int, ahead: int) -> None:
    """Through JSON, in the middle of an epoch and at its ends; batches drawn ahead and not recorded
    are drawn again."""
    always = set(range(9))

    def go(order: EpochOrder, count: int) -> list[list[int]]:
        drawn = []
        for _ in range(count):
            drawn.append(next(order))
            record(order, drawn[-1], always, {20})
        return [batch.tolist() for batch in drawn]

    order = EpochOrder(23, 5, seed=3, drop_above=0.9)
    go(order, after)
    for _ in range(ahead):
        next(order)
    saved = json.loads(json.dumps(order.state_dict()))
    unbroken = EpochOrder(23, 5, seed=3, drop_above=0.9)
    go(unbroken, after)
    assert go(EpochOrder(23, 5, 3, after, 0.9, saved), 20) == go(unbroken, 20)
    assert unbroken.dropped_fraction >= 8 / 23
    assert EpochOrder(23, 5, seed=3).state_dict() is None
