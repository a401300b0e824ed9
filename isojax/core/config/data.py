"""`cell.data`, `cell.prompt` and `cell.verifier`: which problems, how they are written, and how answers are checked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from isojax.core.config.section import Fraction, Section

PANEL = "panel"  # the name of the training problems that every evaluation includes
RESERVED_NAMES = ("train", "verl", PANEL)  # what opens a metric's name and is no set of a user's


class DataConfig(Section):
    """Which problems a run trains and validates on.

    At most `candidates` problems are labelled by the base policy's avg@`attempts` (0: none are, and none are left out);
    those inside
    `difficulty` (both ends included) are split into `validation` held-out problems and the rest for training.
    `held_out`: a task string of which `validation` problems, a random choice, are held out instead. `mixture`: the
    parts of a labelled data set (`isojax difficulty`) and their shares of the training set, such as {hard: 0.5, easy:
    0.5}; the held-out problems of the part with the largest share validate (of equal shares, of the first by name).
    `size`: D, how many problems to train on at most. `prompt_key`, `answer_key`: columns of a file; null finds the
    usual names.
    """

    candidates: PositiveInt = 6000
    attempts: Annotated[int, Field(ge=0)] = 16
    difficulty: tuple[Fraction, Fraction] = (0.0, 0.61)
    validation: PositiveInt = 300
    held_out: str | None = None
    mixture: dict[str, PositiveFloat] | None = None
    size: PositiveInt | None = None
    prompt_key: str | None = None
    answer_key: str | None = None
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


class PromptConfig(Section):
    """How a problem becomes text for a language model.

    raw: `template` with the problem in the place of {prompt}. chat: the same as a user's message, after `system` where
    there is one, through the tokenizer's chat template; `thinking` is passed to templates that know it (Qwen3). `stop`:
    strings that end a response.
    """

    format: Literal["raw", "chat"] = "raw"
    template: str = "{prompt}"
    system: str = ""
    thinking: bool | None = None
    stop: tuple[str, ...] = ()


class VerifierConfig(Section):
    """How a response in text is judged right or wrong.

    `use` names a file in isojax/tasks/verifiers/, with an argument after a colon where it takes one
    (`function:rewards.py:my_reward`). A check that takes over `timeout` seconds or `memory_gb`, or ends its process,
    costs its own rollout alone: reward 0, and counted.
    """

    use: str = "math"
    timeout: PositiveFloat = 5.0
    memory_gb: PositiveFloat = 4.0
