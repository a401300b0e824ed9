"""Splits by difficulty, disjoint; and the order of batches, which an update's number alone decides."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest

from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.epochs import (
    EpochOrder,
    check_disjoint,
    drop_overlap,
    limit_size,
    mix_parts,
    mixture_counts,
    overlapping_prompts,
    split_by_difficulty,
)


def labelled(count: int = 100) -> list[Problem]:
    """Problem i was solved i % 17 times of 16."""
    return [Problem(i, f"p{i}", "a", i % 17, 16) for i in range(count)]


@pytest.mark.parametrize(
    ("low", "high", "solved"), [(0.0, 0.0625, {0, 1}), (0.3, 0.6, {5, 6, 7, 8, 9}), (0.25, 0.25, {4}), (1.0, 1.0, {16})]
)
def test_a_split_holds_its_difficulty_whole_and_nothing_twice(low: float, high: float, solved: set[int]) -> None:
    problems = labelled(400)
    inside = [p for p in problems if p.solved in solved]
    training, validation = split_by_difficulty(problems, DataConfig(difficulty=(low, high), validation=10))
    assert len(validation) == 10
    assert sorted(p.id for p in training + validation) == sorted(p.id for p in inside)


def test_a_split_follows_its_seed() -> None:
    one, again, other = (
        split_by_difficulty(labelled(), DataConfig(difficulty=(0.0, 1.0), validation=20, seed=s)) for s in (0, 0, 1)
    )
    assert one == again
    assert {p.id for p in one[1]} != {p.id for p in other[1]}
    assert np.mean([p.id for p in one[1]]) == pytest.approx(
        49.5, abs=4 * np.sqrt(100**2 / 12 / 20)
    )  # not the first ones


def test_too_few_problems_of_a_difficulty() -> None:
    with pytest.raises(InputError, match=r"6 of 100 problems have avg@16 in \[0\.0, 0\.0\].*validation=4"):
        split_by_difficulty(labelled(), DataConfig(difficulty=(0.0, 0.0), validation=4))


def test_one_prompt_on_both_sides_is_refused() -> None:
    check_disjoint(labelled(10)[:5], labelled(10)[5:])
    with pytest.raises(InputError, match="1 problems are in training and validation, for example 'p4'"):
        check_disjoint(labelled(10)[:5], labelled(10)[4:])
    twins = [Problem(i, "same", "a", 1, 16) for i in range(8)]
    with pytest.raises(InputError, match="'same'"):
        split_by_difficulty(twins, DataConfig(difficulty=(0.0, 1.0), validation=2))


@pytest.mark.parametrize(("problems", "B_p"), [(23, 5), (16, 16), (7, 1), (40, 13)])
def test_an_epoch_repeats_nothing(problems: int, B_p: int) -> None:
    an_epoch = problems // B_p
    drawn = list(islice(EpochOrder(problems, B_p, seed=3), 4 * an_epoch))
    epochs = [np.concatenate(drawn[e * an_epoch : (e + 1) * an_epoch]).tolist() for e in range(4)]
    for epoch in epochs:
        assert len(epoch) == an_epoch * B_p == len(set(epoch))
        assert set(epoch) <= set(range(problems))
    assert problems == 1 or len({tuple(e) for e in epochs}) == 4  # shuffled anew
    assert len(set(np.concatenate(epochs).tolist())) == problems  # what one epoch leaves out comes in another


@pytest.mark.parametrize("first", [0, 1, 3, 4, 9, 26])
def test_a_restart_goes_on_where_it_stopped(first: int) -> None:
    whole = list(islice(EpochOrder(23, 5, seed=3), 30))
    again = list(islice(EpochOrder(23, 5, seed=3, first_update=first), 30 - first))
    np.testing.assert_array_equal(np.stack(whole[first:]), np.stack(again))


def test_seeds_meet_problems_in_orders_of_their_own() -> None:
    one, two = (next(EpochOrder(1000, 100, seed)).tolist() for seed in (0, 1))
    assert len(set(one) & set(two)) < 30  # 10 expected, standard deviation 3


def test_more_problems_a_batch_than_there_are() -> None:
    with pytest.raises(InputError, match="B_p = 24 is larger than the training set of 23 problems"):
        EpochOrder(23, 24, seed=0)


def test_problems_without_labels() -> None:
    bare = [Problem(i, f"p{i}", "a") for i in range(50)]
    training, validation = split_by_difficulty(bare, DataConfig(attempts=0, validation=20, difficulty=(0.0, 0.1)))
    assert sorted(p.id for p in training + validation) == list(range(50)) and len(validation) == 20
    with pytest.raises(InputError, match=r"there are 50 problems; cell\.data\.validation=26 needs at least 52"):
        split_by_difficulty(bare, DataConfig(attempts=0, validation=26))
    with pytest.raises(InputError, match=r"problem 0 \('p0'\) is not labelled and cell\.data\.attempts=16"):
        split_by_difficulty(bare, DataConfig(validation=5))


def test_what_stands_on_both_sides_but_for_space_and_case_leaves_training() -> None:
    prompts = ["What is 2+2?", "what  is 2+2?\n", "What is 3+3?", "What is 22?"]
    training = [Problem(i, p, "a") for i, p in enumerate(prompts)]
    validation = [Problem(9, "WHAT IS 2+2?", "a"), Problem(8, "Who?", "a")]
    assert overlapping_prompts(training, validation) == prompts[:2]
    assert drop_overlap(training, validation) == (training[2:], 2)
    assert drop_overlap(training, []) == (training, 0)
    talk = Problem(
        5, "double it", "8", messages=({"role": "user", "content": "4?"}, {"role": "user", "content": "double it"})
    )
    assert (
        overlapping_prompts([talk], [Problem(6, "double it", "2")]) == []
    )  # another conversation with the same last turn


def test_a_limit() -> None:
    problems, rng = labelled(40), np.random.default_rng(0)
    assert limit_size(problems, None, rng) == limit_size(problems, 40, rng) == problems
    assert len({p.id for p in limit_size(problems, 7, rng)}) == 7


@pytest.mark.parametrize(
    ("sizes", "shares", "size", "expected"),
    [
        ((100, 80), (1.0,), None, (100,)),
        (
            (100, 80),
            (0.5, 0.5),
            None,
            (81, 80),
        ),  # 161 = 80.5 + 80.5: the odd one comes from the first part, which has it
        ((80, 100), (0.5, 0.5), None, (80, 80)),
        ((100, 80), (0.5, 0.5), 51, (26, 25)),
        (
            (1000, 1000, 130),
            (0.5, 0.25, 0.25),
            None,
            (261, 131, 130),
        ),  # 522 = 261 + 130.5 + 130.5; 523 would take 131 of 130
        ((1000, 1000, 1000), (0.5, 0.25, 0.25), 10, (5, 3, 2)),
        ((1000, 1000, 1000), (2.0, 1.0, 1.0), 100, (50, 25, 25)),
        ((1000, 1000, 1000), (0.1, 0.2, 0.7), 1000, (100, 200, 700)),  # exact, though .1 + .2 is not .3 in floats
        ((10, 5000), (0.01, 0.99), None, (10, 1039)),  # 1049 = 10.49 + 1038.51; of 1050 the first would get 11
    ],
)
def test_the_largest_mixture(
    sizes: tuple[int, ...], shares: tuple[float, ...], size: int | None, expected: tuple[int, ...]
) -> None:
    names = ("hard", "easy", "very_easy")
    found = mixture_counts(dict(zip(names, sizes, strict=False)), dict(zip(names, shares, strict=False)), size)
    assert tuple(found.values()) == expected


def test_a_mixture_takes_from_each_part_at_random() -> None:
    parts = {"hard": labelled(200), "easy": [Problem(1000 + i, f"e{i}", "a", 8, 16) for i in range(300)]}
    mixed = mix_parts(parts, {"hard": 0.25, "easy": 0.75}, 100, np.random.default_rng(0))
    from_hard = [p.id for p in mixed if p.id < 1000]
    assert len(from_hard) == 25 and len({p.id for p in mixed}) == 100
    assert np.mean(from_hard) == pytest.approx(99.5, abs=4 * np.sqrt(200**2 / 12 / 25))
    assert 5 < sum(p.id < 1000 for p in mixed[:50]) < 20  # shuffled: 12.5 expected
    assert mixed == mix_parts(parts, {"hard": 0.25, "easy": 0.75}, 100, np.random.default_rng(0))


def test_mixtures_that_cannot_be() -> None:
    sizes = {"hard": 10, "easy": 0}
    for shares, message in [
        ({"hard": 0.5, "easy": 0.5}, r"part 'easy' holds no problems; there are hard \(10\), easy \(0\)"),
        ({"hard": 0.5, "eazy": 0.5}, "part 'eazy' holds no problems"),
        ({"hard": 0.0}, r"mixture\.hard=0\.0: expected a share above 0"),
        ({}, "mixture is empty"),
    ]:
        with pytest.raises(InputError, match=message):
            mixture_counts(sizes, shares, None)
    with pytest.raises(InputError, match=r"a mixture of 1 problems gives \{'hard': 1, 'easy': 0\}"):
        mixture_counts({"hard": 10, "easy": 10}, {"hard": 0.5, "easy": 0.5}, 1)
    with pytest.raises(InputError, match="problem 0 is in hard and in easy"):
        mix_parts(
            {"hard": labelled(5), "easy": labelled(5)}, {"hard": 0.5, "easy": 0.5}, None, np.random.default_rng(0)
        )


def told(order: EpochOrder, index: np.ndarray, always: set[int], never: set[int], n: int = 4) -> None:
    """Records a batch: some problems are always solved, some never, and the others half of the time."""
    order.record_rewards(
        index, np.array([n if i in always else 0 if i in never else n / 2 for i in index], np.float32), n
    )


def test_solved_problems_are_left_out_of_epochs_that_begin_later() -> None:
    """Of 23 in batches of 5: 4 batches an epoch. Problems 0 to 5 are solved where they are met; a first epoch meets
    20.
    """
    order, always = EpochOrder(23, 5, seed=3, drop_above=0.9), set(range(6))
    plain = EpochOrder(23, 5, seed=3)
    first = [next(order) for _ in range(4)]
    np.testing.assert_array_equal(first, [next(plain) for _ in range(4)])
    for batch in first:
        told(order, batch, always, set())
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
        told(order, batch, always, set())
    for _ in range(40):  # ten epochs or more: all six have been met, and are gone
        batch = next(order)
        assert not set(batch.tolist()) & met
        told(order, batch, always, set())
    assert order.dropped_fraction == 6 / 23


def test_the_pass_rate_is_that_of_all_rollouts_so_far() -> None:
    """3 of 4, then 4 of 4: 7 of 8 is below .9, 11 of 12 is not. The share itself counts as reached."""
    order = EpochOrder(2, 1, seed=0, drop_above=0.9)
    rates = iter([3, 4, 4])
    for _ in range(3):
        assert order.batches_left_in_epoch == 2
        for batch in (next(order), next(order)):
            order.record_rewards(batch, np.array([0 if batch[0] == 1 else next(rates)]), 4)
    assert (order.correct_counts[0], order.rollout_counts[0], order.batches_left_in_epoch) == (11, 12, 1)
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
        told(order, next(order), set(range(8)) - {3, 7}, set())
    for _ in range(3):
        assert order.batches_left_in_epoch == 1
        batch = next(order)
        assert sorted(batch.tolist()) == [0, 1, 3, 7] and order.dropped_fraction == 0.5
        told(order, batch, {0, 1}, set())


@pytest.mark.parametrize("after", [0, 1, 3, 4, 5, 9, 14])
@pytest.mark.parametrize("ahead", [0, 2])
def test_an_order_saved_goes_on_as_it_would_have(after: int, ahead: int) -> None:
    """Through JSON, in the middle of an epoch and at its ends; batches drawn ahead and not recorded are drawn again."""
    always = set(range(9))

    def go(order: EpochOrder, count: int) -> list[list[int]]:
        drawn = []
        for _ in range(count):
            drawn.append(next(order))
            told(order, drawn[-1], always, {20})
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
