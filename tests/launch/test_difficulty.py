"""Parts of a data set by difficulty: their borders, and splits that share nothing they must not."""

from __future__ import annotations

import numpy as np
import pytest

from isojax.core.nouns import Problem
from isojax.launch.local.difficulty_parts import difficulty_part, split_into_parts

PROBLEMS = [Problem(7 * i, f"p{i}", str(i)) for i in range(20)]


def labelled(solved: int, i: int = 0, attempts: int = 16) -> Problem:
    return Problem(i, f"p{i}", "1", solved, attempts)


@pytest.mark.parametrize(
    ("solved", "attempts", "part"),
    [(0, 16, "hard"), (1, 16, "hard"), (2, 16, None), (4, 16, None), (5, 16, "easy"),
        (9, 16, "easy"),
     (6, 10, "easy"), (7, 10, "very_easy"),
     (9, 10, "very_easy"), (14, 16, "very_easy"), (15, 16, None), (16, 16, None), (3, 10, "easy")],
)  # fmt: skip
def test_the_borders_of_the_parts(solved: int, attempts: int, part: str | None) -> None:
    assert difficulty_part(labelled(solved, attempts=attempts)) == part


def test_splits_of_each_part() -> None:
    problems = [labelled(i % 17, i) for i in range(340)]  # 20 of each count
    splits = split_into_parts(problems, [], held_out=15, seed=0)
    sizes = {name: len(split) for name, split in splits.items()}
    assert sizes == {
        "all": 340, "very_easy_train": 85, "very_easy_validation": 15, "easy_train": 85,
        "easy_validation": 15,
        "hard_train": 25, "hard_validation": 15,
    }  # fmt: skip
    for part in ("very_easy", "easy", "hard"):
        train, validation = (
            {p.id for p in splits[f"{part}_{side}"]} for side in ("train", "validation")
        )
        assert not train & validation and all(
            difficulty_part(p) == part for p in splits[f"{part}_train"]
        )
    assert split_into_parts(problems, [], 15, 0) == splits != split_into_parts(problems, [], 15, 1)
    assert {k: len(v) for k, v in split_into_parts(problems[:40], [], 300,
            0).items() if "easy" not in k} == {
        "all": 40, "hard_train": 3, "hard_validation": 3,
    }  # fmt: skip


def test_hard_and_extremely_hard_share_no_held_out_problem() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        problems = [labelled(0, i) for i in range(300)]
        none = [labelled(0, int(i), 128) for i in rng.permutation(300)[:120]]
        splits = {
            name: {p.id for p in split}
            for name, split in split_into_parts(problems, none, 60, seed).items()
        }
        assert len(splits["hard_validation"]) == len(splits["extremely_hard_validation"]) == 60
        for part in ("hard", "extremely_hard"):
            for other in ("hard", "extremely_hard"):
                assert not splits[f"{part}_train"] & splits[f"{other}_validation"]
