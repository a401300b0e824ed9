"""Verifiers judge responses correct or not: one file each, which runs in small processes and imports little.

A verifier's file has

    ISOLATED: bool                   whether its checks may hang, crash or exhaust memory; they then run in workers
    PURE: bool                       whether a verdict depends on problem and response only; equal ones are checked once
    build(argument: str) -> Check    makes the check, from the text after the colon of `cell.verifier.use`; in the
                                     worker where ISOLATED

InputError from `build`, or from a check whose problem cannot be judged at all, ends the run with its message. Whatever
else an isolated check raises costs its own rollout only; a check that is not isolated must raise nothing else.
"""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from isojax.core.errors import InputError
from isojax.core.nouns import Problem


class Verdict(NamedTuple):
    """What a check says of one response."""

    correct: bool  # reward 1, else 0
    parsed: bool  # an answer was found in the response, correct or not
    failure: str = ""  # no plain verdict: partial, error, memory, machine, timeout, crash, forged
    message: str = ""  # what happened, in one line


Check = Callable[[Problem, str, str], Verdict]  # (problem, the prompt template filled in, response)


def refuse_argument(verifier: str, argument: str) -> None:
    """InputError where a verifier that takes no argument is given one."""
    if argument:
        raise InputError(f"cell.verifier.use: {verifier} takes no argument, given {argument!r}; write {verifier}.")


def describe_exception(error: BaseException) -> str:
    """An exception in one line: where it was raised, and its message (at most 500 characters)."""
    text = " ".join(traceback.format_exception_only(error)[-1].split())
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {text}"[:500]
    frames = traceback.extract_tb(error.__traceback__)
    return (f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {text}" if frames else text)[:500]
