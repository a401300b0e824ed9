"""`integer`: correct where the response is one integer, the answer's: for short arithmetic, "12+7=" -> " 19".

The response is the integer and nothing else but space around it: an optional sign, digits, commas between thousands or
none.
"""

import re

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.verifiers import Check, Verdict

ISOLATED, PURE = False, True

# 1 to 400 digits: int() refuses texts beyond a few thousand.
_INTEGER = re.compile(r"\s*([+\-\u2212]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,132}|[0-9]{1,400}))\s*")


def build(argument: str) -> Check:
    """The check; InputError where an argument is given."""
    if argument:
        raise InputError(f"cell.verifier.use: integer takes no argument, given {argument!r}; write integer.")
    return check


def check(problem: Problem, prompt: str, response: str) -> Verdict:
    """Correct where the response is the answer's integer; parsed where it is an integer.

    Raises:
        InputError: the problem's own answer is no integer.
    """
    reference_integer, response_integer = _parse_integer(problem.answer), _parse_integer(response)
    if reference_integer is None:
        raise InputError(
            f"problem {problem.id}: the verifier `integer` expects an integer as answer, given {problem.answer[:80]!r};"
            " correct the problem, or set cell.verifier.use to another, such as math or exact."
        )
    return Verdict(response_integer == reference_integer, response_integer is not None)


def _parse_integer(text: str) -> int | None:
    match = _INTEGER.fullmatch(text)
    return int(match[1].replace(",", "").replace("\u2212", "-")) if match else None
