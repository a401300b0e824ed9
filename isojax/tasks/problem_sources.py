"""Sources of problems in text: a file per kind in tasks/sources/, with `source(argument, data) -> ProblemSource`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import yaml

from isojax.core import registry
from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem


class ProblemSource(Protocol):
    """Problems in text."""

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """At most `count` distinct ones, a random choice in random order; ids are int32, the same in every run."""
        ...


@dataclass(frozen=True)
class InMemorySource:
    """A source whose problems are all in memory."""

    all_problems: Sequence[Problem]

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` of them, or all."""
        return random_subset(self.all_problems, count, rng)


def open_source(task: str, data: DataConfig) -> ProblemSource:
    """The source that `name` or `name:argument` means; whatever is wrong with it is an InputError before any work."""
    name, _, argument = task.partition(":")
    return registry.load("tasks.sources", name, "source").source(argument, data)


def random_subset(problems: Sequence[Problem], count: int, rng: np.random.Generator) -> list[Problem]:
    """At most `count` of the problems, a random choice in random order."""
    return [problems[i] for i in rng.permutation(len(problems))[:count]]


def canonical_order(a: int, b: int) -> tuple[int, int]:
    """One order for two numbers that mean the same either way; the larger is first as often as the smaller."""
    low, high = min(a, b), max(a, b)
    return (high, low) if (low * 7 + high * 3) // 2 % 2 else (low, high)


def dedup_text(problem: Problem) -> str:
    """The text by which two problems are compared: the prompt, or all of the user's turns of a conversation."""
    return "\n".join(m["content"] for m in problem.messages if m["role"] == "user") or problem.prompt


def read_settings(text: str, task: str) -> dict[str, Any]:
    """`key=value,key=value` as a dict, each value read as YAML; commas within [...] separate nothing."""
    settings: dict[str, Any] = {}
    for assignment in re.split(r",(?![^\[]*\])", text) if text else []:
        key, equals, value = (piece.strip() for piece in assignment.partition("="))
        if not equals or not key or key in settings:
            raise InputError(
                f"cell.task: {task}: given {assignment!r}, expected key=value with every key once, as in low=2,high=40."
            )
        try:
            settings[key] = yaml.safe_load(value)
        except yaml.YAMLError as e:
            raise InputError(
                f"cell.task: {task}: the value of {assignment!r} is not YAML; write a number, text or [a, b]."
            ) from e
    return settings


def read_range(text: str, task: str, usual: tuple[int, int], largest: int) -> tuple[int, int]:
    """(low, high) of `low=2,high=40`, the `usual` ones where not given; 1 <= low <= high <= `largest`."""
    values: dict[str, Any] = {"low": usual[0], "high": usual[1], **read_settings(text, task)}
    low, high, *others = values.values()
    if others or type(low) is not int or type(high) is not int or not 1 <= low <= high <= largest:
        raise InputError(
            f"cell.task: {task}:{text}: expected integers 1 <= low <= high <= {largest}, such as"
            f" {task}:low={usual[0]},high={usual[1]}."
        )
    return low, high
