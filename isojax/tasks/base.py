"""What a task is. A task file has `build(...) -> Task`; the registry finds it by its file name."""

from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isojax import registry
from isojax.types import Problem


class Encoded(NamedTuple):
    """Problems as arrays: prompts i32[Q P] and answers i32[Q T] (with the end token), right-padded; prompt lengths i32[Q]; ids i32[Q]."""

    prompts: np.ndarray
    lengths: np.ndarray
    answers: np.ndarray
    ids: np.ndarray


class Task(Protocol):
    """A problem source with a verifier that runs on device.

    Attributes:
        vocab: size of the vocabulary. eos: the token that ends a response. pad: the token that fills.
    """

    vocab: int
    eos: int
    pad: int

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` distinct problems."""
        ...

    def encode(self, problems: list[Problem], prompt_length: int, response_length: int) -> Encoded:
        """Problems as arrays of fixed width; InputError where one does not fit."""
        ...

    def decode(self, tokens: np.ndarray) -> str:
        """Tokens as text, up to the end token."""
        ...

    def demonstrations(self, count: int, rng: np.random.Generator, prompt_length: int, response_length: int) -> Encoded:
        """What the base policy is trained to imitate."""
        ...

    def verify(self, answers: Int[Array, "*b T"], tokens: Int[Array, "*b T"], mask: Bool[Array, "*b T"]) -> Float[Array, "*b"]:
        """Rewards 0 or 1, computed on device."""
        ...


def build_task(text: str) -> Task:
    """The task of `cell.task`: a name, or name:argument where the task takes one (`solvers:ABCG`)."""
    name, _, argument = text.partition(":")
    module = registry.load("tasks", name, "build")
    return module.build(argument) if argument else module.build()
