"""Splits by difficulty hold nothing twice, overlap is found, and mixtures have their shares."""

from __future__ import annotations

import numpy as np
import pytest

from isojax.core.config import DataConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_selection import (
    drop_overlap,
    mix_parts,
    mixture_counts,
    split_by_difficulty,
)
from tests.refusals import refused


def labelled(count: int = 100) -> list[Problem]:
    """Problem i was solved i % 17 times of 16."""
    return [Problem(i, f"p{i}", "a", i % 17, 16) for i in range(count)]


@pytest.mark.parametrize(
    ("low", "high", "solved"),
    [(0.0, 0.0625, {0, 1}), (0.3, 0.6, {5, 6, 7, 8, 9}), (0.25, 0.25, {4}), (1.0, 1.0, {16})],
)
def test_a_split_holds_its_difficulty_whole_and_nothing_twice(
    low: float, high: float, solved: set[int]
) -> None:
    problems = labelled(400)
    inside = [p for p in problems if p.solved in solved]
    training, validation = split_by_difficulty(
        problems, DataConfig(difficulty=(low, high), validation=10)
    )
    assert len(validation) == 10
    assert sorted(p.id for p in training + validation) == sorted(p.id for p in inside)


def test_a_split_follows_its_seed() -> None:
    one, again, other = (
        split_by_difficulty(labelled(), DataConfig(difficulty=(0.0, 1.0), validation=20, seed=s))
        for s in (0, 0, 1)
    )
    assert one == again
    assert {p.id for p in one[1]} != {p.id for p in other[1]}
    assert np.mean([p.id for p in one[1]]) == pytest.approx(
        49.5, abs=4 * np.sqrt(100**2 / 12 / 20)
    )  # not the first ones


def test_too_few_problems_of_a_difficulty() -> None:
    with refused(where="cell.data.validation = 4"):
        split_by_difficulty(labelled(), DataConfig(difficulty=(0.0, 0.0), validation=4))


def test_problems_without_labels() -> None:
    bare = [Problem(i, f"p{i}", "a") for i in range(50)]
    training, validation = split_by_difficulty(
        bare, DataConfig(attempts=0, validation=20, difficulty=(0.0, 0.1))
    )
    assert sorted(p.id for p in training + validation) == list(range(50)) and len(validation) == 20
    with refused(where="cell.data.validation = 26"):
        split_by_difficulty(bare, DataConfig(attempts=0, validation=26))


def test_what_stands_on_both_sides_but_for_space_and_case_leaves_training() -> None:
    prompts = ["What is 2+2?", "what  is 2+2?\n", "What is 3+3?", "What is 22?"]
    training = [Problem(i, p, "a") for i, p in enumerate(prompts)]
    validation = [Problem(9, "WHAT IS 2+2?", "a"), Problem(8, "Who?", "a")]
    assert drop_overlap(training, validation) == (training[2:], 2)
    assert drop_overlap(training, []) == (training, 0)
    talk = Problem(
        5,
        "double it",
        "8",
        messages=({"role": "user", "content": "4?"}, {"role": "user", "content": "double it"}),
    )
    # another talk, the same last turn
    assert drop_overlap([talk], [Problem(6, "double it", "2")]) == ([talk], 0)


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
        # exact, though .1 + .2 is not .3 in floats
        ((1000, 1000, 1000), (0.1, 0.2, 0.7), 1000, (100, 200, 700)),
        # 1049 = 10.49 + 1038.51; of 1050 the first would get 11
        ((10, 5000), (0.01, 0.99), None, (10, 1039)),
    ],
)
def test_the_largest_mixture(
    sizes: tuple[int, ...], shares: tuple[float, ...], size: int | None, expected: tuple[int, ...]
) -> None:
    names = ("hard", "easy", "very_easy")
    result = mixture_counts(
        dict(zip(names, sizes, strict=False)), dict(zip(names, shares, strict=False)), size
    )
    assert tuple(result.values()) == expected


def test_a_mixture_takes_from_each_part_at_random() -> None:
    parts = {
        "hard": labelled(200),
        "easy": [Problem(1000 + i, f"e{i}", "a", 8, 16) for i in range(300)],
    }
    mixed = mix_parts(parts, {"hard": 0.25, "easy": 0.75}, 100, np.random.default_rng(0))
    from_hard = [p.id for p in mixed if p.id < 1000]
    assert len(from_hard) == 25 and len({p.id for p in mixed}) == 100
    assert np.mean(from_hard) == pytest.approx(99.5, abs=4 * np.sqrt(200**2 / 12 / 25))
    assert 5 < sum(p.id < 1000 for p in mixed[:50]) < 20  # shuffled: 12.5 expected
    assert mixed == mix_parts(parts, {"hard": 0.25, "easy": 0.75}, 100, np.random.default_rng(0))


def test_mixtures_that_cannot_be() -> None:
    with refused(where="cell.data.mixture"):
        mixture_counts({"hard": 10, "easy": 10}, {"hard": 0.5, "easy": 0.5}, 1)
    with refused(where="cell.data.mixture"):
        mix_parts(
            {"hard": labelled(5), "easy": labelled(5)},
            {"hard": 0.5, "easy": 0.5},
            None,
            np.random.default_rng(0),
        )
