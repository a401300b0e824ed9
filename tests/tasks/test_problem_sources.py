"""Task strings that name a source; and the two sources that are a file each: sums and greatest
common divisors."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from isojax.core.config import DataConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import (
    InMemorySource,
    dedup_text,
    open_source,
    random_subset,
    read_settings,
)
from isojax.tasks.sources import addition
from tests.refusals import refused


def draw(task: str, count: int, seed: int = 0) -> list[Problem]:
    return open_source(task, DataConfig()).problems(count, np.random.default_rng(seed))


def test_an_unknown_source_lists_those_there_are() -> None:
    with refused(where="sources plug-in 'jsonI'"):
        open_source("jsonI:x", DataConfig())


def test_a_choice_is_random_whole_and_without_repeats() -> None:
    problems = [Problem(i, f"p{i}", "a") for i in range(100)]
    some = random_subset(problems, 20, np.random.default_rng(1))
    assert len({p.id for p in some}) == 20 and some != sorted(some, key=lambda p: p.id)
    assert np.mean([p.id for p in some]) == pytest.approx(49.5, abs=4 * np.sqrt(100**2 / 12 / 20))
    assert {p.id for p in InMemorySource(problems).problems(1000, np.random.default_rng(2))} == set(
        range(100)
    )


def test_problems_are_distinguished_by_what_the_user_says() -> None:
    turns = (
        {"role": "system", "content": "S"},
        {"role": "user", "content": "3?"},
        {"role": "assistant", "content": "no"},
    )
    assert (
        dedup_text(
            Problem(
                0, "double it", "6", messages=(*turns, {"role": "user", "content": "double it"})
            )
        )
        == "3?\ndouble it"
    )
    assert dedup_text(Problem(0, "double it", "6")) == "double it"


def test_settings_of_a_task() -> None:
    assert read_settings("", "t") == {}
    assert read_settings("a=1,b=[x, 2],c=on it,d=1.5", "t") == {
        "a": 1,
        "b": ["x", 2],
        "c": "on it",
        "d": 1.5,
    }
    for text in ("a", "a=1,a=2", "=1", "a=1,"):
        with refused(where="cell.task: t"):
            read_settings(text, "t")
    with refused(where="cell.task"):
        read_settings("a={1", "t")


def test_settings_that_multiply_or_have_no_json() -> None:
    lists = [f"- &{b} [*{a},*{a},*{a},*{a}]" for a, b in pairwise("abcdefghijklm")]
    text = "\n".join(["x=", "- &a [1,1,1,1]", *lists])
    with refused(where="cell.task"):
        read_settings(text, "gym:sums")
    with refused(where="cell.task"):
        read_settings("x={? [1] : 2}", "gym:sums")
    assert read_settings("x=2026-01-02", "gym:sums") == {"x": "2026-01-02"}


def test_the_range_of_digits() -> None:
    assert addition.addition("high=3", DataConfig()) == addition.AdditionSource(1, 3)
    for text in ("hi=3", "low=x", "low=1.0", "high=5"):
        with refused(where="cell.task"):
            addition.addition(text, DataConfig())


def test_sums_are_right_distinct_and_have_ids_of_their_own() -> None:
    problems = draw("addition", 3000)
    for p in problems:
        a, b = divmod(p.id, 100)
        assert p.prompt == f"{a} + {b} =" and p.answer == str(a + b)
    assert len({frozenset(divmod(p.id, 100)) for p in problems}) == 3000  # of a + b and b + a, one
    assert draw("addition", 3000) == problems != draw("addition", 3000, seed=1)


def test_no_two_sets_hold_a_problem_both_ways_round() -> None:
    """A held-out set is drawn independently of the training set: what both hold must be the same
    text to be found."""
    one, two = draw("addition", 600, seed=0), draw("addition", 600, seed=1)
    coefficients = {tuple(sorted(map(int, re.findall(r"\d+", p.prompt)))): p.prompt for p in one}
    both = [p for p in two if tuple(sorted(map(int, re.findall(r"\d+", p.prompt)))) in coefficients]
    assert len(both) > 50
    assert all(
        coefficients[tuple(sorted(map(int, re.findall(r"\d+", p.prompt))))] == p.prompt
        for p in both
    )
    first_larger = [
        a > b for a, b in (map(int, re.findall(r"\d+", p.prompt)) for p in one) if a != b
    ]
    assert 0.4 < np.mean(first_larger) < 0.6


def test_each_operand_of_a_sum_is_as_often_short_as_long() -> None:
    # 40 of 5,050 sums: so few repeats that the shares are nearly those of single draws; 50 seeds
    # give 4,000 operands.
    operands = [
        n for seed in range(50) for p in draw("addition", 40, seed) for n in divmod(p.id, 100)
    ]
    short = np.array(operands) < 10
    assert short.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(4000) + 0.02)
    assert np.mean(np.array(operands)[short]) == pytest.approx(4.5, abs=0.3)
    assert np.mean(np.array(operands)[~short]) == pytest.approx(54.5, abs=2.5)


def test_the_last_sums_are_like_the_first() -> None:
    """Nearly all one-digit pairs (a fourth of all draws) are met early; so the order is shuffled,
    and a prefix is a fair choice.
    """
    short = np.array([p.id < 1000 and p.id % 100 < 10 for p in draw("addition", 2000)])
    assert short.sum() == 55
    assert short[:1000].sum() == pytest.approx(27.5, abs=4 * 3.7)


@pytest.mark.parametrize(
    ("task", "count"),
    [("addition", 5050), ("addition:low=1,high=1", 55), ("addition:low=2,high=2", 4095)],
)
def test_all_problems_of_a_source(task: str, count: int) -> None:
    problems = draw(task, 20_000)
    assert (
        len(problems) == len({p.prompt for p in problems}) == len({p.id for p in problems}) == count
    )


@pytest.mark.parametrize(
    "task", ["addition:low=0,high=2", "addition:low=3,high=2", "addition:high=5"]
)
def test_limits_that_make_no_problems(task: str) -> None:
    with refused(where="cell.task"):
        open_source(task, DataConfig())


def test_no_source_loads_jax() -> None:
    program = (
        "import sys\n"
        "from isojax.tasks import epochs, problem_sources\n"
        "from isojax.tasks.sources import addition, gym, jsonl, parquet, tfds\n"
        "print(sorted({'jax', 'tensorflow', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
