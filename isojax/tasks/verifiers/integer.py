"""`integer`: correct where the response is the answer's integer and nothing else: "12+7=" -> " 19".

`integer:last_line`: where its last line is, as in a task of turns.
"""

import re

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.verifiers import Check, Verdict, verifier

# An optional sign, commas between thousands or none; 1 to 400 digits: int() refuses texts beyond a
# few thousand.
_INTEGER = re.compile(r"\s*([+\-\u2212]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,132}|[0-9]{1,400}))\s*")


@verifier(isolated=False, pure=True)
def build(argument: str) -> Check:
    """The check; InputError where another argument than last_line is given."""
    if argument == "last_line":
        return check_last_line
    if argument:
        raise InputError(
            where="cell.verifier.use",
            found=f"integer takes no argument but last_line, given {argument!r}",
        )
    return check


def check(problem: Problem, prompt: str, response: str) -> Verdict:
    """Correct where the response is the integer of the problem's answer, parsed where it is an
    integer; InputError where the problem's own answer is none. "1,234" and " +7 " are integers."""
    reference_integer = _parse_integer(problem.answer)
    response_integer = _parse_integer(response)
    if reference_integer is None:
        raise InputError(
            where=problem.name,
            found=(
                "the verifier `integer` expects an integer as answer, given "
                f"{problem.answer[:80]!r}"
            ),
            fix="Set cell.verifier.use to another, such as math or exact.",
        )
    is_correct = response_integer == reference_integer
    return Verdict(is_correct, parsed=response_integer is not None)


def check_last_line(problem: Problem, prompt: str, response: str) -> Verdict:
    """As `check`, of the response's last line."""
    return check(problem, prompt, response.rpartition("\n")[2])


def _parse_integer(text: str) -> int | None:
    """The integer that is the whole text but for white space; None for any other text. U+2212 is
    the minus sign of typeset texts."""
    match = _INTEGER.fullmatch(text)
    return int(match[1].replace(",", "").replace("\u2212", "-")) if match else None
