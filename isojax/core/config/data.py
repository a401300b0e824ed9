"""Problems, their text, checks of answers, and rewards.

These are `cell.data`, `cell.prompt`, `cell.verifier` and `cell.reward`.
"""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from isojax.core.config.section import (
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    TaskName,
    Text,
    VerifierName,
)
from isojax.core.errors import InputError
from isojax.core.limits import MAX_SETTING
from isojax.core.nouns import MAIN_SCORE

PANEL = "panel"  # the name of the training problems that every evaluation includes
RESERVED_NAMES = ("train", "verl", PANEL)  # prefixes of metric names that no set of a user may have


def check_names(names: Iterable[str], kind: str, reserved: Sequence[str] = ()) -> None:
    """Raise where a name cannot be a part of a metric's or a folder's name, or is reserved."""
    for name in names:
        if name in reserved or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
            others = f", other than {', '.join(reserved)}" if reserved else ""
            rule = (
                f"names of letters, digits, '.', '_' and '-', at most 100{others}. "
                f"Rename the {kind} {name!r}"
            )
            raise PydanticCustomError("name", "{rule}", {"rule": rule})


class DataConfig(Section):
    """The problems of training and of validation."""

    # at most so many problems are read and labelled by the base policy
    candidates: PositiveInt = 6000
    attempts: NonNegativeInt = 16  # k of the label avg@k; 0: no labels, and no problem is left out
    # the lowest and the highest avg@k to train on; high is easy
    difficulty: tuple[Fraction, Fraction] = (0.0, 0.61)
    validation: PositiveInt = 300  # how many problems are held out
    # a task string whose problems, a random choice, are held out instead
    held_out: TaskName | None = None
    # The parts of a labelled data set (`isojax difficulty`) and their shares of the training set:
    # {hard: 1, easy: 1}. The held-out problems of the part with the largest share validate (of
    # equal shares, of the first by name).
    mixture: dict[str, PositiveFloat] | None = None
    size: PositiveInt | None = None  # D, how many problems to train on at most
    # the column of a file with the prompt; null finds the usual names
    prompt_key: Text | None = None
    answer_key: Text | None = None  # the column with the answer; null finds the usual names
    seed: int = Field(default=0, ge=0, le=2**31 - 1)  # of the choice of problems and of the labels


class PromptConfig(Section):
    """How a problem becomes text for a language model."""

    # raw: the template alone; chat: the template as a user's message, through the tokenizer's chat
    # template.
    format: Literal["raw", "chat"] = "raw"
    template: Text = "{prompt}"  # text with the problem in place of {prompt}
    system: Text = ""  # the system message of a chat; empty: none
    thinking: bool | None = None  # passed to chat templates that have such a switch (Qwen3)
    stop: tuple[Text, ...] = ()  # strings that end a response
    # The date for chat templates that ask for today's, such as 2026-11-29, or with a time as
    # 2026-11-29T14:05; null: the day on which the sweep is planned, which is stored with it.
    date: Text | None = None

    @field_validator("date", mode="before")
    @classmethod
    def _check_date(cls, value: Any) -> str | None:
        """A day as text; YAML reads one that is not quoted as a date."""
        text = value.isoformat() if isinstance(value, datetime.date) else value
        try:
            if text is not None:
                datetime.datetime.fromisoformat(text)
        except (TypeError, ValueError) as e:
            raise PydanticCustomError(
                "date", "a day such as 2026-11-29, or with a time as 2026-11-29T14:05"
            ) from e
        return text


class VerifierConfig(Section):
    """How a response in text is judged. A check that fails costs its own rollout only: reward 0,
    and counted."""

    # A file in isojax/tasks/verifiers/, with an argument after a colon (`function:FILE:FUNCTION`);
    # for graded rewards also several, by the names of their scores: {accuracy: math, format:
    # function:FILE:FUNCTION}.
    use: VerifierName | dict[str, VerifierName] = "math"
    timeout: PositiveFloat = 5.0  # seconds for one check
    memory_gib: PositiveFloat = 4.0  # that a process of checks may write to

    @field_validator("use", mode="before")
    @classmethod
    def _check_use(cls, use: Any) -> str | dict[str, str]:
        if isinstance(use, str):
            return use

        is_map = isinstance(use, dict) and len(use) > 0
        if not is_map or not all(isinstance(text, str) for item in use.items() for text in item):
            raise PydanticCustomError(
                "verifier", "a verifier such as math, or several as in {accuracy: math}"
            )
        check_names(use, "score")
        return use


class RewardConfig(Section):
    """How a verdict becomes the reward of a rollout."""

    # binary: 1 where the response is correct, else 0. graded: the verifier's score, a number from 0
    # to 1, or the weighted mean of several.
    kind: Literal["binary", "graded"] = "binary"
    # The scores that count in a graded reward, and how much, as in {accuracy: 1.0, format: 0.2};
    # each is a metric too, reward/NAME, and one of weight 0 is nothing else. Null: `score`, or all
    # verifiers of cell.verifier.use alike.
    weights: dict[str, float] | None = None

    @field_validator("weights")
    @classmethod
    def _check_weights(cls, weights: dict[str, float] | None) -> dict[str, float] | None:
        if weights is None:
            return None

        values = sorted(weights.values())
        if not (values and values[0] >= 0 and 0 < values[-1] <= MAX_SETTING):
            rule = (
                f"weights from 0 to {MAX_SETTING:,}, not all 0, "
                "so that rewards stay from 0 to 1 (a penalty p is a score of 1 - p)"
            )
            raise PydanticCustomError("weights", "{rule}", {"rule": rule})
        check_names(weights, "score")
        return weights


def score_weights(verifier: VerifierConfig, reward: RewardConfig) -> Mapping[str, float]:
    """The weight of each score in a graded reward, such as {"answer": 0.9, "format": 0.1}.

    {} where rewards are binary. Without `reward.weights` each score has 1; a single verifier's
    score is called "score" (MAIN_SCORE) unless the weights name others. InputError where the
    sections do not fit.
    """
    # Of several, the verifier of each score: {"answer": "math", ...}; of a single one, nothing.
    verifiers = {} if isinstance(verifier.use, str) else verifier.use
    if reward.kind == "binary":
        _check_binary(verifiers, reward)
        return {}

    weights = reward.weights or dict.fromkeys(verifiers or [MAIN_SCORE], 1.0)
    if verifiers and set(weights) != set(verifiers):
        raise InputError(
            where="cell.reward.weights",
            found=(
                f"weights of {', '.join(weights)}, "
                f"and cell.verifier.use names {', '.join(verifiers)}"
            ),
            expected="a weight for each of these, 0 for one that is recorded only",
        )
    # Sorted, so that the sum, like the hash, does not depend on the order in the config.
    return dict(sorted(weights.items()))


def _check_binary(verifiers: Mapping[str, str], reward: RewardConfig) -> None:
    """InputError where there are scores to weigh, and rewards have no place for them."""
    if verifiers:
        setting = f"cell.verifier.use = {verifiers}"
    elif reward.weights:
        setting = f"cell.reward.weights = {reward.weights}"
    else:
        return
    raise InputError(
        where=setting,
        found="weighs several scores, and rewards are binary",
        fix="Set cell.reward.kind=graded.",
    )
