"""`cell.data`, `cell.prompt` and `cell.verifier`: which problems, how they are written, and how answers are checked."""

from typing import Literal

from pydantic import Field

from isojax.core.config.section import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, Section

PANEL = "panel"  # the name of the training problems that every evaluation includes
RESERVED_NAMES = ("train", "verl", PANEL)  # prefixes of metric names that no set of a user may have


class DataConfig(Section):
    """The problems of training and of validation."""

    candidates: PositiveInt = 6000  # at most so many problems are read and labelled by the base policy
    attempts: NonNegativeInt = 16  # k of the label avg@k; 0: no labels, and no problem is left out
    difficulty: tuple[Fraction, Fraction] = (0.0, 0.61)  # the lowest and the highest avg@k to train on; high is easy
    validation: PositiveInt = 300  # how many problems are held out
    held_out: str | None = None  # a task string whose problems, a random choice, are held out instead
    # The parts of a labelled data set (`isojax difficulty`) and their shares of the training set, such as
    # {hard: 0.5, easy: 0.5}. The held-out problems of the part with the largest share validate (of equal shares, of the
    # first by name).
    mixture: dict[str, PositiveFloat] | None = None
    size: PositiveInt | None = None  # D, how many problems to train on at most
    prompt_key: str | None = None  # the column of a file with the prompt; null finds the usual names
    answer_key: str | None = None  # the column with the answer; null finds the usual names
    seed: int = Field(default=0, ge=0, le=2**31 - 1)  # of the choice of problems and of the labels


class PromptConfig(Section):
    """How a problem becomes text for a language model."""

    # raw: the template alone; chat: the template as a user's message, through the tokenizer's chat template.
    format: Literal["raw", "chat"] = "raw"
    template: str = "{prompt}"  # text with the problem in place of {prompt}
    system: str = ""  # the system message of a chat; empty: none
    thinking: bool | None = None  # passed to chat templates that have such a switch (Qwen3)
    stop: tuple[str, ...] = ()  # strings that end a response


class VerifierConfig(Section):
    """How a response in text is judged. A check that fails costs its own rollout only: reward 0, and counted."""

    use: str = "math"  # a file in isojax/tasks/verifiers/, with an argument after a colon (`function:FILE:FUNCTION`)
    timeout: PositiveFloat = 5.0  # seconds for one check
    memory_gb: PositiveFloat = 4.0  # GiB that a process of checks may write to
