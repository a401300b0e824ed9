"""Splits by difficulty, disjoint; and the order of batches, which an update's number alone decides."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from isojax.config import DataConfig
from isojax.tasks.data import batches, check_disjoint, split
from isojax.types import InputError, Problem


def labelled(count: int = 100) -> list[Problem]:
    """Problem i was solved i % 17 times of 16."""
    return [Problem(i, f"p{i}", "a", i % 17, 16) for i in range(count)]


@pytest.mark.parametrize(
    ("low", "high", "solved"), [(0.0, 0.0625, {0, 1}), (0.3, 0.6, {5, 6, 7, 8, 9}), (0.25, 0.25, {4}), (1.0, 1.0, {16})]
)
def test_a_split_holds_its_difficulty_whole_and_nothing_twice(low: float, high: float, solved: set[int]) -> None:
    problems = labelled(400)
    inside = [p for p in problems if p.solved in solved]
    training, validation = split(problems, DataConfig(difficulty=(low, high), validation=10))
    assert len(validation) == 10
    assert sorted(p.id for p in training + validation) == sorted(p.id for p in inside)


def test_a_split_follows_its_seed() -> None:
    one, again, other = (split(labelled(), DataConfig(difficulty=(0.0, 1.0), validation=20, seed=s)) for s in (0, 0, 1))
    assert one == again
    assert {p.id for p in one[1]} != {p.id for p in other[1]}
    assert np.mean([p.id for p in one[1]]) == pytest.approx(49.5, abs=4 * np.sqrt(100**2 / 12 / 20))  # not the first ones


def test_too_few_problems_of_a_difficulty() -> None:
    with pytest.raises(InputError, match=r"6 of 100 problems have avg@16 in \[0\.0, 0\.0\].*validation=4"):
        split(labelled(), DataConfig(difficulty=(0.0, 0.0), validation=4))


def test_one_prompt_on_both_sides_is_refused() -> None:
    check_disjoint(labelled(10)[:5], labelled(10)[5:])
    with pytest.raises(InputError, match="1 problems stand in training and validation, for example 'p4'"):
        check_disjoint(labelled(10)[:5], labelled(10)[4:])
    twins = [Problem(i, "same", "a", 1, 16) for i in range(8)]
    with pytest.raises(InputError, match="'same'"):
        split(twins, DataConfig(difficulty=(0.0, 1.0), validation=2))


@pytest.mark.parametrize(("problems", "B_p"), [(23, 5), (16, 16), (7, 1), (40, 13)])
def test_an_epoch_repeats_nothing(problems: int, B_p: int) -> None:
    an_epoch = problems // B_p
    drawn = list(islice(batches(problems, B_p, seed=3), 4 * an_epoch))
    epochs = [np.concatenate(drawn[e * an_epoch : (e + 1) * an_epoch]).tolist() for e in range(4)]
    for epoch in epochs:
        assert len(epoch) == an_epoch * B_p == len(set(epoch))
        assert set(epoch) <= set(range(problems))
    assert problems == 1 or len({tuple(e) for e in epochs}) == 4  # shuffled anew
    assert len(set(np.concatenate(epochs).tolist())) == problems  # what one epoch leaves out comes in another


@pytest.mark.parametrize("first", [0, 1, 3, 4, 9, 26])
def test_a_restart_goes_on_where_it_stopped(first: int) -> None:
    whole = list(islice(batches(23, 5, seed=3), 30))
    again = list(islice(batches(23, 5, seed=3, first=first), 30 - first))
    np.testing.assert_array_equal(np.stack(whole[first:]), np.stack(again))


def test_seeds_meet_problems_in_orders_of_their_own() -> None:
    one, two = (next(batches(1000, 100, seed)).tolist() for seed in (0, 1))
    assert len(set(one) & set(two)) < 30  # 10 expected, standard deviation 3


def test_more_problems_a_batch_than_there_are() -> None:
    with pytest.raises(InputError, match="B_p = 24 is larger than the training set of 23 problems"):
        next(batches(23, 24, seed=0))
