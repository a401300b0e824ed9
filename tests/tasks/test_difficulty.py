"""Labels go on where a kill left them, belong to a policy and its problems, and nothing torn is taken for one.
Parts of a data set by difficulty: their borders, and splits that share nothing they must not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from isojax.core.config import CellConfig, DataConfig, PromptConfig, RLConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.difficulty import compute_label_key, difficulty_part, label_problems, split_into_parts

PROBLEMS = [Problem(7 * i, f"p{i}", str(i)) for i in range(20)]


class FakeLabeller:
    """A labeller that solves problem i in i mod 5 of 4 rollouts, 6 problems per call, and remembers what it was
    asked.
    """

    problems_per_call, samples_per_problem = 6, 4

    def __init__(self) -> None:
        self.asked: list[int] = []

    def sum_rewards(self, problem_indices: Sequence[int], repeats: int) -> Sequence[int]:
        ids = [PROBLEMS[i].id for i in problem_indices]
        self.asked += ids
        return [repeats * (i % 5) for i in ids]


def label(path: Path, labeller: FakeLabeller, key: str = "key", attempts: int = 7) -> list[Problem]:
    return label_problems(path, key, PROBLEMS, attempts, labeller, lambda text, done: None)


def test_a_label_for_each_problem_by_whole_evaluations(tmp_path: Path) -> None:
    got = label(tmp_path / "l", FakeLabeller())  # 7 attempts are two evaluations of 4
    assert [(p.id, p.solved, p.attempts) for p in got] == [(p.id, 2 * (p.id % 5), 8) for p in PROBLEMS]


def test_cut_at_any_byte_it_goes_on_to_the_same(tmp_path: Path) -> None:
    full = label(tmp_path / "whole", FakeLabeller())
    data = (tmp_path / "whole").read_bytes()
    for size in (*range(0, len(data), 37), len(data) - 1, len(data)):
        path = tmp_path / f"cut{size}"
        path.write_bytes(data[:size])
        labeller = FakeLabeller()
        assert label(path, labeller) == full
        remaining = max(0, data[:size].count(b"\n") - 1)
        assert len(labeller.asked) == len(PROBLEMS) - remaining  # nothing is sampled twice
        assert sorted(path.read_bytes().splitlines()) == sorted(data.splitlines())


def test_other_labels_are_refused(tmp_path: Path) -> None:
    label(tmp_path / "l", FakeLabeller())
    before = (tmp_path / "l").read_bytes()
    with pytest.raises(InputError, match="labels of other settings"):
        label(tmp_path / "l", FakeLabeller(), key="other")
    with pytest.raises(InputError, match="labelled by avg@8, expected avg@16"):
        label(tmp_path / "l", FakeLabeller(), attempts=16)
    assert (tmp_path / "l").read_bytes() == before
    (tmp_path / "l").write_bytes(before.replace(b'"solved"', b'"solve"', 1))
    with pytest.raises(InputError, match=r"line 2 is no label"):
        label(tmp_path / "l", FakeLabeller())


def test_what_a_key_hangs_on() -> None:
    cell = CellConfig(task="addition")
    key = compute_label_key(cell, "print", PROBLEMS)
    assert key == compute_label_key(
        cell.model_copy(update={"rl": RLConfig(learning_rate=1.0)}), "print", PROBLEMS
    )  # no label hangs on that
    others = [
        compute_label_key(cell, "another checkpoint", PROBLEMS),
        compute_label_key(cell, "print", [replace(PROBLEMS[0], prompt="edited"), *PROBLEMS[1:]]),
        compute_label_key(cell, "print", [replace(PROBLEMS[0], answer="9"), *PROBLEMS[1:]]),
        compute_label_key(cell.model_copy(update={"prompt": PromptConfig(template="Q: {prompt}")}), "print", PROBLEMS),
        compute_label_key(cell.model_copy(update={"data": DataConfig(seed=1)}), "print", PROBLEMS),
    ]
    assert len({key, *others}) == 6
    assert len(key) == 16


def labelled(solved: int, i: int = 0, attempts: int = 16) -> Problem:
    return Problem(i, f"p{i}", "1", solved, attempts)


@pytest.mark.parametrize(
    ("solved", "attempts", "part"),
    [(0, 16, "hard"), (1, 16, "hard"), (2, 16, None), (4, 16, None), (5, 16, "easy"), (9, 16, "easy"),
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
        "all": 340, "very_easy_train": 85, "very_easy_validation": 15, "easy_train": 85, "easy_validation": 15,
        "hard_train": 25, "hard_validation": 15,
    }  # fmt: skip
    for part in ("very_easy", "easy", "hard"):
        train, validation = ({p.id for p in splits[f"{part}_{side}"]} for side in ("train", "validation"))
        assert not train & validation and all(difficulty_part(p) == part for p in splits[f"{part}_train"])
    assert split_into_parts(problems, [], 15, 0) == splits != split_into_parts(problems, [], 15, 1)
    assert {k: len(v) for k, v in split_into_parts(problems[:40], [], 300, 0).items() if "easy" not in k} == {
        "all": 40, "hard_train": 3, "hard_validation": 3,
    }  # fmt: skip


def test_hard_and_extremely_hard_share_no_held_out_problem() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        problems = [labelled(0, i) for i in range(300)]
        none = [labelled(0, int(i), 128) for i in rng.permutation(300)[:120]]
        splits = {name: {p.id for p in split} for name, split in split_into_parts(problems, none, 60, seed).items()}
        assert len(splits["hard_validation"]) == len(splits["extremely_hard_validation"]) == 60
        for part in ("hard", "extremely_hard"):
            for other in ("hard", "extremely_hard"):
                assert not splits[f"{part}_train"] & splits[f"{other}_validation"]
