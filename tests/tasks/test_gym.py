"""reasoning-gym's generators: the same problems in every run, no generator that can hang one, and
its scorer as the verifier.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from itertools import islice
from typing import Any

import numpy as np
import pytest

from isojax.core.config import DataConfig
from isojax.core.nouns import Problem
from isojax.tasks.problem_sources import open_source
from isojax.tasks.sources import gym
from isojax.tasks.verifiers import gym as verifier
from tests.refusals import refused

needs_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason='reasoning-gym is not installed: pip install "isojax[gym]"',
)


def draw(task: str, count: int, seed: int = 0) -> list[Problem]:
    return open_source(task, DataConfig(seed=seed)).problems(count, np.random.default_rng(0))


def opened(argument: str, **fields: Any) -> gym.GeneratorSource:
    return dataclasses.replace(gym.gym(argument, DataConfig()), **fields)


@needs_gym
def test_problems_are_the_same_in_every_run() -> None:
    """list_functions draws from Python's global random state, which its seed does not set."""
    again = islice(
        gym._generate_items({"name": "list_functions", "settings": {"size": 9}, "seed": 0}), 3
    )
    assert {p.id: p.prompt for p in draw("gym:list_functions,size=9", 3)} == {
        item["index"]: item["question"] for item in again
    }


@needs_gym
def test_a_generators_scorer_judges() -> None:
    """rearc's scorer tells tuples from lists, which JSON does not; it gives a wrong answer .05."""
    check = verifier.build("")
    for item in islice(
        gym._generate_items({"name": "rearc", "settings": {"size": 5}, "seed": 0}), 2
    ):
        columns = json.loads(json.dumps({"gym": "rearc", "settings": {}, "entry": item["entry"]}))
        problem = Problem(item["index"], item["question"], item["entry"]["answer"], columns=columns)
        assert isinstance(verifier.from_tagged_json(columns["entry"])["metadata"]["output"], tuple)
        assert check(problem, "", problem.answer)[:2] == (True, True)
        assert check(problem, "", f"<answer>0</answer> so <answer>\n{problem.answer}</answer>.")[
            :2
        ] == (True, True)
        assert check(problem, "", f"It is {problem.answer}")[:2] == (False, True)
        assert check(problem, "", " ")[:2] == (False, False)
    with refused():
        check(Problem(3, "p", "a"), "", "a")
    with refused():
        verifier.build("x")


@needs_gym
def test_a_small_set_gives_what_it_has(capfd: pytest.CaptureFixture[str]) -> None:
    digits = "min_terms=2,max_terms=2,min_digits=1,max_digits=1"
    problems = draw(f"gym:chain_sum,{digits},size=60", 60)
    assert (
        len(problems) == len({p.prompt for p in problems}) < 60
    )  # 60 draws of 200 questions: the chance that none repeats is e^-9
    for p in problems:
        a, sign, b = p.prompt.removesuffix(" =").split()[-3:]
        assert int(p.answer) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
    assert (
        f"{len(problems)} distinct problems among 60 items, fewer than 60" in capfd.readouterr().err
    )
    assert problems[0].columns["gym"] == "chain_sum"
    assert problems[0].columns["settings"] == {
        "min_terms": 2,
        "max_terms": 2,
        "min_digits": 1,
        "max_digits": 1,
    }


@needs_gym
def test_a_generator_that_never_ends_is_stopped() -> None:
    generator = opened(
        "base_conversion", settings={"min_base": 7, "max_base": 7, "size": 5}, deadline=2.0
    )
    with refused():
        generator.problems(1, np.random.default_rng(0))


@needs_gym
def test_settings_a_generator_refuses() -> None:
    request = {"settings": {"size": 5}, "seed": 0}
    assert "no generator 'leg_countin'; the nearest of its 1" in str(
        unfit := next(gym._generate_items({**request, "name": "leg_countin"}))
    )
    assert "leg_counting" in unfit["error"]
    wrong = next(
        gym._generate_items(
            {**request, "name": "leg_counting", "settings": {"size": 5, "animals": 3}}
        )
    )
    assert wrong == {
        "error": (
            "unknown settings animals; expected some of min_animals, max_animals, min_instances, "
            "max_instances, size."
        )
    }
    with refused():
        draw("gym:leg_counting,max_animals=0", 1)
    for argument in [
        "leg_counting,seed=3",
        "leg_counting,size=0",
    ]:
        with refused():
            gym.gym(argument, DataConfig())
    with refused():
        gym.gym("", DataConfig())


def test_a_generator_whose_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with refused(where="cell.task"):
        gym.GeneratorSource("x", {"size": 1}, 0).problems(1, np.random.default_rng(0))


def test_without_reasoning_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused(where="cell.task"):
        gym.gym("leg_counting", DataConfig())
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with refused(where="cell.verifier.use = gym"):
        verifier.build("")


def test_packed_entries() -> None:
    entry = {"a": ((1, 2), [3, (4,)]), "b": {"c": None, "d": 1.5}, "e": ()}
    assert (
        verifier.from_tagged_json(json.loads(json.dumps(verifier.to_tagged_json(entry)))) == entry
    )
