"""Which problems a run takes: what is held out, left out, mixed or dropped, and that notes say all
of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from isojax.core.config import CellConfig, DataConfig, EvalConfig, SamplingConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_selection import LabelsNeeded, best_constant, select_problems
from isojax.tasks.problem_sources import open_source
from isojax.tasks.sources.tfds import write_dataset
from tests.refusals import refused


class Words:
    """A text task whose prompts have as many tokens as words."""

    on_device: ClassVar[Literal[False]] = False

    def __init__(self, cell: CellConfig):
        self.source = open_source(cell.task, cell.data)

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        return self.source.problems(count, rng)

    def prompt_lengths(self, problems: Sequence[Problem]) -> list[int]:
        return [len(p.prompt.split()) for p in problems]


def write(path: Path, prompts: Sequence[str]) -> str:
    path.write_text(
        "".join(json.dumps({"prompt": p, "answer": str(i)}) + "\n" for i, p in enumerate(prompts))
    )
    return f"jsonl:{path}"


def cell(task: str, extra: dict[str, str] | None = None, P: int = 9, **data: Any) -> CellConfig:
    settings = {"attempts": 0, "validation": 4} | data
    return CellConfig(
        task=task,
        data=DataConfig(**settings),
        sampling=SamplingConfig(prompt_length=P),
        eval=EvalConfig(extra=extra or {}),
    )


def never(problems: list[Problem]) -> list[Problem]:
    raise AssertionError("nothing is to be labelled here")


def chosen(settings: CellConfig, label: Any = never) -> Any:
    return select_problems(settings, Words(settings), label)


def test_a_set_is_split_and_a_note_counts_long_prompts(tmp_path: Path) -> None:
    task = write(
        tmp_path / "a.jsonl",
        [f"problem {i}" for i in range(20)]
        + ["one that is too long by far", "and another one of these"],
    )
    got = chosen(cell(task, P=3))
    assert (len(got.training), len(got.validation)) == (16, 4)
    assert not {p.id for p in got.training} & {p.id for p in got.validation}
    assert got.notes == [
        (
            "2 of 22 problems dropped: their prompts have more than cell.sampling.prompt_length = "
            "3 tokens"
        )
    ]
    # Words: 20 prompts of 2, one of 7, one of 6.
    with refused(where="problems"):
        chosen(cell(task, P=1))


def test_a_validation_set_that_takes_all_training_problems_is_named(tmp_path: Path) -> None:
    task = write(tmp_path / "a.jsonl", [f"problem {i}" for i in range(4)])
    with refused():
        chosen(cell(task, held_out=task))


def test_what_also_stands_in_a_held_out_set_is_not_trained_on(tmp_path: Path) -> None:
    task = write(tmp_path / "a.jsonl", [f"Problem  {i}" for i in range(10)])
    held_out = write(tmp_path / "b.jsonl", ["problem 3", "problem 7", "other 1", "other 2"])
    got = chosen(cell(task, held_out=held_out))
    assert (
        sorted(p.id for p in got.training) == [0, 1, 2, 4, 5, 6, 8, 9] and len(got.validation) == 4
    )
    assert got.notes == [
        "2 training problems are also in the validation set: they are not trained on"
    ]


def test_a_note_says_that_a_held_out_set_is_smaller_than_asked_for(tmp_path: Path) -> None:
    got = chosen(
        cell(
            write(tmp_path / "a.jsonl", ["a", "b"]),
            held_out=write(tmp_path / "b.jsonl", ["c", "d"]),
        )
    )
    assert (
        len(got.validation) == 2
        and "holds 2 problems, and cell.data.validation = 4" in got.notes[0]
    )


def test_the_same_prompt_in_other_letters_is_on_one_side(tmp_path: Path) -> None:
    prompts = [text for i in range(20) for text in (f"what is {i} ?", f"What  is {i} ?")]
    got = chosen(cell(write(tmp_path / "a.jsonl", prompts), validation=8))
    sides = [{p.prompt.lower().split()[2] for p in side} for side in (got.training, got.validation)]
    assert not sides[0] & sides[1] and "are also in the validation set" in got.notes[0]


def test_a_note_counts_problems_outside_the_difficulty(tmp_path: Path) -> None:
    task = write(tmp_path / "a.jsonl", [f"problem {i}" for i in range(40)])

    def label(problems: list[Problem]) -> list[Problem]:
        return [Problem(p.id, p.prompt, p.answer, solved=p.id % 4, attempts=4) for p in problems]

    for held_out in (None, write(tmp_path / "b.jsonl", [f"other {i}" for i in range(4)])):
        got = chosen(cell(task, attempts=4, difficulty=(0.25, 0.5), held_out=held_out), label)
        assert {p.id % 4 for p in got.training} == {1, 2} and {
            p.id % 4 for p in got.out_of_range
        } == {0, 3}
        assert len(got.out_of_range) == 20 and len(got.training) == (16 if held_out is None else 20)
        assert "20 of 40 problems left out: their avg@k is outside [0.25, 0.5]" in got.notes


def test_size_and_extra_sets(tmp_path: Path) -> None:
    task = write(tmp_path / "a.jsonl", [f"problem {i}" for i in range(20)])
    seen = write(
        tmp_path / "b.jsonl", [f"problem {i}" for i in range(20)] + [f"new {i}" for i in range(4)]
    )
    got = chosen(cell(task, extra={"seen": seen}, size=5, validation=10))
    assert (
        len(got.training) == 5
        and got.notes[0] == "5 of 10 training problems left out: cell.data.size = 5"
    )
    both = {p.prompt for p in got.extra_sets["seen"]} & {p.prompt for p in got.training}
    assert got.notes[1:] == (
        [f"{len(both)} of 10 problems of seen are also in the training set"] if both else []
    )


def test_a_missing_file_is_reported_before_anything_is_labelled(tmp_path: Path) -> None:
    task = write(tmp_path / "a.jsonl", [f"problem {i}" for i in range(20)])
    for wrong in ({"held_out": "jsonl:nowhere.jsonl"}, {"extra": {"ood": "jsonl:nowhere.jsonl"}}):
        settings = cell(task, attempts=4, **wrong)
        with refused(where="nowhere.jsonl"):
            chosen(settings)
        with refused(where="nowhere.jsonl"):
            select_problems(settings, Words(settings))


def test_without_labels_what_needs_none_is_chosen(tmp_path: Path) -> None:
    task = write(tmp_path / "a.jsonl", [f"problem {i}" for i in range(20)])
    first = cell(task)
    assert select_problems(first, Words(first)) == chosen(first)
    second = cell(task, attempts=4)
    with pytest.raises(LabelsNeeded):
        select_problems(second, Words(second))


def test_a_mixture_validates_on_its_largest_part(tmp_path: Path) -> None:
    def some(count: int, first: int) -> list[Problem]:
        return [Problem(first + i, f"problem {first + i}", "1", 4, 16) for i in range(count)]

    splits = {
        "hard_train": some(40, 0),
        "hard_validation": some(6, 100),
        "easy_train": some(30, 200),
        "easy_validation": some(6, 300),
    }
    write_dataset(tmp_path / "d", splits, {})
    for shares, part, counts in (
        ({"hard": 1, "easy": 3}, 300, (10, 30)),
        ({"easy": 1.0, "hard": 1.0}, 300, (30, 30)),
    ):
        got = chosen(cell(f"tfds:{tmp_path / 'd'}", mixture=shares, attempts=16))
        assert all(part <= p.id < part + 100 for p in got.validation) and len(got.validation) == 4
        assert (
            sum(p.id < 100 for p in got.training),
            sum(200 <= p.id < 300 for p in got.training),
        ) == counts
    with refused(where="d"):
        chosen(cell(f"tfds:{tmp_path / 'd'}", mixture={"very_easy": 1.0}))


def test_the_best_constant_answer() -> None:
    def problems(*answers: str) -> list[Problem]:
        return [Problem(i, "p", a) for i, a in enumerate(answers)]

    assert best_constant(problems("18", "so #### 18", r"thus \boxed{18}", "4")) == ("18", 0.75)
    assert best_constant(problems("", "")) is None


@pytest.mark.parametrize("which", ["held_out", "extra"])
def test_a_set_that_needs_replies_goes_only_with_a_task_that_has_them(
    which: str, tmp_path: Path
) -> None:
    def settings(task: str, source: str) -> CellConfig:
        data: dict[str, Any] = (
            {"held_out": source} if which == "held_out" else {"extra": {"ood": source}}
        )
        return cell(task, candidates=20, **data)

    task = write(tmp_path / "a.jsonl", [f"problem {i}" for i in range(20)])
    with refused():
        chosen(settings(task, "calculator"))
    for with_replies, other in (("calculator", "calculator"), ("calculator", task)):
        assert len(chosen(settings(with_replies, other)).validation) == 4


def test_the_note_of_a_small_held_out_set_counts_what_was_taken(tmp_path: Path) -> None:
    """The file holds more: of its prompts, only those that fit are taken."""
    held_out = write(tmp_path / "b.jsonl", ["c", "d", "one that is too long"])
    got = chosen(cell(write(tmp_path / "a.jsonl", ["a", "b"]), held_out=held_out, P=2))
    assert got.notes == [
        (
            "1 of 3 validation problems dropped: their prompts have more than "
            "cell.sampling.prompt_length = 2 tokens"
        ),
        (
            f"what was taken from {held_out} holds 2 problems, and cell.data.validation = 4: all "
            "of them validate"
        ),
    ]
