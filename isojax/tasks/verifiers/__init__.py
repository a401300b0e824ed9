"""What judges a response right or wrong: one file a verifier. No jax here: these run in small processes of their own.

A verifier's file has

    ISOLATED: bool                           whether its checks may hang, crash or eat memory: then they run in worker
    processes
    PURE: bool                               whether a verdict hangs on problem and response alone: then equal ones are
    checked once
    build(argument: str) -> Check            from what stands after the colon of `cell.verifier.use`; in the worker
    where ISOLATED

InputError from `build`, or from a check whose problem cannot be judged at all, ends the run with its message. Whatever
else an isolated check raises costs its own rollout alone; one that is not isolated is to raise nothing else.
"""

from collections.abc import Callable
from typing import NamedTuple

from isojax.core.nouns import Problem


class Verdict(NamedTuple):
    """What a check says of one response.

    Attributes:
        right: reward 1, else 0.
        answered: an answer was found in the response, right or wrong.
        failure: why there is no plain verdict: partial, error, memory, timeout, crash; empty where there is one.
        message: what happened, in a line.
    """

    correct: bool
    parsed: bool
    failure: str = ""
    message: str = ""


Check = Callable[[Problem, str, str], Verdict]  # (problem, its prompt as the model saw it, response)
