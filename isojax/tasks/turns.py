"""Responses of several turns: the policy's own tokens, and context, the task's replies, which the
policy did not draw. In arrays a context token is written as ~token, which is negative.

This module is also a verifier, named isojax.tasks.turns:TASK, which calls a text task's `reply` in
the worker processes of a Checker.
"""

import inspect
import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from isojax.core.config import CellConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.sources import source
from isojax.tasks.verifiers import Check, Verdict, verifier

EXPECTED_REPLY = "expected reply(problem, turns) -> a text, or None where the response is done"
# Verifiers that compare a whole response, replies too, with the answer.
WHOLE_RESPONSE = {"exact", "integer"}
MAX_REPLY_CHARACTERS = 2000  # check_process.py cuts longer messages

TokenArray = TypeVar("TokenArray")


def plain_tokens(tokens: TokenArray) -> TokenArray:
    """Token ids i32[...], where context is written as ~token, which is negative."""
    return tokens ^ (tokens >> 31)  # type: ignore[operator]


def split_turns(tokens: np.ndarray) -> list[np.ndarray]:
    """A response i32[t], context as ~token, in its turns: the policy's first, the task's reply, and
    so on."""
    return np.split(tokens, np.flatnonzero(np.diff(tokens < 0)) + 1)


@verifier(isolated=True, pure=True)
def build(argument: str) -> Check:
    """A check that computes the reply of the task `argument`, such as "calculator". Its `response`
    is a JSON list of the turns so far, texts; the verdict's message is the reply if `parsed`,
    otherwise the response is done. Its prompt is not used."""
    reply = source.load(argument).traits.reply
    assert reply is not None, "find_reply names tasks that reply"

    def check(problem: Problem, prompt: str, response: str) -> Verdict:
        """The verdict with the reply as its message; what it raises is a failure of the reply."""
        text = reply(problem, json.loads(response))
        if text is not None and not isinstance(text, str):
            raise TypeError(f"reply returned a {type(text).__name__}, expected text or None")
        if text is not None and len(text) > MAX_REPLY_CHARACTERS:
            raise ValueError(
                f"reply returned {len(text)} characters, expected at most {MAX_REPLY_CHARACTERS}"
            )
        return Verdict(correct=True, parsed=text is not None, message=text or "")

    return check


def find_reply(task: str) -> str | None:
    """The verifier that replies for a text task NAME or NAME:ARGUMENT, such as
    "isojax.tasks.turns:calculator"; None where it has no `reply`. InputError where the task's
    `reply` does not take (problem, turns)."""
    # `reply` is the same for every ARGUMENT: what it needs of a problem it is given.
    name = task.partition(":")[0]
    reply = source.load(name).traits.reply
    if reply is None:
        return None
    try:
        inspect.signature(reply).bind(None, [])
    except TypeError as e:
        raise InputError(
            where=f"cell.task = {name}",
            found=f"its reply takes other arguments ({e}); {EXPECTED_REPLY}",
        ) from e
    return f"{__name__}:{name}"


def describe_turns(cell: CellConfig) -> str:
    """What a plan says of a task of turns, in a line."""
    room = f"replies take a part of cell.sampling.response_length = {cell.sampling.response_length}"
    use = cell.verifier.use
    uses = {use} if isinstance(use, str) else set(use.values())
    whole = ", ".join(sorted(uses & WHOLE_RESPONSE))
    warning = ""
    if whole:
        warning = (
            f"; warning: {whole} calls a response wrong that has a reply: it expects the answer and"
            f" nothing else"
        )
    return f"turns: {cell.task} replies after a turn; {room}{warning}"


def check_device_reply(task: str, reply: Callable[..., Any], response_length: int) -> None:
    """InputError unless the reply function of a task on device can be traced by JAX and gives
    arrays of the right shapes (protocol.py: DeviceReply). task: its name, for messages; reply: its
    StopConditions.reply; response_length: T."""
    R = 3  # any number of responses
    rows = jax.ShapeDtypeStruct((R, response_length), "int32")
    lengths = jax.ShapeDtypeStruct((R,), "int32")
    expected = (
        "reply(answers i32[R A], tokens i32[R T], lengths i32[R])"
        " -> (context i32[R K], counts i32[R] up to K)"
    )

    problem = ""
    # Answers have rows of T too: they are padded like responses (EncodedProblems.answers).
    try:
        context, counts = jax.eval_shape(reply, rows, rows, lengths)
        if not context.shape[:-1] == counts.shape == (R,):
            problem = f"for R = 3 {context.shape} and {counts.shape}"
    except Exception as e:  # whatever a user's own function raises
        first_line, _, _ = str(e).strip().partition("\n")
        problem = f"{type(e).__name__}: {first_line.rstrip('.')}"
    if problem:
        raise InputError(
            where=f"cell.task = {task}",
            found=f"its reply: {problem}",
            expected=f"{expected}, with no `if` on a value",
        )
