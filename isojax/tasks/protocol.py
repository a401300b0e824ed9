"""What a task is: problems, how they are written as tokens, what ends a response or interrupts it,
and how it is verified.

A file in tasks/device/ has `build(argument="") -> DeviceTask`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from isojax.core.nouns import Problem

FINISHED_KINDS = ("partial",)  # of failures: those of checks that ended with a verdict


class EncodedProblems(NamedTuple):
    """Problems as arrays, texts right-padded."""

    prompts: np.ndarray  # i32[Q P]
    prompt_lengths: np.ndarray  # i32[Q]
    answers: np.ndarray  # i32[Q T], with the end token; T = 0 where the host verifies
    ids: np.ndarray  # i32[Q]


class TokenizedProblems(NamedTuple):
    """Problems with their arrays."""

    problems: list[Problem]
    arrays: EncodedProblems

    def select(self, rows: Sequence[int]) -> "TokenizedProblems":
        """The problems of some rows, in that order."""
        arrays = EncodedProblems(*(x[list(rows)] for x in self.arrays))
        return TokenizedProblems([self.problems[i] for i in rows], arrays)


@dataclass(frozen=True)
class Interruption:
    """A response of `after` tokens, none of them `unless_token`, gets `tokens` next
    (sampling/slots.py)."""

    after: int
    tokens: tuple[int, ...]
    unless_token: int | None  # None: every response is interrupted


# reply(answers i32[R A], tokens i32[R T], lengths i32[R]) -> (context i32[R K], counts i32[R])
#
# What each of R responses gets after a turn, the first `counts` tokens of a row; 0: the response is
# done. It is computed for every slot at every token, in the compiled program, and read where a turn
# has just ended. K is static.
DeviceReply = Callable[[Array, Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class StopConditions:
    """A response ends with a token of `tokens`, or with the one that completes a stop string.

    Stop strings are found by an automaton that begins in state 0: `transitions[state, token]`,
    uint8 or uint16 [states, V], is the next state, and the value `states` is a complete stop
    string; None where there is no stop string.

    In a task of turns the stop conditions end a turn, and the task replies or ends the response.
    """

    tokens: tuple[int, ...]
    transitions: np.ndarray | None
    interruption: Interruption | None = None  # of a response that goes on for too long
    reply: DeviceReply | None = None  # of a task of turns that is verified on device
    host_replies: bool = False  # whether the host replies, between chunks (sampling/stream.py)

    @property
    def has_turns(self) -> bool:
        return self.reply is not None or self.host_replies

    @property
    def adds_context(self) -> bool:
        """Whether a response may hold tokens that the policy did not draw."""
        return self.interruption is not None or self.has_turns


class Grades(NamedTuple):
    """What a verifier says of r responses."""

    rewards: np.ndarray  # f32[r], 0 or 1; graded: from 0 to 1
    parsed: np.ndarray  # bool[r], an answer was found in the response, correct or not
    failures: dict[str, int]  # checks without a plain verdict, by kind: those of `Verdict.failure`
    scores: Mapping[str, np.ndarray] = MappingProxyType({})  # f32[r] of each score in graded ones
    empty: int = 0  # responses without any text
    # Of a task of turns: its replies, and those of `failures` that are a reply's.
    replies: int = 0
    reply_failures: Mapping[str, int] = MappingProxyType({})

    @property
    def failed_checks(self) -> Counter[str]:
        """The checks that did not end with a verdict, by kind."""
        unfinished = {
            kind: count for kind, count in self.failures.items() if kind not in FINISHED_KINDS
        }
        return Counter(unfinished) - Counter(self.reply_failures)


class TurnReplies(NamedTuple):
    """What a task of turns replies to responses whose turn has ended."""

    contexts: list[np.ndarray]  # i32[K] for each response, of no tokens where it is done
    failures: Mapping[str, int]  # of replies, by kind; such a response is done


def count_unfinished(failures: Mapping[str, int]) -> int:
    """Checks that did not end with a verdict; a score between 0 and 1 (`partial`) is not among
    them."""
    return sum(count for kind, count in failures.items() if kind not in FINISHED_KINDS)


class DeviceTask(Protocol):
    """A problem source with a verifier that runs on device."""

    on_device: ClassVar[Literal[True]]
    vocab: int  # size of the vocabulary
    eos: int  # the token that ends a response
    stops: StopConditions  # the same, as the sampler takes it; a task of turns has its `reply` here
    pad: int  # the token that pads prompts and responses

    def problems(self, count: int, rng: np.random.Generator) -> list[Problem]:
        """`count` distinct problems."""
        ...

    def encode(
        self, problems: list[Problem], prompt_length: int, response_length: int
    ) -> EncodedProblems:
        """Problems as arrays of fixed width; InputError where one does not fit."""
        ...

    def decode(self, tokens: np.ndarray) -> str:
        """Tokens as text, up to the end token; of a task of turns whole, with context as ~token
        (tasks/turns.py)."""
        ...

    def demonstrations(
        self, count: int, rng: np.random.Generator, prompt_length: int, response_length: int
    ) -> EncodedProblems:
        """What the base policy is trained to imitate, as the `answers` to `prompts`; context, as
        ~token, is not imitated."""
        ...

    def verify(
        self, answers: Int[Array, "*b T"], tokens: Int[Array, "*b T"], mask: Bool[Array, "*b T"]
    ) -> Float[Array, "*b"]:
        """Rewards 0 or 1 (graded: from 0 to 1), computed on device. Tokens are plain (context is
        not marked); `mask` is True where a response has a token, context too. The axes *b are any,
        such as problems and rollouts; answers are those of `encode`."""
        ...
